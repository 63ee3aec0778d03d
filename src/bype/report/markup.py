"""HTML and SVG in which every text is escaped, except markup that was made here."""

import html

_VOID = {"img", "meta"}


class Markup(str):
    """Text that is already markup."""

    __slots__ = ()


def element(tag: str, /, *children: str, **attributes: str | float | None) -> Markup:
    """Return an element. Children are escaped, unless they are markup; ``class_`` stands for the attribute class.

    Examples
    --------
    >>> element("p", "a < b", element("b", "c"), class_="note")
    '<p class="note">a &lt; b<b>c</b></p>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    content = "".join(child if isinstance(child, Markup) else html.escape(child) for child in children)
    return Markup(f"<{tag}{written}>" if tag in _VOID else f"<{tag}{written}>{content}</{tag}>")


def minus(number: str) -> str:
    """Return a number with a minus sign in place of a hyphen, so that it is as wide as a plus sign.

    Examples
    --------
    >>> minus("-2.5 ± 0.1")
    '−2.5 ± 0.1'
    """
    return number.replace("-", "−")


def join(*parts: Markup) -> Markup:
    """Return pieces of markup one after the other."""
    return Markup("".join(parts))
