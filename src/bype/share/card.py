"""The model card, ``README.md``, and the records that go with a shared model."""

import dataclasses
import re
from pathlib import Path

import torch

from bype.data.files import write_synced
from bype.evaluation import audit_records as audits
from bype.evaluation.records import Results, read_results, write_results
from bype.models.base import LatentModel
from bype.plates import grid, is_image_shape, png, to_bytes
from bype.report.audit_page import CAVEAT
from bype.report.contents import RunContents, measured
from bype.report.numbers import UNITS, number_lines
from bype.run.identity import DataIdentity
from bype.run.opened import TrainedRun

_HEAD = """---
library_name: bype
tags:
- bype
- variational-autoencoder
- pseudocoreset
---
"""
_PICTURE = "points.png"
_COLUMNS = 20
_MOST_POINTS = 500
_MOST_NAMES = 30
_MOST_CHARACTERS = 80


def add_records(run: TrainedRun, records: Path | None) -> None:
    """Copy what was measured of a shared model from the run in ``records``; what is stale or of other data is left out.

    Maps are left out too: they have a label and a place for each of many examples.
    """
    if records is None:
        return
    known, own = read_results(records), (run.step, run.data.fingerprint)
    kept = Results(
        evaluations=[dataclasses.replace(e, map=None) for e in known.evaluations if (e.step, e.fingerprint) == own],
        augmentation=[e for e in known.augmentation if (e.step, e.fingerprint) == own],
    )
    if kept.evaluations or kept.augmentation:
        write_results(run.folder, kept)
    if (audit := measured(dataclasses.replace(run, folder=records), "").audit) is not None:
        audits.write_audit(run.folder, audit)


def add_card(run: TrainedRun, repo_id: str | None, loader: str) -> None:
    """Write the model card and, for images, the picture of the points into the folder of a shared model."""
    picture = _points_picture(run.model) if is_image_shape(run.data.shape) else None
    if picture is not None:
        write_synced(run.folder / _PICTURE, picture)
    contents = measured(run, "")
    text = card(contents, repo_id, loader, has_picture=picture is not None)
    write_synced(run.folder / "README.md", text.encode())


def card(run: RunContents, repo_id: str | None, loader: str, has_picture: bool) -> str:
    """Return the model card of a run.

    Parameters
    ----------
    run
        What was measured of it.
    repo_id
        Its name on the hub, if that is known.
    loader
        The public class of bype that loads it.
    has_picture
        Whether there is a picture of the points.
    """
    parts = [
        f"# {_plain((repo_id or 'A model of bype').rpartition('/')[2])}",
        "A variational autoencoder, made with bype. It embeds, scores, reconstructs and generates examples like those "
        "that it was trained on.",
        "## Load it",
        "With bype and `huggingface_hub` installed:",
        f"```python\nimport bype\n{_example(loader, repo_id)}\n```",
        "Nothing in these files is executed.",
        "## Training data",
        *_data(run.data),
        "## Numbers",
        *_numbers(run),
    ]
    if has_picture:
        parts += [
            "## Points of the prior",
            f"The heaviest come first; at most {_MOST_POINTS} are shown. Each stands for a part of the training data.",
            f"![The points of the prior]({_PICTURE})",
        ]
    parts += ["## Does it give training examples away?", *_audit(run)]
    return _HEAD + "\n\n".join(parts) + "\n"


def _example(loader: str, repo_id: str | None) -> str:
    """Return the lines that load a model and draw new examples."""
    name, drawn = ("vae", "vae.sample(16)") if loader == "ByPEVAE" else ("run", "bype.sample(run.model, 16)")
    return f'{name} = bype.{loader}.from_pretrained("{repo_id or "OWNER/NAME"}")\nnew = {drawn}'


def _data(data: DataIdentity) -> list[str]:
    shape = " × ".join(map(str, data.shape))
    kind = (
        f"rows of {data.shape[0]} columns" if len(data.shape) == 1 else f"images of {shape} (channels, height, width)"
    )
    facts = [("Made from", _plain(data.source)), ("Training examples", f"{data.num_train:,} {kind}, {data.dtype}")]
    facts += [(title, _names(names)) for title, names in (("Classes", data.classes), ("Columns", data.names)) if names]
    facts.append(("Checksum of the data", f"`{_plain(data.fingerprint)}`"))
    return [
        _table(facts),
        "The files of the data are not part of this repository. But points of the prior may be nearly equal to "
        "training examples: see the audit below.",
    ]


def _numbers(run: RunContents) -> list[str]:
    known = [(_plain(name), _plain(value, 300)) for name, (value,) in number_lines([run]) if value]
    is_evaluated = run.evaluation is not None
    return [_table(known), UNITS if is_evaluated else "**Not evaluated**: no likelihood was measured."]


def _audit(run: RunContents) -> list[str]:
    if run.audit is None:
        return ["**Not audited.** It is not known whether its points or samples are copies of training examples."]
    return [f"**{_plain(run.audit.verdict, 500)}** (`audit.json`)", CAVEAT]


def _table(lines: list[tuple[str, str]]) -> str:
    return "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in lines)])


def _names(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(map(_plain, names[:_MOST_NAMES])) + more


def _plain(text: str, most: int = _MOST_CHARACTERS) -> str:
    """Return text of the data on one line, so that none of it is taken for Markdown or HTML."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    short = line if len(line) <= most else f"{line[: most - 1]}…"
    readable = short.replace("&", "&amp;")
    without_links = re.sub(r":(?=//)|(?<=www)\.", lambda found: f"&#{ord(found[0])};", readable, flags=re.IGNORECASE)
    escaped = re.sub(r"([\\`*_{}\[\]<>|!~]|(?<!&)#)", r"\\\1", without_links)
    return escaped.replace("\\<", "&lt;").replace("\\>", "&gt;")


@torch.no_grad()
def _points_picture(model: LatentModel) -> bytes | None:
    own = model.prior.own_points()
    if own is None:
        return None
    points = own.points[own.heaviest(_MOST_POINTS)]
    return png(grid(to_bytes(model.to_data_units(points).cpu().numpy()), _COLUMNS), scale=2)
