"""Cells: one training each, of which the paper's tables and figures consist. This file does not load torch."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bype.paper.recipes import recipe_named
from bype.pseudocoreset.settings import TrackingSettings
from bype.run.config import TrainingConfig


@dataclass(frozen=True)
class Cell:
    """A model of the paper on one data set, for one seed; or a classifier of real examples, without a model.

    Examples
    --------
    >>> Cell("mnist", "vae", "bype", seed=1).name
    'mnist-vae-bype-1'
    """

    data: str
    network: str
    prior: str
    """A name of :data:`PRIORS`; without a model ``none``, or ``shifts`` for shifted images."""
    seed: int = 0

    @property
    def name(self) -> str:
        """Name the folder of the cell's record."""
        return f"{self.data}-{self.network}-{self.prior}-{self.seed}"

    @property
    def path(self) -> str:
        """Name the cell as a user chooses it."""
        return f"{self.data}/{self.network}/{self.prior}"

    @property
    def has_model(self) -> bool:
        """Whether a model is trained: classifiers of real examples alone need none."""
        return self.network != "classifier"


@dataclass(frozen=True)
class Protocol:
    """How long to train, and how well to measure."""

    name: str
    changes: dict[str, Any]
    """Of the config."""
    decaying_changes: dict[str, Any]
    """More of them, for cells whose learning rate decays."""
    intervals: dict[int, str]
    """How often PSVI updates where the paper has k epochs."""
    update_steps: int | None
    """Batches of an update of PSVI; a pass over the training examples if None."""
    draws: int
    images: int | None
    """Test images to measure on; all if None."""
    classifier_epochs: int
    text: str
    suffix: str = ""
    """Of the names of folders and files."""
    instead: dict[str, "Protocol"] = dataclasses.field(default_factory=dict)
    """What is done instead with some networks, by NETWORK or DATA/NETWORK."""

    def mark(self, name: str) -> str:
        """Return the name of a folder or file of this protocol."""
        return f"{name}{self.suffix}"

    def of(self, data: str, network: str) -> "Protocol":
        """Return what is done with a network on a data set."""
        return self.instead.get(network, self.instead.get(f"{data}/{network}", self))


FULL = Protocol(
    "full",
    {"length": "600 epochs"},
    {
        "length": "200 epochs",
        "warm_up": "20 epochs",
        "patience": "0 epochs",
        "learning_rate": 1e-3,
        "normalise_gradients": False,
        "decay": True,
    },
    {1: "1 epoch", 10: "10 epochs", 50: "50 epochs", 100: "100 epochs"},
    update_steps=None,
    draws=5000,
    images=None,
    classifier_epochs=100,
    text="KL warm-up over 100 epochs, patience of 50 epochs, stopped after 600 epochs at the latest; 5,000 importance "
    "samples on all test images; classifiers of 100 epochs",
)
# Without normalised gradients: with them, the first ten epochs hardly get anywhere.
_SHORT: dict[str, Any] = {"patience": "0 epochs", "learning_rate": 2e-3, "normalise_gradients": False}
_REDUCED = Protocol(
    "reduced",
    _SHORT | {"batch_size": 500, "length": "10 epochs", "warm_up": "5 epochs"},
    {"decay": True},
    {1: "1 epoch", 10: "2 epochs", 50: "4 epochs", 100: "8 epochs"},
    update_steps=50,
    draws=250,
    images=1000,
    classifier_epochs=2,
    text="10 epochs in batches of 500, KL warm-up over 5, plain Adam with learning rate 0.002; "
    "PSVI for 50 batches every 2 epochs (for k = 1, 50, 100: every epoch, 4 and 8 epochs); "
    "measured on 1,000 test images, with 250 importance samples; "
    "classifiers of 2 epochs, measured on all test images; ConvHVAE and the residual network: 40 batches of 100, "
    "learning rate 0.0002, PSVI for 4 batches every 20 steps, measured on 100 test images with 50 importance samples; "
    "HVAE on CIFAR-10: learning rate 0.0005",
    suffix="-reduced",
)
_SLOW = dataclasses.replace(
    _REDUCED,
    # With 0.002 the KL of the residual network overflows in the third step; with 0.0005 it learns little in 40.
    changes=_SHORT | {"length": "40 steps", "warm_up": "20 steps", "learning_rate": 2e-4},
    intervals={1: "10 steps", 10: "20 steps", 50: "30 steps", 100: "40 steps"},
    update_steps=4,
    draws=50,
    images=100,
)
# With 0.002 the first steps move most outputs for good out of [0, 1], where the clamp passes no gradient.
_CAREFUL = dataclasses.replace(_REDUCED, changes=_REDUCED.changes | {"learning_rate": 5e-4})
REDUCED = dataclasses.replace(
    _REDUCED,
    instead={"convhvae": _SLOW, "residual": _SLOW, "cifar10/hvae": _CAREFUL},  # the first two take minutes
)
PROTOCOLS = (FULL, REDUCED)


