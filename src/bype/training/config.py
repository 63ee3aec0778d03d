"""The configuration of a training run. This file knows nothing of torch, so that reading it is quick."""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

Network = Literal["vae", "hvae", "convhvae", "celeba"]
PriorName = Literal["gaussian", "vamp", "exemplar", "bype"]
LikelihoodName = Literal["squared-error", "gaussian", "learned-gaussian", "bernoulli", "discretised-logistic"]


class ConfigError(ValueError):
    """A setting that makes no sense, and the way out."""


@dataclass(frozen=True)
class Span:
    """A length of training, in epochs or in steps.

    Examples
    --------
    >>> Span.parse("10 epochs"), Span.parse("500steps")
    (Span(count=10, unit='epochs'), Span(count=500, unit='steps'))
    >>> Span.parse("10 epochs").in_steps(500)
    5000
    """

    count: int
    unit: Literal["epochs", "steps"]

    @classmethod
    def parse(cls, text: str) -> "Span":
        """Read '10 epochs' or '500 steps'."""
        match = re.fullmatch(r"\s*([0-9]{1,18})\s*(epoch|step)s?\s*", text)
        if match is None:
            raise ConfigError(f"{text!r} is no length of training; write '10 epochs' or '500 steps'")
        return cls(int(match[1]), "epochs" if match[2] == "epoch" else "steps")

    def in_steps(self, steps_per_epoch: int) -> int:
        """Return the number of training steps."""
        return self.count * steps_per_epoch if self.unit == "epochs" else self.count

    def is_due(self, step: int, steps_per_epoch: int) -> bool:
        """Tell whether something that happens this often happens after so many steps; zero means never."""
        interval = self.in_steps(steps_per_epoch)
        return interval > 0 and step % interval == 0


