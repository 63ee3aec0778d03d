"""Does a change keep every number? Train each prior and rule at two commits and compare what comes out.

Run from the root of the repository: ``python benchmarks/same_numbers.py FOLDER --base COMMIT``, where the folder holds
the four IDX files of MNIST or Fashion-MNIST. Each case trains for 60 steps on 2,200 real images, with validation and
updates on the way, once with the source at COMMIT and once with the source here. It prints, case by case, whether
metrics and checkpoints are the same to the bit, and if not, by how much they differ. The exit code is the number of
cases that differ by more than ``--tolerance`` nats in a metric; without one, that are not the same to the bit.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from bype.data.prepare import prepare
from bype.data.sources import idx

SCHEDULE = ["--length", "60 steps", "--warm-up", "30 steps", "--validate-every", "20 steps"]
SCHEDULE += ["--checkpoint-every", "30 steps", "--patience", "0 epochs"]
PSVI = ["vae/bype", "--rule", "psvi", "--rule-every", "20 steps", "--rule-steps", "4"]
CASES = {
    "gaussian": ["vae/gaussian"],
    "gaussian, two levels": ["hvae/gaussian"],
    "gaussian, convolutions": ["convhvae/gaussian", "--length", "20 steps", "--batch-size", "20"],
    "gaussian, plain Adam, learned variance": [
        *("vae/gaussian", "--normalise-gradients", "False", "--likelihood", "learned-gaussian"),
    ],
    "VampPrior": ["vae/vamp"],
    "VampPrior, start at images": ["vae/vamp", "--vamp-start", "examples"],
    "Exemplar": ["vae/exemplar"],
    "Exemplar, nearest": ["vae/exemplar", "--neighbours", "5", "--components", "1000"],
    "frozen": ["vae/bype", "--rule", "frozen"],
    "joint": ["vae/bype", "--rule", "joint"],
    "psvi": PSVI,
    "psvi, as printed": [*PSVI, "--rule-optimiser", "plain", "--rule-step-size", "1e-6"],
    "psvi, pixels": [*PSVI, "--rule-centring", "pixels", "--rule-draws", "50", "--clamp-points", "True"],
    "psvi, discretised logistic": [
        *(*PSVI, "--likelihood", "discretised-logistic", "--components", "20", "--rule-steps", "1"),
    ],
    "psvi, two levels": ["hvae/bype", *PSVI[1:]],
    "ascent": [
        *("vae/bype", "--rule", "ascent", "--rule-every", "20 steps", "--rule-steps", "4"),
        *("--rule-batch-size", "200", "--rule-step-size", "0.01"),
    ],
    "tracking": ["vae/bype", "--rule", "tracking"],
    "tracking, all encoded": [
        *("vae/bype", "--rule", "tracking", "--rule-live-points", "None", "--components", "100"),
    ],
    "tracking, two levels": ["hvae/bype", "--rule", "tracking"],
    "tracking, 2,000 points": [
        *("vae/bype", "--rule", "tracking", "--components", "2000", "--rule-live-points", "64"),
    ],
}
NOT_COMPARED = {"seconds", "seconds_in_process", "neglected", "version", "monte_carlo_error"}


def make_store(folder: Path, images: Path) -> Path:
    """Prepare a store of 3,000 real images with labels: 2,200 to train on, 400 to validate and 400 to test with."""
    chunks = [chunk for _, chunk in idx.open_idx(images).pools[0].read()]
    rows = np.concatenate([chunk.rows for chunk in chunks])[:3000]
    labels = np.concatenate([chunk.labels for chunk in chunks])[:3000]
    np.savez(folder / "images.npz", x=rows[:, 0], y=labels)
    prepare(folder / "images.npz", folder / "store", validation=400, test=400)
    return folder / "store"


BEFORE_0_2 = {
    "--rule": "--update",
    "--rule-every": "--update-every",
    "--rule-steps": "--update-steps",
    "--rule-batch-size": "--update-batch",
    "--rule-step-size": "--update-step-size",
    "--rule-optimiser": "--update-optimiser",
    "--rule-draws": "--update-draws",
    "--rule-centring": "--update-centring",
    "--rule-live-points": "--live-components",
    "ascent": "elbo",
    "None": "0",
}
"""How the words were spelled before version 0.2."""


def train_all(store: Path, out: Path, chosen: str) -> None:
    """Train the cases with the source that is imported here, in one process of one thread."""
    import bype as bype_package
    from bype.cli import main as bype

    is_old = not hasattr(bype_package, "Rule")
    for name, (recipe, *flags) in CASES.items():
        if is_old:
            flags = [BEFORE_0_2.get(word, word) for word in flags]
        if chosen in name:
            words = ["train", f"paper/fashion-mnist/{recipe}", "--data", str(store), "--out", str(out / name)]
            if bype([*words, *SCHEDULE, *flags]) != 0:
                raise SystemExit(f"{name} failed")
            if name in ("tracking", "Exemplar"):
                bype(["evaluate", str(out / name), "--samples", "20", "--images", "64", "--no-map"])


def numbers(content: object, name: str = "") -> dict[str, float]:
    """Return all numbers of a JSON value by where they stand."""
    if isinstance(content, dict):
        pairs = [(f"{name}.{key}", value) for key, value in content.items() if key not in NOT_COMPARED]
    elif isinstance(content, list):
        pairs = [(f"{name}.{place}", value) for place, value in enumerate(content)]
    else:
        return {name: float(content)} if isinstance(content, int | float) else {}
    return {place: value for key, part in pairs for place, value in numbers(part, key).items()}


def found(run: Path) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Return the metrics and evaluation of a run, and the tensors of its last checkpoint and its best model."""
    content: list[object] = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    if (run / "evaluation.json").exists():
        content.append(json.loads((run / "evaluation.json").read_text()))
    tensors = {}
    for kind in ("checkpoints", "best"):
        newest = max(int(path.name) for path in (run / kind).iterdir() if path.name.isdigit())
        for file in sorted((run / kind / str(newest)).glob("*.safetensors")):
            tensors |= {f"{kind}/{file.stem}/{name}": value for name, value in load_file(file).items()}
    return numbers(content), tensors


