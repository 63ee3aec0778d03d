"""What the sections of the page are built from."""

import base64
from collections.abc import Callable, Sequence

from PIL import Image

from bype.plates import png
from bype.report.contents import RunContents
from bype.report.markup import Markup, element


def section(title: str, text: str, *content: Markup, is_wide: bool = False) -> Markup:
    """Return a section of the page; a wide one takes the full width."""
    head = (element("h2", title), element("p", text, class_="soft"))
    return element("section", *head, *content, class_="wide" if is_wide else None)


def cards_section(title: str, text: str, cards: Sequence[Markup], *, is_wide: bool = False) -> Markup:
    """Return a section of cards; nothing if there are none."""
    return section(title, text, element("div", *cards, class_="cards"), is_wide=is_wide) if cards else Markup("")


def card(title: str, content: Markup, *below: Markup) -> Markup:
    """Return a framed picture or chart."""
    heading = element("h3", title) if title else Markup("")
    return element("figure", heading, content, *below, class_="card")


def picture_of(picture: Image.Image, text: str) -> Markup:
    """Return a picture that is part of the page's file."""
    small = picture.width < 700
    return element("img", src=_embedded(picture), alt=text, class_="pixels" if small else None)


def thumbnail(picture: Image.Image, text: str) -> Markup:
    """Return a small picture, for a cell of a table."""
    return element("img", src=_embedded(picture), alt=text, class_="thumbnail")


def _embedded(picture: Image.Image) -> str:
    return f"data:image/png;base64,{base64.b64encode(png(picture)).decode()}"


def pictures(
    runs: Sequence[RunContents], title: str, text: str, choose: Callable[[RunContents], Image.Image | None]
) -> Markup:
    """Return a section that shows a picture of each run that has one."""
    shown = [(run, picture) for run in runs if (picture := choose(run)) is not None]
    cards = [card(heading(runs, run), picture_of(picture, f"{title}, {run.name}")) for run, picture in shown]
    return cards_section(title, text, cards)


def heading(runs: Sequence[RunContents], run: RunContents) -> str:
    """Return the name above a card, if there are several runs to tell apart."""
    return run.name if len(runs) > 1 else ""


def table(head: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> Markup:
    """Return a table; rows without any content are left out, and so is a head without words."""
    top = element("tr", *[element("th", cell, scope="col") for cell in head])
    above = element("thead", top) if any(head) else Markup("")
    lines = [
        element("tr", element("th", name, scope="row"), *[element("td", cell) for cell in cells])
        for name, cells in rows
        if any(cell for cell in cells)
    ]
    return element("div", element("table", above, element("tbody", *lines)), class_="scroll", tabindex="0")


def key(text: str, kind: str) -> Markup:
    """Return an entry of a legend."""
    return element("li", element("span", class_=f"key {kind}"), text)
