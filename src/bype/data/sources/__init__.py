"""What a user has, read as a stream of examples in constant memory."""

from collections.abc import Callable
from pathlib import Path

from bype.data.sources.arrays import open_arrays
from bype.data.sources.base import Chunk, Pool, Source, SourceError, SourceOptions
from bype.data.sources.cifar import is_cifar_folder, open_cifar
from bype.data.sources.idx import is_idx_folder, open_idx
from bype.data.sources.images import open_images
from bype.data.sources.table import open_table

__all__ = ["Chunk", "Pool", "Source", "SourceError", "SourceOptions", "open_source"]

_BY_SUFFIX: dict[str, Callable[[Path, SourceOptions], Source]] = {
    ".npy": open_arrays,
    ".npz": open_arrays,
    ".csv": open_table,
}


def open_source(path: Path, options: SourceOptions) -> Source:
    """Recognise what lies at ``path`` and open it."""
    if path.is_dir():
        if is_idx_folder(path):
            return open_idx(path, options)
        if is_cifar_folder(path):
            return open_cifar(path, options)
        return open_images(path, options)
    if not path.exists():
        raise SourceError(f"{path} does not exist")
    if path.suffix not in _BY_SUFFIX:
        raise SourceError(
            f"{path} is of no kind that is known here; give a folder of images, a folder with the files of MNIST or "
            f"CIFAR-10, or a file ending in {', '.join(_BY_SUFFIX)}"
        )
    return _BY_SUFFIX[path.suffix](path, options)