def largest(ours: dict, theirs: dict) -> float:
    """Return the largest difference between numbers or arrays of the same names; infinite if names differ."""
    if ours.keys() != theirs.keys():
        return math.inf
    differences = [np.abs(np.asarray(ours[name], dtype=float) - theirs[name]).max(initial=0.0) for name in ours]
    return float(max(differences, default=0.0))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path, help="a folder with the four IDX files")
    parser.add_argument("--base", default="HEAD", help="the commit to compare with")
    parser.add_argument("--cases", default="", help="compare only cases whose name holds this")
    parser.add_argument("--tolerance", type=float, default=0.0, help="how many nats a metric may differ by")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)  # one side, in a process of its own
    arguments = parser.parse_args()
    if arguments.train:
        train_all(arguments.images, arguments.train, arguments.cases)
        return 0
    num_different = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        store = make_store(folder, arguments.images)
        git = ["git", "worktree"]
        subprocess.run([*git, "add", "--detach", "--quiet", str(folder / "base"), arguments.base], check=True)
        try:
            for side, source in (("then", folder / "base" / "src"), ("now", Path("src").absolute())):
                words = [sys.executable, __file__, str(store), "--train", str(folder / side)]
                environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
                words += ["--cases", arguments.cases]
                subprocess.run(words, check=True, env=environment, stdout=subprocess.DEVNULL)
        finally:
            subprocess.run([*git, "remove", "--force", str(folder / "base")], check=True)
        print("| case | metrics: largest difference | tensors: largest difference |\n| --- | --- | --- |")
        for name in CASES:
            if arguments.cases in name:
                pairs = zip(found(folder / "now" / name), found(folder / "then" / name), strict=True)
                in_metrics, in_tensors = (largest(now, then) for now, then in pairs)
                is_same = in_metrics == in_tensors == 0
                cells = ["same to the bit"] * 2 if is_same else [f"{in_metrics:.2g}", f"{in_tensors:.2g}"]
                print(f"| {name} | {' | '.join(cells)} |")
                num_different += in_metrics > arguments.tolerance if arguments.tolerance else not is_same
    return num_different


if __name__ == "__main__":
    sys.exit(main())
