"""What changes while a run goes on, apart from tensors."""

import json
from dataclasses import dataclass, field
from typing import Any, Self

import torch

from bype.data.files import is_number
from bype.distributed import Group
from bype.objective import ELBOTerms

_COUNTS = ("step", "best_step", "metrics_bytes")


@dataclass
class TrainingState:
    """What changes while a run goes on, apart from tensors. All of it is in every checkpoint."""

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
        shares = [json.loads(text) for text in group.gather(json.dumps([self.num_examples, self.sums]).encode())]
        return {
            "step": self.step,
            "best": self.best,
            "best_step": self.best_step,
            "metrics_bytes": self.metrics_bytes,
            "is_update_due": self.is_update_due,
            "shares": shares,
        }

    @classmethod
    def from_fields(cls, fields: dict[str, Any], group: Group) -> Self:
        """Read the fields of a checkpoint, which may come from a stranger.

        As many processes as wrote it get their own sums back; of another number the first one gets them all.
        """
        if set(fields) != {"best", "shares", "is_update_due", *_COUNTS}:
            raise ValueError("its fields are others")
        shares, best, is_update_due = fields["shares"], fields["best"], fields["is_update_due"]
        if not (isinstance(shares, list) and shares and all(map(_is_share, shares))):
            raise ValueError("its sums are no numbers")
        if not (all(_is_count(fields[name]) for name in _COUNTS) and (best is None or is_number(best))):
            raise ValueError("its counts are no counts")
        if not isinstance(is_update_due, bool):
            raise ValueError("its is_update_due is neither true nor false")
        if len(shares) == group.size:
            num_examples, sums = shares[group.rank]
        else:
            num_examples = sum(count for count, _ in shares) if group.is_first else 0
            sums = {n: sum(s.get(n, 0.0) for _, s in shares) if group.is_first else 0.0 for n in shares[0][1]}
        step, best_step, metrics_bytes = (fields[name] for name in _COUNTS)
        return cls(step, dict(sums), num_examples, best, best_step, metrics_bytes, is_update_due)

    def add(self, terms: ELBOTerms) -> None:
        """Add a step's terms to the sums, of the examples that this process has."""
        for name, value in named_sums(terms).items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.num_examples += len(terms.reconstruction)

    def take_means(self, group: Group) -> dict[str, float]:
        """Return the means over the examples of all processes, and begin anew."""
        totals = torch.tensor([self.num_examples, *self.sums.values()], dtype=torch.float64)
        group.sum_([totals])
        count, *sums = totals.tolist()
        means = {name: value / max(1, count) for name, value in zip(self.sums, sums, strict=True)}
        self.sums, self.num_examples = {}, 0
        return means


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**62


def _is_share(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and _is_count(value[0])
        and isinstance(value[1], dict)
        and all(map(is_number, value[1].values()))
    )


def named_sums(terms: ELBOTerms) -> dict[str, float]:
    """Return the sums over examples of minus ELBO, minus reconstruction, and the KL of each level."""
    stacked = torch.stack([terms.reconstruction, *terms.kl.values()]).detach().sum(1, dtype=torch.float64)
    reconstruction, *kl = stacked.tolist()
    named = {"negative_elbo": sum(kl) - reconstruction, "negative_reconstruction": -reconstruction}
    return named | {f"kl_{level}": value for level, value in zip(terms.kl, kl, strict=True)}
