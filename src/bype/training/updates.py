"""Updates of the pseudocoreset between training steps, for rules that ask for them."""

import math
from collections.abc import Callable, Iterator
from typing import Any

from bype.data.examples import StoreSource, TrainingOrder
from bype.data.order import derive_key
from bype.distributed import Group
from bype.models.base import LatentModel
from bype.pseudocoreset.rule import Rule, UpdateBatch, unchanged_if_it_fails
from bype.randomness import BatchSlice, generator_for
from bype.run.config import TrainingConfig
from bype.run.directory import RunError


class _StoppedError(Exception):
    """A request to stop came during an update."""


def _numbers(found: dict[str, Any] | None) -> dict[str, float]:
    """Return what an update found as numbers for a line of metrics.

    A user's rule may return tensors, numbers of numpy, truth values, or nothing.
    """
    return {name: float(value) for name, value in (found or {}).items()}


class Updates:
    """Hands training examples to a rule, and takes back an update that is interrupted.

    Parameters
    ----------
    model, rule
        What is updated, and how.
    source
        The training examples.
    config
        Of the run; the rule may ask for another size of batches.
    group
        The processes that share each batch.
    shall_stop
        Tells whether any process was asked to stop; all call it together.
    validation_kl
        Measures the KL term on validation examples, where there are any.
    """

    def __init__(
        self,
        model: LatentModel,
        rule: Rule,
        source: StoreSource,
        config: TrainingConfig,
        group: Group,
        shall_stop: Callable[[], bool],
        validation_kl: Callable[[], float] | None,
    ) -> None:
        self._model, self._rule, self._source, self._group = model, rule, source, group
        self._seed, self._shall_stop, self._validation_kl = config.seed, shall_stop, validation_kl
        batch_size, order_seed = rule.batch_size or config.batch_size, derive_key(config.seed, "update order")
        self._order = TrainingOrder(source.split, order_seed, batch_size, config.window_blocks)
        self._num_batches = rule.num_batches or self._order.steps_per_epoch

    def is_due(self, step: int, steps_per_epoch: int) -> bool:
        """Tell whether the rule asks for an update after so many training steps."""
        return self._rule.every is not None and self._rule.every.is_due(step, steps_per_epoch)

    def make(self, step: int) -> dict[str, float] | None:
        """Make the update after a training step, and return what it found; nothing if it was interrupted.

        An update may be a pass over all data. A request to stop during it brings back the state before the update.
        """
        try:
            with unchanged_if_it_fails(self._model.prior, self._rule):
                found = _numbers(self._rule.update(self._model, self._batches(step), validation_kl=self._validation_kl))
                broken = [name for name, value in found.items() if not math.isfinite(value)]
                if broken and not found.get("taken_back"):
                    raise ValueError(f"{' and '.join(broken)}: not a finite number; try a smaller step size")
        except _StoppedError:
            return None
        except ValueError as error:
            raise RunError(f"the update of the pseudocoreset at step {step} failed: {error}") from error
        # Each process has worked out the same, but processors of different kinds round differently.
        for module in (self._model.prior, self._rule):
            self._group.copy_first_(list(module.state_dict().values()))
        return {name: value for name, value in found.items() if name not in broken}

    def _batches(self, step: int) -> Iterator[UpdateBatch]:
        """Yield batches and draws of this update's own, derived from the step it follows."""
        for j in range(self._num_batches):
            if j > 0 and self._shall_stop():
                raise _StoppedError
            self._group.check_launcher()
            rows = self._order.rows(step * self._order.steps_per_epoch + j)
            part = self._group.part(len(rows))
            noise = BatchSlice(generator_for(self._seed, "update", step, j), part, len(rows))
            bits = derive_key(self._seed, "update bits", step, j)
            x = self._model.to_model_units(self._source.read(rows[part], bits))
            yield UpdateBatch(x, noise, self._group)
