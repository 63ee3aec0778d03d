"""Images in any format that Pillow reads, decoded to pixels of one size."""

import struct
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from bype.data.sources.base import (
    CHUNK_BYTES,
    Chunk,
    DifferentSizesError,
    Pool,
    Source,
    SourceError,
    SourceOptions,
    require_package,
    shares,
)

_NUMBERS = {"I", "I;16", "I;16B", "I;16L", "F"}
"""Modes of pixels that are no bytes."""
_GREY_MODES = {"1", "L", "LA", *_NUMBERS}
_NEARLY_BLACK = 20
"""White of 12 bits becomes byte 15 where white is 65535; resizing may make a pixel a little brighter."""
_FEW_COLOURED = 0.05
"""If fewer of the images are in colour, these may be strays: they make all images three times as large."""
_ALL_NEARLY_BLACK = (
    "the images have 16 bits and all are nearly black, because 65535 is taken for white; if white is 4095 (12 bits), "
    "multiply the pixels by 16 and prepare the images again"
)
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""How to bring an image upright, by its EXIF tag. Pillow's own function rewrites all tags, and fails at a bad one."""
_ORIENTATION, _TIFF_WIDTH, _TIFF_HEIGHT = 0x0112, 0x0100, 0x0101
_HEIC_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1"}
_FORMATS = ("PNG", "JPEG", "BMP", "DIB", "GIF", "TIFF", "WEBP", "AVIF", "JPEG2000", "PPM")
"""What Pillow may take a file for, whatever its name: it gives PostScript to a program that runs it."""
_UNREADABLE = (
    *(OSError, UnidentifiedImageError, SyntaxError, ValueError, RuntimeError, KeyError, struct.error),
    *(TypeError, AttributeError, IndexError, OverflowError),  # Pillow raises these of damaged files too
    *(Image.DecompressionBombError, Warning),
)


class ImageFile(NamedTuple):
    """An image that is not decoded yet."""

    name: str
    file: Path | BytesIO
    label: int


Pictures = Callable[[], Iterable[ImageFile]]
"""Starts to go through the images, always in the same order."""


