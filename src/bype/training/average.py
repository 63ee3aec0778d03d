"""A running average of a model's numbers. With a constant learning rate it is a better model than the last one."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class RunningAverage:
    r"""The average of a model over about the last share of its steps.

    After step :math:`t` it goes the part :math:`1 / (1 + s (t - 1))` of the way to the model. So step :math:`k` counts
    about as :math:`k^{1/s - 1}`, and the mean age of what is averaged is about :math:`s t / (1 + s)`.

    Parameters
    ----------
    model
        What is averaged: its parameters, and its buffers too, such as pseudo-points. What is no float is copied.
    share
        :math:`s`, below 1; 0 for no average.

    Examples
    --------
    >>> model = nn.Linear(1, 1, bias=False)
    >>> average = RunningAverage(model, share=0.5)
    >>> for step in (1, 2, 3, 4):
    ...     _ = model.weight.data.fill_(step)
    ...     average.add(step)
    >>> with average.shown():
    ...     round(model.weight.item(), 4)  # step k counts k times: (1 + 4 + 9 + 16) / 10
    3.0
    >>> model.weight.item()
    4.0
    """

    def __init__(self, model: nn.Module, share: float) -> None:
        self._model, self._share = model, share
        self._values: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, step: int) -> None:
        """Take in the model as it is after so many steps, counted from 1."""
        if self._share == 0:
            return
        live = self._model.state_dict()
        if not self._values:
            self._values = {name: value.clone() for name, value in live.items()}
        part = 1 / (1 + self._share * (step - 1))
        floats = [name for name, value in live.items() if value.is_floating_point()]
        averages = [self._values[name] for name in floats]
        # Rounded one by one: all processes of a run must agree, and processors fuse differently. By differences: what
        # never moves, such as the scaling of a table, stays the same to the bit.
        steps = torch._foreach_sub([live[name] for name in floats], averages)
        torch._foreach_mul_(steps, part)
        torch._foreach_add_(averages, steps)
        for name in live.keys() - set(floats):
            self._values[name].copy_(live[name])

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Let the model hold the average, as long as the context lasts; nothing happens if there is none."""
        if not self._values:
            yield
            return
        live = {name: value.clone() for name, value in self._model.state_dict().items()}
        self._model.load_state_dict(self._values)
        try:
            yield
        finally:
            self._model.load_state_dict(live)

    def state(self) -> dict[str, Tensor]:
        """Return the average by name, to be saved."""
        return dict(self._values)

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take back what :meth:`state` returned."""
        if not state:
            self._values = {}
            return
        live = self._model.state_dict()
        if self._share == 0 or state.keys() != live.keys():
            raise ValueError("the average is not one of this model")
        if any((value.shape, value.dtype) != (live[name].shape, live[name].dtype) for name, value in state.items()):
            raise ValueError("the average does not fit the model")
        self._values = {name: value.to(live[name].device) for name, value in state.items()}
