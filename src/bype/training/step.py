"""One step of training: gradients, the pseudocoreset's step, the network's step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from bype.data.scaling import Scaling
from bype.distributed import Group
from bype.models.base import LatentModel
from bype.objective import ELBO, ELBOTerms
from bype.priors import ExampleSource
from bype.pseudocoreset.rule import Rule
from bype.randomness import Randomness, RowRandomness
from bype.run.build import build_model, build_rule
from bype.run.config import ConfigError, TrainingConfig
from bype.run.own import OwnPrior, OwnRule
from bype.training.optimizer import NormalisedAdam


@dataclass(frozen=True, eq=False)
class StepOutcome:
    """What a step has found."""

    terms: ELBOTerms
    """Of the examples that this process has."""
    is_finite: bool
    """Whether the loss of the whole batch is finite; if not, nothing has moved."""


class TrainingStep:
    """A model with all that moves it.

    Parameters
    ----------
    model, rule, optimizer
        What is trained, and what moves its pseudocoreset and its network.
    group
        The processes that share each batch. All hold the same model before a step, and after it.
    """

    def __init__(self, model: LatentModel, rule: Rule, optimizer: NormalisedAdam, group: Group | None = None) -> None:
        self.model = model
        self.rule = rule
        self.optimizer = optimizer
        self.objective = ELBO(model)
        self._group = group or Group()

    @classmethod
    def build(
        cls,
        config: TrainingConfig,
        shape: tuple[int, ...],
        train: ExampleSource,
        *,
        group: Group | None = None,
        device: torch.device | str = "cpu",
        own_rule: OwnRule | None = None,
        scaling: Scaling | None = None,
        labels: Tensor | None = None,
        own_prior: OwnPrior | None = None,
    ) -> Self:
        """Build all of it from a config.

        Parameters
        ----------
        config
            What to train.
        shape
            Of one example.
        train
            The training examples, for priors that start at them or are made of them.
        group
            The processes that share each batch.
        device
            Where the model is, and batches are to be.
        own_rule
            Makes a rule of the user's own, in place of the config's.
        scaling
            Of the columns of a table.
        labels
            (N,), the classes of the training examples, if pseudo-points are to have labels.
        own_prior
            Makes the prior, if the config names one of the user's own.
        """
        model = build_model(config, shape, train, scaling, labels, own_prior).to(device)
        optimizer = NormalisedAdam(model.named_parameters(), config.learning_rate, config.normalise_gradients)
        rule = build_rule(config.rule, model) if own_rule is None else own_rule(model)
        if not isinstance(rule, Rule):
            raise ConfigError(f"the rule of your own must be a bype.Rule, not {type(rule).__name__}")
        return cls(model, rule.to(device), optimizer, group)

    def __call__(
        self,
        x: Tensor,
        indices: Tensor,
        beta: float = 1.0,
        *,
        generator: RowRandomness = None,
        prior_generator: Randomness = None,
        also_sum: Sequence[Tensor] = (),
        labels: Tensor | None = None,
    ) -> StepOutcome:
        """Take one step on examples (B, *data_shape), the rows ``indices`` of the training set.

        Where the loss is not finite neither weights nor points move, and no gradient is left.

        Parameters
        ----------
        x, indices, beta, generator, prior_generator, labels
            As for :class:`~bype.objective.ELBO`; of the batch, the examples that this process takes, if any.
        also_sum
            Float tensors that are summed over all processes in the same exchange, in place.
        """
        group, model, rule = self._group, self.model, self.rule
        terms: ELBOTerms = self.objective(
            x,
            indices=indices,
            beta=beta,
            generator=generator,
            prior_generator=prior_generator,
            group=group,
            labels=labels,
        )
        loss = terms.loss
        total = loss.detach().clone()
        # Every process adds the rule's term, and all of it counts once.
        torch.autograd.backward(loss + rule.loss_term(model, terms) / group.size)
        for_rule = rule.to_sum(model, terms, group.is_first)
        group.sum_([*self.optimizer.gradients(), *for_rule, total, *also_sum])
        is_finite = bool(total.isfinite())
        try:
            if is_finite:
                rule.step(model, terms, for_rule)
                self.optimizer.step()
        finally:
            self.optimizer.clear()
        return StepOutcome(terms, is_finite)
