"""A folder of images; each folder in it is a class, or a split with a folder for each class."""

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from bype.data.files import name_of
from bype.data.sources.base import SPLIT_NAMES, Source, SourceError, SourceOptions, in_order
from bype.data.sources.image_files import ImageFile, open_image_files

IMAGE_SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".avif", ".jp2"),
    *(".pbm", ".pgm", ".ppm", ".pnm", ".heic", ".heif"),
)


def open_images(place: Path, options: SourceOptions) -> Source:
    """Open a folder of images, or one image. Without a size or shape in the options, all must have the same size."""
    folder = place if place.is_dir() else place.parent
    files = sorted(_files_in(place)) if place.is_dir() else [place]
    if not files:
        raise SourceError(f"{folder} holds no images ({', '.join(IMAGE_SUFFIXES)}); give a folder that does")
    parts = {path: path.relative_to(folder).parts for path in files}
    splits = {path: SPLIT_NAMES.get(names[0].lower()) if len(names) > 1 else None for path, names in parts.items()}
    if None in splits.values():  # these folders are classes
        _refuse_stray(folder, splits)
        splits = dict.fromkeys(files)
    elif "train" not in splits.values():
        names = sorted({names[0] for names in parts.values()})
        raise SourceError(
            f"{folder} holds only {' and '.join(names)}, and no folder called train; "
            f"add that, or give {folder / names[0]} itself"
        )
    below = {path: names[0 if splits[path] is None else 1 : -1] for path, names in parts.items()}
    has_labels = all(below.values())
    classes = tuple(in_order(names[0] for names in below.values())) if has_labels else ()
    labels = {name: number for number, name in enumerate(classes)}

    def pictures(split: str | None) -> Iterator[ImageFile]:
        for path in files:
            if splits[path] == split:
                yield ImageFile("/".join(parts[path]), path, labels[below[path][0]] if has_labels else 0)

    found = {split: partial(pictures, split) for split in sorted(set(splits.values()), key=str)}
    description = f"images in {name_of(folder)}" if place.is_dir() else f"image {place.name}"
    outside = [path for path, names in below.items() if not names]
    why_no_labels = f"{outside[0].name} is in no class folder" if 0 < len(outside) < len(files) else ""
    if why_no_labels:
        description += f" (no labels, since {why_no_labels})"
    opened = open_image_files(description, found, options, classes, has_labels)
    return replace(opened, why_no_labels=why_no_labels)


def holds_images(folder: Path) -> bool:
    """Tell whether there are image files below a folder, as far as it can be read."""
    return next(_files_in(folder, is_strict=False), None) is not None


def _files_in(folder: Path, is_strict: bool = True) -> Iterator[Path]:
    """Go through the image files below a folder, also behind links to folders; hidden ones are left out.

    No folder is read twice. Links come last, so that a folder with a link to it beside it is read under its own name.
    """
    folders, links, seen = [folder], list[Path](), set[str]()
    while folders or links:
        place = folders.pop() if folders else links.pop(0)
        if (real := os.path.realpath(place)) in seen:
            continue
        seen.add(real)
        try:
            with os.scandir(place) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            if is_strict:  # a folder that cannot be read must not be missing in silence
                raise
            continue
        for entry in found:
            if entry.name.startswith("."):
                continue
            path, is_link = Path(entry.path), entry.is_symlink()
            target = path if is_link else entry  # an entry raises if a link leads nowhere; a path asks the disk again
            if target.is_dir():
                (links if is_link else folders).append(path)
            elif path.suffix.lower() in IMAGE_SUFFIXES and target.is_file():
                yield path


def _refuse_stray(folder: Path, splits: dict[Path, str | None]) -> None:
    """Refuse folders of splits with something beside them: taken as classes, test images would be trained on."""
    found = set(splits.values()) - {None}
    if "train" in found and len(found) > 1:
        stray = next(path for path, split in splits.items() if split is None)
        raise SourceError(
            f"{folder} has folders for {' and '.join(sorted(map(str, found)))}, but {stray.relative_to(folder)} is in "
            f"none of them; move it there, or out of {name_of(folder)}"
        )
