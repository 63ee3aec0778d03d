"""The binary batches of CIFAR-10."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bype.data.files import name_of
from bype.data.sources.base import Chunk, Pool, Source, SourceError, numbered

_SHAPE = (3, 32, 32)
_ROW_BYTES = 1 + 3 * 32 * 32
_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_NUM_VALIDATION = 10_000


def is_cifar_folder(folder: Path) -> bool:
    """Tell whether a folder holds the batches."""
    return (folder / "data_batch_1.bin").is_file()


def open_cifar(folder: Path) -> Source:
    """Open CIFAR-10's batches: 10,000 training images, drawn at random, become the validation split."""
    train = [folder / f"data_batch_{number}.bin" for number in range(1, 6)]  # other names may be copies
    test = [folder / "test_batch.bin"]
    pools = []
    for paths, split in ((train, None), (test, "test")):
        num_rows = sum(_count(path) for path in paths)
        num_validation = min(_NUM_VALIDATION, num_rows // 2) if split is None else 0
        pools.append(Pool(split, num_rows, lambda paths=paths: numbered(_read(paths)), validation=num_validation))  # type: ignore[misc]
    return Source(f"CIFAR-10 batches in {name_of(folder)}", _SHAPE, "uint8", tuple(pools), True, _CLASSES)


def _count(path: Path) -> int:
    if not path.is_file():
        raise SourceError(f"{path} is missing; download CIFAR-10 again")
    size = path.stat().st_size
    if size == 0 or size % _ROW_BYTES:
        raise SourceError(f"{path} is not a CIFAR-10 batch: its size is not a multiple of {_ROW_BYTES} bytes")
    return size // _ROW_BYTES


def _read(paths: list[Path]) -> Iterator[Chunk]:
    for path in paths:
        first = 0
        with path.open("rb") as file:
            while content := file.read(1000 * _ROW_BYTES):
                rows = np.frombuffer(content, np.uint8).reshape(-1, _ROW_BYTES)
                if (wrong := np.flatnonzero(rows[:, 0] >= len(_CLASSES))).size:
                    raise SourceError(f"{path}: row {first + wrong[0]} has a label above 9; download CIFAR-10 again")
                names = [f"{path.name} row {first + k}" for k in range(len(rows))]
                yield Chunk(rows[:, 1:].reshape(-1, *_SHAPE), rows[:, 0].astype(np.int32), names)
                first += len(rows)
