"""Opening a user's data as examples of the kind that a model was trained on."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bype.data.sources import Chunk, DifferentSizesError, Pool, Source, SourceOptions, open_source


def open_alike(place: Path | str, shape: tuple[int, ...], names: tuple[str, ...]) -> Source:
    """Open data, and bring them nearer to examples of ``shape`` where nothing is lost or guessed.

    Images get the size, and grey ones the three channels of coloured ones. If a table has one column more than
    ``names``, that column holds the labels. The result may still be of another kind: the caller checks it.
    """
    if len(shape) == 3:
        return _with_channels(_open_images(place, shape), shape[0])
    source = open_source(place, SourceOptions())
    unknown = [name for name in source.names if name not in names]
    if names and len(unknown) == 1 and len(source.names) == len(names) + 1:
        return open_source(place, SourceOptions(label=unknown[0]))
    return source


def _open_images(place: Path | str, shape: tuple[int, ...]) -> Source:
    size = shape[1] if shape[1] == shape[2] else None
    try:
        source = open_source(place, SourceOptions())
    except DifferentSizesError:
        if size is None:
            raise
        return open_source(place, SourceOptions(size=size))
    is_other = size is not None and len(source.shape) == 3 and source.shape[1:] != shape[1:]
    return open_source(place, SourceOptions(size=size)) if is_other else source


def _with_channels(source: Source, channels: int) -> Source:
    if len(source.shape) != 3 or source.shape[0] != 1 or channels == 1:
        return source

    def repeated(pool: Pool) -> Iterator[tuple[NDArray[np.int64], Chunk]]:
        for positions, chunk in pool.read():
            yield positions, chunk._replace(rows=chunk.rows.repeat(channels, axis=1))

    pools = tuple(replace(pool, read=lambda pool=pool: repeated(pool)) for pool in source.pools)  # type: ignore[misc]
    return replace(source, shape=(channels, *source.shape[1:]), pools=pools)
