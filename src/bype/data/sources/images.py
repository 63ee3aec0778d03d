"""A folder of images; each folder in it is a class, or a split with a folder for each class."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bype.data.sources.base import SPLIT_NAMES, Source, SourceError, SourceOptions
from bype.data.sources.image_files import ImageFile, open_image_files

_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm", ".heic", ".heif"}


def open_images(folder: Path, options: SourceOptions) -> Source:
    """Open a folder of images. Without ``options.size`` all must have the same size."""
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES and path.is_file())
    if not files:
        raise SourceError(f"{folder} holds no images ({', '.join(sorted(_SUFFIXES))}); give a folder that does")
    parts = {path: path.relative_to(folder).parts for path in files}
    splits = {path: SPLIT_NAMES.get(names[0].lower()) if len(names) > 1 else None for path, names in parts.items()}
    if None in splits.values() or "train" not in splits.values():  # these folders are classes
        splits = dict.fromkeys(files)
    below = {path: names[0 if splits[path] is None else 1 : -1] for path, names in parts.items()}
    has_labels = all(below.values())
    classes = tuple(sorted({names[0] for names in below.values()})) if has_labels else ()
    labels = {name: number for number, name in enumerate(classes)}

    def pictures(split: str | None) -> Iterator[ImageFile]:
        for path in files:
            if splits[path] == split:
                yield ImageFile("/".join(parts[path]), path, labels[below[path][0]] if has_labels else 0)

    found = {split: partial(pictures, split) for split in sorted(set(splits.values()), key=str)}
    return open_image_files(f"images in {folder.name}", found, options, classes, has_labels)
