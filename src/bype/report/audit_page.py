"""An audit as a page or as a picture."""

from collections.abc import Sequence

from PIL import Image

from bype.evaluation.audit import Shown
from bype.evaluation.audit_records import LARGE_SHARE, SHARE, SIGNIFICANCE, Audit, Closeness, Share
from bype.plates import plate, to_bytes
from bype.report.blocks import card, picture_of, section, table
from bype.report.markup import Markup, element
from bype.report.page import whole_page

CAVEAT = (
    "This is a measure, not a guarantee: it finds copies of whole examples. A model can give away more than that, "
    "and Euclidean distance does not see a copy that is shifted or recoloured."
)


def pairs_picture(shown: Sequence[Shown]) -> Image.Image:
    """Return the closest pairs: a line of points or samples above the training example nearest to each."""
    return plate([to_bytes(line) for pairs in shown for line in (pairs.made, pairs.real)])


def audit_page(name: str, audit: Audit, shown: Sequence[Shown], is_image: bool) -> str:
    """Return an audit as one page that needs no other file."""
    cards = []
    for group, pairs in zip(audit.groups, shown, strict=True):
        text = f"The {len(pairs.made)} {group.kind} that are nearest to one training example, by ratio"
        text += " at one contrast." if group.nearer is group.by_contrast else "."
        content = _pairs_table(group, pairs)
        if is_image:
            text += f" The upper line shows the {group.kind}, the lower line the training example nearest to each."
            lines = plate([to_bytes(pairs.made), to_bytes(pairs.real)], is_clear=True)
            content = Markup(picture_of(lines, f"Closest {group.kind}, {name}") + content)
        cards.append(card(group.kind.capitalize(), content, element("figcaption", text)))
    return whole_page(
        f"Audit of {name}",
        CAVEAT,
        [audit.verdict],
        [
            section("In numbers", _explanation(audit), _numbers(audit), is_wide=True),
            section("Closest pairs", "Are these the same?", element("div", *cards, class_="cards"), is_wide=True),
        ],
    )


def _explanation(audit: Audit) -> str:
    return (
        f"Distances to the nearest of {audit.num_train:,} training examples (Euclidean, {audit.unit}), compared with "
        f"those of {audit.num_held_out:,} {audit.held_out} examples. "
        f"{100 * audit.expected_share:.1f}% is expected of new examples; more means closer to the training data "
        f"than new data are. The verdict takes the ratio of the nearest to the "
        f"second nearest distance, also after all examples are brought to one contrast: "
        f"it finds copies if a share is at least {100 * LARGE_SHARE:.0f}% and chance "
        f"explains it in less than {100 * SIGNIFICANCE:.0f}% of cases, or if more are equal to a training example than "
        f"chance explains, given how many {audit.held_out} examples are. If {100 * SHARE:.0f}% of the {audit.held_out} "
        f"examples or more are training examples, ratios tell nothing and do not count."
    )


def _numbers(audit: Audit) -> Markup:
    head = ["", *(f"{group.count:,} {group.kind}" for group in audit.groups), f"{audit.held_out} examples"]
    groups, expected = audit.groups, f"{100 * audit.expected_share:.1f} %"
    shares: dict[str, list[Share | None]] = {
        "closer by ratio": [g.by_ratio for g in groups],
        "closer by ratio at one contrast": [g.by_contrast for g in groups],
        "closer by distance": [g.by_distance for g in groups],
    }
    rows = [
        (name, [f"{100 * s.share:.1f} % (p {_p_value(s)})" if s is not None else "" for s in found] + [expected])
        for name, found in shares.items()
    ]
    rows.append(("median distance", [f"{g.median_distance:.3g}" for g in groups] + [f"{audit.median_distance:.3g}"]))
    rows.append(("exact copies", [str(g.num_copies) for g in groups] + [str(groups[0].held_out_copies)]))
    return table(head, rows)


def _p_value(share: Share) -> str:
    return "< 0.001" if share.p_value < 0.001 else f"{share.p_value:.3f}"


def _pairs_table(group: Closeness, pairs: Shown) -> Markup:
    rows = [
        (f"{pair.number}", [name, f"{pair.distance:.3g}", f"{pair.ratio:.3f}"])
        for pair, name in zip(group.closest, pairs.names, strict=True)
    ]
    return table([group.kind.removesuffix("s"), "training example", "distance", "ratio"], rows)
