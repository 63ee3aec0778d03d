"""Small data sets and runs that were really trained, for tests of what comes after training."""

from pathlib import Path

import numpy as np
import torch

from bype.data.prepare import prepare
from bype.data.sources import SourceOptions
from bype.pseudocoreset.settings import SETTINGS, PSVISettings
from bype.run.checkpoint import Checkpoint
from bype.run.config import TrainingConfig
from bype.training.loop import train

CLASSES = ("bars", "columns", "blobs")


def striped_images(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images of 12 x 12 in three kinds: a bright line across, one down, a blob; at different places."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, count)
    place = generator.integers(2, 10, (count, 2))
    across = np.arange(12)
    row = np.exp(-0.5 * (across - place[:, :1]) ** 2)[:, :, None]
    column = np.exp(-0.5 * (across - place[:, 1:]) ** 2)[:, None, :]
    kinds = [np.broadcast_to(row, (count, 12, 12)), np.broadcast_to(column, (count, 12, 12)), row * column]
    chosen = np.choose(labels[:, None, None], kinds)
    noisy = 220 * chosen + generator.normal(0, 6, chosen.shape) + 15
    return np.clip(noisy, 0, 255).astype(np.uint8), labels


def image_store(folder: Path, count: int = 600, labelled: bool = True) -> Path:
    images, labels = striped_images(count)
    arrays = {"x": images, "y": labels} if labelled else {"x": images}
    np.savez(folder / "data.npz", **arrays)
    prepare(folder / "data.npz", folder / "store", validation=60, test=75)
    return folder / "store"


def feature_store(folder: Path) -> Path:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(400, 2)) @ generator.normal(size=(2, 4)) + 0.1 * generator.normal(size=(400, 4))
    labels = np.where(rows[:, 0] > 0, "high", "low")
    lines = ["length,width,<b>depth</b>,mass,kind"]
    lines += [",".join([*(f"{value:.6f}" for value in row), label]) for row, label in zip(rows, labels, strict=True)]
    (folder / "table.csv").write_text("\n".join(lines))
    prepare(folder / "table.csv", folder / "store", SourceOptions(label="kind"))
    return folder / "store"


def small_config(**changes: object) -> TrainingConfig:
    fields = {
        "components": 20,
        "latent_dim": 4,
        "hidden": 32,
        "batch_size": 50,
        "learning_rate": 2e-3,
        "length": "24 epochs",
        "warm_up": "8 epochs",
    }
    if changes.get("prior", "bype") == "bype":
        fields["rule"] = PSVISettings(every="8 epochs", steps=5)
    return TrainingConfig(**{**fields, **changes})


def config_of(fields: dict[str, object]) -> TrainingConfig:
    """Return a config of fields that travel as JSON: a rule is its name and those of its settings that differ."""
    rule = dict(fields.get("rule") or {})
    settings = {"rule": SETTINGS[rule.pop("name")](**rule)} if rule else {}
    return TrainingConfig(**{**fields, **settings})


def small_run(folder: Path, store: Path, **changes: object) -> Path:
    train(small_config(**changes), store, folder)
    return folder


def assert_same_tensors(first: Checkpoint, second: Checkpoint) -> None:
    """Two checkpoints must be the same to the bit, the optimiser and the rule included."""
    for tensors, others in ((first.model, second.model), (first.training, second.training)):
        assert tensors.keys() == others.keys()
        assert all(torch.equal(tensors[name], others[name]) for name in tensors)
