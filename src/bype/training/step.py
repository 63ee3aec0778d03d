"""One step of training: gradients, the network's move, and a pseudocoreset that follows at every step."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bype.coreset import Tracking
from bype.distributed import Group
from bype.distributions import Randomness, RowRandomness
from bype.objective import ELBO, ELBOTerms
from bype.priors import ExampleSource
from bype.training.build import build_model, build_rule
from bype.training.config import TrainingConfig
from bype.training.optimizer import NormalisedAdam


@dataclass(frozen=True, eq=False)
class StepOutcome:
    """What a step has found."""

    terms: ELBOTerms
    """Of the examples that this process has."""
    is_finite: bool
    """Whether the loss of the whole batch is; if not, nothing has moved."""


class TrainingStep:
    """A model with all that moves it.

    Parameters
    ----------
    config
        What to train.
    shape
        Of one example.
    train
        The training examples, for priors that start at them or stand on them.
    update_steps
        How many steps an update between two epochs takes, for rules that have such.
    group
        The processes that share each batch. All hold the same model before a step, and after it.
    device
        Where the model is, and batches are to be.
    """

    def __init__(
        self,
        config: TrainingConfig,
        shape: tuple[int, ...],
        train: ExampleSource,
        update_steps: int = 1,
        group: Group | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self._group = group or Group()
        self.model = build_model(config, shape, train).to(device)
        self.objective = ELBO(self.model)
        self.optimizer = NormalisedAdam(self.model.named_parameters(), config.learning_rate, config.normalise_gradients)
        self.rule = build_rule(config, self.model, update_steps)

    def __call__(
        self,
        x: Tensor,
        indices: Tensor,
        beta: float = 1.0,
        *,
        num_examples: int | None = None,
        generator: RowRandomness = None,
        prior_generator: Randomness = None,
        also_sum: Sequence[Tensor] = (),
    ) -> StepOutcome:
        """Take one step on examples (B, *data_shape), the rows ``indices`` of the training set.

        Where the loss is not finite neither weights nor points move, and no gradient is left.

        Parameters
        ----------
        x, indices, beta, generator, prior_generator
            As for :class:`~bype.objective.ELBO`; of the batch, the examples that this process takes, if any.
        num_examples
            In the whole batch, if other processes have the rest of it.
        also_sum
            Float tensors that are to be summed over all processes on this occasion, in place.
        """
        num_examples = len(x) if num_examples is None else num_examples
        terms: ELBOTerms = self.objective(
            x,
            indices=indices,
            beta=beta,
            generator=generator,
            prior_generator=prior_generator,
            gather=self._group.gather_rows if self._group.size > 1 else None,
        )
        tracking = self.rule if isinstance(self.rule, Tracking) else None
        loss = terms.loss_share(num_examples)
        total = loss.detach().clone()
        if tracking is not None:
            pull = tracking.pull(beta)
            loss = loss + pull / self._group.size  # every process adds it, and all of it counts once
        torch.autograd.backward(loss)
        shared = self.optimizer.gradients() + ([] if tracking is None else tracking.shared(self._group.is_first))
        self._group.sum_([*shared, total, *also_sum])
        is_finite = bool(total.isfinite())
        if is_finite and tracking is not None and not pull.isfinite():
            self.optimizer.clear()
            raise ValueError("pseudo-points are infinitely far from their targets; try a smaller learning_rate")
        if is_finite:
            if tracking is not None:
                tracking.step(beta, num_examples)
            self.optimizer.step()
        else:
            self.optimizer.clear()
        return StepOutcome(terms, is_finite)