@dataclass(frozen=True)
class Kind:
    """A prior of the tables: a recipe, and what changes in it."""

    recipe: str
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    interval: int | None = None
    """The paper's k, the number of epochs between updates; None for a prior without updates."""
    decays: bool = False
    """Whether the learning rate decays, unlike the paper's."""


_OURS_5000: dict[str, Any] = {"components": 5000, "rule": TrackingSettings(live_points=64)}
_AVERAGED: dict[str, Any] = {"average": 0.02}
_BITS: dict[str, Any] = {"likelihood": "bernoulli"}

PRIORS = {
    **{prior: Kind(f"paper/{{}}/{prior}") for prior in ("gaussian", "vamp", "exemplar")},
    "bype": Kind("paper/{}/bype", interval=10),
    "ours": Kind("{}/bype"),
    "ours-500": Kind("{}/bype"),
    "ours-5000": Kind("{}/bype", _OURS_5000),
    "gaussian-decay": Kind("paper/{}/gaussian", decays=True),
    "gaussian-average": Kind("paper/{}/gaussian", _AVERAGED),
    "vamp-average": Kind("paper/{}/vamp", _AVERAGED | {"vamp_start": "examples"}),
    "ours-500-average": Kind("{}/bype", _AVERAGED),
    "ours-5000-average": Kind("{}/bype", _AVERAGED | _OURS_5000),
    "exemplar-25000": Kind("paper/{}/exemplar", {"components": 25_000, "neighbours": 10}),
    **{f"bype-k{k}": Kind("paper/{}/bype", interval=k) for k in (1, 50, 100)},
    **{f"bype-{size}": Kind("paper/{}/bype", {"components": size}, interval=10) for size in (100, 2000)},
    **{f"exemplar-{size}": Kind("paper/{}/exemplar", {"components": size}) for size in (100, 2000)},
    **{f"ours-{size}": Kind("{}/bype", {"components": size}) for size in (100, 2000)},
}
"""``ours`` is for CelebA and has 240 points, as the paper's has."""

LABELS = {
    "gaussian": "Gaussian",
    "vamp": "VampPrior",
    "exemplar": "Exemplar",
    "bype": "ByPE, as published",
    "ours": "ours",
    "ours-500": "ours, 500 points",
    "ours-5000": "ours, 5,000 points",
    "gaussian-decay": "Gaussian, decaying rate",
    "gaussian-average": "Gaussian, averaged",
    "vamp-average": "VampPrior, averaged",
    "ours-500-average": "ours, 500 points, averaged",
    "ours-5000-average": "ours, 5,000 points, averaged",
    "exemplar-25000": "Exemplar, 25,000, cached",
    "none": "no generated examples",
    "shifts": "shifted images, no model",
}
DATA_LABELS = {
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "celeba": "CelebA",
    "binarised-mnist": "binarised MNIST",
}
NETWORK_LABELS = {"vae": "VAE", "hvae": "HVAE", "convhvae": "ConvHVAE", "residual": "residual"}
_SOURCES = {"binarised-mnist": "mnist --binarise", "celeba": "celeba-hq --size 64 --validation 2000 --test 2000"}
"""What is prepared, where it is not simply a folder called like the data set."""


def preparation(data: str, stores: Path) -> str:
    """Return the command that makes a data set's store from a folder with its files."""
    return f"bype data prepare {_SOURCES.get(data, data)} --out {stores / data}"


def config_of(cell: Cell, protocol: Protocol) -> TrainingConfig:
    """Return the configuration that trains a cell.

    Examples
    --------
    >>> config_of(Cell("mnist", "vae", "bype-k50"), FULL).rule.every
    '50 epochs'
    """
    kind, protocol = PRIORS[cell.prior], protocol.of(cell.data, cell.network)
    is_binarised = cell.data == "binarised-mnist"
    data = "mnist" if is_binarised else cell.data
    config = recipe_named(kind.recipe.format(f"{data}/{cell.network}")).config
    changes = (
        (_BITS if is_binarised else {})
        | kind.changes
        | protocol.changes
        | (protocol.decaying_changes if kind.decays else {})
    )
    if kind.interval is not None and config.rule is not None:
        often: Any = {"every": protocol.intervals[kind.interval], "steps": protocol.update_steps}
        changes |= {"rule": dataclasses.replace(config.rule, **often)}
    return dataclasses.replace(config, seed=cell.seed, **changes)
