"""Negative log-likelihood of a split by importance weighting; interrupted, the computation can be continued."""

import json
import math
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bype.bounded import ComponentIndex, NearbyMixture
from bype.data.files import is_number
from bype.distributed import Group
from bype.evaluation.aggregate import estimate
from bype.evaluation.journal import Journal
from bype.evaluation.records import Density
from bype.likelihoods import Likelihood
from bype.memory import keep_freed_memory
from bype.mixtures import NormalMixture
from bype.models.base import LatentModel
from bype.objective import ImportanceWeightedBound, importance_weighted_bound, monte_carlo_error
from bype.training.examples import StoreSource
from bype.training.randomness import generator_for
from bype.training.rows import spread_rows

Precision = Literal["float32", "bfloat16"]

_BLOCK_IMAGES = 16
_COMPARED_IMAGES = 64
_PRUNED_COMPONENTS = 5000
"""Mixtures with more components are scored by those near to each image."""


@dataclass(frozen=True)
class DensityOptions:
    """How to measure.

    Parameters
    ----------
    num_samples
        Draws for each image; the paper takes 5,000.
    num_images
        So many of the split, evenly spread; ``None`` for all.
    max_rows
        At most this many latents are decoded at once: memory grows with it.
    precision
        Of the networks. With ``bfloat16`` the difference to ``float32`` is measured on the first images.
    seed
        Of the draws.
    """

    num_samples: int = 5000
    num_images: int | None = None
    max_rows: int = 2048
    precision: Precision = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        """Check each field."""
        if self.num_samples < 1 or self.max_rows < 1 or (self.num_images is not None and self.num_images < 1):
            raise ValueError("samples, images and rows must be at least one")


@torch.no_grad()
def measure_density(
    model: LatentModel,
    source: StoreSource,
    options: DensityOptions,
    journal_path: Path,
    identity: dict[str, Any],
    report: Callable[[int, int], None] = lambda done, total: None,
    group: Group | None = None,
) -> Density:
    """Estimate the negative log-likelihood of a split's examples.

    Every block of images has draws of its own, so the result does not depend on how many processes share them.

    Parameters
    ----------
    model
        The model.
    source
        The split.
    options
        How to measure.
    journal_path
        Where finished images are written, so that an interrupted measurement goes on. Remove it when the result is
        safe.
    identity
        Which model and data these are; a journal of others is begun anew.
    report
        Called with the number of images done and in all.
    group
        The processes that share the work; each makes this call, the first one keeps the journal.
    """
    group = group or Group()
    told = json.dumps(identity | asdict(options), sort_keys=True)
    group.require_same(told.encode(), "the model, the data or the way to measure")
    rows = spread_rows(len(source), options.num_images or len(source))
    num_images = len(rows)
    keep_freed_memory()
    scorer = _Scorer(model, source, options, rows)
    with ExitStack() as stack:
        journal = None
        if group.is_first:
            journal = stack.enter_context(Journal(journal_path, identity | asdict(options)))
        counts = {
            first: min(_BLOCK_IMAGES, num_images - first) for first in range(0, num_images, _BLOCK_IMAGES)
        }  # by the first image of each block
        known = [] if journal is None else journal.entries
        whole = [entry for entry in known if _is_block(entry, counts, model.levels)]
        blocks = {entry["first"]: entry for entry in json.loads(group.broadcast(json.dumps(whole).encode()))}
        missing = [first for first in counts if first not in blocks]
        for at in range(0, len(missing), group.size):  # a block for each process, then all tell
            group.check_launcher()
            own = [
                _measure_block(scorer, first, first + counts[first], options.precision)
                for first in missing[at + group.rank : at + group.rank + 1]
            ]
            for text in group.gather(json.dumps(own).encode()):
                for entry in json.loads(text):
                    blocks[entry["first"]] = entry
                    if journal is not None:
                        journal.write(entry)
            report(sum(entry["count"] for entry in blocks.values()), num_images)
        difference = None
        if options.precision != "float32" and group.is_first:
            difference = _precision_difference(scorer, min(_COMPARED_IMAGES, num_images), options.precision)
        return _summary(model, [blocks[first] for first in counts], options, difference)


_LISTS = ("log_likelihood", "effective_sample_size", "reconstruction", "neglected")
_BLOCK_FIELDS = {"first", "count", "kl", "seconds", *_LISTS}


def _is_block(entry: dict[str, Any], counts: dict[int, int], levels: Collection[str]) -> bool:
    """Tell whether a line of a journal, which may come from a stranger, is a block as it is written."""
    if set(entry) != _BLOCK_FIELDS or type(entry["first"]) is not int or not isinstance(entry["kl"], dict):
        return False
    count = counts.get(entry["first"])
    lists = [*(entry[name] for name in _LISTS), *entry["kl"].values()]
    return (
        entry["count"] == count
        and set(entry["kl"]) == set(levels)
        and is_number(entry["seconds"])
        and all(isinstance(part, list) and len(part) == count and all(map(is_number, part)) for part in lists)
    )


