"""Files of a store: each is opened as a stranger's, and can be compared with its checksum."""

import hashlib
import os
import stat
from pathlib import Path

from bype.data.files import READ_FLAGS
from bype.data.manifest import StoreError, require
from bype.system import open_file

AGAIN = "prepare the data again"
"""The way out of a store that is damaged."""


def open_stored(path: Path) -> tuple[int, int]:
    """Open a file and return its descriptor, which the caller closes, and its size."""
    try:
        descriptor = open_file(path, READ_FLAGS)
    except OSError as error:
        raise StoreError(f"cannot open {path}: {error.strerror}") from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):  # a pipe may never end
        os.close(descriptor)
        raise StoreError(f"{path} is no file; {AGAIN}")
    return descriptor, found.st_size


def verify_stored(path: Path, sha256: str) -> None:
    """Read every byte of a file and compare with its checksum."""
    descriptor, _ = open_stored(path)
    with os.fdopen(descriptor, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    require(digest == sha256, f"{path} has changed since it was written; {AGAIN}")
