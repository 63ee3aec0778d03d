"""One step of training: gradients, the network's move, and a pseudocoreset that follows at every step."""

import torch
from torch import Tensor

from bype.coreset import Tracking
from bype.distributions import Randomness, RowRandomness
from bype.objective import ELBO, ELBOTerms
from bype.priors import ExampleSource
from bype.training.build import build_model, build_rule
from bype.training.config import TrainingConfig
from bype.training.optimizer import NormalisedAdam


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
    """

    def __init__(
        self, config: TrainingConfig, shape: tuple[int, ...], train: ExampleSource, update_steps: int = 1
    ) -> None:
        self.model = build_model(config, shape, train)
        self.objective = ELBO(self.model)
        self.optimizer = NormalisedAdam(self.model.named_parameters(), config.learning_rate, config.normalise_gradients)
        self.rule = build_rule(config, self.model, update_steps)

    def __call__(
        self,
        x: Tensor,
        indices: Tensor,
        beta: float = 1.0,
        *,
        generator: RowRandomness = None,
        prior_generator: Randomness = None,
    ) -> ELBOTerms:
        """Take one step on examples (B, *data_shape), the rows ``indices`` of the training set, and return its terms.

        Where the loss is not finite nothing moves, and no gradient is left.
        """
        terms: ELBOTerms = self.objective(
            x, indices=indices, beta=beta, generator=generator, prior_generator=prior_generator
        )
        tracking = self.rule if isinstance(self.rule, Tracking) else None
        loss = terms.loss if tracking is None else terms.loss + tracking.pull(beta)
        torch.autograd.backward(loss)
        if loss.isfinite():
            if tracking is not None:
                tracking.step(beta)
            self.optimizer.step()
        else:
            self.optimizer.clear()
            if terms.loss.isfinite():
                raise ValueError("pseudo-points are infinitely far from their targets; try a smaller learning_rate")
        return terms
