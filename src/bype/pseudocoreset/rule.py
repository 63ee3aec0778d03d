"""The contract of all rules that move a pseudocoreset while a network is trained (Algorithm 2)."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor, nn

from bype.distributed import Group
from bype.models.base import LatentModel
from bype.objective import ELBOTerms
from bype.randomness import Randomness, RowRandomness
from bype.span import Span


@dataclass(frozen=True, eq=False)
class UpdateBatch:
    """Training examples for one step of an update."""

    x: Tensor
    """(B, *data_shape); where several processes share the batch, the part that is here."""
    generator: RowRandomness = None
    """For what is drawn in this step."""
    group: Group = field(default_factory=Group)
    """The processes that share the batch."""


class Rule(nn.Module):
    """How a pseudocoreset moves while the network is trained. This one leaves it where it is.

    Training calls a rule at four moments and never asks which one it is. In each step, in this order:
    :meth:`loss_term` after the forward pass, :meth:`to_sum` after the backward pass, and :meth:`step` just before the
    optimiser's. And :meth:`update`, if ``every`` says that it is due. What a rule must remember is kept in buffers, so
    that it is saved with the run.

    Parameters
    ----------
    every
        How often training calls :meth:`update`, such as '10 epochs'; never if left out.
    batch_size
        Training examples in a batch of an update; as many as in a training step if left out.
    num_batches
        Batches in an update; a pass over the training examples if left out.

    Examples
    --------
    >>> rule = Rule()  # for `joint`, whose points are parameters, and for points that stay where they start
    >>> rule.every is None, rule.state_dict()
    (True, OrderedDict())
    """

    def __init__(self, every: str | None = None, batch_size: int | None = None, num_batches: int | None = None) -> None:
        super().__init__()
        self.every = None if every is None else Span.parse_interval(every)
        self.batch_size = batch_size
        self.num_batches = num_batches

    def loss_term(self, model: LatentModel, terms: ELBOTerms) -> Tensor | float:
        """Return what to add to the loss of a training step; every process returns all of it."""
        return 0.0

    def to_sum(self, model: LatentModel, terms: ELBOTerms, is_first: bool) -> list[Tensor]:
        """Return tensors for :meth:`step`, which the processes that share a batch sum in place.

        Parameters
        ----------
        model, terms
            The model and what the objective returned for it; the gradients are there.
        is_first
            Whether this is process 0: it alone contributes what all processes know.
        """
        return []

    def step(self, model: LatentModel, terms: ELBOTerms, summed: Sequence[Tensor] | None = None) -> None:
        """Move the pseudocoreset beside a training step; ``summed`` is what :meth:`to_sum` returned, after the sum."""

    def update(
        self,
        model: LatentModel,
        batches: Iterable[UpdateBatch | Tensor],
        *,
        validation_kl: Callable[[], float] | None = None,
        generator: Randomness = None,
    ) -> dict[str, float]:
        """Move the pseudocoreset with the network held fixed, and return what is worth a line of metrics.

        Parameters
        ----------
        model
            Whose pseudocoreset moves.
        batches
            Training examples; plain tensors draw from ``generator``.
        validation_kl
            Measures the KL term on validation examples, with the same noise each time.
        generator
            For batches without one of their own.
        """
        raise NotImplementedError(f"{type(self).__name__} has no updates between training steps")


class PeriodicRule(Rule, ABC):
    """What rules share that move the pseudocoreset every few epochs, a step for each batch of an update."""

    @abstractmethod
    def start_update(self) -> None:
        """Begin an update, which takes one step or many."""

    @abstractmethod
    def update_step(
        self, model: LatentModel, x: Tensor, *, generator: RowRandomness = None, group: Group | None = None
    ) -> float:
        """Take one step with a batch of training examples, and return the rule's objective before it.

        Parameters
        ----------
        model, x
            The model and the examples.
        generator
            For the draws of this step.
        group
            The processes that share the batch, if there are several; ``x`` is then the part of it that is here.
        """

    def accepts(self, kl_before: float, kl_after: float) -> bool:
        """Tell whether an update is kept, given the validation KL before and after it."""
        return True

    def update(
        self,
        model: LatentModel,
        batches: Iterable[UpdateBatch | Tensor],
        *,
        validation_kl: Callable[[], float] | None = None,
        generator: Randomness = None,
    ) -> dict[str, float]:
        with unchanged_if_it_fails(model.prior, self) as (before, _):
            kl_before = None if validation_kl is None else validation_kl()
            objectives: list[float] = []
            self.start_update()
            for item in batches:
                batch = item if isinstance(item, UpdateBatch) else UpdateBatch(item, generator)
                objectives.append(self.update_step(model, batch.x, generator=batch.generator, group=batch.group))
            if not objectives:
                raise ValueError("an update needs at least one batch of training examples")
            found = {"steps": len(objectives), "objective_first": objectives[0], "objective_last": objectives[-1]}
            if validation_kl is not None and kl_before is not None:
                kl_after = validation_kl()
                found |= {"kl_before": kl_before, "kl_after": kl_after}
                if not self.accepts(kl_before, kl_after):
                    model.prior.load_state_dict(before)
                    found["taken_back"] = 1
            return found


@contextmanager
def unchanged_if_it_fails(*modules: nn.Module) -> Iterator[list[dict[str, Tensor]]]:
    """Bring modules back to their state before the block if it raises, also if the user interrupts it.

    Gives the state of each module before the block.
    """
    before = [{name: value.clone() for name, value in module.state_dict().items()} for module in modules]
    try:
        yield before
    except BaseException:
        for module, state in zip(modules, before, strict=True):
            module.load_state_dict(state)
        raise
