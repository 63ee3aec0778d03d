"""Do on a foreign device what the tests did on the CPU: train, measure and embed each case.

The device stays registered for as long as a process lives, so this is one of its own.
"""

import sys
from pathlib import Path

import numpy as np
import torch

import bype
from bype.evaluation.audit import audit_run
from bype.evaluation.density import DensityOptions
from bype.evaluation.embedding import EmbeddingOptions, embed_split
from bype.evaluation.evaluate import evaluate
from bype.evaluation.inference import Embedder
from bype.evaluation.outliers import ScoreOptions, score_examples
from bype.pseudocoreset.settings import (
    AscentSettings,
    FrozenSettings,
    JointSettings,
    PSVISettings,
    TrackingSettings,
)
from bype.run.config import TrainingConfig
from bype.run.opened import TrainedRun
from bype.training.loop import train

SMALL = {
    "components": 10,
    "latent_dim": 3,
    "hidden": 8,
    "batch_size": 25,
    "length": "2 epochs",
    "warm_up": "1 epoch",
}
PSVI = PSVISettings(every="1 epoch", steps=3)
ASCENT = AscentSettings(every="1 epoch", steps=3, batch_size=25)
CASES = {
    "gaussian": {"prior": "gaussian", "likelihood": "learned-gaussian"},
    "vamp": {"prior": "vamp", "likelihood": "bernoulli"},
    "exemplar": {"prior": "exemplar", "likelihood": "discretised-logistic"},
    "nearest exemplars": {"prior": "exemplar", "neighbours": 3},
    "frozen": {"rule": FrozenSettings()},
    "psvi": {"rule": PSVI},
    "psvi in the general form": {"rule": PSVI, "likelihood": "learned-gaussian"},
    "ascent": {"rule": ASCENT},
    "joint": {"rule": JointSettings()},
    "tracking": {"rule": TrackingSettings(live_points=4)},
    "tracking in turn": {"rule": TrackingSettings(live_points=4, scored_points=10), "components": 60},
    "hvae": {"network": "hvae", "rule": PSVI},
    "convhvae": {"network": "convhvae", "rule": TrackingSettings(live_points=4)},
    "residual": {"network": "residual", "rule": ASCENT},
    "dense": {"network": "dense", "likelihood": "learned-gaussian", "dropout": 0.2, "flips": True, "shifts": 1},
}


def config_of(case: str) -> TrainingConfig:
    return TrainingConfig(**{**SMALL, **CASES[case]})


def work(case: str, store: Path, folder: Path, device: torch.device) -> None:
    """Train a case in ``folder / case``, measure it, and embed the validation split."""
    train(config_of(case), store, folder / case, device=device)
    run = TrainedRun.open(folder / case, device=device)
    density = DensityOptions(num_samples=20, num_images=20)
    evaluate(run, "validation", density=density, with_map=False)
    split = run.store().split("validation")
    embed_split(run, split, folder / case / "embedded", EmbeddingOptions("npz", 10, (0, 1)))
    pictures = {"image": split.read(np.arange(10))}
    found = Embedder(folder / case, num_samples=10, device=device)(pictures)
    np.savez(folder / case / "called.npz", **found)


def work_on_a_table(store: Path, folder: Path, device: torch.device) -> None:
    """Train on a table as ``bype fit`` does, and do all that one does with the run afterwards."""
    config = TrainingConfig(**{**SMALL, "network": "dense", "likelihood": "robust-gaussian"})
    train(config, store, folder, device=device)
    run = TrainedRun.open(folder, device=device)
    evaluate(run, "validation", density=DensityOptions(num_samples=20, num_images=20), with_baseline=True)
    scores = score_examples(run, "validation", options=ScoreOptions(num_samples=10))
    audit_run(run, num_samples=20)
    found = bype.coreset(run)
    np.savez(folder / "found.npz", points=found.points, neighbours=found.neighbours, ratio=scores.log_ratio)


if __name__ == "__main__":
    from foreign_device import NAME, register

    register()
    images, table, out = map(Path, sys.argv[1:])
    for name in CASES:
        work(name, images, out, torch.device(NAME))
    work_on_a_table(table, out / "table", torch.device(NAME))
