"""Adam on normalised gradients."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

_EPSILON = 1e-7


class NormalisedAdam:
    """Adam, optionally with each parameter's gradient divided by its own norm, as the paper trains.

    Parameters
    ----------
    parameters
        With their names, by which the state is saved.
    learning_rate
        Of Adam.
    normalise
        Whether to divide gradients by their norms.
    """

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]], learning_rate: float, normalise: bool) -> None:
        self._parameters = dict(parameters)
        self._normalise = normalise
        self._adam = torch.optim.Adam(self._parameters.values(), lr=learning_rate, fused=True)

    def set_rate(self, learning_rate: float) -> None:
        """Change the learning rate of the steps to come."""
        for group in self._adam.param_groups:
            group["lr"] = learning_rate

    def gradients(self) -> list[Tensor]:
        """Return the gradients that there are, to be changed in place."""
        return [parameter.grad for parameter in self._parameters.values() if parameter.grad is not None]

    def step(self) -> None:
        """Apply the gradients; they stay until :meth:`clear`."""
        if self._normalise:
            normalise_(self.gradients())
        self._adam.step()

    def clear(self) -> None:
        """Forget the gradients."""
        self._adam.zero_grad()

    def state(self) -> dict[str, Tensor]:
        """Return the moments and step counts by name."""
        return {
            f"{name}.{key}": value
            for name, parameter in self._parameters.items()
            for key, value in self._adam.state.get(parameter, {}).items()
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take back what :meth:`state` returned."""
        for name, parameter in self._parameters.items():
            saved = {
                key: state[f"{name}.{key}"].to(parameter.device)
                for key in ("step", "exp_avg", "exp_avg_sq")
                if f"{name}.{key}" in state
            }
            if saved:
                self._adam.state[parameter] = saved


def normalise_(gradients: list[Tensor]) -> None:
    """Divide each gradient by its own L2 norm (+1e-7), in place."""
    if not gradients:
        return
    norms = torch.stack(torch._foreach_norm(gradients)) + _EPSILON
    if not norms.isfinite().all():  # squares overflow long before the numbers themselves do
        largest = torch.stack(torch._foreach_norm(gradients, torch.inf))
        if not largest.isfinite().all():
            raise ValueError("gradients are not finite; try a smaller learning_rate, or data of a smaller scale")
        torch._foreach_div_(gradients, largest.clamp_min(1.0).unbind())
        norms = torch.stack(torch._foreach_norm(gradients)) + _EPSILON
    torch._foreach_div_(gradients, norms.unbind())
