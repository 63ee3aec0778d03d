"""Dense networks that begin as a linear model, for images of any shape and for feature vectors."""

import math

import torch
from torch import Tensor, nn

from bype.factors import LinearGaussian
from bype.networks.layers import MeanAndLogVariance

_LOG_VARIANCE_RANGE = (-16.0, 4.0)


class Swish(nn.Module):
    """``x * sigmoid(x)`` in two operations, which all devices round alike."""

    def forward(self, x: Tensor) -> Tensor:
        return x * x.sigmoid()


class SharedDropout(nn.Module):
    """Dropout of the same features for all examples of a training step.

    The mask does not depend on the number of examples, so processes that share a batch drop the same features. It is
    drawn by :func:`draw_dropout` before a step and forgotten after it.

    Parameters
    ----------
    num_features, rate
        How many there are, and the share that is dropped.
    """

    def __init__(self, num_features: int, rate: float) -> None:
        super().__init__()
        self.num_features, self.rate = num_features, rate
        self.mask: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.mask is None or not torch.is_grad_enabled():
            return x
        return x * self.mask.to(x)


def draw_dropout(model: nn.Module, generator: torch.Generator | None) -> None:
    """Choose which features the next training step drops; without a generator, drop none.

    A training loop of one's own calls it before each step, if :func:`dense_vae` was given a ``dropout``.

    Examples
    --------
    >>> encoder = DenseEncoder((4,), latent_dim=2, dropout=0.5)
    >>> draw_dropout(encoder, torch.Generator().manual_seed(0))
    >>> is_dropping(encoder)
    True
    """
    for module in model.modules():
        if isinstance(module, SharedDropout):
            module.mask = None
            if generator is not None and module.rate > 0:
                kept = torch.rand(module.num_features, generator=generator) >= module.rate
                module.mask = kept / (1 - module.rate)


def is_dropping(model: nn.Module) -> bool:
    """Tell whether features are dropped in this step, so that encodings with a gradient differ from those without."""
    return any(isinstance(module, SharedDropout) and module.mask is not None for module in model.modules())


def require_dropout_masks(model: nn.Module) -> None:
    """Refuse a training step in which nobody has chosen the features to drop."""
    if any(isinstance(module, SharedDropout) and module.rate > 0 and module.mask is None for module in model.modules()):
        raise ValueError(
            "this model has dropout: call bype.draw_dropout(model, generator) before each training step, and evaluate "
            "under torch.no_grad(); or build it without dropout"
        )


def _body(in_features: int, hidden: int, dropout: float, drop_input: bool) -> nn.Sequential:
    first = [SharedDropout(in_features, dropout)] if drop_input else []
    return nn.Sequential(
        *first,
        nn.Linear(in_features, hidden),
        Swish(),
        SharedDropout(hidden, dropout),
        nn.Linear(hidden, hidden),
        Swish(),
        SharedDropout(hidden, dropout),
    )


def _zero(layer: nn.Linear) -> nn.Linear:
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class DenseEncoder(nn.Module):
    r"""The posterior of a linear model, plus what two dense layers add to its mean and log-variance.

    .. math:: \mu(x) = P (x - c) + f(x), \qquad \log \sigma^2(x) = \log v + g(x)

    The last layer begins at zero, so that after :meth:`start` this is the posterior of probabilistic PCA or factor
    analysis. P, c and v stay as they are.

    Parameters
    ----------
    data_shape, latent_dim
        Shapes of an example and of its latents.
    hidden
        Width of the dense layers.
    dropout
        The share of features that is dropped in a training step.

    Examples
    --------
    >>> encoder = DenseEncoder((1, 8, 8), latent_dim=3)
    >>> mean, log_variance = encoder(torch.rand(5, 1, 8, 8))
    >>> mean.shape, log_variance.shape
    (torch.Size([5, 3]), torch.Size([5, 3]))
    """

    center: Tensor
    spread: Tensor
    projection: Tensor
    log_variance: Tensor

    def __init__(self, data_shape: tuple[int, ...], latent_dim: int, hidden: int = 300, dropout: float = 0.0) -> None:
        super().__init__()
        size = math.prod(data_shape)
        self.register_buffer("center", torch.zeros(size))
        self.register_buffer("spread", torch.ones(()))
        self.register_buffer("projection", torch.zeros(latent_dim, size))
        self.register_buffer("log_variance", torch.zeros(latent_dim))
        self.body = _body(size, hidden, dropout, drop_input=True)
        self.mean_head = _zero(nn.Linear(hidden, latent_dim))
        self.log_variance_head = _zero(nn.Linear(hidden, latent_dim))

    @torch.no_grad()
    def start(self, linear: LinearGaussian, spread: float) -> None:
        """Begin as the posterior of a linear model of at most as many latents; ``spread`` is that of the data."""
        count = linear.loadings.shape[1]
        self.center.copy_(linear.center)
        self.spread.fill_(spread)
        self.projection.zero_()[:count] = linear.projection.float()
        self.log_variance.zero_()[:count] = linear.posterior_variance.log().float()

    @property
    def latent_scale(self) -> Tensor:
        """(D,), one over the standard deviation that the linear model's posterior has in each latent."""
        return torch.exp(-0.5 * self.log_variance)

    def forward(self, x: Tensor) -> MeanAndLogVariance:
        centred = x.flatten(1) - self.center
        hidden = self.body(centred / self.spread)
        mean = centred @ self.projection.T + self.mean_head(hidden)
        return mean, (self.log_variance + self.log_variance_head(hidden)).clamp(*_LOG_VARIANCE_RANGE)


class DenseDecoder(nn.Module):
    r"""The mean of a linear model, plus what two dense layers add to it in units of its noise.

    .. math:: c + W z + s f(z)

    The last layer begins at zero. W, c and s stay as they are. Where the likelihood takes two numbers for each
    dimension, the second one is another output of the dense layers, (B, 2, *data_shape) together.
    """

    center: Tensor
    loadings: Tensor
    noise: Tensor

    def __init__(
        self,
        data_shape: tuple[int, ...],
        latent_dim: int,
        hidden: int = 300,
        dropout: float = 0.0,
        outputs_per_dimension: int = 1,
    ) -> None:
        super().__init__()
        size = math.prod(data_shape)
        self.data_shape = data_shape
        self.register_buffer("center", torch.zeros(size))
        self.register_buffer("loadings", torch.zeros(size, latent_dim))
        self.register_buffer("noise", torch.ones(size))
        self.body = _body(latent_dim, hidden, dropout, drop_input=False)
        self.head = _zero(nn.Linear(hidden, size))
        self.second_head = _zero(nn.Linear(hidden, size)) if outputs_per_dimension == 2 else None

    @torch.no_grad()
    def start(self, linear: LinearGaussian) -> None:
        """Begin as a linear model of at most as many latents."""
        self.center.copy_(linear.center)
        self.loadings.zero_()[:, : linear.loadings.shape[1]] = linear.loadings.float()
        self.noise.copy_(linear.noise.sqrt())

    def forward(self, z: Tensor) -> Tensor:
        hidden = self.body(z)
        output = self.center + z @ self.loadings.T + self.noise * self.head(hidden)
        unflattened: Tensor = output.unflatten(-1, self.data_shape)
        if self.second_head is None:
            return unflattened
        return torch.stack([unflattened, self.second_head(hidden).unflatten(-1, self.data_shape)], 1)
