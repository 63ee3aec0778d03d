"""Negative log-likelihood of a split by importance weighting; the computation can be interrupted and resumed."""

import json
import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bype.console import Report, no_report
from bype.data.examples import StoreSource, spread_rows
from bype.distributed import Group
from bype.evaluation.aggregate import estimate
from bype.evaluation.journal import Journal
from bype.evaluation.records import Density
from bype.likelihoods import Likelihood
from bype.memory import keep_freed_memory
from bype.models.base import LatentModel
from bype.objective import ImportanceWeightedBound, importance_weighted_bound
from bype.randomness import generator_for

Precision = Literal["float32", "bfloat16"]

_BLOCK_IMAGES = 16
_TIMED = 3
_COMPARED_IMAGES = 64
_JOURNAL_BYTES, _JOURNAL_BYTES_PER_IMAGE = 2**16, 2**10
"""More than a journal has: six numbers or so of at most 25 characters for each image."""


def faster_precision() -> Precision:
    """Return the precision in which this processor multiplies matrices faster.

    Processors without units for bfloat16 take three times as long in it.
    """
    kinds: dict[Precision, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    seconds: dict[Precision, float] = {}
    for name, kind in kinds.items():
        x = torch.ones(512, 512, dtype=kind)
        times = []
        for _ in range(_TIMED + 1):  # the first one warms up
            start = time.perf_counter()
            x @ x
            times.append(time.perf_counter() - start)
        seconds[name] = min(times[1:])
    return min(seconds, key=lambda name: seconds[name])


@dataclass(frozen=True)
class DensityOptions:
    """How to measure.

    Parameters
    ----------
    num_samples
        Draws for each example; the paper takes 5,000.
    num_images
        How many examples of the split to take, evenly spread; ``None`` for all.
    max_rows
        How many latents to decode at once; more need more memory.
    precision
        Precision of the networks. With ``bfloat16`` the difference to ``float32`` is measured on the first examples.
    seed
        Seed of the draws.

    Examples
    --------
    >>> DensityOptions(num_samples=500, num_images=1000).precision
    'float32'
    """

    num_samples: int = 5000
    num_images: int | None = None
    max_rows: int = 2048
    precision: Precision = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        """Check each field."""
        if self.num_samples < 1 or self.max_rows < 1 or (self.num_images is not None and self.num_images < 1):
            raise ValueError("samples, images and rows must be at least one each")


@dataclass(frozen=True)
class Block:
    """The results of some consecutive examples; a line of the journal."""

    first: int
    count: int
    log_likelihood: list[float]
    effective_sample_size: list[float]
    monte_carlo_error: list[float]
    reconstruction: list[float]
    kl: dict[str, list[float]]
    seconds: float

    def __post_init__(self) -> None:
        """Check that there is one value for each example."""
        lists = (self.log_likelihood, self.effective_sample_size, self.monte_carlo_error, self.reconstruction)
        if any(len(values) != self.count for values in (*lists, *self.kl.values())):
            raise ValueError(f"there must be {self.count} values of each kind")


@torch.no_grad()
def measure_density(
    model: LatentModel,
    source: StoreSource,
    options: DensityOptions,
    journal_path: Path,
    identity: dict[str, Any],
    report: Report = no_report,
    group: Group | None = None,
    is_training_split: bool = False,
) -> tuple[Density, Tensor]:
    """Estimate the negative log-likelihood of a split's examples; return it with log p(x) of each (B,).

    Every block of examples has its own draws, so the result does not depend on how many processes share them.

    Parameters
    ----------
    model
        The model.
    source
        The split.
    options
        How to measure.
    journal_path
        Where finished examples are written, to resume after an interruption. Remove it when the result is saved.
    identity
        Which model and data these are; a journal of others is discarded.
    report
        Called with the number of examples done and the total.
    group
        The processes that share the work; each makes this call, and the first one keeps the journal.
    is_training_split
        Whether the model was trained on these examples: a prior made of them then leaves out the component of the
        example that is scored.
    """
    group = group or Group()
    stated = json.dumps(identity | asdict(options), sort_keys=True)
    group.require_same(stated.encode(), "the model, the data or the way to measure")
    rows = spread_rows(len(source), options.num_images or len(source))
    num_images = len(rows)
    keep_freed_memory()
    scorer = _Scorer(model, source, options, rows, is_training_split)
    with ExitStack() as stack:
        journal = None
        if group.is_first:
            most = _JOURNAL_BYTES + num_images * _JOURNAL_BYTES_PER_IMAGE
            journal = stack.enter_context(Journal(journal_path, identity | asdict(options), Block, most))
        counts = {
            first: min(_BLOCK_IMAGES, num_images - first) for first in range(0, num_images, _BLOCK_IMAGES)
        }  # by the first example of each block
        entries = [] if journal is None else journal.entries
        known = [e for e in entries if e.count == counts.get(e.first) and set(e.kl) == set(model.levels)]
        blocks = {block.first: block for block in _unpacked(group.broadcast(_packed(known)))}
        missing = [first for first in counts if first not in blocks]
        for at in range(0, len(missing), group.size):  # a block for each process, then all share their results
            group.check_launcher()
            own = [
                _measure_block(scorer, first, first + counts[first], options.precision)
                for first in missing[at + group.rank : at + group.rank + 1]
            ]
            for content in group.gather(_packed(own)):
                for block in _unpacked(content):
                    blocks[block.first] = block
                    if journal is not None:
                        journal.write(block)
            report(sum(block.count for block in blocks.values()), num_images)
        difference = None
        if options.precision != "float32" and group.is_first:
            difference = _precision_difference(scorer, min(_COMPARED_IMAGES, num_images), options.precision)
        return _summary(model, [blocks[first] for first in counts], options, difference)


def _packed(blocks: list[Block]) -> bytes:
    return json.dumps(blocks, default=asdict).encode()


def _unpacked(content: bytes) -> list[Block]:
    """Return the blocks of another process, which is trusted."""
    return [Block(**fields) for fields in json.loads(content)]


class _Scorer:
    """Estimates the likelihood of examples, block by block."""

    def __init__(
        self,
        model: LatentModel,
        source: StoreSource,
        options: DensityOptions,
        rows: NDArray[np.int64],
        is_training_split: bool,
    ) -> None:
        self._model, self._source, self._options, self._rows = model, source, options, rows
        self._prior = model.prior_distribution()
        self._is_training_split = is_training_split

    def bound(self, first: int, stop: int, precision: Precision) -> ImportanceWeightedBound:
        """Return the bounds of examples ``first`` to ``stop``."""
        rows = self._rows[first:stop]
        x, prior = self._source.read(rows), self._prior
        if self._is_training_split:
            prior = self._model.prior.leave_out(prior, torch.from_numpy(rows))
        options = self._options
        generator = generator_for(options.seed, "density", first)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            return importance_weighted_bound(
                self._model,
                x,
                options.num_samples,
                prior=prior,
                max_rows=options.max_rows,
                generator=generator,
            )


def _measure_block(scorer: _Scorer, first: int, stop: int, precision: Precision) -> Block:
    start = time.perf_counter()
    bound = scorer.bound(first, stop, precision)
    return Block(
        first=first,
        count=stop - first,
        log_likelihood=bound.log_likelihood.tolist(),
        effective_sample_size=bound.effective_sample_size.tolist(),
        monte_carlo_error=bound.monte_carlo_error.nan_to_num().tolist(),  # unknown from a single draw
        reconstruction=bound.mean_terms.reconstruction.tolist(),
        kl={level: values.tolist() for level, values in bound.mean_terms.kl.items()},
        seconds=time.perf_counter() - start,
    )


def _precision_difference(scorer: _Scorer, num_images: int, precision: Precision) -> float:
    """Return how much larger the lower precision makes the negative log-likelihood, with the same draws."""
    total = 0.0
    for first in range(0, num_images, _BLOCK_IMAGES):
        stop = min(first + _BLOCK_IMAGES, num_images)
        exact, rounded = (scorer.bound(first, stop, p).log_likelihood for p in ("float32", precision))
        total += float((exact - rounded).sum())
    return total / num_images


def _summary(
    model: LatentModel, blocks: list[Block], options: DensityOptions, difference: float | None
) -> tuple[Density, Tensor]:
    def joined(values: Callable[[Block], list[float]]) -> Tensor:
        return torch.tensor([value for block in blocks for value in values(block)], dtype=torch.float64)

    log_likelihood = joined(lambda block: block.log_likelihood)
    sizes = joined(lambda block: block.effective_sample_size)
    error = float(joined(lambda block: block.monte_carlo_error).square().sum().sqrt() / len(sizes))
    reconstruction = joined(lambda block: block.reconstruction)
    kl = {level: joined(lambda block, level=level: block.kl[level]) for level in blocks[0].kl}  # type: ignore[misc]
    num_dimensions = math.prod(model.data_shape)
    normaliser = model.likelihood.log_normaliser
    density = Density(
        num_images=len(log_likelihood),
        num_samples=options.num_samples,
        scale=model.likelihood.value_kind,
        negative_log_likelihood=estimate(-log_likelihood),
        monte_carlo_error=None if options.num_samples == 1 else error,
        median_effective_sample_size=float(sizes.median()),
        smallest_effective_sample_size=float(sizes.min()),
        normalised=None if normaliser is None else float(-log_likelihood.mean()) - normaliser * num_dimensions,
        bits_per_dimension=_bits(model.likelihood, log_likelihood, num_dimensions),
        negative_elbo=estimate(sum(kl.values()) - reconstruction),
        negative_reconstruction=estimate(-reconstruction),
        kl={level: estimate(values) for level, values in kl.items()},
        precision=options.precision,
        precision_difference=difference,
        seconds=sum(block.seconds for block in blocks),
    )
    return density, log_likelihood


def _bits(likelihood: Likelihood, log_likelihood: Tensor, num_dimensions: int) -> float | None:
    """Return the bits per dimension of a probability; the density of data that are not dequantised has none."""
    if likelihood.value_kind != "probability":
        return None
    return -float(log_likelihood.mean()) / (num_dimensions * math.log(2))
