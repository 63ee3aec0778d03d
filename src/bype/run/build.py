"""From a configuration to objects: here, and only here, a name becomes a class."""

import math

import numpy as np
import torch
from torch import Tensor

from bype.data.scaling import Scaling
from bype.data.store import Split
from bype.likelihoods import (
    PIXEL_RANGE,
    QUANTISATION_VARIANCE,
    Bernoulli,
    ConditionalGaussian,
    DiscretisedLogistic,
    FixedGaussian,
    LearnedGaussian,
    Likelihood,
    RobustGaussian,
    SquaredError,
)
from bype.models import LatentModel, conv_hvae, dense_vae, mlp_hvae, mlp_vae, residual_vae
from bype.models.linear_start import COLUMN_FLOOR
from bype.priors import ExampleSource, ExemplarPrior, GaussianPrior, NearestExemplarPrior, Prior, VampPrior
from bype.priors.base import MappedSource, draw_rows
from bype.pseudocoreset.ascent import ELBOAscent
from bype.pseudocoreset.coreset import Pseudocoreset
from bype.pseudocoreset.joint import JointPseudocoresetPrior
from bype.pseudocoreset.prior import PseudocoresetPrior, pseudocoreset_prior_of
from bype.pseudocoreset.psvi import PSVI, Centring
from bype.pseudocoreset.rule import Rule
from bype.pseudocoreset.settings import (
    AscentSettings,
    JointSettings,
    OwnSettings,
    PSVISettings,
    RuleSettings,
    TrackingSettings,
)
from bype.pseudocoreset.step_sizes import InverseTimeSteps, RestartedAdam
from bype.pseudocoreset.tracking import TrackedPseudocoresetPrior, Tracking
from bype.randomness import generator_for, seeded
from bype.run.config import ConfigError, TrainingConfig
from bype.run.own import OwnPrior, made_prior
from bype.span import Span, steps_per_epoch
from bype.wording import first_line

_LOOKED_AT = 100
"""So many examples tell which bytes there are."""


def scaling_for(config: TrainingConfig, shape: tuple[int, ...]) -> Scaling | None:
    """Return a scaling that is not fitted yet, if the config asks for one and the examples are rows of a table."""
    return Scaling(shape[0]) if config.scale_columns and len(shape) == 1 else None


def labels_for(config: TrainingConfig, split: Split) -> Tensor | None:
    """Return the classes (N,) of the training examples, if the config asks for pseudo-points with labels."""
    if not config.labelled:
        return None
    if not split.has_labels:
        raise ConfigError(
            "labelled points need a store with labels; leave labelled out, or prepare the data with labels"
        )
    return torch.from_numpy(split.labels(np.arange(len(split), dtype=np.int64)))


def require_known_classes(model: LatentModel, num_classes: int) -> None:
    """Refuse pseudo-points with labels that the data do not have: a state may come from a stranger."""
    own = model.prior.own_points()
    if own is not None and own.labels is not None and (largest := int(own.labels.max())) >= num_classes:
        raise ConfigError(
            f"a pseudo-point has the label {largest}, and the data have {num_classes} classes, counted from 0; "
            f"the run is damaged: train it again in another folder"
        )


def require_white(config: TrainingConfig, train: Split) -> None:
    """Refuse bits that are kept as bytes 0 and 1: to a Bernoulli likelihood they would be nearly the same black."""
    if config.likelihood == "bernoulli" and train.read(np.arange(min(_LOOKED_AT, len(train)))).max() <= 1:
        raise ConfigError("images have bytes of 0 and 1 only, and 255 is white; multiply them by 255 first")


