"""Commands as the pages print them."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def commands(text: str) -> list[str]:
    """Return the commands of fenced blocks without a language; a backslash at the end joins two lines."""
    parts = re.split(r"^```(.*)$", text, flags=re.MULTILINE)  # text, language, block, nothing, text, ...
    blocks = [block for language, block in zip(parts[1::4], parts[2::4], strict=True) if not language]
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in lines if re.match(r"(pip|bype|torchrun) ", line)]


def section(page: str, heading: str) -> str:
    """Return the text under a heading of a page, up to the next heading of any level."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (found,) = re.findall(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", text, re.DOTALL | re.MULTILINE)
    return str(found)
