"""What a model with one or several levels of latents offers to objectives, update rules and generation.

Shape letters: ``K`` draws, ``B`` examples, ``D`` dimensions of the top latent, ``d`` numbers in one example.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bype.data.scaling import Scaling
from bype.distributions import DiagonalNormal, Distribution
from bype.likelihoods import PIXEL_RANGE, Bernoulli, DiscretisedLogistic, Likelihood
from bype.priors.base import ExampleSource, MappedSource, Prior, SelectedRows, TrainingBatch, encode_source
from bype.randomness import Noise

_FAR_FROM_PIXELS = 10.0
"""Pixels lie in [0, 1]; those that are drawn with noise may leave this range, but not by so much."""
_PIXEL_ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class Draw:
    """K joint draws of all latents from the posterior of each of B examples."""

    top: Tensor
    """(K, B, D), the latents that the prior scores."""
    log_posterior: dict[str, Tensor]
    """Log q of each level, (K, B), by the level's name."""
    log_conditional: dict[str, Tensor]
    """Log p of each level below the top given the one above, (K, B)."""
    output: Tensor
    """(K, B, d), what the decoder makes of the draws."""


class Posterior(ABC):
    """q(latents | x) for a batch of examples, which were encoded once."""

    top: DiagonalNormal
    """q of the top level given x."""

    @abstractmethod
    def draw(self, num_samples: int, *, generator: Noise = None) -> Draw:
        """Draw all latents ``num_samples`` times for each example; gradients pass through."""

    @abstractmethod
    def mean_output(self) -> Tensor:
        """Return the decoder's output (B, d) at the means of all levels."""