def require_fitting(config: TrainingConfig, shape: tuple[int, ...], num_train: int) -> None:
    """Refuse a config that does not suit the data, before anything is made."""
    is_image = len(shape) == 3
    if config.network in ("convhvae", "residual") and not is_image:
        raise ConfigError(f"the network {config.network} takes images; for feature vectors choose vae or hvae")
    if (config.flips or config.shifts) and not is_image:
        raise ConfigError("flips and shifts are for images; leave them out")
    if is_image and config.shifts >= min(shape[1:]):
        raise ConfigError(f"shifts of {config.shifts} pixels leave nothing of images of {shape[2]} x {shape[1]}")
    if config.likelihood in ("bernoulli", "discretised-logistic") and not is_image:
        raise ConfigError(f"the likelihood {config.likelihood} is for pixels; for features choose learned-gaussian")
    if config.likelihood in ("conditional-gaussian", "robust-gaussian") and config.network != "dense":
        raise ConfigError(f"the likelihood {config.likelihood} needs the network dense")
    if config.likelihood == "robust-gaussian" and (is_image or not config.scale_columns):
        raise ConfigError(
            "the likelihood robust-gaussian is for tables with --scale-columns True; else choose conditional-gaussian"
        )
    if config.likelihood == "bernoulli" and config.network == "dense":
        raise ConfigError("the network dense starts from the mean of pixels, not logits; for bernoulli choose vae")
    patience, interval = Span.parse(config.patience), Span.parse(config.validate_every)
    if patience.count and interval.is_fixed:
        per_epoch = steps_per_epoch(num_train, config.batch_size)
        if patience.in_steps(per_epoch) < interval.in_steps(per_epoch):
            raise ConfigError(
                f"a patience of {config.patience} ends before the next validation, which comes every "
                f"{config.validate_every}; take a longer patience, or validate more often"
            )
    starts_at_examples = {"bype": config.points_start, "vamp": config.vamp_start}.get(config.prior) == "examples"
    if starts_at_examples and config.components > num_train:
        raise ConfigError(
            f"{config.components} components are more than the {num_train} examples to train on; "
            f"take {num_train} components or fewer"
        )
    if config.prior == "exemplar" and num_train < 2:
        raise ConfigError(
            f"an exemplar prior needs two or more examples to train on, not {num_train}: each example leaves itself out"
        )


def build_model(
    config: TrainingConfig,
    shape: tuple[int, ...],
    train: ExampleSource,
    scaling: Scaling | None = None,
    labels: Tensor | None = None,
    own_prior: OwnPrior | None = None,
) -> LatentModel:
    """Return the untrained model; the same config and data give the same numbers.

    Parameters
    ----------
    config
        What to build.
    shape
        Of one example.
    train
        The training examples, for priors that start at them or are made of them.
    scaling
        Of the columns of a table; one that changes nothing if left out, until a model's state is loaded.
    labels
        (N,), the classes of the training examples. If left out, labelled pseudo-points get their labels when a state
        is loaded.
    own_prior
        Makes the prior, if the config names one of the user's own.
    """
    require_fitting(config, shape, len(train))
    scaling = scaling or scaling_for(config, shape)
    if scaling is not None:
        train = MappedSource(train, scaling)
    with seeded(generator_for(config.seed, "start").initial_seed()):
        prior = made_prior(config, own_prior) if config.has_own_prior else _build_prior(config, shape, train, labels)
        model = _build_networks(config, shape, prior)
    model.scaling = scaling
    return model


def model_bytes(config: TrainingConfig, shape: tuple[int, ...], num_train: int) -> int:
    """Return how many bytes the numbers of a model take, without making it: a config may come from a stranger.

    The numbers of a user's own prior do not count.
    """
    require_fitting(config, shape, num_train)
    try:
        with torch.device("meta"):
            plain = _build_networks(config, shape, GaussianPrior(config.latent_dim))
            plain.scaling = scaling_for(config, shape)
        numbers = sum(math.prod(tensor.shape) for tensor in plain.state_dict().values())
    except RuntimeError as error:
        raise ConfigError(f"a model of this config cannot be built: {first_line(error)}") from error
    if config.prior in ("vamp", "bype"):
        numbers += config.components * math.prod(shape)
    if config.prior == "bype":
        numbers += config.components * (1 if isinstance(config.rule, JointSettings) else 2)  # weights of 4 or 8 bytes
        numbers += config.components if config.labelled else 0
    if isinstance(config.rule, TrackingSettings):
        numbers += config.components * config.latent_dim  # the targets
    if config.prior == "exemplar" and config.neighbours is not None:
        numbers += num_train * config.latent_dim
    return int(numbers) * torch.float32.itemsize


def _build_networks(config: TrainingConfig, shape: tuple[int, ...], prior: Prior) -> LatentModel:
    likelihood = _build_likelihood(config, shape)
    if config.network == "dense":
        return dense_vae(shape, prior, likelihood, config.latent_dim, config.hidden, config.dropout)
    if config.network == "residual":
        return residual_vae(shape, prior, likelihood, config.latent_dim)
    architecture = {"vae": mlp_vae, "hvae": mlp_hvae, "convhvae": conv_hvae}[config.network]
    return architecture(shape, prior, likelihood, config.latent_dim, config.hidden)


