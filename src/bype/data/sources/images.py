"""A folder of images; each folder in it is a class."""

from collections.abc import Iterator
from pathlib import Path

from bype.data.sources.base import Source, SourceError, SourceOptions
from bype.data.sources.image_files import ImageFile, open_image_files

_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm", ".heic", ".heif"}


def open_images(folder: Path, options: SourceOptions) -> Source:
    """Open a folder of images. Without ``options.size`` all must have the same size."""
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES and path.is_file())
    if not files:
        raise SourceError(f"{folder} holds no images ({', '.join(sorted(_SUFFIXES))}); give a folder that does")
    class_of = {path: path.relative_to(folder).parts[0] for path in files if path.parent != folder}
    has_labels = len(class_of) == len(files)
    classes = tuple(sorted(set(class_of.values()))) if has_labels else ()
    labels = {name: number for number, name in enumerate(classes)}

    def pictures() -> Iterator[ImageFile]:
        for path in files:
            yield ImageFile(str(path.relative_to(folder)), path, labels[class_of[path]] if has_labels else 0)

    return open_image_files(f"images in {folder.name}", {None: pictures}, options, classes, has_labels)
