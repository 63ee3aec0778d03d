"""An epoch of ``bype train`` against a plain PyTorch loop of the same arithmetic: at most 1.10 times as long.

Run from the root of the repository, with a store of Fashion-MNIST: ``python benchmarks/training_overhead.py STORE``.
Compared are the Gaussian prior and a pseudocoreset whose 500 points stay where they are. The plain loop holds all
pixels in memory and saves nothing. It is as quick as we could make it: batch and points are encoded in one call, the
mixture is one matrix product, and components so far away that products would become denormal numbers, which are very
slow, are clamped. Before the clock starts, its loss and gradient must be the library's. It exits with 1 if the claim
fails.
"""

import argparse
import math
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from bype.data.examples import StoreSource
from bype.data.store import Store
from bype.objective import ELBO
from bype.pseudocoreset.settings import FrozenSettings
from bype.run.build import build_model
from bype.run.config import TrainingConfig
from bype.training.loop import train
from measure import interleaved_seconds, machine

CONFIGS = {
    "gaussian": TrainingConfig(prior="gaussian", length="1 epoch"),
    "bype": TrainingConfig(prior="bype", rule=FrozenSettings(), length="1 epoch"),
}


class PlainVAE(nn.Module):
    """The paper's VAE and its loss in as few lines as it takes."""

    def __init__(self, points: Tensor | None) -> None:
        super().__init__()
        self.points = points
        if points is not None:
            self.prior_log_variance = nn.Parameter(torch.zeros(()))
        sizes = {"e1": (784, 300), "e2": (300, 300), "m": (300, 40), "d1": (40, 300), "d2": (300, 300)}
        self.layers = nn.ModuleDict({f"{name}{k}": nn.Linear(*size) for name, size in sizes.items() for k in "vg"})
        self.out = nn.Linear(300, 784)

    def gated(self, name: str, x: Tensor) -> Tensor:
        return self.layers[f"{name}v"](x) * self.layers[f"{name}g"](x).sigmoid()

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.gated("e2", self.gated("e1", x))
        return self.layers["mv"](hidden), self.layers["mg"](hidden)

    def log_prior(self, z: Tensor, centres: Tensor | None) -> Tensor:
        """Return log p(z), without the term in 2 pi that log q has too."""
        if centres is None:
            return -0.5 * z.square().sum(1)
        precision = (-self.prior_log_variance).exp()
        scaled = precision * z
        exponent = torch.addmm(-0.5 * precision * centres.square().sum(1), scaled, centres.T)
        exponent = exponent.clamp_min(exponent.detach().amax(1, keepdim=True) - 60)
        constant = 20 * self.prior_log_variance + math.log(len(centres))
        return exponent.logsumexp(1) - 0.5 * (scaled * z).sum(1) - constant

    def forward(self, x: Tensor, beta: float, noise: Tensor, centres: Tensor | None = None) -> Tensor:
        if self.points is None or centres is not None:
            mean, log_variance = self.encode(x)
        else:
            means, log_variances = self.encode(torch.cat([x, self.points]))
            mean, centres, log_variance = means[: len(x)], means[len(x) :], log_variances[: len(x)]
        log_variance = log_variance.clamp(-6, 2)
        z = mean + noise * (0.5 * log_variance).exp()
        log_q = -0.5 * (noise.square().sum(1) + log_variance.sum(1))
        output = self.out(self.gated("d2", self.gated("d1", z))).clamp(1 / 512, 1 - 1 / 512)
        kl = (log_q - self.log_prior(z, centres)).sum()
        return (F.mse_loss(output, x, reduction="sum") + beta * kl) / len(x)


def plain_epoch(train: Tensor, validation: Tensor, start: Tensor, points: Tensor | None) -> None:
    model = PlainVAE(points)
    vector_to_parameters(start.clone(), model.parameters())
    parameters = list(model.parameters())
    adam = torch.optim.Adam(parameters, lr=5e-4, fused=True)
    total = 0.0
    for rows in torch.randperm(len(train)).split(100):
        loss = model(train[rows], 0.01, torch.randn(len(rows), 40))
        loss.backward()
        total += loss.item()
        gradients = [parameter.grad for parameter in parameters]
        torch._foreach_div_(gradients, torch._foreach_norm(gradients))
        adam.step()
        adam.zero_grad()
    with torch.no_grad():
        centres = None if points is None else model.encode(points)[0]
        total += sum(model(x, 1.0, torch.randn(len(x), 40), centres).item() for x in validation.split(500))


def bype_epoch(config: TrainingConfig, store: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        train(config, store, Path(folder) / "run")


def same_start(config: TrainingConfig, store: Store) -> tuple[Tensor, Tensor | None]:
    """Return the library's start, weights and points, once the plain loss and its gradient there are the library's."""
    split = store.split("train")
    model = build_model(config, split.shape, StoreSource(split))
    points = None if config.prior == "gaussian" else model.prior.pseudocoreset.points.flatten(1)
    start = parameters_to_vector(model.parameters()).detach().clone()
    plain = PlainVAE(points)
    vector_to_parameters(start.clone(), plain.parameters())
    x, noise = StoreSource(split).take(torch.arange(100)), torch.randn(100, 40, generator=_seeded())
    ours = ELBO(model)(x, indices=torch.arange(100), beta=0.7, generator=_seeded()).loss
    theirs = plain(x.flatten(1), 0.7, noise)
    gradients = [
        torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(module.parameters()))])
        for loss, module in ((ours, model), (theirs, plain))
    ]
    with torch.no_grad():
        error = float((ours - theirs).abs() / ours.abs())
        gradient_error = float((gradients[0] - gradients[1]).norm() / gradients[0].norm())
    assert error < 1e-4, f"{config.prior}: the losses are {float(ours)} and {float(theirs)}"
    assert gradient_error < 1e-3, f"{config.prior}: the gradients differ by {gradient_error:.1e} of their length"
    print(f"{config.prior}: losses differ by {error:.0e}, gradients by {gradient_error:.0e} of their size")
    return start, points


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--repetitions", type=int, default=15)
    arguments = parser.parse_args()
    store = Store(arguments.store)

    def pixels(name: str) -> Tensor:
        split = store.split(name)
        return StoreSource(split).read(np.arange(len(split))).flatten(1)

    train_pixels, validation = pixels("train"), pixels("validation")
    functions = {}
    for prior, config in CONFIGS.items():
        start = same_start(config, store)
        functions[f"{prior}, bype train"] = lambda config=config: bype_epoch(config, arguments.store)
        functions[f"{prior}, plain loop"] = lambda start=start: plain_epoch(train_pixels, validation, *start)
    seconds = interleaved_seconds(functions, arguments.repetitions)

    print(f"\n{machine()}\n")
    print(
        f"| 500 steps and a validation, Fashion-MNIST, the paper's VAE | s (median, range of {arguments.repetitions}) |"
    )
    print("| --- | --- |")
    for name, values in seconds.items():
        print(f"| {name} | {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f}) |")
    failed = False
    print()
    for prior in CONFIGS:
        ours, plain = seconds[f"{prior}, bype train"], seconds[f"{prior}, plain loop"]
        ratios = [a / b for a, b in zip(ours, plain, strict=True)]
        ratio = statistics.median(ours) / statistics.median(plain)
        print(f"{prior}: ratio of medians {ratio:.2f} (of neighbours {min(ratios):.2f} to {max(ratios):.2f})")
        failed |= ratio > 1.10
    print("\n" + ("FAILED: more than 1.10" if failed else "The claim holds: at most 1.10."))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