def _build_likelihood(config: TrainingConfig, shape: tuple[int, ...]) -> Likelihood:
    is_image = len(shape) == 3
    mean_range = PIXEL_RANGE if is_image else None
    match config.likelihood:
        case "squared-error":
            return SquaredError(mean_range)
        case "gaussian":
            return FixedGaussian(config.variance, mean_range)
        case "learned-gaussian":
            return LearnedGaussian(mean_range=mean_range)
        case "diagonal-gaussian":
            floor = QUANTISATION_VARIANCE if is_image else COLUMN_FLOOR
            return LearnedGaussian(math.prod(shape), mean_range, floor)
        case "conditional-gaussian":
            floor = QUANTISATION_VARIANCE if is_image else COLUMN_FLOOR
            return ConditionalGaussian(math.prod(shape), mean_range, floor)
        case "robust-gaussian":
            return RobustGaussian(math.prod(shape), COLUMN_FLOOR)
        case "bernoulli":
            return Bernoulli(levels=256)
        case "discretised-logistic":
            return DiscretisedLogistic()


def _build_prior(config: TrainingConfig, shape: tuple[int, ...], source: ExampleSource, labels: Tensor | None) -> Prior:
    data_range = (0.0, 1.0) if len(shape) == 3 else None
    generator = generator_for(config.seed, "prior start")
    match config.prior:
        case "gaussian":
            return GaussianPrior(config.latent_dim)
        case "vamp":
            if config.vamp_start == "examples":
                rows = draw_rows(len(source), config.components, replace=False, generator=generator)
                start = VampPrior.start_at_examples(source.take(rows), generator=generator)
            else:
                start = VampPrior.start_at_random(config.components, shape, generator=generator)
            return VampPrior(start, data_range)
        case "exemplar":
            if config.neighbours is not None:
                return NearestExemplarPrior(source, config.components, config.latent_dim, config.neighbours)
            return ExemplarPrior(source, config.components)
        case "bype":
            data_range = data_range if config.clamp_points else None
            pseudocoreset = _build_pseudocoreset(config, source, data_range, labels, generator)
            match config.rule:
                case JointSettings():
                    return JointPseudocoresetPrior(pseudocoreset)
                case TrackingSettings() as rule:
                    num_live = rule.live_points or config.components
                    return TrackedPseudocoresetPrior(pseudocoreset, config.latent_dim, num_live, rule.scored_points)
            return PseudocoresetPrior(pseudocoreset)
    raise ConfigError(f"there is no prior {config.prior}")


def _build_pseudocoreset(
    config: TrainingConfig,
    source: ExampleSource,
    data_range: tuple[float, float] | None,
    labels: Tensor | None,
    generator: torch.Generator,
) -> Pseudocoreset:
    if not config.labelled or labels is None:
        start = Pseudocoreset.from_source if config.points_start == "examples" else Pseudocoreset.from_noise
        made = start(source, config.components, data_range, generator=generator)
        if config.labelled:  # a state is loaded next; how many examples there are may be a stranger's word
            made.labels = torch.zeros(config.components, dtype=torch.int32)
        return made
    try:
        return Pseudocoreset.from_classes(source, labels, config.components, data_range, generator=generator)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def build_rule(settings: RuleSettings | None, model: LatentModel) -> Rule:
    """Return the rule that moves a model's pseudocoreset; one that moves nothing, if there is nothing to move."""
    match settings:
        case PSVISettings():
            pseudocoreset = pseudocoreset_prior_of(model).pseudocoreset
            steps = (
                RestartedAdam(pseudocoreset, settings.step_size)
                if settings.optimiser == "adam"
                else InverseTimeSteps(settings.step_size)
            )
            how_often = settings.every, settings.batch_size, settings.steps
            return PSVI(steps, settings.draws, Centring(settings.centring), *how_often)
        case AscentSettings():
            pseudocoreset = pseudocoreset_prior_of(model).pseudocoreset
            return ELBOAscent(
                pseudocoreset,
                settings.step_size,
                settings.steps,
                every=settings.every,
                batch_size=settings.batch_size,
            )
        case TrackingSettings() if isinstance(model.prior, TrackedPseudocoresetPrior):
            return Tracking(model.prior, settings.step_size)
        case OwnSettings():
            raise ConfigError(f"this run moves its points by {settings.rule}: pass rule={settings.rule} to bype.train")
    return Rule()