class _Scorer:
    """Estimates the likelihood of images, block by block."""

    def __init__(
        self, model: LatentModel, source: StoreSource, options: DensityOptions, rows: NDArray[np.int64]
    ) -> None:
        self._model, self._source, self._options, self._rows = model, source, options, rows
        self._prior = model.prior_distribution()
        self._index: ComponentIndex | None = None
        if isinstance(self._prior, NormalMixture) and len(self._prior.means) > _PRUNED_COMPONENTS:
            self._index = ComponentIndex(self._prior) if self._prior.log_variance.ndim == 0 else None

    def bounds(self, first: int, stop: int, precision: Precision) -> list[ImportanceWeightedBound]:
        """Return the bounds of images ``first`` to ``stop``, of some at a time."""
        x = self._source.read(self._rows[first:stop])
        options = self._options
        generator = generator_for(options.seed, "density", first)
        found = []
        with torch.autocast(x.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            # A search for near components pays if many draws of an image come together.
            for part in torch.split(x, len(x) if self._index is None else 2):
                near = None if self._index is None else NearbyMixture(self._index, self._model.encode(part).mean)
                bound = importance_weighted_bound(
                    self._model,
                    part,
                    options.num_samples,
                    prior=near or self._prior,
                    max_rows=options.max_rows,
                    generator=generator,
                )
                found.append(bound)
        return found


def _measure_block(scorer: _Scorer, first: int, stop: int, precision: Precision) -> dict[str, Any]:
    start = time.perf_counter()
    bounds = scorer.bounds(first, stop, precision)

    def joined(value: Callable[[ImportanceWeightedBound], Tensor]) -> list[float]:
        return [number for bound in bounds for number in value(bound).tolist()]

    return {
        "first": first,
        "count": stop - first,
        "log_likelihood": joined(lambda bound: bound.log_likelihood),
        "effective_sample_size": joined(lambda bound: bound.effective_sample_size),
        "reconstruction": joined(lambda bound: bound.mean_terms.reconstruction),
        "kl": {
            level: joined(lambda bound, level=level: bound.mean_terms.kl[level])  # type: ignore[misc]
            for level in bounds[0].mean_terms.kl
        },
        "neglected": joined(lambda bound: bound.neglected),
        "seconds": time.perf_counter() - start,
    }


def _precision_difference(scorer: _Scorer, num_images: int, precision: Precision) -> float:
    """Return how much larger the lower precision makes the negative log-likelihood, with the same draws."""
    total = 0.0
    for first in range(0, num_images, _BLOCK_IMAGES):
        stop = min(first + _BLOCK_IMAGES, num_images)
        pairs = zip(*(scorer.bounds(first, stop, p) for p in ("float32", precision)), strict=True)
        total += sum(float((exact.log_likelihood - rounded.log_likelihood).sum()) for exact, rounded in pairs)
    return total / num_images


def _summary(
    model: LatentModel, blocks: list[dict[str, Any]], options: DensityOptions, difference: float | None
) -> Density:
    def joined(name: str) -> Tensor:
        return torch.tensor([value for block in blocks for value in block[name]], dtype=torch.float64)

    log_likelihood, sizes = joined("log_likelihood"), joined("effective_sample_size")
    error = float(monte_carlo_error(sizes, options.num_samples).square().sum().sqrt() / len(sizes))
    reconstruction = joined("reconstruction")
    kl = {
        level: torch.tensor([value for block in blocks for value in block["kl"][level]], dtype=torch.float64)
        for level in blocks[0]["kl"]
    }
    num_dimensions = math.prod(model.data_shape)
    normaliser = model.likelihood.log_normaliser
    return Density(
        num_images=len(log_likelihood),
        num_samples=options.num_samples,
        scale=model.likelihood.value_kind,
        negative_log_likelihood=estimate(-log_likelihood),
        monte_carlo_error=None if math.isnan(error) else error,
        neglected=float(joined("neglected").mean()),
        median_effective_sample_size=float(sizes.median()),
        smallest_effective_sample_size=float(sizes.min()),
        normalised=None if normaliser is None else float(-log_likelihood.mean()) - normaliser * num_dimensions,
        bits_per_dimension=_bits(model.likelihood, log_likelihood, num_dimensions),
        negative_elbo=estimate(sum(kl.values()) - reconstruction),
        negative_reconstruction=estimate(-reconstruction),
        kl={level: estimate(values) for level, values in kl.items()},
        precision=options.precision,
        precision_difference=difference,
        seconds=sum(block["seconds"] for block in blocks),
    )


def _bits(likelihood: Likelihood, log_likelihood: Tensor, num_dimensions: int) -> float | None:
    """Return bits per dimension of a probability; a density of undequantised data has none."""
    if likelihood.value_kind != "probability":
        return None
    return float(likelihood.bits_per_dimension(log_likelihood.mean(), num_dimensions))
