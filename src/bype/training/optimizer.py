"""Adam on normalised gradients."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

_EPSILON = 1e-7
_NOT_FINITE = "gradients are not finite; try a smaller learning_rate, or data of a smaller scale"
_STATE = ("step", "exp_avg", "exp_avg_sq")


class NormalisedAdam:
    """Adam, optionally with each parameter's gradient divided by its own norm, as the paper trains.

    The numbers are those of ``torch.optim.Adam(fused=True)``. That class imports PyTorch's compiler, which takes as
    long as importing torch, so its kernel is called here directly.

    Parameters
    ----------
    parameters
        With their names, by which the state is saved; of one dtype, on one device.
    learning_rate
        Of Adam.
    normalise
        Whether to divide gradients by their norms.
    """

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]], learning_rate: float, normalise: bool) -> None:
        self._parameters = dict(parameters)
        self._rate, self._normalise = learning_rate, normalise
        self._states: dict[str, dict[str, Tensor]] = {}

    def set_rate(self, learning_rate: float) -> None:
        """Change the learning rate of the steps to come."""
        self._rate = learning_rate

    def gradients(self) -> list[Tensor]:
        """Return the gradients that there are, to be changed in place."""
        return [parameter.grad for parameter in self._parameters.values() if parameter.grad is not None]

    @torch.no_grad()
    def step(self) -> None:
        """Apply the gradients; they stay until :meth:`clear`."""
        moving = {name: parameter for name, parameter in self._parameters.items() if parameter.grad is not None}
        if not moving:
            return
        gradients = self.gradients()
        if self._normalise:
            normalise_(gradients)
        elif not torch.stack(torch._foreach_norm(gradients, torch.inf)).isfinite().all():
            raise ValueError(_NOT_FINITE)
        for name, parameter in moving.items():
            if name not in self._states:
                count = torch.zeros((), dtype=torch.float32, device=parameter.device)
                moments = torch.zeros_like(parameter), torch.zeros_like(parameter)
                self._states[name] = dict(zip(_STATE, (count, *moments), strict=True))
        steps, averages, squares = ([self._states[name][key] for name in moving] for key in _STATE)
        torch._foreach_add_(steps, 1)
        torch._fused_adam_(
            list(moving.values()),
            gradients,
            averages,
            squares,
            [],
            steps,
            lr=self._rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    def clear(self) -> None:
        """Forget the gradients."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def state(self) -> dict[str, Tensor]:
        """Return the moments and step counts by name."""
        return {
            f"{name}.{key}": value for name in self._parameters for key, value in self._states.get(name, {}).items()
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take back what :meth:`state` returned."""
        states = {}
        for name, parameter in self._parameters.items():
            found = {key: state[f"{name}.{key}"] for key in _STATE if f"{name}.{key}" in state}
            if found:
                kinds = [(value.shape, value.dtype) for value in found.values()]
                moment = parameter.shape, parameter.dtype
                fits = kinds == [(torch.Size(), torch.float32), moment, moment] and found["step"] >= 0
                if not fits:
                    raise ValueError(f"the state of Adam does not fit {name}")
                states[name] = {key: value.to(parameter.device) for key, value in found.items()}
        self._states = states


def rounding() -> bytes:
    """Return numbers that were drawn and moved by Adam, to compare how processors round."""
    numbers = nn.Parameter(torch.randn(1000, generator=torch.Generator().manual_seed(0)))
    numbers.grad = numbers.detach().exp()
    NormalisedAdam([("numbers", numbers)], 1e-3, normalise=False).step()
    return numbers.detach().numpy().tobytes()


def normalise_(gradients: list[Tensor]) -> None:
    """Divide each gradient by its own L2 norm (+1e-7), in place."""
    if not gradients:
        return
    norms = torch.stack(torch._foreach_norm(gradients)) + _EPSILON
    if not norms.isfinite().all():  # squares overflow long before the numbers themselves do
        largest = torch.stack(torch._foreach_norm(gradients, torch.inf))
        if not largest.isfinite().all():
            raise ValueError(_NOT_FINITE)
        torch._foreach_div_(gradients, largest.clamp_min(1.0).unbind())
        norms = torch.stack(torch._foreach_norm(gradients)) + _EPSILON
    torch._foreach_div_(gradients, norms.unbind())
