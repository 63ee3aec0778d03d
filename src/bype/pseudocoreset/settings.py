"""The settings of each rule, for a run's config. This file does not load torch, so that help is quick."""

from dataclasses import dataclass, field
from typing import Any, Literal

from bype.data.decode import check_fields
from bype.span import Span


def setting(default: Any, text: str) -> Any:
    """Declare a field with its help text."""
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class FrozenSettings:
    """Never move the points during training: they stay where they start.

    Examples
    --------
    >>> from bype import TrainingConfig
    >>> TrainingConfig(components=100, rule=FrozenSettings()).rule.name
    'frozen'
    """

    name: Literal["frozen"] = "frozen"


@dataclass(frozen=True)
class JointSettings:
    """Train points and weights by backpropagation, together with the network.

    Examples
    --------
    >>> from bype import TrainingConfig
    >>> TrainingConfig(components=100, rule=JointSettings()).rule.name
    'joint'
    """

    name: Literal["joint"] = "joint"


@dataclass(frozen=True)
class PSVISettings:
    """Update the pseudocoreset as the paper does, every few epochs.

    Examples
    --------
    >>> PSVISettings(every="5 epochs", step_size=0.5).optimiser
    'adam'
    """

    name: Literal["psvi"] = "psvi"
    every: str = setting("10 epochs", "Update this often")
    steps: int | None = setting(None, "Take this many batches in an update; a pass over the training split if left out")
    batch_size: int | None = setting(None, "Take this many examples in a batch of an update; as in training by default")
    step_size: float = setting(0.1, "Set the step size; the paper takes the better of 0.1 and 0.5")
    optimiser: Literal["adam", "plain"] = setting(
        "adam", "Step with Adam, as the authors' program does (adam), or plainly, as in the paper's text (plain)"
    )
    draws: int | None = setting(None, "Draw this many latents in a step; as many as points if left out")
    centring: Literal["samples", "pixels"] = setting(
        "samples",
        "Centre gradients over draws, as in the paper's text (samples), or over pixels, as in the authors' program",
    )

    def __post_init__(self) -> None:
        """Check each field."""
        check_fields(self)
        Span.parse_interval(self.every)
        _require_positive(steps=self.steps, batch_size=self.batch_size, step_size=self.step_size)
        if self.draws is not None and self.draws < 2:
            raise ValueError(f"draws must be at least 2, to be centred over each other, not {self.draws}")


@dataclass(frozen=True)
class AscentSettings:
    """Ascend the ELBO every few epochs with the network held fixed, and keep what validation agrees with.

    Examples
    --------
    >>> AscentSettings(steps=50).every
    '5 epochs'
    """

    name: Literal["ascent"] = "ascent"
    every: str = setting("5 epochs", "Update this often")
    steps: int = setting(100, "Take this many batches in an update")
    batch_size: int = setting(1000, "Take this many examples in a batch of an update")
    step_size: float = setting(0.01, "Set Adam's step size on the points, in units of the data")

    def __post_init__(self) -> None:
        """Check each field."""
        check_fields(self)
        Span.parse_interval(self.every)
        _require_positive(steps=self.steps, batch_size=self.batch_size, step_size=self.step_size)


@dataclass(frozen=True)
class TrackingSettings:
    """Follow every training step through latent targets; encode a few points in each step instead of all.

    Examples
    --------
    >>> TrackingSettings(live_points=64).step_size
    0.0001
    """

    name: Literal["tracking"] = "tracking"
    live_points: int | None = setting(16, "Encode this many points in a training step; all of them if None")
    scored_points: int | None = setting(
        None, "With very many points, score about this many in a training step, in turns; all if left out"
    )
    step_size: float = setting(1e-4, "Set Adam's step size on the points, for each training step")

    def __post_init__(self) -> None:
        """Check each field."""
        check_fields(self)
        _require_positive(live_points=self.live_points, scored_points=self.scored_points, step_size=self.step_size)


@dataclass(frozen=True)
class OwnSettings:
    """Use a rule of the user's own, which is handed to :func:`bype.train`."""

    name: Literal["own"] = "own"
    rule: str = ""
    """The rule's class, as module and name: the run resumes only with it."""


RuleSettings = FrozenSettings | JointSettings | PSVISettings | AscentSettings | TrackingSettings | OwnSettings
SETTINGS: dict[str, type[RuleSettings]] = {
    "tracking": TrackingSettings,
    "psvi": PSVISettings,
    "ascent": AscentSettings,
    "joint": JointSettings,
    "frozen": FrozenSettings,
}
"""The rules that a config can name."""


def _require_positive(**values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not 0 < value <= 1e9:
            raise ValueError(f"{name} must be positive and at most 1e9, not {value}")
