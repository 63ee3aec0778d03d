"""What is exported of a model: five functions of tensors, each a module, with all random numbers as inputs.

Shape letters: ``B`` rows, ``M`` mixture components, ``D`` latent dimensions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bype.distributions import LOG_TWO_PI, DiagonalNormal, Distribution, StandardNormal
from bype.mixtures import NormalMixture
from bype.models.base import LatentModel
from bype.randomness import GivenNoise

_NORMAL_KINDS = ("density", "unnormalised")
"""What the values of normal likelihoods are called; the others are drawn from uniform numbers."""
Inputs = tuple[Tensor, ...]
"""Of a graph, (B, ...) each. They are one argument, since models differ in how many there are."""


@dataclass(frozen=True)
class Port:
    """An input or an output of a graph; the first dimension, the batch, is not in ``shape``."""

    name: str
    shape: tuple[int, ...]
    text: str
    dtype: str = "float32"

    def example(self, rows: int) -> Tensor:
        """Return a tensor that fits."""
        return torch.zeros(rows, *self.shape, dtype=getattr(torch, self.dtype))


@dataclass(frozen=True, eq=False)
class Graph:
    """A function to export, and what goes in and out."""

    module: nn.Module
    text: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def graphs_of(model: LatentModel, prior: Distribution, latent_dim: int) -> dict[str, Graph]:
    """Return the functions of a model by name; the prior is what ``model.prior_distribution()`` returned."""
    examples = Port("examples", model.data_shape, "examples in the units of the data; pixels are in [0, 1]")
    latents = Port("latents", (latent_dim,), "latents z")
    noise = Port("noise", (latent_dim,), "standard normal")
    lower = _lower_noise(model, latent_dim)
    made = Port("examples", model.data_shape, "mean of p(x given z), in the units of the data")
    uniform = Port("uniform", (), "uniform on [0, 1): chooses the component of the prior", "float64")
    mixture = _as_mixture(prior, latent_dim)
    return {
        "encoder": Graph(
            _Encoder(model),
            "q(z given x), a normal distribution",
            (examples,),
            (
                Port("mean", (latent_dim,), "mean of z"),
                Port("log_variance", (latent_dim,), "log variance of z"),
                Port("embedding", (latent_dim,), "the mean, scaled so that distances say how much examples differ"),
            ),
        ),
        "decoder": Graph(_Decoder(model), "examples from latents", (latents, *lower), (made,)),
        "prior": Graph(
            _Density(mixture),
            "log p(z)",
            (latents,),
            (Port("log_prior", (), "log p(z), in nats, summed over dimensions"),),
        ),
        "likelihood": Graph(
            _Likelihood(model),
            f"log p(x given z), a {model.likelihood.value_kind}",
            (examples, latents, *lower),
            (Port("log_likelihood", (), "log p(x given z), in nats, summed over dimensions"),),
        ),
        "sampler": _sampler(model, mixture, (uniform, noise, *lower), made),
    }


def _sampler(model: LatentModel, mixture: NormalMixture, inputs: tuple[Port, ...], made: Port) -> Graph:
    """Return the sampler. As in the library, rows of a table have the noise of the likelihood, and images have none."""
    if len(model.data_shape) == 1 and model.likelihood.value_kind in _NORMAL_KINDS:
        text = "standard normal, for the noise of each column; zeros leave it out"
        inputs = *inputs, Port("noise_x", model.data_shape, text)
        made = Port("examples", model.data_shape, "rows in the units of the data")
        return Graph(_Sampler(mixture, _Decoder(model, draws=True)), "new rows from noise", inputs, (made,))
    return Graph(_Sampler(mixture, _Decoder(model)), "new examples from noise", inputs, (made,))


class _Asked(GivenNoise):
    """Records the shapes of the noise that a model asks for, and gives zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def take(self, shape: Sequence[int]) -> Tensor:
        self.shapes.append(tuple(shape))
        return torch.zeros(tuple(shape))


@torch.no_grad()
def _lower_noise(model: LatentModel, latent_dim: int) -> tuple[Port, ...]:
    """Return the inputs for the noise of the levels below the top one, if there are any."""
    asked = _Asked()
    model.decode(torch.zeros(1, latent_dim), generator=asked)
    names = [f"noise_{level}" for level in model.levels[1:]]
    text = "standard normal, for the level below; zeros put it at its mean"
    return tuple(Port(name, shape[1:], text) for name, shape in zip(names, asked.shapes, strict=True))


