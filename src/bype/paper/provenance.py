"""Where the numbers of a run come from: its config, the commit, the machine, the data, the loss curve."""

import dataclasses
import itertools
import json
import platform
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from bype.data.files import read_json
from bype.data.store import Store
from bype.evaluation.records import ClassifierError, Results, read_results
from bype.run.config import TrainingConfig
from bype.run.directory import machine_fields, read_config
from bype.run.metrics import read_metrics
from bype.span import Span, steps_per_epoch


def describe_run(run: Path, store: Store, commit: str | None) -> dict[str, Any]:
    """Return what is kept of a run when its directory is gone: all but the weights.

    Parameters
    ----------
    run
        A run directory that was trained and evaluated.
    store
        The data.
    commit
        Of the source that trained it.
    """
    config, _ = read_config(run)
    curve = [
        [line.epoch, *(round(line.parts[split]["negative_elbo"], 4) for split in ("train", "validation"))]
        for line in read_metrics(run)
        if "validation" in line.parts
    ]
    machine = read_json(run / "manifest.json")
    machine.pop("data")  # where the store was
    steps = steps_per_epoch(len(store.split("train")), config.batch_size)
    return {
        "commit": commit,
        "machine": {**machine, "platform": platform.platform()},
        "data": {"fingerprint": store.manifest.fingerprint},
        "run": config.to_fields(),
        "status": read_json(run / "status.json"),
        "epochs": curve[-1][0],
        "seconds_per_epoch": seconds_per_epoch(run, steps),
        "curve": {"columns": ["epoch", "train -ELBO", "validation -ELBO"], "rows": curve},
        "results": dataclasses.asdict(read_results(run)),
    }


def describe_classifier(error: ClassifierError, seconds: float) -> dict[str, Any]:
    """Return what is kept of a classifier that was trained without a model."""
    return {
        "commit": commit(),
        "machine": {**machine_fields(torch.get_num_threads(), 1, "cpu"), "platform": platform.platform()},
        "data": {"fingerprint": error.fingerprint},
        "seconds": round(seconds, 1),
        "results": dataclasses.asdict(Results(augmentation=[error])),
    }


def is_capped(config: TrainingConfig, epochs: float) -> bool:
    """Tell whether a training with patience reached its full length, and did not stop by itself before."""
    length = Span.parse(config.length)
    may_stop = Span.parse(config.patience).count > 0
    return may_stop and length.unit == "epochs" and epochs >= length.count


def seconds_per_epoch(run: Path, steps: int) -> float | None:
    """Return how long an epoch took on average, with validation and updates; None if that is not known."""
    path, lines = run / "timings.jsonl", []
    for text in path.read_text().splitlines() if path.exists() else ():
        with suppress(ValueError):  # a full disk tears a line, and this mean can do without it
            lines.append(json.loads(text))
    seconds = done = 0.0
    for before, after in itertools.pairwise(lines):
        passed, steps_apart = (after[name] - before[name] for name in ("seconds_in_process", "step"))
        is_one_process = before.get("process") == after.get("process")  # else another one resumed in between
        if is_one_process and passed > 0 and steps_apart >= 0:  # an update adds time and no step
            seconds += passed
            done += steps_apart
    return round(seconds / done * steps, 3) if done else None


def commit() -> str | None:
    """Return the commit of this source, and whether it was changed since; None if it is not in a clone of bype."""
    git, here = shutil.which("git"), Path(__file__).parent
    if git is None:
        return None
    asked = (
        ["ls-files", "--error-unmatch", __file__],  # fails if another project's clone holds an installed bype
        ["rev-parse", "HEAD"],
        ["status", "--porcelain", "--", str(here.parent)],
    )
    try:
        _, head, changes = (
            subprocess.run([git, "-C", str(here), *words], capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603
            for words in asked
        )
    except subprocess.CalledProcessError:
        return None
    return f"{head}, with changes" if changes else head
