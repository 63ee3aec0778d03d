"""What changes while a run goes on, apart from tensors."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Self

import torch

from bype.distributed import Group
from bype.objective import ELBOTerms


@dataclass
class TrainingState:
    """What changes while a run goes on, apart from tensors. All of it is in every checkpoint."""

    step: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    """Of each term over the examples since the last line of metrics."""
    num_examples: int = 0
    best: float | None = None
    """The smallest validation loss (minus ELBO) so far, nats per example."""
    best_step: int = 0
    metrics_bytes: int = 0

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        """Read the fields of a checkpoint, which may come from a stranger."""
        if set(fields) != {each.name for each in dataclasses.fields(cls)}:
            raise ValueError("its fields are others")
        state = cls(**fields)
        counts = (state.step, state.num_examples, state.best_step, state.metrics_bytes)
        numbers = [*state.sums.values(), *([] if state.best is None else [state.best])]
        if not all(type(count) is int and 0 <= count < 2**62 for count in counts):
            raise ValueError("its counts are no counts")
        if not all(isinstance(number, int | float) and abs(number) < 1e30 for number in numbers):
            raise ValueError("its sums are no numbers")
        return state

    def add(self, terms: ELBOTerms) -> None:
        """Add a step's terms to the sums, of the examples that this process has."""
        for name, value in named_sums(terms).items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.num_examples += len(terms.reconstruction)

    def gather_sums(self, group: Group) -> None:
        """Bring the sums of all processes together in process 0, which alone reports and saves them."""
        if group.size > 1:
            totals = torch.tensor([self.num_examples, *self.sums.values()], dtype=torch.float64)
            group.sum_([totals])
            count, *sums = (totals if group.is_first else torch.zeros_like(totals)).tolist()
            self.num_examples, self.sums = int(count), dict(zip(self.sums, sums, strict=True))

    def take_means(self) -> dict[str, float]:
        """Return the means over examples, and begin anew."""
        means = {name: value / max(1, self.num_examples) for name, value in self.sums.items()}
        self.sums, self.num_examples = {}, 0
        return means


def named_sums(terms: ELBOTerms) -> dict[str, float]:
    """Return the sums over examples of minus ELBO, minus reconstruction, and the KL of each level."""
    stacked = torch.stack([terms.reconstruction, *terms.kl.values()]).detach().sum(1, dtype=torch.float64)
    reconstruction, *kl = stacked.tolist()
    named = {"negative_elbo": sum(kl) - reconstruction, "negative_reconstruction": -reconstruction}
    return named | {f"kl_{level}": value for level, value in zip(terms.kl, kl, strict=True)}