class LatentModel(nn.Module, ABC):
    """An encoder, a decoder, a likelihood and a prior on the top latent.

    Parameters
    ----------
    data_shape
        The shape of one example: (channels, height, width), or (features,).
    likelihood
        Of an example given the decoder's output.
    prior
        On the top latent.

    Attributes
    ----------
    scaling
        Of the columns of a table. The encoder, the decoder, the prior and the rules work in its units; the objective,
        evaluation and generation take and return examples in the units of the data.
    """

    encoder: nn.Module
    """Maps examples (B, *data_shape) in the model's units to the mean and the log-variance of the top latent."""
    levels: tuple[str, ...]
    """The names of the levels of latents, the top first, which the prior scores."""

    def __init__(self, data_shape: tuple[int, ...], likelihood: Likelihood, prior: Prior) -> None:
        super().__init__()
        if len(data_shape) != 3 and getattr(likelihood, "mean_range", None) == PIXEL_RANGE:
            raise ValueError(
                f"{type(likelihood).__name__} keeps its mean in the range of pixels; for features give it "
                f"mean_range=None, or (0, 1) if they lie there"
            )
        if len(data_shape) != 3 and isinstance(likelihood, DiscretisedLogistic):
            raise ValueError(
                "DiscretisedLogistic is for pixels in bytes; for features take LearnedGaussian(mean_range=None)"
            )
        self.data_shape = tuple(data_shape)
        self.likelihood = likelihood
        self.prior = prior
        self.scaling: Scaling | None = None

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.parameters()).device

    def to_model_units(self, x: Tensor) -> Tensor:
        """Return examples (..., *data_shape) as encoder and prior take them."""
        return x if self.scaling is None else self.scaling(x)

    def scaled(self, source: ExampleSource) -> ExampleSource:
        """Return the examples of a source as encoder and prior take them."""
        scaling = self.scaling
        return source if scaling is None else MappedSource(source, lambda x: scaling(x.to(self.device)))

    def to_data_units(self, x: Tensor) -> Tensor:
        """Return what encoder and prior take, or the decoder makes, as examples (..., *data_shape)."""
        return x if self.scaling is None else self.scaling.invert(x)

    @property
    def latent_scale(self) -> Tensor:
        """(D,) or (), what to multiply top latents by, so that distances between them say how examples differ."""
        return torch.ones((), device=self.device)

    def encode(self, x: Tensor) -> DiagonalNormal:
        """Return q(top latent | x) for examples (B, *data_shape) in the model's units."""
        self.require_batch(x)
        return DiagonalNormal(*self.encoder(x))

    @torch.no_grad()
    def encode_rows(self, source: ExampleSource, rows: Tensor) -> DiagonalNormal:
        """Return q(top latent | x) for some rows of a source, without gradient; few of them are in memory at once."""
        return encode_source(self.encode, SelectedRows(self.scaled(source), rows), self.device)

    @abstractmethod
    def posterior(self, x: Tensor, top: DiagonalNormal | None = None) -> Posterior:
        """Return q(all latents | x) for examples (B, *data_shape); ``top`` is ``encode(x)`` if that is known."""

    @abstractmethod
    def decode(self, top: Tensor, *, at_mean: bool = False, generator: Noise = None) -> Tensor:
        """Return the decoder's output (..., d) for top latents (..., D).

        Levels below the top are drawn, once for each row, or put at their mean.
        """

    def prior_distribution(self, batch: TrainingBatch | None = None) -> Distribution:
        """Return p(top latent): the one to evaluate and sample with, or the one to train ``batch`` with."""
        return self.prior(self.encode, batch)

    def require_batch(self, x: Tensor) -> None:
        """Refuse what is no batch of examples (B, *data_shape)."""
        if x.shape[1:] != self.data_shape:
            raise ValueError(
                f"this model takes examples of shape {self.data_shape}, many at a time: (B, *shape), "
                f"not {tuple(x.shape)}"
            )

    def as_examples(self, x: Tensor) -> Tensor:
        """Return a user's examples (B, *data_shape) with the model's kind of floats, or say what is wrong with them."""
        if not x.is_floating_point() or (len(self.data_shape) == 3 and x.numel() and x.abs().max() > _FAR_FROM_PIXELS):
            what = "bytes" if not x.is_floating_point() else f"numbers up to {float(x.abs().max()):g}"
            raise ValueError(f"examples are floats, and pixels lie in [0, 1], not {what}; give (bytes + 0.5) / 256")
        self.require_batch(x)
        if self.likelihood.value_kind == "cross-entropy" and x.numel() and not (x.min() >= 0 and x.max() <= 1):
            low, high, name = float(x.min()), float(x.max()), type(self.likelihood).__name__
            raise ValueError(
                f"examples for a {name} likelihood lie in [0, 1], not in [{low:g}, {high:g}]; scale them, or take "
                f"another likelihood"
            )
        if isinstance(self.likelihood, Bernoulli) and self.likelihood.levels is None and _are_black_or_white_pixels(x):
            raise ValueError(
                "these examples are black and white pixels of (bytes + 0.5) / 256, which Bernoulli() would take for "
                "grey; take Bernoulli(levels=256), or give examples of 0 and 1"
            )
        return x.to(next(self.parameters()).dtype)

    def flatten(self, x: Tensor) -> Tensor:
        """Turn examples (B, *data_shape) into rows (B, d)."""
        self.require_batch(x)
        return x.flatten(1)

    def unflatten(self, rows: Tensor) -> Tensor:
        """Turn rows (..., d) into examples (..., *data_shape)."""
        return rows.reshape(*rows.shape[:-1], *self.data_shape)


def _are_black_or_white_pixels(x: Tensor) -> bool:
    black, white = PIXEL_RANGE
    is_either = ((x - black).abs() < _PIXEL_ROUNDING) | ((x - white).abs() < _PIXEL_ROUNDING)
    return x.numel() > 0 and bool(is_either.all())


def decode_rows(decoder: nn.Module, *latents: Tensor) -> Tensor:
    """Call a decoder that takes (rows, D) with latents (..., D) and return its outputs flat, (..., d)."""
    output: Tensor = decoder(*(latent.reshape(-1, latent.shape[-1]) for latent in latents))
    output = output.float() if output.dtype.itemsize < 4 else output  # under autocast; a likelihood needs more digits
    return output.reshape(*latents[0].shape[:-1], math.prod(output.shape[1:]))
