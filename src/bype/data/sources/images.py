"""A folder of images; folders inside it are classes."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from bype.data.sources.base import CHUNK_BYTES, Chunk, Pool, Source, SourceError, SourceOptions

_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm"}
_GREY_MODES = {"1", "L", "LA", "I", "I;16", "F"}


def open_images(folder: Path, options: SourceOptions) -> Source:
    """Open a folder of images. Without ``options.size`` all must have one size."""
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES and path.is_file())
    if not files:
        raise SourceError(f"{folder} holds no images ({', '.join(sorted(_SUFFIXES))})")
    class_of = {path: path.relative_to(folder).parts[0] for path in files if path.parent != folder}
    has_labels = len(class_of) == len(files)
    classes = tuple(sorted(set(class_of.values()))) if has_labels else ()

    skipped: list[str] = []
    readable: list[Path] = []
    is_grey = True
    sizes: dict[tuple[int, int], Path] = {}
    for path in files:
        looked = _look(path)
        if isinstance(looked, str):
            skipped.append(f"{path.relative_to(folder)}: {looked}")
            continue
        mode, size = looked
        readable.append(path)
        is_grey = is_grey and mode in _GREY_MODES
        sizes.setdefault(size, path)
        if len(sizes) > 1 and options.size is None:
            (one, first), (other, second) = sizes.items()
            raise SourceError(
                f"images have different sizes: {first.name} is {one[0]}x{one[1]}, {second.name} is "
                f"{other[0]}x{other[1]}; choose one with --size, for instance --size 64"
            )
    if not readable:
        raise SourceError(f"none of the {len(files)} images in {folder} can be read; the first: {skipped[0]}")
    channels = 1 if is_grey else 3
    width, height = (options.size, options.size) if options.size else next(iter(sizes))
    labels = {name: number for number, name in enumerate(classes)}

    def read() -> Iterator[tuple[NDArray[np.int64], Chunk]]:
        step = max(1, CHUNK_BYTES // (channels * height * width))
        for first in range(0, len(readable), step):
            positions, pixels, targets = [], [], []
            for position, path in enumerate(readable[first : first + step], start=first):
                image = _read_pixels(path, channels, options.size)
                if isinstance(image, str):
                    skipped.append(f"{path.relative_to(folder)}: {image}")
                    continue
                positions.append(position)
                pixels.append(image)
                targets.append(labels[class_of[path]] if has_labels else 0)
            if pixels:
                chunk = Chunk(np.stack(pixels), np.array(targets, dtype=np.int32) if has_labels else None)
                yield np.array(positions, dtype=np.int64), chunk

    pool = Pool(None, len(readable), read, validation=0.1, test=0.1)
    description = f"images in {folder.name}"
    return Source(description, (channels, height, width), "uint8", (pool,), has_labels, classes, skipped=skipped)


def _open(path: Path) -> Image.Image:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Pillow warns of images that would unpack to gigabytes
        return Image.open(path)


_UNREADABLE = (OSError, UnidentifiedImageError, SyntaxError, ValueError, Image.DecompressionBombError, Warning)


def _look(path: Path) -> tuple[str, tuple[int, int]] | str:
    """Return an image's mode and size as displayed, without unpacking it; or why it cannot be read."""
    try:
        with _open(path) as image:
            turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)
            mode = image.mode
            if mode in ("P", "PA"):
                mode = image.palette.mode if image.palette else "RGB"
            return mode, (image.size[1], image.size[0]) if turned else image.size
    except _UNREADABLE as error:
        return _reason(error)


def _read_pixels(path: Path, channels: int, size: int | None) -> NDArray[np.uint8] | str:
    """Return the pixels (channels, height, width), upright and on white; or why the image cannot be read."""
    try:
        with _open(path) as opened:
            image = ImageOps.exif_transpose(opened)
            if image.mode in ("I", "I;16", "F"):
                values = np.asarray(image, dtype=np.float64)
                scale = 255 / 65535 if image.mode != "F" and values.max() > 255 else 1.0
                image = Image.fromarray(np.clip(values * scale, 0, 255).astype(np.uint8))
            if "A" in image.getbands() or "transparency" in image.info:
                image = image.convert("RGBA")
                paper = Image.new("RGBA", image.size, "white")
                image = Image.alpha_composite(paper, image)
            image = image.convert("L" if channels == 1 else "RGB")
            if size is not None:
                image = ImageOps.fit(image, (size, size), Image.Resampling.LANCZOS)
            pixels = np.asarray(image, dtype=np.uint8)
    except _UNREADABLE as error:
        return _reason(error)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _reason(error: BaseException) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    return str(error) or type(error).__name__
