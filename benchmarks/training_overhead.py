"""An epoch of ``bype train`` against a plain PyTorch loop of the same arithmetic: at most 1.10 times as long.

Run from the root of the repository, with a store of Fashion-MNIST: ``python benchmarks/training_overhead.py STORE``.
The plain loop holds all pixels in memory and saves nothing. It exits with 1 if the claim fails.
"""

import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from bype.data.store import Store
from bype.training.config import TrainingConfig
from bype.training.loop import Trainer
from bype.training.progress import Display
from bype.training.record import RunRecord
from bype.training.run import RunDirectory
from measure import interleaved_seconds, machine

REPETITIONS = 15


def bype_epoch(config: TrainingConfig, store: Store) -> None:
    with tempfile.TemporaryDirectory() as folder, RunDirectory(Path(folder) / "run") as run:
        record = RunRecord(run, Display())
        Trainer(config, store, record).run()
        record.close()


class PlainVAE(nn.Module):
    """The paper's VAE and its loss in as few lines as it takes."""

    def __init__(self, points: Tensor | None) -> None:
        super().__init__()
        sizes = {"e1": (784, 300), "e2": (300, 300), "d1": (40, 300), "d2": (300, 300)}
        self.layers = nn.ModuleDict({f"{n}{k}": nn.Linear(*s) for n, s in sizes.items() for k in "vg"})
        self.mean, self.log_variance, self.out = nn.Linear(300, 40), nn.Linear(300, 40), nn.Linear(300, 784)
        self.points = points
        self.prior_log_variance = nn.Parameter(torch.zeros(()))

    def gated(self, name: str, x: Tensor) -> Tensor:
        return self.layers[f"{name}v"](x) * self.layers[f"{name}g"](x).sigmoid()

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.gated("e2", self.gated("e1", x))
        return self.mean(hidden), self.log_variance(hidden).clamp(-6, 2)

    def forward(self, x: Tensor, beta: float) -> Tensor:
        mean, log_variance = self.encode(x)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        log_q = -0.5 * ((z - mean).square() * (-log_variance).exp() + log_variance).sum(1)
        if self.points is None:
            log_p = -0.5 * z.square().sum(1)
        else:
            centres = self.encode(self.points)[0]
            squared = z.square().sum(1, keepdim=True) - 2 * z @ centres.T + centres.square().sum(1)
            log_p = torch.logsumexp(-0.5 * squared * (-self.prior_log_variance).exp(), 1) - 20 * self.prior_log_variance
        output = self.out(self.gated("d2", self.gated("d1", z))).clamp(1 / 512, 1 - 1 / 512)
        return ((x - output).square().sum(1) + beta * (log_q - log_p)).mean()


def plain_epoch(train: Tensor, validation: Tensor, points: Tensor | None) -> None:
    model = PlainVAE(points)
    parameters = [p for n, p in model.named_parameters() if points is not None or n != "prior_log_variance"]
    adam = torch.optim.Adam(parameters, lr=5e-4, fused=True)
    total = 0.0
    for rows in torch.randperm(len(train)).split(100):
        loss = model(train[rows], 0.01)
        loss.backward()
        total += loss.item()
        gradients = [p.grad for p in parameters]
        torch._foreach_div_(gradients, torch._foreach_norm(gradients))
        adam.step()
        adam.zero_grad()
    with torch.no_grad():
        total += sum(model(x, 1.0).item() for x in validation.split(500))


def main() -> int:
    store = Store(sys.argv[1])

    def pixels(name: str) -> Tensor:
        split = store.split(name)
        rows = torch.from_numpy(split.read(np.arange(len(split)))).flatten(1)
        return (rows.float() + 0.5) / 256

    train, validation = pixels("train"), pixels("validation")
    functions = {}
    for prior, points in (("gaussian", None), ("bype", train[:500].clone())):
        config = TrainingConfig(prior=prior, length="1 epoch")
        functions[f"{prior}, bype train"] = lambda config=config: bype_epoch(config, store)
        functions[f"{prior}, plain loop"] = lambda points=points: plain_epoch(train, validation, points)
    seconds = interleaved_seconds(functions, REPETITIONS)

    print(f"{machine()}\n")
    print(f"| 500 steps and a validation, Fashion-MNIST, the paper's VAE | s (median, range of {REPETITIONS}) |")
    print("| --- | --- |")
    for name, values in seconds.items():
        print(f"| {name} | {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f}) |")
    failed = False
    print()
    for prior in ("gaussian", "bype"):
        ours, plain = seconds[f"{prior}, bype train"], seconds[f"{prior}, plain loop"]
        ratios = [a / b for a, b in zip(ours, plain, strict=True)]
        ratio = statistics.median(ours) / statistics.median(plain)
        print(f"{prior}: ratio of medians {ratio:.2f} (of neighbours {min(ratios):.2f} to {max(ratios):.2f})")
        failed |= ratio > 1.10
    print("\n" + ("FAILED: more than 1.10" if failed else "The claim holds: at most 1.10."))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
