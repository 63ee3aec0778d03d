"""From a configuration to objects: here, and only here, a name becomes a class."""

import dataclasses
import math

import torch

from bype.coreset import PSVI, Centring, ELBOAscent, InverseTimeSteps, RestartedAdam, Tracking
from bype.inverted import InvertedFile
from bype.likelihoods import (
    PIXEL_RANGE,
    Bernoulli,
    DiscretisedLogistic,
    FixedGaussian,
    LearnedGaussian,
    Likelihood,
    SquaredError,
)
from bype.models import LatentModel, conv_hvae, mlp_hvae, mlp_vae, residual_vae
from bype.priors import (
    ExampleSource,
    ExemplarPrior,
    GaussianPrior,
    JointPseudocoresetPrior,
    NearestExemplarPrior,
    Prior,
    Pseudocoreset,
    PseudocoresetPrior,
    TensorSource,
    TrackedPseudocoresetPrior,
    VampPrior,
)
from bype.training.config import ConfigError, TrainingConfig
from bype.training.randomness import generator_for

_STEP_SIZES = {"psvi": 0.1, "tracking": 1e-4, "elbo": 0.01}
"""Of each rule that takes steps of its own, unless the config says another."""


def build_model(config: TrainingConfig, shape: tuple[int, ...], train: ExampleSource) -> LatentModel:
    """Return the untrained model; the same config and data give the same numbers.

    Parameters
    ----------
    config
        What to build.
    shape
        Of one example.
    train
        The training examples, for priors that start at them or stand on them.
    """
    is_image = len(shape) == 3
    if config.network in ("convhvae", "celeba") and not is_image:
        raise ConfigError(f"the network {config.network} takes images; for feature vectors choose vae or hvae")
    if config.likelihood in ("bernoulli", "discretised-logistic") and not is_image:
        raise ConfigError(f"the likelihood {config.likelihood} is for pixels; for features choose learned-gaussian")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(generator_for(config.seed, "start").initial_seed())
        prior = _build_prior(config, shape, train)
        likelihood = _build_likelihood(config, is_image)
        if config.network == "celeba":
            return residual_vae(shape, prior, likelihood, config.latent_dim)
        architecture = {"vae": mlp_vae, "hvae": mlp_hvae, "convhvae": conv_hvae}[config.network]
        model: LatentModel = architecture(shape, prior, likelihood, config.latent_dim, config.hidden)
        return model


def model_bytes(config: TrainingConfig, shape: tuple[int, ...], num_train: int) -> int:
    """Return how many bytes the numbers of a model take, without making it: a config may come from a stranger."""
    try:
        with torch.device("meta"):
            gaussian = dataclasses.replace(config, prior="gaussian", neighbours=0)
            plain = build_model(gaussian, shape, TensorSource(torch.empty(0)))
        numbers = sum(math.prod(tensor.shape) for tensor in plain.state_dict().values())
    except RuntimeError as error:
        raise ConfigError(f"a model of this config cannot be built: {str(error).splitlines()[0]}") from error
    if config.prior in ("vamp", "bype"):
        numbers += config.components * math.prod(shape)
    if config.prior == "bype":
        numbers += config.components * (1 if config.update == "joint" else 2)  # the weights, else of 8 bytes each
    if config.prior == "bype" and config.update == "tracking":
        numbers += config.components * config.latent_dim  # the targets
        if config.neighbours:
            num_cells, places = InvertedFile.sizes(config.components)
            numbers += num_cells * (2 * places + config.latent_dim)  # what is in cells, of 8 bytes each, and centres
    if config.prior == "exemplar" and config.neighbours:
        numbers += num_train * config.latent_dim
    return int(numbers) * torch.float32.itemsize


def _build_likelihood(config: TrainingConfig, is_image: bool) -> Likelihood:
    mean_range = PIXEL_RANGE if is_image else None
    match config.likelihood:
        case "squared-error":
            return SquaredError(mean_range)
        case "gaussian":
            return FixedGaussian(config.variance, mean_range)
        case "learned-gaussian":
            return LearnedGaussian(mean_range=mean_range)
        case "bernoulli":
            return Bernoulli()
        case "discretised-logistic":
            return DiscretisedLogistic()


def _build_prior(config: TrainingConfig, shape: tuple[int, ...], source: ExampleSource) -> Prior:
    data_range = (0.0, 1.0) if len(shape) == 3 else None
    generator = generator_for(config.seed, "prior start")
    starts_at_examples = config.prior == "bype" or (config.prior == "vamp" and config.vamp_start == "examples")
    if starts_at_examples and config.components > len(source):
        raise ConfigError(
            f"{config.components} components are more than the {len(source)} examples to train on; "
            f"take --components {len(source)} or fewer"
        )
    match config.prior:
        case "gaussian":
            return GaussianPrior(config.latent_dim)
        case "vamp":
            if config.vamp_start == "examples":
                start = VampPrior.start_at_examples(source.take(torch.arange(config.components)), generator=generator)
            else:
                start = VampPrior.start_at_random(config.components, shape, generator=generator)
            return VampPrior(start, data_range)
        case "exemplar":
            if config.neighbours:
                return NearestExemplarPrior(source, config.components, config.latent_dim, config.neighbours)
            return ExemplarPrior(source, config.components)
        case "bype":
            data_range = data_range if config.clamp_points else None
            pseudocoreset = Pseudocoreset.from_source(source, config.components, data_range, generator=generator)
            match config.update:
                case "joint":
                    return JointPseudocoresetPrior(pseudocoreset)
                case "tracking":
                    num_live = config.live_components or config.components
                    return TrackedPseudocoresetPrior(pseudocoreset, config.latent_dim, num_live, config.neighbours)
                case "psvi" | "elbo" | "frozen":
                    return PseudocoresetPrior(pseudocoreset)


def build_rule(config: TrainingConfig, model: LatentModel, num_steps: int) -> PSVI | ELBOAscent | Tracking | None:
    """Return the rule that updates the pseudocoreset in so many steps, or at each, if there is one to update."""
    if not isinstance(model.prior, PseudocoresetPrior):
        return None
    step_size = config.update_step_size or _STEP_SIZES.get(config.update, 0.0)
    match config.update:
        case "psvi":
            steps = (
                RestartedAdam(model.prior.pseudocoreset, step_size)
                if config.update_optimiser == "adam"
                else InverseTimeSteps(step_size)
            )
            return PSVI(steps, config.update_draws or None, Centring(config.update_centring))
        case "elbo":
            return ELBOAscent(model.prior.pseudocoreset, step_size, num_steps)
        case "tracking":
            return Tracking(model, step_size)
        case "joint" | "frozen":
            return None
