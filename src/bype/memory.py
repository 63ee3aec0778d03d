"""Keeping freed memory between steps, instead of returning it to the system each time."""

import importlib

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 2**28
_LARGEST_KEPT_BLOCK = 2**25  # the largest that glibc allows


def keep_freed_memory() -> bool:
    """Let the C library keep up to 256 MB of freed memory for this process; tell whether this is supported.

    By default glibc returns blocks of some megabytes to the system as soon as they are freed. A loop that works on
    such blocks then spends much of its time on page faults: to decode and score a thousand latents at a time took a
    third longer.
    """
    try:
        library = importlib.import_module("ctypes").CDLL(None)
    except (ImportError, TypeError):  # not every Python has ctypes; Windows has no such library
        return False
    mallopt = getattr(library, "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES) and mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BLOCK))
