"""What a user may have meant by a word that does not exist."""

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
