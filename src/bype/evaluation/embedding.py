"""Latent means of a whole split, in parts, for data that fit in no memory."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bype.data.files import FileError, read_json, to_json, write_atomic
from bype.data.store import Split
from bype.evaluation.generation import embed
from bype.training.examples import StoreSource
from bype.training.trained import TrainedRun

FORMAT_VERSION = 1
PART_ROWS = 2**16


def embed_split(
    run: TrainedRun,
    split: Split,
    fingerprint: str,
    out: Path,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Write the latent means of a split and return how many parts there are.

    Each part is ``part-NNNNNN.npz`` with ``ids`` (row numbers of the split), ``means`` and, where there are any,
    ``labels``. Parts are written all or nothing; those that are there already are not computed again.

    Parameters
    ----------
    run, split
        The model and the data.
    fingerprint
        Of the store.
    out
        The folder; one that holds something else is refused.
    report
        Called with the number of rows done and in all.
    """
    identity = {
        "format": "bype-embedding",
        "version": FORMAT_VERSION,
        "model": run.fingerprint,
        "store": fingerprint,
        "split": split.name,
        "num_rows": len(split),
        "part_rows": PART_ROWS,
        "latent_dim": run.config.latent_dim,
    }
    _settle(out, identity)
    source = StoreSource(split)
    num_parts = -(-len(split) // PART_ROWS)
    for number in range(num_parts):
        path = out / f"part-{number:06d}.npz"
        stop = min((number + 1) * PART_ROWS, len(split))
        if not path.exists():
            ids = np.arange(number * PART_ROWS, stop, dtype=np.int64)
            means = [embed(run.model, source.read(rows)) for rows in np.array_split(ids, -(-len(ids) // 4096))]
            content: dict[str, Any] = {"ids": ids, "means": torch.cat(means).cpu().numpy()}
            if split.has_labels:
                content["labels"] = split.labels(ids)
            buffer = io.BytesIO()
            np.savez(buffer, **content)
            write_atomic(path, buffer.getvalue())
        report(stop, len(split))
    return num_parts


def _settle(out: Path, identity: dict[str, Any]) -> None:
    path = out / "embedding.json"
    if path.exists():
        if read_json(path) != identity:
            raise FileError(f"{out} holds the embedding of another model or other data; choose another --out")
        return
    if out.exists() and any(out.iterdir()):
        raise FileError(f"{out} is not empty and holds no embedding; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(path, to_json(identity))