def steps_per_epoch(num_examples: int, batch_size: int) -> int:
    """Return how many batches an epoch has; the last one may be short."""
    return -(-num_examples // batch_size)


def setting(default: Any, text: str) -> Any:
    """Declare a field with its description."""
    return dataclasses.field(default=default, metadata={"help": text, "advanced": False})


def advanced(default: Any, text: str) -> Any:
    """Declare a field that is described on request only."""
    return dataclasses.field(default=default, metadata={"help": text, "advanced": True})


@dataclass(frozen=True)
class TrainingConfig:
    """Everything that determines a run, apart from the data."""

    network: Network = setting("vae", "the paper's VAE, HVAE, ConvHVAE, or its network for CelebA")
    prior: PriorName = setting("bype", "the prior on the latent space")
    likelihood: LikelihoodName = setting(
        "squared-error", "of the data given the latents; the paper's is not normalised"
    )
    components: int = setting(500, "pseudo-points, pseudo-inputs, or exemplars in a step")
    latent_dim: int = setting(40, "dimensions of the latent space")
    batch_size: int = setting(100, "examples in a step")
    learning_rate: float = setting(5e-4, "of Adam")
    length: str = setting("4000 epochs", "the longest that the run may take")
    warm_up: str = setting("100 epochs", "over which the KL terms get their full weight")
    patience: str = setting(
        "50 epochs", "stop when validation has not improved for so long after the warm-up, unless '0 epochs'"
    )
    checkpoint_every: str = setting("1 epoch", "what may be lost when the run is killed")
    seed: int = setting(0, "of all randomness")

    validate_every: str = advanced("1 epoch", "between two looks at the validation split")
    hidden: int = advanced(300, "width of dense hidden layers")
    variance: float = advanced(0.5, "of the gaussian likelihood")
    normalise_gradients: bool = advanced(True, "divide each weight's gradient by its norm, as the paper does")
    vamp_start: Literal["random", "examples"] = advanced(
        "random", "pseudo-inputs start as the authors' did, or meant to"
    )
    neighbours: int = advanced(
        0, "of each example, in a step: exemplars from a cache; tracked points, others standing for the rest; 0 for all"
    )
    update: Literal["psvi", "tracking", "elbo", "joint", "frozen"] = advanced(
        "psvi", "rule that moves the pseudocoreset: the published one, latent targets, ascent, backpropagation, none"
    )
    live_components: int = advanced(16, "tracking: pseudo-points encoded in a training step; 0 for all of them")
    update_every: str = advanced("10 epochs", "between two updates of the pseudocoreset")
    update_steps: int = advanced(0, "batches in an update; 0 for a pass over the training split")
    update_batch: int = advanced(0, "examples in a batch of an update; 0 for as many as in a training step")
    update_step_size: float = advanced(
        0.0, "0 for the rule's own: psvi 0.1 (the paper takes the better of 0.1 and 0.5), elbo 0.01, tracking 0.0001"
    )
    update_optimiser: Literal["adam", "plain"] = advanced(
        "adam", "steps of an update as the authors ran it, or as printed"
    )
    update_draws: int = advanced(0, "latent draws in a step of an update; 0 for as many as components")
    update_centring: Literal["samples", "pixels"] = advanced("samples", "centre as printed, or as the authors ran it")
    clamp_points: bool = advanced(True, "keep pseudo-points inside the data's range")
    window_blocks: int = advanced(0, "shuffle within windows of so many blocks, for slow disks; 0 for all")

    def __post_init__(self) -> None:
        """Check each field, and what must fit together."""
        hints = get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value, choices = getattr(self, field.name), get_args(hints[field.name])
            if choices:
                _require(value in choices, f"{field.name} must be one of {', '.join(choices)}, not {value!r}")
            else:
                expected = hints[field.name]
                fits = isinstance(value, expected) or (expected is float and type(value) is int)
                _require(
                    fits and not (expected is not bool and isinstance(value, bool)),
                    f"{field.name} must be a {expected.__name__}, not {value!r}",
                )
        for name in ("components", "latent_dim", "batch_size", "hidden"):
            _require(1 <= getattr(self, name) <= 10**9, f"{name} must be at least 1, not {getattr(self, name)}")
        _require(
            0 <= self.update_step_size < 1e9, f"update_step_size must not be negative, not {self.update_step_size}"
        )
        for name in ("learning_rate", "variance"):
            _require(0 < getattr(self, name) < 1e9, f"{name} must be positive, not {getattr(self, name)}")
        for name in ("neighbours", "live_components", "update_steps", "update_batch", "update_draws", "window_blocks"):
            _require(0 <= getattr(self, name) <= 10**9, f"{name} must not be negative, not {getattr(self, name)}")
        for name in ("length", "validate_every", "checkpoint_every", "update_every"):
            _require(Span.parse(getattr(self, name)).count > 0, f"{name} must be longer than nothing")
        for name in ("warm_up", "patience"):
            Span.parse(getattr(self, name))
        _require(0 <= self.seed < 2**63, f"seed must be between 0 and 2^63, not {self.seed}")
        if self.prior == "exemplar":
            _require(self.components >= 2, "an exemplar prior needs components of at least 2")
        if self.neighbours:
            counted = self.prior == "exemplar" or (self.prior == "bype" and self.update == "tracking")
            _require(counted, "neighbours are for the exemplar prior, and for bype with update tracking; take 0")
        if self.prior == "bype" and self.update == "psvi":
            draws = self.update_draws or self.components
            _require(draws >= 2, "an update centres its draws over each other: take update_draws of at least 2")

    def to_fields(self) -> dict[str, Any]:
        """Return the fields for a file."""
        return dataclasses.asdict(self)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "TrainingConfig":
        """Read the fields of a file."""
        known = {field.name for field in dataclasses.fields(cls)}
        unknown, missing = sorted(set(fields) - known), sorted(known - set(fields))
        _require(not unknown, f"the config has fields that this bype does not know: {', '.join(map(str, unknown))}")
        _require(not missing, f"the config lacks {', '.join(missing)}")
        return cls(**fields)

    def differences(self, other: "TrainingConfig") -> list[str]:
        """Say in which fields two configs differ."""
        return [
            f"{field.name}: {getattr(self, field.name)} there, {getattr(other, field.name)} here"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != getattr(other, field.name)
        ]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)