class _Encoder(nn.Module):
    def __init__(self, model: LatentModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
        (examples,) = inputs
        posterior = self.model.encode(self.model.to_model_units(examples))
        return posterior.mean, posterior.log_variance, posterior.mean * self.model.latent_scale


class _Decoder(nn.Module):
    """Examples from latents: the mean of the likelihood, or a draw from it, whose noise is then the last input."""

    def __init__(self, model: LatentModel, draws: bool = False) -> None:
        super().__init__()
        self.model, self.draws = model, draws

    def forward(self, inputs: Inputs) -> Tensor:
        latents, *lower = inputs
        noise = GivenNoise(lower.pop()) if self.draws else None
        output = self.model.decode(latents, generator=GivenNoise(*lower))
        if noise is None:
            made = self.model.likelihood.mean(output)
        else:  # a normal likelihood asks for standard normal numbers alone
            made = self.model.likelihood.sample(output, generator=noise)  # type: ignore[arg-type]
        return self.model.to_data_units(self.model.unflatten(made))


class _Likelihood(nn.Module):
    """log p(x | z). Levels below z are drawn from their posterior, and the value is the log of that draw's weight.

    The mean of its exponential over draws is p(x | z), so that one formula for importance weights serves every model.
    """

    def __init__(self, model: LatentModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Inputs) -> Tensor:
        examples, latents, *lower = inputs
        x = self.model.to_model_units(examples)
        nothing = torch.zeros_like(latents)
        known = DiagonalNormal(latents, nothing)  # with no noise its draw is z itself
        noise = GivenNoise(*(part[None] for part in (nothing, *lower)))
        draw = self.model.posterior(x, known).draw(1, generator=noise)
        found = self.model.likelihood.log_prob(self.model.flatten(x), draw.output[0])
        for level in self.model.levels[1:]:
            found = found + (draw.log_conditional[level] - draw.log_posterior[level])[0]
        return found if self.model.scaling is None else found + self.model.scaling.log_density.to(found.dtype)


def _as_mixture(prior: Distribution, latent_dim: int) -> NormalMixture:
    """Return a mixture in float64 without components of weight zero; a standard normal is one of one component."""
    if isinstance(prior, StandardNormal):
        zero = torch.zeros((), dtype=torch.float64)
        return NormalMixture(zero.expand(1, latent_dim), zero, zero[None])
    if not isinstance(prior, NormalMixture):
        raise ValueError(f"cannot export a {type(prior).__name__}; a prior must be a NormalMixture or StandardNormal")
    kept = prior.log_weights > -torch.inf
    log_variance = prior.log_variance if prior.log_variance.ndim == 0 else prior.log_variance[kept]
    parts = prior.means[kept], log_variance, prior.log_weights[kept]
    return NormalMixture(*(part.detach().double() for part in parts))


class _Density(nn.Module):
    """The log density of a mixture by two products with constants, in float64: expanded squares lose digits."""

    products: Tensor
    squares: Tensor
    bias: Tensor

    def __init__(self, mixture: NormalMixture) -> None:
        super().__init__()
        means_MD = mixture.means
        is_shared = mixture.log_variance.ndim == 0
        precision_MD = torch.exp(-mixture.log_variance).expand_as(means_MD)
        normaliser_M = (precision_MD * means_MD.square() + mixture.log_variance + LOG_TWO_PI).sum(1)
        self.register_buffer("products", (precision_MD * means_MD).T.contiguous())
        self.register_buffer("squares", -0.5 * (precision_MD[:1] if is_shared else precision_MD).T.contiguous())
        self.register_buffer("bias", mixture.log_weights - 0.5 * normaliser_M)

    def forward(self, inputs: Inputs) -> Tensor:
        (latents,) = inputs
        z_BD = latents.double()
        return torch.logsumexp(z_BD.square() @ self.squares + z_BD @ self.products + self.bias, 1).float()


class _Sampler(nn.Module):
    """Draws a component by inverting the cumulative weights, then a latent of it, and decodes that."""

    cumulative: Tensor
    means: Tensor
    scales: Tensor

    def __init__(self, mixture: NormalMixture, decoder: _Decoder) -> None:
        super().__init__()
        self.decoder = decoder
        scale = torch.exp(0.5 * mixture.log_variance).float()
        self.register_buffer("cumulative", mixture.log_weights.exp().cumsum(0))
        self.register_buffer("means", mixture.means.float())
        self.register_buffer("scales", scale.expand(1, mixture.means.shape[1]) if scale.ndim == 0 else scale)

    def forward(self, inputs: Inputs) -> Tensor:
        uniform, noise, *lower = inputs
        position_B = uniform * self.cumulative[-1]
        # Without the total: rounding can lift the largest uniform number onto it.
        index_B = (self.cumulative[:-1] <= position_B[:, None]).sum(1)
        scale_BD = self.scales if len(self.scales) == 1 else self.scales[index_B]
        return self.decoder((self.means[index_B] + noise * scale_BD, *lower))
