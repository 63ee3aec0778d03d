"""Parts of messages."""

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of a message: the known word that is nearest, if one is near.

    Examples
    --------
    >>> f"there is no command 'smaple'{did_you_mean('smaple', ['embed', 'sample'])}"
    "there is no command 'smaple'; did you mean 'sample'?"
    >>> did_you_mean("zebra", ["embed", "sample"])
    ''
    """
    lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), lower, n=1)
    return f"; did you mean {lower[found[0]]!r}?" if found else ""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as '1 epoch' and '2,000 epochs'."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, and the next one if it ends in a colon; its kind if it has no text."""
    first, second, *_ = [*str(error).strip().splitlines(), "", ""]
    return f"{first} {second.strip()}".strip() if first.endswith(":") else first or type(error).__name__
