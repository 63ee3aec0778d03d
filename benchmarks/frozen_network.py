"""Which rule makes the prior fit, with the network frozen: how much of the gap to all training images each one closes.

Run from the root of the repository, with a store of Fashion-MNIST and a run that was trained on it without any update:

    bype train paper/fashion-mnist/vae/bype --rule frozen --length "100 epochs" --warm-up "20 epochs" \
        --patience "0 epochs" --data STORE --out RUN
    python benchmarks/frozen_network.py RUN

The published rule, psvi, is tried without a clamp, which does it harm (docs/method/degeneracy.md), at several step
sizes. The table has the one with the smallest validation KL, and below it stands what all of them came to. It takes
some minutes on two cores, and writes a picture of each set beside the table with ``--pictures FOLDER``.
"""

import argparse
import math
import re
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bype.data.examples import StoreSource
from bype.mixtures import NormalMixture
from bype.models import LatentModel
from bype.priors.base import encode_source
from bype.pseudocoreset.ascent import ELBOAscent, ascent_gradient
from bype.pseudocoreset.coreset import Pseudocoreset
from bype.pseudocoreset.psvi import PSVI
from bype.pseudocoreset.step_sizes import InverseTimeSteps, RestartedAdam
from bype.run.opened import TrainedRun
from draw import draw_heaviest
from measure import machine


class Joint:
    """Points and weights by Adam on the same objective, weights as a softmax: what joint training does to them."""

    def __init__(self, model: LatentModel, step_size: float) -> None:
        self._model, coreset = model, model.prior.pseudocoreset
        self._points = coreset.points.clone().requires_grad_()
        self._logits = coreset.probabilities.log().requires_grad_()
        self._adam = torch.optim.Adam([self._points, self._logits], lr=step_size)

    def start_update(self) -> None:
        """Do nothing: Adam goes on."""

    def update_step(self, model: LatentModel, x: Tensor, *, generator: torch.Generator) -> float:
        coreset = model.prior.pseudocoreset
        with torch.no_grad():
            z = model.encode(x).sample(generator=generator)
        gradient = ascent_gradient(model, z)
        self._points.grad = -gradient.points
        self._logits.grad = coreset.probabilities - gradient.responsibilities
        self._adam.step()
        with torch.no_grad():
            coreset.assign(self._points, self._logits.softmax(0) * coreset.total)
            self._points.copy_(coreset.points)
        return gradient.objective


Rule = ELBOAscent | PSVI | Joint
ADAM_STEPS = (0.5, 0.1, 0.02, 0.004)
PLAIN_STEPS = (3e-9, 3e-10, 3e-11)  # gradients are some 10^9 in size


@torch.no_grad()
def validation_kl(model: LatentModel, source: StoreSource, prior: NormalMixture) -> Tensor:
    """KL terms of the validation images, with the same noise for every set."""
    generator = torch.Generator().manual_seed(7)
    parts = []
    for rows in np.array_split(np.arange(len(source)), 10):
        z, log_q = model.encode(source.read(rows)).rsample_and_score(generator=generator)
        parts.append(log_q - prior.log_prob(z))
    return torch.cat(parts)


def free_means(model: LatentModel, train: StoreSource, num_steps: int) -> NormalMixture:
    """A mixture whose means are no images' at all: what so many components can do on this network."""
    generator = torch.Generator().manual_seed(1)
    posterior = encode_source(model.encode, train, torch.device("cpu"))
    means = model.prior_distribution().means.detach().clone().requires_grad_()
    logits = model.prior.pseudocoreset.probabilities.log().float().requires_grad_()
    adam = torch.optim.Adam([means, logits], lr=0.02)
    for step in range(num_steps):
        for group in adam.param_groups:
            group["lr"] = 0.02 * (1 - 0.95 * step / num_steps)
        rows = torch.randint(0, len(train), (2000,), generator=generator)
        noise = torch.randn(2000, means.shape[1], generator=generator)
        z = posterior.mean[rows] + noise * (0.5 * posterior.log_variance[rows]).exp()
        loss = -NormalMixture(means, model.prior.log_variance, logits).log_prob(z.detach()).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    return NormalMixture(means.detach(), model.prior.log_variance, logits.detach())


def move(model: LatentModel, train: StoreSource, rule: Rule, num_steps: int, batch: int) -> float:
    """Take steps of a rule on random batches, the same for all; return the seconds that they took."""
    rule.start_update()
    began = time.perf_counter()
    generator, order = torch.Generator().manual_seed(3), np.random.default_rng(0)
    for _ in range(num_steps):
        rows = order.integers(0, len(train), batch)
        rule.update_step(model, train.read(rows), generator=generator)
    return time.perf_counter() - began


