"""Embeddings and log-likelihoods of a whole split, in independent parts, for data that do not fit in memory."""

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from bype.console import Report, no_report
from bype.data.columns import to_npz, to_parquet
from bype.data.examples import StoreSource
from bype.data.files import FileError, read_json, to_json, write_atomic
from bype.data.sources.base import require_package
from bype.data.store import Split
from bype.distributions import Distribution
from bype.evaluation.generation import embed
from bype.evaluation.scores import log_likelihood_by_shared_draws
from bype.run.opened import TrainedRun

FORMAT_VERSION = 6
PART_ROWS = 2**14
_CHUNK_ROWS = 256
_LEFT_SECONDS = 60.0

Format = Literal["npz", "parquet"]


@dataclass(frozen=True)
class EmbeddingOptions:
    """What to write.

    Parameters
    ----------
    format
        File format of the parts.
    num_samples
        Draws for each example's log-likelihood; 0 to leave it out. The value is that of a density, also where the
        likelihood is not normalised or is a probability of bytes; of black and white pixels it is a probability.
    shard
        (I, N): this is worker I of N, counted from 0, and takes every N-th part.
    """

    format: Format = "npz"
    num_samples: int = 0
    shard: tuple[int, int] = (0, 1)

    def __post_init__(self) -> None:
        """Check each field."""
        number, count = self.shard
        if not 0 <= number < count:
            raise ValueError(f"a shard must be I/N with I from 0 to N - 1, such as 2/8, not {number}/{count}")
        if self.num_samples < 0:
            raise ValueError(f"the number of draws must not be negative, not {self.num_samples}")


@dataclass(frozen=True)
class Embedded:
    """How much of an embedding is done."""

    num_parts: int
    num_done: int
    """The parts that are done, by any worker."""


def embed_split(
    run: TrainedRun,
    split: Split,
    out: Path,
    options: EmbeddingOptions | None = None,
    report: Report = no_report,
) -> Embedded:
    """Write the embeddings of a split, or this worker's shard of them.

    Each part is ``part-NNNNNN.npz`` or ``.parquet`` with ids (row numbers of the split), means (the embeddings) and, if
    there are any, sources (image files, or rows of the source), labels with their names, and log-likelihoods. A part
    appears under its name when it is complete; a part that exists is not computed again. When all parts exist,
    ``complete.json`` is written. A part does not depend on the worker that computes it.

    Parameters
    ----------
    run, split
        The model and the data.
    out
        The folder; it is refused if it holds anything else.
    options
        What to write.
    report
        Called with the number of rows done and the total of this shard.
    """
    options = options or EmbeddingOptions()
    if options.format == "parquet":
        require_package("pyarrow")
    identity = {
        "format": "bype-embedding",
        "version": FORMAT_VERSION,
        "model": run.fingerprint,
        "store": split.fingerprint,
        "split": split.name,
        "num_rows": len(split),
        "part_rows": PART_ROWS,
        "part_format": options.format,
        "num_samples": options.num_samples,
        "latent_dim": run.config.latent_dim,
        "sources": split.check_origins(),
    }
    _claim(out, identity)
    paths = [out / f"part-{number:06d}.{options.format}" for number in range(-(-len(split) // PART_ROWS))]
    prior = run.model.prior_distribution() if options.num_samples else None
    is_training = run.is_training_split(split)
    number, count = options.shard
    own = range(number, len(paths), count)
    for done, part in enumerate(own, start=1):
        if not paths[part].exists():
            ids = np.arange(part * PART_ROWS, min((part + 1) * PART_ROWS, len(split)), dtype=np.int64)
            write_atomic(paths[part], _part(run, split, ids, options, prior, is_training))
        report(min(done * PART_ROWS, len(split)), min(len(own) * PART_ROWS, len(split)))
    num_done = sum(path.exists() for path in paths)
    if num_done == len(paths):
        write_atomic(out / "complete.json", to_json({"parts": len(paths), "rows": len(split)}))
        _tidy(out)
    return Embedded(len(paths), num_done)


def _part(
    run: TrainedRun,
    split: Split,
    ids: NDArray[np.int64],
    options: EmbeddingOptions,
    prior: Distribution | None,
    is_training: bool,
) -> bytes:
    """Return the content of a part's file. Training examples are left out of a prior that is made of them."""
    source, origins = StoreSource(split, run.model.device), split.origins(ids)
    means, scores = [], []
    for rows in np.array_split(ids, -(-len(ids) // _CHUNK_ROWS)):
        x = source.read(rows)
        means.append(embed(run.model, x))
        if prior is not None:
            own = torch.from_numpy(rows) if is_training else None
            scores.append(log_likelihood_by_shared_draws(run.model, x, options.num_samples, prior, own))
    content: dict[str, NDArray[Any]] = {"ids": ids, "means": torch.cat(means).cpu().numpy()}
    if origins is not None:
        content["sources"] = origins
    if split.has_labels:
        content["labels"] = split.labels(ids)
        content["label_names"] = np.array(split.classes)[content["labels"]]
    if scores:
        content["log_likelihoods"] = torch.cat(scores).cpu().numpy()
    return to_npz(content) if options.format == "npz" else _parquet(content)


def _parquet(content: dict[str, NDArray[Any]]) -> bytes:
    """Write a row for each example: id, mean (a list of fixed size), and source, label, log_likelihood if known."""
    import pyarrow

    columns = {name.removesuffix("s"): pyarrow.array(values) for name, values in content.items() if values.ndim == 1}
    means = content["means"]
    columns["mean"] = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(means.reshape(-1)), means.shape[1])
    return to_parquet(columns)


def _tidy(out: Path) -> None:
    """Remove half-written files of workers that were killed."""
    for left in out.glob(".*.partial"):
        with suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > _LEFT_SECONDS:
                left.unlink()


def _claim(out: Path, identity: dict[str, Any]) -> None:
    """Write to the folder whose embedding it is to hold; refuse a folder that holds another one, or other files."""
    path = out / "embedding.json"
    if not path.exists():
        if out.exists() and any(not entry.name.startswith(".embedding.json.") for entry in out.iterdir()):
            if not path.exists():  # otherwise another worker was quicker
                raise FileError(f"{out} is not empty and holds no embedding; choose another --out")
        else:
            out.mkdir(parents=True, exist_ok=True)
            write_atomic(path, to_json(identity))
    found = read_json(path)
    if found != identity:
        differing = [name for name in identity if not isinstance(found, dict) or found.get(name) != identity[name]]
        what = "the embedding of another model or other data"
        if set(differing) <= {"part_format", "num_samples"}:
            what = "an embedding with another --format or --samples"
        raise FileError(f"{out} holds {what}; choose another --out")
