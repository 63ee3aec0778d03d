"""Plates: many images in one picture."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_GAP = 2


def is_image_shape(shape: Sequence[int]) -> bool:
    """Tell whether examples of this shape can be shown as images: (channels, height, width), grey or in colour."""
    return len(shape) == 3 and shape[0] in (1, 3)


def to_bytes(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """Turn pixels as a model sees them, (byte + 0.5) / 256, back into bytes; values out of range are clipped.

    Examples
    --------
    >>> to_bytes(np.array([-1.0, 0.5 / 256, 128.5 / 256, 255.5 / 256, 2.0])).tolist()
    [0, 0, 128, 255, 255]
    """
    return np.clip(np.floor(np.asarray(pixels, dtype=np.float64) * 256), 0, 255).astype(np.uint8)


def stored_to_bytes(rows: NDArray[Any]) -> NDArray[np.uint8]:
    """Return images as a store holds them in bytes: bytes stay as they are, floats in [0, 1] are turned into bytes.

    Examples
    --------
    >>> stored_to_bytes(np.array([0, 7, 255], dtype=np.uint8)).tolist()
    [0, 7, 255]
    >>> stored_to_bytes(np.array([0.0, 0.5, 1.0])).tolist()
    [0, 128, 255]
    """
    return rows if rows.dtype == np.uint8 else to_bytes(rows)


def plate(lines: Sequence[NDArray[np.uint8]], *, is_clear: bool = False) -> Image.Image:
    """Lay out images in lines, each (n, channels, height, width) in bytes; lines may differ in n.

    The ground is white, or clear: then a page shows through, be it light or dark.
    """
    channels, height, width = next(line.shape[1:] for line in lines if len(line))
    columns = max(len(line) for line in lines)
    size = (columns * (width + _GAP) - _GAP, len(lines) * (height + _GAP) - _GAP)
    mode = "L" if channels == 1 else "RGB"
    sheet = Image.new(mode + "A", size, (255,) * channels + (0,)) if is_clear else Image.new(mode, size, "white")
    for number, line in enumerate(lines):
        for column, pixels in enumerate(line):
            picture = Image.fromarray(pixels[0] if channels == 1 else pixels.transpose(1, 2, 0))
            sheet.paste(picture.convert(sheet.mode), (column * (width + _GAP), number * (height + _GAP)))
    return sheet


def grid(images: NDArray[np.uint8], columns: int, *, is_clear: bool = False) -> Image.Image:
    """Lay out images (n, channels, height, width) line by line, as ``plate`` does."""
    lines = [images[first : first + columns] for first in range(0, len(images), columns)]
    return plate(lines, is_clear=is_clear)


def png(picture: Image.Image, scale: int = 1) -> bytes:
    """Return a picture as a PNG file, each pixel ``scale`` times as large."""
    size = (picture.width * scale, picture.height * scale)
    buffer = io.BytesIO()
    picture.resize(size, Image.Resampling.NEAREST).save(buffer, "PNG")
    return buffer.getvalue()
