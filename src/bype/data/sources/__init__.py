"""A user's data, read as a stream of examples in constant memory."""

from collections.abc import Callable
from pathlib import Path

from bype.data.sources.arrays import open_arrays
from bype.data.sources.base import Chunk, DifferentSizesError, Pool, Source, SourceError, SourceOptions
from bype.data.sources.cifar import is_cifar_folder, open_cifar
from bype.data.sources.hub import PREFIX, open_hub
from bype.data.sources.idx import is_idx_folder, open_idx
from bype.data.sources.images import IMAGE_SUFFIXES, holds_images, open_images
from bype.data.sources.parquet import is_parquet_folder, open_parquet
from bype.data.sources.table import open_table
from bype.wording import did_you_mean

__all__ = ["Chunk", "DifferentSizesError", "Pool", "Source", "SourceError", "SourceOptions", "open_source", "resizes"]

_BY_SUFFIX: dict[str, Callable[[Path, SourceOptions], Source]] = {
    ".npy": open_arrays,
    ".npz": open_arrays,
    ".csv": open_table,
    ".csv.gz": open_table,
    ".tsv": open_table,
    ".tsv.gz": open_table,
    ".parquet": open_parquet,
    ".pq": open_parquet,
    **dict.fromkeys(IMAGE_SUFFIXES, open_images),
}
_RESIZING = open_images, open_parquet
"""What takes --size."""


def open_source(source: Path | str, options: SourceOptions) -> Source:
    """Recognise what ``source`` names, a path or a data set on the hub, and open it."""
    if options.size is not None and options.size < 1:
        raise SourceError(f"--size must be at least 1 pixel, not {options.size}")
    if str(source).startswith(PREFIX):
        return open_hub(str(source), options)
    path = Path(source)
    opener = _opener(path)
    if opener not in (open_table, open_parquet, open_arrays):
        _refuse(options.label, "--label", "tables; folders in a folder of images are its classes")
    if opener is open_arrays:
        _refuse(options.label, "--label", "tables; labels of arrays are in an array called y or labels")
    if opener not in _RESIZING:
        _refuse(options.size, "--size", "folders of images and columns of images; resize arrays yourself")
    return opener(path, options)


def resizes(source: Path | str) -> bool:
    """Tell whether images of this source can be brought to a size: those of arrays are taken as they are."""
    return str(source).startswith(PREFIX) or _opener(Path(source)) in _RESIZING


def _opener(path: Path) -> Callable[[Path, SourceOptions], Source]:
    if path.is_dir():
        if is_parquet_folder(path):
            if holds_images(path):
                raise SourceError(f"{path} holds images and parquet files; move one kind to a folder of its own")
            return open_parquet
        if is_idx_folder(path):
            return lambda path, _: open_idx(path)
        return (lambda path, _: open_cifar(path)) if is_cifar_folder(path) else open_images
    if not path.exists():
        beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise SourceError(
            f"{path} does not exist; give a folder of images, or a file of numbers{did_you_mean(path.name, beside)}"
        )
    ending = next((ending for ending in _BY_SUFFIX if path.name.lower().endswith(ending)), None)
    if ending is None:
        raise SourceError(
            f"{path} is of an unknown kind; give a folder of images, a folder with the files of MNIST or "
            f"CIFAR-10, a file ending in .npy, .npz, .csv, .tsv or .parquet, or hf:OWNER/NAME@REVISION"
        )
    return _BY_SUFFIX[ending]


def _refuse(value: object, flag: str, what_for: str) -> None:
    if value is not None:
        raise SourceError(f"{flag} is for {what_for}")
