"""The configuration of a training run. This file does not load torch, so that reading it is quick."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, get_args

from bype.data.decode import check_fields
from bype.pseudocoreset.settings import PSVISettings, RuleSettings, TrackingSettings, setting
from bype.span import Span

Network = Literal["vae", "hvae", "convhvae", "residual", "dense"]
PriorName = Literal["gaussian", "vamp", "exemplar", "bype"]
LikelihoodName = Literal[
    "squared-error",
    "gaussian",
    "learned-gaussian",
    "diagonal-gaussian",
    "conditional-gaussian",
    "robust-gaussian",
    "bernoulli",
    "discretised-logistic",
]


class ConfigError(ValueError):
    """A setting that makes no sense, and the way out."""


def advanced(default: Any, text: str) -> Any:
    """Declare a field whose help text is shown on request only."""
    return dataclasses.field(default=default, metadata={"help": text, "advanced": True})


@dataclass(frozen=True)
class TrainingConfig:
    """Everything that determines a run, apart from the data.

    Examples
    --------
    >>> config = TrainingConfig(prior="bype", components=100, length="20 epochs")
    >>> config.rule.name
    'tracking'
    """

    network: Network = setting(
        "vae", "Choose the paper's VAE, HVAE, ConvHVAE or residual network, or dense, which begins as a linear model"
    )
    prior: str = setting("bype", "Choose the prior on the latent space")
    """One of :data:`PriorName`, or the class of a user's own prior, as module and name."""
    likelihood: LikelihoodName = setting(
        "squared-error", "Choose the likelihood of the data given the latents; the paper's is not normalised"
    )
    components: int = setting(500, "Set the number of pseudo-points, pseudo-inputs, or exemplars in a step")
    latent_dim: int = setting(40, "Set the dimensions of the latent space")
    batch_size: int = setting(100, "Set the number of examples in a step")
    learning_rate: float = setting(5e-4, "Set Adam's learning rate")
    length: str = setting("4000 epochs", "Train for at most this long, such as '500 steps' or '90 seconds'")
    warm_up: str = setting(
        "100 epochs",
        "Raise the weight of the KL terms to 1 over this length, epoch by epoch or step by step; '1 epoch' is no "
        "warm-up; keep it below --length",
    )
    patience: str = setting(
        "50 epochs", "Stop when validation has not improved for this long after the warm-up; never if '0 epochs'"
    )
    checkpoint_every: str = setting(
        "1 epoch",
        "Save a checkpoint this often; a killed run loses at most this much, or more for an interval in percent: "
        "it grows where saving takes over a twentieth of the time",
    )
    seed: int = setting(0, "Set the seed of all random numbers")

    rule: RuleSettings | None = setting(None, "")
    """How the pseudocoreset moves; only the prior ``bype`` has one, and tracking is its default."""

    validate_every: str = advanced(
        "1 epoch", "Score the validation split this often; only models that were scored can be kept"
    )
    hidden: int = advanced(300, "Set the width of dense hidden layers")
    variance: float = advanced(0.5, "Set the variance of the likelihood gaussian")
    normalise_gradients: bool = advanced(True, "Divide each weight's gradient by its norm, as the paper does")
    clamp_points: bool = advanced(True, "Keep pseudo-points inside the data's range")
    labelled: bool = advanced(
        False, "Give each class its own pseudo-points, which only its examples move; the store must have labels"
    )
    points_start: Literal["examples", "noise"] = advanced(
        "examples", "Start pseudo-points as training examples, or as noise around the mean example, which copies none"
    )
    vamp_start: Literal["random", "examples"] = advanced(
        "random",
        "Start the VampPrior's pseudo-inputs at random, as the authors' program does, or at training examples",
    )
    neighbours: int | None = advanced(
        None, "Train the exemplar prior with this many exemplars near each example, from a cache; exactly if left out"
    )
    dropout: float = advanced(0.0, "Drop this share of features in each training step of the network dense")
    flips: bool = advanced(False, "Flip half of the training images from left to right")
    shifts: int = advanced(0, "Shift each training image by up to this many pixels")
    decay: bool = advanced(False, "Lower the learning rate to zero over the length, along half a cosine")
    average: float = advanced(
        0.0, "Average the model over about this share of the steps so far, and keep the average; 0 keeps the model"
    )
    scale_columns: bool = advanced(True, "Bring the columns of a table to a common scale inside the model")
    window_blocks: int | None = advanced(
        None, "Shuffle within windows of this many blocks, for slow disks; over all examples if left out"
    )

    def __post_init__(self) -> None:
        """Fill in the rule, and check each field and what must fit together."""
        is_rule = self.rule is None or isinstance(self.rule, (dict, *get_args(RuleSettings)))
        _require(is_rule, f"rule must be settings, such as bype.PSVISettings(), not {self.rule!r}")
        try:  # the rule may be a dict, as `to_fields` gives it
            object.__setattr__(self, "rule", check_fields(self)["rule"])
        except ValueError as error:
            raise ConfigError(str(error)) from error
        is_named = "." in self.prior or not self.has_own_prior
        _require(is_named, f"prior must be one of {', '.join(get_args(PriorName))}, not {self.prior!r}")
        if self.rule is None and self.prior == "bype":
            object.__setattr__(self, "rule", TrackingSettings())
        _require(self.rule is None or self.prior == "bype", f"the prior {self.prior} has no rule; leave it out")
        for name in ("components", "latent_dim", "batch_size", "hidden", "neighbours", "window_blocks"):
            value = getattr(self, name)
            _require(value is None or 1 <= value <= 10**9, f"{name} must be between 1 and 1e9, not {value}")
        for name in ("learning_rate", "variance"):
            _require(0 < getattr(self, name) < 1e9, f"{name} must be between 0 and 1e9, not {getattr(self, name)}")
        for name in ("length", "validate_every", "checkpoint_every"):
            _require(_span(self, name).count > 0, f"{name} must be more than 0, such as '1 epoch'")
        for name in ("warm_up", "patience"):
            _require(_span(self, name).is_fixed, f"{name} must be in epochs or steps")
        length = _span(self, "length")
        _require(length.unit != "percent", "length must be in epochs, steps or seconds")
        for name in ("validate_every", "checkpoint_every"):
            _require(_span(self, name).unit != "seconds", f"{name} must be in epochs, steps or percent")
        _require(0 <= self.dropout < 1, f"dropout must be at least 0 and below 1, not {self.dropout}")
        _require(0 <= self.average < 1, f"average must be at least 0 and below 1, not {self.average}")
        _require(not self.dropout or self.network == "dense", "dropout is for the network dense alone")
        _require(0 <= self.shifts <= 64, f"shifts must be between 0 and 64 pixels, not {self.shifts}")
        _require(self.seed >= 0, f"seed must not be negative, not {self.seed}")
        if self.prior == "exemplar":
            _require(self.components >= 2, "an exemplar prior needs components of at least 2")
        _require(self.neighbours is None or self.prior == "exemplar", "neighbours are for the exemplar prior alone")
        if self.labelled:
            _require(
                isinstance(self.rule, TrackingSettings) and self.rule.scored_points is None,
                "labelled points need the prior bype and the rule tracking, without scored_points",
            )
            _require(self.points_start == "examples", "labelled points start as examples of their classes")
        _require(self.points_start == "examples" or self.prior == "bype", "points_start is for the prior bype alone")
        if isinstance(self.rule, PSVISettings) and self.rule.draws is None:
            _require(self.components >= 2, "the rule psvi centres its draws: take at least 2 components or draws")

    @property
    def has_own_prior(self) -> bool:
        """Whether the prior is of a user's own, which a config can only name."""
        return self.prior not in get_args(PriorName)

    def to_fields(self) -> dict[str, Any]:
        """Return the fields for a file."""
        return dataclasses.asdict(self)

    def differences(self, other: "TrainingConfig") -> list[str]:
        """Say in which fields two configs differ."""
        mine, others = _flat(self), _flat(other)
        return [
            f"{name}: {mine.get(name, 'nothing')} there, {others.get(name, 'nothing')} here"
            for name in dict.fromkeys([*mine, *others])
            if mine.get(name) != others.get(name)
        ]


def _flat(config: TrainingConfig) -> dict[str, Any]:
    fields = config.to_fields()
    rule = fields.pop("rule") or {}
    return fields | {"rule" if name == "name" else f"rule_{name}": value for name, value in rule.items()}


def _span(config: TrainingConfig, name: str) -> Span:
    try:
        return Span.parse(getattr(config, name))
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)
