"""What changes during a run, apart from tensors."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import torch

from bype.data.decode import decode
from bype.distributed import Group
from bype.objective import ELBOTerms


@dataclass(frozen=True)
class _Saved:
    """A state as it is in a checkpoint."""

    step: int
    best: float | None
    best_step: int
    metrics_bytes: int
    is_update_due: bool
    shares: tuple[tuple[int, dict[str, float]], ...]
    """Of each process: its number of examples, and their sums."""

    def __post_init__(self) -> None:
        counts = (self.step, self.best_step, self.metrics_bytes, *(count for count, _ in self.shares))
        if min(counts) < 0 or not self.shares:
            raise ValueError("counts must not be negative, and shares must not be empty")


@dataclass
class TrainingState:
    """What changes during a run, apart from tensors. All of it is in every checkpoint."""

    step: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    """Of each term over the examples that this process has had since the last line of metrics."""
    num_examples: int = 0
    best: float | None = None
    """The smallest validation loss (minus ELBO) so far, nats per example."""
    best_step: int = 0
    metrics_bytes: int = 0
    is_update_due: bool = False
    """Whether the update of the pseudocoreset that follows this step is still to be made."""

    def to_fields(self, group: Group) -> dict[str, Any]:
        """Return the fields for a checkpoint, with the sums of each process; all processes call this together."""
        shares = tuple(map(json.loads, group.gather(json.dumps([self.num_examples, self.sums]).encode())))
        return asdict(_Saved(self.step, self.best, self.best_step, self.metrics_bytes, self.is_update_due, shares))

    @classmethod
    def from_fields(cls, fields: dict[str, Any], group: Group) -> Self:
        """Read the fields of a checkpoint, which may come from a stranger.

        If there are as many processes as wrote it, each gets its own sums back; otherwise the first one gets all.
        """
        try:
            saved = decode(_Saved, fields)
        except ValueError as error:
            raise ValueError(f"its state is broken: {error}") from error
        shares = saved.shares
        if len(shares) == group.size:
            num_examples, sums = shares[group.rank]
        else:
            num_examples = sum(count for count, _ in shares) if group.is_first else 0
            sums = {n: sum(s.get(n, 0.0) for _, s in shares) if group.is_first else 0.0 for n in shares[0][1]}
        return cls(
            saved.step, dict(sums), num_examples, saved.best, saved.best_step, saved.metrics_bytes, saved.is_update_due
        )

    def add(self, terms: ELBOTerms) -> None:
        """Add a step's terms to the sums, of the examples that this process has."""
        for name, value in named_sums(terms).items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.num_examples += len(terms.reconstruction)

    @property
    def has_terms(self) -> bool:
        """Whether there were steps since the means were taken: the same in all processes."""
        return bool(self.sums)

    def take_means(self, group: Group) -> dict[str, float]:
        """Return the means over the examples of all processes, and reset the sums."""
        totals = torch.tensor([self.num_examples, *self.sums.values()], dtype=torch.float64)
        group.sum_([totals])
        count, *sums = totals.tolist()
        means = {name: value / max(1, count) for name, value in zip(self.sums, sums, strict=True)}
        self.sums, self.num_examples = {}, 0
        return means


def named_sums(terms: ELBOTerms) -> dict[str, float]:
    """Return the sums over examples of minus ELBO, minus reconstruction, and the KL of each level."""
    stacked = torch.stack([terms.reconstruction, *terms.kl.values()]).detach().sum(1, dtype=torch.float64)
    reconstruction, *kl = stacked.tolist()
    named = {"negative_elbo": sum(kl) - reconstruction, "negative_reconstruction": -reconstruction}
    return named | {f"kl_{level}": value for level, value in zip(terms.kl, kl, strict=True)}
