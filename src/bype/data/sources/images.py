"""A folder of images; each folder in it is a class, or a split with a folder for each class."""

import os
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from bype.data.files import name_of
from bype.data.sources.base import SPLIT_NAMES, Source, SourceError, SourceOptions, split_named
from bype.data.sources.classes import in_order
from bype.data.sources.image_files import ImageFile, open_image_files
from bype.wording import counted

IMAGE_SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".avif", ".jp2"),
    *(".pbm", ".pgm", ".ppm", ".pnm", ".heic", ".heif"),
)
_OTHER_PICTURES = (
    *(".tga", ".psd", ".svg", ".ico", ".eps", ".pcx", ".sgi", ".dds", ".exr", ".hdr", ".jxl", ".xcf", ".dcm", ".nii"),
    *(".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf"),
)
"""Endings of pictures that are not read."""
_BROKEN = "links that lead nowhere"
"""So git-annex and DVC leave images that they have not fetched."""
_LABEL_FILES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
"""In these, image folders of the Hugging Face hub have labels and captions."""
_LABELS = "files of labels"


def open_images(place: Path, options: SourceOptions) -> Source:
    """Open a folder of images, or one image. Without a size or shape in the options, all must have the same size."""
    folder = place if place.is_dir() else place.parent
    left_out: Counter[str] = Counter()
    files = sorted(_files_in(place, left_out)) if place.is_dir() else [place]
    if not files and left_out[_BROKEN]:
        raise SourceError(f"the images in {folder} are links that lead nowhere; fetch the files first")
    if not files:
        raise SourceError(f"{folder} holds no images ({', '.join(IMAGE_SUFFIXES)}); give a folder that does")
    parts = {path: path.relative_to(folder).parts for path in files}
    depth = _depth_of_wrappers(parts.values())
    inner = {path: names[depth:] for path, names in parts.items()}
    split_of = _splits_of({names[0] for names in inner.values() if len(names) > 1})
    splits = {path: split_of.get(names[0]) if len(names) > 1 else None for path, names in inner.items()}
    if None in splits.values():  # these folders are classes
        _refuse_stray(folder, inner, splits)
        splits = dict.fromkeys(files)
    elif "train" not in splits.values():
        names = sorted({names[0] for names in inner.values()})
        raise SourceError(
            f"{folder} holds only {' and '.join(names)}, and no folder called train; "
            f"add that, or give {folder.joinpath(*parts[files[0]][:depth], names[0])} itself"
        )
    below = {path: names[0 if splits[path] is None else 1 : -1] for path, names in inner.items()}
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
    if broken := left_out.pop(_BROKEN, 0):
        opened.notes.append(
            f"{counted(broken, 'image')} left out, links that lead nowhere; to have them, fetch the files"
        )
    if left_out.pop(_LABELS, 0) and not has_labels:
        opened.notes.append(
            "labels in metadata files are not read; to have classes, sort the images into a folder for each class"
        )
    if left_out:
        endings = ", ".join(f"{ending} {count:,}" for ending, count in left_out.most_common())
        opened.notes.append(
            f"files of kinds that bype cannot read were left out ({endings}); convert them, say to .png"
        )
    return replace(opened, why_no_labels=why_no_labels)


def _depth_of_wrappers(parts: Collection[tuple[str, ...]]) -> int:
    """Return how many folders lie around the others: each the only one in its place, without images, and no split."""
    depth = 0
    while (
        len(names := {path[depth] for path in parts}) == 1
        and all(len(path) > depth + 2 for path in parts)
        and split_named(next(iter(names))) is None
    ):
        depth += 1
    return depth


def _splits_of(folders: set[str]) -> dict[str, str]:
    """Return which folders are splits: those with the name of one, or all if each has the word of another split."""
    words = {name: split for name in folders if (split := split_named(name)) is not None}
    if len(folders) > 1 and len(set(words.values())) == len(folders):
        return words  # such as training_set and test_set
    return {name: SPLIT_NAMES[name.lower()] for name in folders if name.lower() in SPLIT_NAMES}


def holds_images(folder: Path) -> bool:
    """Tell whether there are image files below a folder, as far as it can be read."""
    return next(_files_in(folder, Counter(), is_strict=False), None) is not None


def _files_in(folder: Path, left_out: Counter[str], is_strict: bool = True) -> Iterator[Path]:
    """Go through the image files below a folder, also behind links to folders; hidden ones are left out.

    The endings of pictures that are not read are counted in ``left_out``, and links that lead nowhere.

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
            elif (ending := path.suffix.lower()) in IMAGE_SUFFIXES and target.is_file():
                yield path
            elif ending in IMAGE_SUFFIXES and is_link:
                left_out[_BROKEN] += 1
            elif ending in _OTHER_PICTURES:
                left_out[ending] += 1
            elif entry.name in _LABEL_FILES:
                left_out[_LABELS] += 1


def _refuse_stray(folder: Path, inner: dict[Path, tuple[str, ...]], splits: dict[Path, str | None]) -> None:
    """Refuse folders of splits with something beside them: taken as classes, test images would be trained on."""
    found = set(splits.values()) - {None}
    only_splits_have_folders = {split is None for path, split in splits.items() if len(inner[path]) > 2} == {False}
    if "train" in found and (len(found) > 1 or only_splits_have_folders):
        stray = next(path for path, split in splits.items() if split is None)
        raise SourceError(
            f"{folder} has folders for {' and '.join(sorted(map(str, found)))}, but {stray.relative_to(folder)} is in "
            f"none of them; move it there, or out of {name_of(folder)}"
        )
