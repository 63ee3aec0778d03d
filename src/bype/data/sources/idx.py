"""The IDX files of MNIST and Fashion-MNIST, plain or compressed."""

import gzip
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from bype.data.files import name_of
from bype.data.sources.base import CHUNK_BYTES, Chunk, Pool, Source, SourceError, numbered

_NUM_VALIDATION = 10_000
_DIGITS = 10


def is_idx_folder(folder: Path) -> bool:
    """Tell whether a folder holds MNIST's training images; :func:`open_idx` requires the other three files."""
    return _find(folder, "train-images-idx3-ubyte") is not None


_DAMAGED = (OSError, EOFError, zlib.error)


def open_idx(folder: Path) -> Source:
    """Open MNIST's files: the last 10,000 training images become the validation split, as the authors do."""
    pools = []
    shapes = set()
    num_classes = _DIGITS
    for prefix, split in (("train", None), ("t10k", "test")):
        images, labels = (_require(folder, f"{prefix}-{kind}") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))
        num_images, height, width = _header(images, num_dimensions=3)
        (num_labels,) = _header(labels, num_dimensions=1)
        if num_images != num_labels:
            raise SourceError(f"{images} has {num_images} images, but {labels} has {num_labels} labels")
        shapes.add((1, height, width))
        num_classes = max(num_classes, _largest_label(labels) + 1)
        num_validation = min(_NUM_VALIDATION, num_images // 2) if split is None else 0
        pools.append(
            Pool(
                split,
                num_images,
                lambda images=images, labels=labels: numbered(_read(images, labels)),  # type: ignore[misc]
                validation=num_validation,
                shuffled=False,
            )
        )
    if len(shapes) > 1:
        raise SourceError(f"the images in {folder} have different sizes: {shapes}")
    classes = tuple(str(k) for k in range(num_classes))
    return Source(f"IDX files in {name_of(folder)}", shapes.pop(), "uint8", tuple(pools), True, classes)


def _find(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _require(folder: Path, name: str) -> Path:
    path = _find(folder, name)
    if path is None:
        raise SourceError(f"{folder} lacks {name} (or {name}.gz); download it, or copy it there")
    return path


def _open(path: Path) -> BinaryIO:
    return cast("BinaryIO", gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _header(path: Path, num_dimensions: int) -> tuple[int, ...]:
    try:
        with _open(path) as file:
            return _read_header(file, path, num_dimensions)
    except _DAMAGED as error:
        raise SourceError(f"cannot read {path}: {error}") from error


def _largest_label(path: Path) -> int:
    with _open(path) as file:
        (count,) = _read_header(file, path, 1)
        return max(_exactly(file, count, path), default=0)


def _read_header(file: BinaryIO, path: Path, num_dimensions: int) -> tuple[int, ...]:
    header = file.read(4 + 4 * num_dimensions)
    if len(header) != 4 + 4 * num_dimensions or header[:4] != bytes([0, 0, 8, num_dimensions]):
        raise SourceError(f"{path} is not an IDX file of bytes with {num_dimensions} dimensions")
    return struct.unpack(f">{num_dimensions}I", header[4:])


def _read(images: Path, labels: Path) -> Iterator[Chunk]:
    with _open(images) as image_file, _open(labels) as label_file:
        num_images, height, width = _read_header(image_file, images, 3)
        _read_header(label_file, labels, 1)
        step = max(1, CHUNK_BYTES // (height * width))
        for first in range(0, num_images, step):
            count = min(step, num_images - first)
            pixels = _exactly(image_file, count * height * width, images)
            targets = _exactly(label_file, count, labels)
            yield Chunk(
                np.frombuffer(pixels, np.uint8).reshape(count, 1, height, width),
                np.frombuffer(targets, np.uint8).astype(np.int32),
            )
        for file, path in ((image_file, images), (label_file, labels)):
            _require_end(file, path)


def _require_end(file: BinaryIO, path: Path) -> None:
    """Refuse a file that is too long. Where it ends, gzip compares the checksum."""
    try:
        is_end = not file.read(1)
    except _DAMAGED as error:
        raise SourceError(f"cannot read {path}: {error}; download it again") from error
    if not is_end:
        raise SourceError(f"{path} is longer than its header says; download it again")


def _exactly(file: BinaryIO, size: int, path: Path) -> bytes:
    try:
        content = file.read(size)
    except _DAMAGED as error:
        raise SourceError(f"cannot read {path}: {error}") from error
    if len(content) != size:
        raise SourceError(f"{path} ends too early: it was cut off; download it again")
    return content
