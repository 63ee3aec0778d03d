"""Encoder and decoder networks: tensors in, tensors out, no probability.

An encoder maps examples (B, *data_shape) to a mean and a log-variance (B, D) each; a decoder maps latents
(B, D) to an output (B, *data_shape). Any module of that form can stand in for those here.
"""

from bype.networks.conv import ConvEncoder, ConvJointDecoder, ConvJointEncoder
from bype.networks.dense import DenseDecoder, DenseEncoder
from bype.networks.mlp import MLPDecoder, MLPEncoder, MLPJointDecoder, MLPJointEncoder
from bype.networks.residual import ResidualDecoder, ResidualEncoder

__all__ = [
    "ConvEncoder",
    "ConvJointDecoder",
    "ConvJointEncoder",
    "DenseDecoder",
    "DenseEncoder",
    "MLPDecoder",
    "MLPEncoder",
    "MLPJointDecoder",
    "MLPJointEncoder",
    "ResidualDecoder",
    "ResidualEncoder",
]