def open_image_files(
    description: str,
    splits: Mapping[str | None, Pictures],
    options: SourceOptions,
    classes: tuple[str, ...],
    has_labels: bool,
) -> Source:
    """Look at all images, without decoding them, and open them as a source.

    Parameters
    ----------
    description
        Where they come from, for people.
    splits
        The images of each split; ``None`` for those that are to be divided.
    options
        Without a size or a shape, all images must have the same size.
    classes, has_labels
        The names of the labels, if there are any.
    """
    survey = _Survey(options)
    counts = {split: survey.count(split, pictures) for split, pictures in splits.items()}
    channels, height, width = survey.shape()
    size = (width, height) if survey.has_target else None

    def read(split: str | None) -> Iterator[tuple[NDArray[np.int64], Chunk]]:
        step = max(1, CHUNK_BYTES // (channels * height * width))
        positions: list[int] = []
        pixels: list[NDArray[np.uint8]] = []
        labels: list[int] = []
        names: list[str] = []
        brightest = 0

        def chunk() -> tuple[NDArray[np.int64], Chunk]:
            targets = np.array(labels, dtype=np.int32) if has_labels else None
            return np.array(positions, dtype=np.int64), Chunk(np.stack(pixels), targets, names)

        for position, picture in enumerate(splits[split]()):
            if (split, position) in survey.unreadable:
                continue
            image = _read_pixels(picture.file, channels, size)
            if isinstance(image, str):
                survey.skipped.append(f"{picture.name}: {image}")
                continue
            brightest = max(brightest, int(image.max()))
            positions.append(position)
            pixels.append(image)
            labels.append(picture.label)
            names.append(picture.name)
            if len(pixels) == step:
                yield chunk()
                positions, pixels, labels, names = [], [], [], []
        if pixels:
            yield chunk()
        survey.brightest[split] = brightest
        if len(survey.brightest) == len(splits):
            survey.note_darkness()

    pools = tuple(
        Pool(name, count, lambda split=split: read(split), *shares(splits, split))  # type: ignore[misc]
        for split, count in counts.items()
        for name in [None if split == "train" else split]
    )
    return Source(
        *(description, (channels, height, width), "uint8", pools, has_labels, classes),
        skipped=survey.skipped,
        notes=survey.notes,
    )


class _Survey:
    """What a first look at all images finds."""

    def __init__(self, options: SourceOptions) -> None:
        self._size, self._shape = options.size, options.shape
        self.has_target = options.size is not None or options.shape is not None
        self._sizes: dict[tuple[int, int], str] = {}
        self._num_coloured, self._first_coloured = 0, ""
        self._num_seen = 0
        self._num_stacks, self._first_stack = 0, ""
        self.has_many_bits = True
        """Whether the pixels of all images are whole numbers of 16 bits."""
        self.brightest: dict[str | None, int] = {}
        """The largest pixel of each split that has been read."""
        self.skipped: list[str] = []
        self.notes: list[str] = []
        self.unreadable: set[tuple[str | None, int]] = set()

    def count(self, split: str | None, pictures: Pictures) -> int:
        """Look at the images of a split and return how many there are."""
        number = 0
        for picture in pictures():
            number += 1
            looked = _look(picture.file)
            if isinstance(looked, str):
                self.skipped.append(f"{picture.name}: {looked}")
                self.unreadable.add((split, number - 1))
                continue
            mode, size, has_more_pages = looked
            if has_more_pages:
                self._num_stacks, self._first_stack = self._num_stacks + 1, self._first_stack or picture.name
            if mode not in _GREY_MODES:
                self._num_coloured += 1
                self._first_coloured = self._first_coloured or picture.name
            self.has_many_bits = self.has_many_bits and mode in _NUMBERS - {"F"}
            self._sizes.setdefault(size, picture.name)
            if len(self._sizes) > 1 and not self.has_target:
                (one, first), (other, second) = self._sizes.items()
                raise DifferentSizesError(f"{first} is {one[0]}x{one[1]}, {second} is {other[0]}x{other[1]}")
        self._num_seen += number
        return number

    def note_darkness(self) -> None:
        """Note it, once all splits are read, if their images hold fewer bits than they have room for."""
        is_dark = 0 < max(self.brightest.values()) <= _NEARLY_BLACK
        if self.has_many_bits and is_dark and _ALL_NEARLY_BLACK not in self.notes:
            self.notes.append(_ALL_NEARLY_BLACK)

    def shape(self) -> tuple[int, int, int]:
        """Return (channels, height, width)."""
        if not self._sizes:
            raise SourceError(f"none of the {self._num_seen} images can be read; the first: {self.skipped[0]}")
        if self._shape is not None and len(self._shape) == 3:
            channels, height, width = self._shape
            return channels, height, width
        width, height = (self._size, self._size) if self._size else next(iter(self._sizes))
        if self._num_stacks:
            self.notes.append(
                f"TIFF files have several pages ({self._num_stacks:,} of them, such as {self._first_stack}); only the "
                f"first page of each is taken; save each page as a file of its own if you want all"
            )
        if 0 < self._num_coloured < _FEW_COLOURED * self._num_seen:
            self.notes.append(
                f"few images are in colour ({self._num_coloured:,} of {self._num_seen:,}, such as "
                f"{self._first_coloured}), and they make all images ones in colour; if you do not want that, take them "
                f"out or make them grey"
            )
        return 3 if self._num_coloured else 1, height, width


def read_image_file(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return the pixels of an image file, cut and resized to ``shape``, (channels, height, width)."""
    channels, height, width = shape
    pixels = _read_pixels(path, channels, (width, height))
    if isinstance(pixels, str):
        raise SourceError(f"cannot read {path}: {pixels}")
    return pixels


def _open(file: Path | BytesIO) -> Image.Image:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # odd metadata do not hurt
        warnings.simplefilter("error", Image.DecompressionBombWarning)  # of images that decode to gigabytes
        try:
            return Image.open(file, formats=_formats())
        except UnidentifiedImageError:
            if not _is_heic(file):
                raise
        _learn_heic()
        return Image.open(file, formats=("HEIF",))


@cache
def _formats() -> tuple[str, ...]:
    """Return the formats that this version of Pillow reads."""
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def _is_heic(file: Path | BytesIO) -> bool:
    """Tell whether this is a photograph as telephones save it, by the first bytes."""
    if isinstance(file, BytesIO):
        start = file.getvalue()[:12]
    else:
        with file.open("rb") as opened:
            start = opened.read(12)
    return start[4:8] == b"ftyp" and start[8:12] in _HEIC_BRANDS


def _learn_heic() -> None:
    """Register the reader of HEIC files with Pillow; raise an error if its package is not installed."""
    require_package("pillow_heif")
    import pillow_heif

    pillow_heif.register_heif_opener()


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation of an image, a key of ``_TURNS``; 1 if it is upright or has no valid one."""
    if image.format == "PNG" and not {"exif", "Raw profile type exif"} & image.info.keys():
        return 1  # else Pillow decodes the whole image to search for it at the end
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd metadata do not hurt
            found = int(image.getexif().get(_ORIENTATION, 1))
    except (ValueError, TypeError, SyntaxError, OSError, struct.error):
        return 1
    return found if found in _TURNS else 1


def _look(file: Path | BytesIO) -> tuple[str, tuple[int, int], bool] | str:
    """Return an image's mode, its size as displayed, and whether it is a TIFF of several pages, without decoding it.

    Return why, if it cannot be read.
    """
    try:
        with _open(file) as image:
            turned = _orientation(image) in (5, 6, 7, 8)
            size, has_more_pages = image.size, False
            if isinstance(image, TiffImageFile):  # some versions of Pillow give the size as displayed, others do not
                size = image.tag_v2[_TIFF_WIDTH], image.tag_v2[_TIFF_HEIGHT]
                has_more_pages = image.tag_v2.next > 0  # where the second page is; it is not read, and may be damaged
            return _mode_of_pixels(image), (size[1], size[0]) if turned else size, has_more_pages
    except _UNREADABLE as error:
        return _reason(error)


def _mode_of_pixels(image: Image.Image) -> str:
    """Return the mode of an image; one with a palette is grey if all colours of the palette are."""
    if image.mode not in ("P", "PA"):
        return image.mode
    if image.palette is None:
        return "RGB"
    sample = Image.new("P", (1, 1))
    sample.putpalette(image.palette)
    colours = np.asarray(sample.getpalette("RGB")).reshape(-1, 3)
    return "L" if (colours == colours[:, :1]).all() else "RGB"


def _read_pixels(file: Path | BytesIO, channels: int, size: tuple[int, int] | None) -> NDArray[np.uint8] | str:
    """Return the pixels (channels, height, width) of a file; or why they cannot be read."""
    try:
        with _open(file) as opened:
            pixels = pixels_of(opened, channels, size)
    except _UNREADABLE as error:
        return _reason(error)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def pixels_of(image: Image.Image, channels: int, size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """Return the pixels of an image, upright, on a white background: (height, width), or with three channels last."""
    turn = _TURNS.get(_orientation(image))
    if isinstance(image, TiffImageFile):  # Pillow turns it when it reads the pixels
        turn = None
        name = image.filename
        image.filename = ""  # else Pillow 13 maps the file into memory, and turns grey images wrongly
        image.load()
        image.filename = name
    if turn is not None:
        image = image.transpose(turn)
    if image.mode in _NUMBERS:
        image = Image.fromarray(_bytes_of(np.asarray(image, dtype=np.float64), image.mode == "F"))
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("L" if channels == 1 else "RGB")
    if size is not None:
        image = ImageOps.fit(image, size, Image.Resampling.LANCZOS)
    return np.asarray(image, dtype=np.uint8)


def _bytes_of(values: NDArray[np.float64], are_floats: bool) -> NDArray[np.uint8]:
    """Return pixels as bytes. White is 65535 for whole numbers; for floats it is 1, or 255 if a pixel is above 1.

    All images of whole numbers have this scale, whatever is in each. Pixels outside it raise a ``ValueError``, and so
    do whole numbers that are all below 256, which cannot have 16 bits.
    """
    white = 65535
    if are_floats:
        white = 1 if values.max() <= 1 else 255
    if not (values.min() >= 0 and values.max() <= white):  # also if one is not a number
        raise ValueError(f"its pixels must lie between 0 and {white}: scale them, or save it with 8 bits")
    if not are_floats and 0 < values.max() <= 255:
        raise ValueError("its 16 bits hold numbers below 256: scale them to 65535, or save it with 8 bits")
    return (values * (255 / white)).astype(np.uint8)


def _reason(error: BaseException) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    return str(error) or type(error).__name__
