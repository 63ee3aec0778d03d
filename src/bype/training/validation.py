"""What the validation split says of a model, with the same noise each time."""

import math

import torch

from bype.data.examples import StoreSource, spread_rows
from bype.distributed import Group
from bype.distributions import Distribution
from bype.objective import ELBO
from bype.randomness import BatchSlice, generator_for
from bype.run.directory import RunError
from bype.training.state import named_sums

_BATCH = 500
_COMPARED_EXAMPLES = 5000


class Validation:
    """Scores a model on a split, shared by all processes of a run.

    Parameters
    ----------
    objective
        Around the model.
    source
        The validation split.
    seed
        Of the run.
    group
        The processes that share the work.
    """

    def __init__(self, objective: ELBO, source: StoreSource, seed: int, group: Group) -> None:
        self._objective = objective
        self._model = objective.model
        self.source = source
        self._seed = seed
        self._group = group

    @torch.no_grad()
    def means(self, prior: Distribution) -> dict[str, float]:
        """Return the mean over the split of each term of the ELBO, by name."""
        totals: dict[str, float] = {}
        for number, first in enumerate(range(0, len(self.source), _BATCH)):
            rows = torch.arange(first, min(first + _BATCH, len(self.source)))
            noise = generator_for(self._seed, "validation", number)
            part = self._group.part(len(rows))
            noise_of_part = BatchSlice(noise, part, len(rows))
            terms = self._objective(self.source.take(rows[part]), prior=prior, generator=noise_of_part)
            for name, value in named_sums(terms).items():
                totals[name] = totals.get(name, 0.0) + value
        sums = torch.tensor(list(totals.values()), dtype=torch.float64)
        self._group.sum_([sums])
        means = dict(zip(totals, (sums / len(self.source)).tolist(), strict=True))
        if not math.isfinite(means["negative_elbo"]):
            raise RunError(f"the validation loss is not finite: {means}; try a smaller learning_rate")
        return means

    @torch.no_grad()
    def kl(self) -> float:
        """Return the KL term of the top level on at most 5,000 examples."""
        rows = torch.from_numpy(spread_rows(len(self.source), _COMPARED_EXAMPLES))
        part = self._group.part(len(rows))
        noise = BatchSlice(generator_for(self._seed, "comparison"), part, len(rows))
        z, log_posterior = self._model.encode_rows(self.source, rows[part]).rsample_and_score(generator=noise)
        total = (log_posterior - self._model.prior_distribution().log_prob(z)).double().sum()
        self._group.sum_([total])
        return float(total / len(rows))
