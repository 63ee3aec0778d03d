"""Randomness that is derived and never carried: each draw has a generator of its own."""

import torch

from bype.data.order import derive_key


def generator_for(seed: int, purpose: str, *numbers: int) -> torch.Generator:
    """Return the generator for one purpose at one moment of a run.

    It depends on nothing else, so a run that is continued, or shared among processes, draws what it would have.
    """
    return torch.Generator().manual_seed(derive_key(seed, purpose, *numbers) >> 1)
