"""What a user has, read as a stream of examples in constant memory."""

from collections.abc import Callable
from pathlib import Path

from bype.data.sources.arrays import open_arrays
from bype.data.sources.base import Chunk, DifferentSizesError, Pool, Source, SourceError, SourceOptions
from bype.data.sources.cifar import is_cifar_folder, open_cifar
from bype.data.sources.hub import PREFIX, open_hub
from bype.data.sources.idx import is_idx_folder, open_idx
from bype.data.sources.images import open_images
from bype.data.sources.parquet import is_parquet_folder, open_parquet
from bype.data.sources.table import open_table

__all__ = ["Chunk", "DifferentSizesError", "Pool", "Source", "SourceError", "SourceOptions", "open_source"]

_BY_SUFFIX: dict[str, Callable[[Path, SourceOptions], Source]] = {
    ".npy": open_arrays,
    ".npz": open_arrays,
    ".csv": open_table,
    ".parquet": open_parquet,
}


def open_source(source: Path | str, options: SourceOptions) -> Source:
    """Recognise what ``source`` names, a path or a data set on the hub, and open it."""
    if str(source).startswith(PREFIX):
        return open_hub(str(source), options)
    path = Path(source)
    if path.is_dir():
        if is_idx_folder(path):
            return open_idx(path, options)
        if is_cifar_folder(path):
            return open_cifar(path, options)
        return open_parquet(path, options) if is_parquet_folder(path) else open_images(path, options)
    if not path.exists():
        raise SourceError(f"{path} does not exist")
    if path.suffix not in _BY_SUFFIX:
        raise SourceError(
            f"{path} is of no kind that is known here; give a folder of images, a folder with the files of MNIST or "
            f"CIFAR-10, a file ending in {', '.join(_BY_SUFFIX)}, or hf:OWNER/NAME@REVISION"
        )
    return _BY_SUFFIX[path.suffix](path, options)
