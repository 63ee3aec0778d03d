"""Shapes, sizes and starts of the paper's networks."""

import math

import pytest
import torch
from torch import nn

from bype.evaluation.generation import embed
from bype.models import conv_hvae, mlp_hvae, mlp_vae, residual_vae
from bype.networks import ConvEncoder, MLPEncoder, ResidualDecoder, ResidualEncoder
from bype.networks.layers import GatedConv2d, GatedLinear, NormalHead
from bype.objective import ELBO
from bype.priors import GaussianPrior

ARCHITECTURES = [mlp_vae, mlp_hvae, conv_hvae, residual_vae]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (2, 9, 14)])
def test_any_image_shape_goes_through(architecture, shape):
    model = architecture(shape, GaussianPrior(5), latent_dim=5)
    terms = ELBO(model)(torch.rand(2, *shape))
    assert terms.elbo.isfinite().all()
    assert model.decode(torch.zeros(3, 4, 5)).shape == (3, 4, math.prod(shape))


@pytest.mark.parametrize("architecture", [mlp_vae, mlp_hvae])
def test_dense_networks_take_feature_vectors(architecture):
    model = architecture((7,), GaussianPrior(2), latent_dim=2)
    assert ELBO(model)(torch.randn(4, 7)).elbo.shape == (4,)
    # Features have no range, so the mean is not clamped to that of pixels.
    assert model.likelihood.mean(torch.tensor([-9.0, 9.0])).tolist() == [-9.0, 9.0]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_rows_and_single_latents_go_through(architecture):
    model = architecture((1, 12, 12), GaussianPrior(4), latent_dim=4)
    assert ELBO(model)(torch.rand(0, 1, 12, 12)).elbo.shape == (0,)
    assert model.decode(torch.zeros(4)).shape == (144,)


@pytest.mark.parametrize("architecture", [conv_hvae, residual_vae])
def test_convolutional_networks_refuse_feature_vectors(architecture):
    with pytest.raises(ValueError, match="MLP networks"):
        architecture((7,), GaussianPrior(2), latent_dim=2)


def test_a_wrong_shape_is_named():
    model = mlp_vae((1, 28, 28), GaussianPrior(40))
    with pytest.raises(ValueError, match=r"\(1, 28, 28\), many at a time: .*not \(2, 1, 14, 56\)"):
        ELBO(model)(torch.rand(2, 1, 14, 56))
    with pytest.raises(ValueError, match=r"\(1, 28, 28\), many at a time: .*not \(2, 28, 28\)"):
        embed(model, torch.rand(2, 28, 28))


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_sizes_are_the_papers():
    def linear(fan_in: int, fan_out: int) -> int:
        return fan_in * fan_out + fan_out

    encoder = 2 * (linear(784, 300) + linear(300, 300) + linear(300, 40))
    decoder = 2 * (linear(40, 300) + linear(300, 300)) + linear(300, 784)
    assert count(mlp_vae((1, 28, 28), GaussianPrior(40))) == encoder + decoder

    joint_encoder = 2 * (linear(784, 300) + linear(40, 300) + linear(600, 300) + linear(300, 40))
    conditional = 2 * (linear(40, 300) + linear(300, 300) + linear(300, 40))
    joint_decoder = 2 * (2 * linear(40, 300) + linear(600, 300)) + linear(300, 784)
    hvae = mlp_hvae((1, 28, 28), GaussianPrior(40))
    assert count(hvae) == encoder + joint_encoder + conditional + joint_decoder


@pytest.mark.parametrize(("shape", "num_features"), [((1, 28, 28), 294), ((3, 32, 32), 384)])
def test_convolutional_features_are_the_papers(shape, num_features):
    assert ConvEncoder(shape, 40).head.mean.in_features == num_features
    assert conv_hvae(shape, GaussianPrior(40)).joint_encoder.merge.top.value.out_features == num_features


def test_the_celeba_network_is_the_papers():
    encoder, decoder = ResidualEncoder((3, 64, 64), 40), ResidualDecoder((3, 64, 64), 40)
    assert encoder.head.mean.in_features == 1536
    for network in (encoder, decoder):
        convs = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
        assert len(convs) == 15  # two changes of size, twelve in blocks, one at the bottleneck or the output
        assert all(hasattr(m, "parametrizations") for m in convs)
    _, log_variance = encoder(50 * torch.rand(2, 3, 64, 64))
    assert log_variance.abs().max() > 6  # not clamped


def test_log_variance_is_clamped_elsewhere():
    head = NormalHead(3, 2)
    _, log_variance = head(1e6 * torch.randn(50, 3))
    assert log_variance.min() == -6
    assert log_variance.max() == 2


@pytest.mark.parametrize(
    ("layer", "x"), [(GatedLinear(4, 3), torch.randn(2, 4)), (GatedConv2d(2, 3, 5, 2), torch.randn(2, 2, 7, 7))]
)
def test_gates(layer, x):
    torch.testing.assert_close(layer(x), layer.value(x) * torch.sigmoid(layer.gate(x)))


def test_dense_layers_start_at_he():
    torch.manual_seed(0)
    layer = MLPEncoder((1, 28, 28), 40).body[0].value
    assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / 784), rel=0.01)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("seed", range(4))
def test_no_start_leaves_the_decoder_without_gradient(architecture, seed):
    # The clamp of the mean passes no gradient outside the pixel range: a decoder that starts there would stay there.
    torch.manual_seed(seed)
    model = architecture((1, 12, 12), GaussianPrior(4), latent_dim=4)
    ELBO(model)(torch.rand(8, 1, 12, 12)).loss.backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad != 0).any(), name
