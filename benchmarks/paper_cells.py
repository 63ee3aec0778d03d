"""Train and measure cells of the paper's Table 1 at full protocol, one after the other, and keep their records.

Run from the root of the repository: ``python benchmarks/paper_cells.py --stores FOLDER --runs FOLDER --out FOLDER``.
The stores are FOLDER/fashion-mnist and FOLDER/mnist, as ``bype data prepare`` makes them. Full protocol is warm-up 100,
patience 50, and 5,000 importance samples on all 10,000 test images, with networks in bfloat16. A run that has not
stopped after 600 epochs is measured there and marked as capped. Interrupted, the same command goes on; several may
share the work: each takes the next cell that nobody holds. Everything is measured when a cell ends, so nothing hangs on
its run directory. It takes about an hour a cell on one thread.
"""

import argparse
import json
import platform
import subprocess
import sys
from pathlib import Path

import torch

from bype.cli import main as bype
from bype.data.store import Store

CAP = "600 epochs"
OURS_5000 = ["--components", "5000", "--rule-live-points", "64"]
PRIORS = {
    "gaussian": ("paper/{data}/vae/gaussian", []),
    "ours-5000": ("{data}/vae/bype", OURS_5000),
    "bype": ("paper/{data}/vae/bype", []),
    "vamp": ("paper/{data}/vae/vamp", []),
    "exemplar": ("paper/{data}/vae/exemplar", []),
    "ours-500": ("{data}/vae/bype", []),
}
CELLS = [
    *(("fashion-mnist", prior, 0) for prior in PRIORS),
    *(("fashion-mnist", prior, seed) for seed in (1, 2) for prior in ("ours-5000", "bype")),
    *(("mnist", prior, 0) for prior in ("gaussian", "ours-5000", "bype", "vamp", "exemplar")),
]


def fill(data: str, prior: str, seed: int, store: Path, run: Path, out: Path) -> bool:
    """Train and measure a cell, and write its record; tell whether that went well, and nobody else is at it."""
    recipe, flags = PRIORS[prior]
    words = ["train", recipe.format(data=data), "--data", str(store), "--out", str(run), "--seed", str(seed)]
    if bype([*words, "--length", CAP, *flags]) != 0:
        return False
    if bype(["evaluate", str(run), "--precision", "bfloat16"]) != 0:
        return False
    out.mkdir(parents=True, exist_ok=True)
    for picture in ("sample", "reconstruct", "interpolate"):
        bype([picture, str(run), "--out", str(out / f"{picture}.png")])
    status = json.loads((run / "status.json").read_text())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    curve = [
        [line["epoch"], *(round(line[split]["negative_elbo"], 4) for split in ("train", "validation"))]
        for line in lines
        if "validation" in line
    ]
    record = {
        "cell": {"data": data, "network": "vae", "prior": prior, "seed": seed},
        "protocol": "full, capped at 600 epochs" if curve[-1][0] >= 600 else "full",
        "commit": subprocess.check_output(["git", "rev-parse", "HEAD"], text=True).strip(),  # noqa: S607
        "machine": {**json.loads((run / "manifest.json").read_text()), "platform": platform.platform()},
        "data": {"fingerprint": Store(store).manifest.fingerprint},
        "run": json.loads((run / "config.json").read_text())["config"],
        "status": status,
        "epochs": curve[-1][0],
        "curve": {"columns": ["epoch", "train -ELBO", "validation -ELBO"], "rows": curve},
        "results": json.loads((run / "evaluation.json").read_text()),
    }
    record["machine"].pop("data")  # where the store was
    (out / "record.json").write_text(json.dumps(record, indent=1) + "\n")
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cells", default="", help="only cells whose name holds this, such as mnist-gaussian")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for data, prior, seed in CELLS:
        name = f"{data}-vae-{prior}-{seed}"
        if arguments.cells in name and not (arguments.out / name / "record.json").exists():
            print(f"== {name}", flush=True)
            fill(data, prior, seed, arguments.stores / data, arguments.runs / name, arguments.out / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
