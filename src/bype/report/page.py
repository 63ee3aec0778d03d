"""The page: one file that needs nothing else."""

from collections.abc import Sequence

from bype.data.files import printable
from bype.report.blocks import pictures
from bype.report.contents import RunContents
from bype.report.markup import Markup, element, join
from bype.report.numbers import numbers
from bype.report.sections import (
    augmentation,
    classes,
    coreset,
    features,
    how_good,
    maps,
    neighbours,
    training,
    unusual,
    weights,
)
from bype.report.style import STYLE

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def render(runs: Sequence[RunContents]) -> str:
    """Return the page for one run, or several side by side."""
    title = f"What a model learned: {runs[0].data.source}" if len(runs) == 1 else f"{len(runs)} runs side by side"
    return whole_page(title, _subtitle(runs), _notes(runs), _sections(runs), is_flow=len(runs) == 1)


def whole_page(
    title: str, subtitle: str, notes: Sequence[str], sections: Sequence[Markup], *, is_flow: bool = False
) -> str:
    """Return a page that needs no other file; in a flow, narrow sections stand side by side."""
    head = join(
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("title", f"{title} · bype"),
        element("style", Markup(STYLE)),
    )
    body = join(
        element("h1", title),
        element("p", subtitle, class_="soft"),
        *[element("p", note, class_="note") for note in notes],
        element("main", *sections, class_="flow" if is_flow else None),
    )
    # A path in a title or a note may hold bytes that are no UTF-8.
    return printable(f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n')


def _notes(runs: Sequence[RunContents]) -> list[str]:
    return [note if len(runs) == 1 else f"{run.name}: {note}" for run in runs for note in run.notes]


def _subtitle(runs: Sequence[RunContents]) -> str:
    if len(runs) == 1:
        return f"Trained on {runs[0].data.num_train:,} examples. Run: {runs[0].name}"
    sources = list(dict.fromkeys(run.data.source for run in runs))
    return "Trained on " + ", ".join(sources) + "."


def _sections(runs: Sequence[RunContents]) -> list[Markup]:
    return [
        how_good(runs),
        pictures(runs, "Samples", "Drawn from the prior and decoded.", lambda run: run.samples),
        pictures(
            runs,
            "Samples by component",
            "Each line is drawn from one component of the prior, the heaviest first.",
            lambda run: run.plates,
        ),
        coreset(runs),
        weights(runs),
        classes(runs),
        pictures(
            runs,
            "Reconstructions",
            "Lines of examples, each above its reconstructions.",
            lambda run: run.reconstructions,
        ),
        pictures(
            runs,
            "Interpolations",
            "From one example to another, along a straight line between their latent means.",
            lambda run: run.interpolations,
        ),
        maps(runs),
        features(runs),
        unusual(runs),
        neighbours(runs),
        augmentation(runs),
        training(runs),
        numbers(runs),
    ]