def spectrum(displacement: Tensor) -> str:
    values = torch.linalg.svdvals(displacement.flatten(1).double())
    if values[0] == 0:
        return "-"
    return f"{int((values > 0.01 * values[0]).sum())}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument(
        "--free-means", type=int, default=0, help="also move means freely in latent space, so many steps"
    )
    parser.add_argument("--more-points", type=int, default=0, help="also ascend with so many points")
    arguments = parser.parse_args()
    run = TrainedRun.open(arguments.run)
    model, coreset, store = run.model, run.model.prior.pseudocoreset, run.store()
    train, validation = StoreSource(store.split("train")), StoreSource(store.split("validation"))
    coreset.data_range = (0.0, 1.0)
    start_points, start_weights = coreset.points.clone(), coreset.weights.clone()
    with torch.no_grad():
        everything = encode_source(model.encode, train, torch.device("cpu")).mean
        all_images = NormalMixture(everything, model.prior.log_variance, torch.zeros(len(everything)))
        best = validation_kl(model, validation, all_images)
        start = validation_kl(model, validation, model.prior_distribution())
    gap = (start - best).mean().item()
    print(f"{run.data.source}, network of step {run.step}; {arguments.steps} steps, batches of {arguments.batch}.")
    print(f"{machine()}\n")
    print("| set | validation KL, nats | of the gap closed | singular values above 1% | s |")
    print("| --- | --- | --- | --- | --- |")

    def report(name: str, kl: Tensor, spectrum_text: str = "-", seconds: float = 0.0) -> None:
        difference = start - kl  # image by image: common noise
        share, error = difference.mean().item() / gap, difference.std().item() / len(kl) ** 0.5 / gap
        print(
            f"| {name} | {kl.mean():.3f} | {100 * share:.0f}% ± {100 * error:.0f}% | {spectrum_text} | {seconds:.0f} |",
            flush=True,
        )

    def picture(name: str, points: Tensor, weights: Tensor) -> None:
        if arguments.pictures is not None:
            draw_heaviest(points, weights, arguments.pictures / (re.sub(r"[^\w.]+", "-", name) + ".png"))

    report("500 random images, equal weights: the start", start)
    picture("start", coreset.points, coreset.weights)
    report("all training images", best)
    mean_image = torch.stack([train.read(rows).mean(0) for rows in np.array_split(np.arange(len(train)), 50)]).mean(0)
    with torch.no_grad():
        single = NormalMixture(model.encode(mean_image[None]).mean, model.prior.log_variance, torch.zeros(1))
        report("one mean image", validation_kl(model, validation, single))
    picture("mean", mean_image[None], torch.ones(1))
    if arguments.free_means:
        began = time.perf_counter()
        report(
            f"500 free means, {arguments.free_means} steps of Adam",
            validation_kl(model, validation, free_means(model, train, arguments.free_means)),
            seconds=time.perf_counter() - began,
        )
    rules = {
        "ascent, step 0.003": lambda: ELBOAscent(coreset, 0.003, arguments.steps),
        "ascent, step 0.01": lambda: ELBOAscent(coreset, 0.01, arguments.steps),
        "ascent, step 0.03": lambda: ELBOAscent(coreset, 0.03, arguments.steps),
        "joint, step 0.01": lambda: Joint(model, 0.01),
        "joint, step 5e-4": lambda: Joint(model, 5e-4),
    }
    for name, make in rules.items():
        coreset.assign(start_points, start_weights)
        seconds = move(model, train, make(), arguments.steps, arguments.batch)
        kl = validation_kl(model, validation, model.prior_distribution())
        report(name, kl, spectrum(coreset.points - start_points), seconds)
        picture(name, coreset.points, coreset.weights)

    coreset.data_range = None
    tries = {f"Adam {size} / j": lambda size=size: RestartedAdam(coreset, size) for size in ADAM_STEPS}
    tries |= {f"plain steps {size} / t": lambda size=size: InverseTimeSteps(size) for size in PLAIN_STEPS}
    found = {}
    for name, steps in tries.items():
        coreset.assign(start_points, start_weights)
        try:
            seconds = move(model, train, PSVI(steps()), arguments.steps, arguments.batch)
        except ValueError:  # points or weights are not finite
            continue
        kl = validation_kl(model, validation, model.prior_distribution())
        found[name] = kl, coreset.points.clone(), coreset.weights.clone(), seconds
    means = {name: float(found[name][0].mean()) if name in found else math.inf for name in tries}
    name = min(means, key=lambda name: means[name] if math.isfinite(means[name]) else math.inf)
    kl, points, weights, seconds = found[name]
    report(f"psvi without clamp, best of {len(tries)}: {name}", kl, spectrum(points - start_points), seconds)
    picture(f"psvi, {name}", points, weights)
    if arguments.more_points:
        more = Pseudocoreset.from_source(train, arguments.more_points, generator=torch.Generator().manual_seed(5))
        model.prior.pseudocoreset = more
        report(f"{len(more):,} random images", validation_kl(model, validation, model.prior_distribution()))
        seconds = move(model, train, ELBOAscent(more, 0.01, arguments.steps), arguments.steps, arguments.batch)
        kl = validation_kl(model, validation, model.prior_distribution())
        report(f"ascent, step 0.01, {len(more):,} points", kl, seconds=seconds)
    print("\nValidation KL of psvi: " + "; ".join(f"{name}: {mean:.3f}" for name, mean in means.items()))


if __name__ == "__main__":
    main()
