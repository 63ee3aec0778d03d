"""What the published update does to a pseudocoreset of real images, on a network trained briefly.

Run from the root of the repository, with the four IDX files of Fashion-MNIST or MNIST in a folder:
``python benchmarks/psvi_degeneracy.py FOLDER``. It takes about five minutes on two cores.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bype.mixtures import NormalMixture
from bype.models import LatentModel, mlp_vae
from bype.objective import ELBO, kl_weight
from bype.priors import TensorSource
from bype.pseudocoreset.coreset import Pseudocoreset
from bype.pseudocoreset.prior import PseudocoresetPrior
from bype.pseudocoreset.psvi import PSVI, psvi_gradient
from bype.pseudocoreset.scores import LinearScores
from bype.pseudocoreset.step_sizes import InverseTimeSteps, RestartedAdam
from measure import machine

SIZE, BATCH, LEARNING_RATE = 500, 100, 5e-4


def read_images(path: Path) -> Tensor:
    bytes_ = np.fromfile(path, dtype=np.uint8, offset=16).reshape(-1, 1, 28, 28)
    return (torch.from_numpy(bytes_).float() + 0.5) / 256


def train(model: LatentModel, examples: Tensor, epochs: int, generator: torch.Generator) -> None:
    objective = ELBO(model)
    optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    for epoch in range(1, epochs + 1):
        start = time.perf_counter()
        order = torch.randperm(len(examples), generator=generator)
        losses = []
        for indices in order.split(BATCH):
            terms = objective(
                examples[indices], indices=indices, beta=kl_weight(epoch, warm_up=epochs / 2), generator=generator
            )
            optimiser.zero_grad()
            terms.loss.backward()
            optimiser.step()
            losses.append(-terms.elbo.mean().item())
        print(f"epoch {epoch}: -ELBO {sum(losses) / len(losses):.3f}, {time.perf_counter() - start:.1f} s", flush=True)


@torch.no_grad()
def validation_kl(model: LatentModel, examples: Tensor, prior: NormalMixture) -> tuple[float, float]:
    generator = torch.Generator().manual_seed(7)  # the same noise for every pseudocoreset
    objective = ELBO(model)
    kl = torch.cat([objective(x, prior=prior, generator=generator).kl["z"] for x in examples.split(1000)])
    return kl.mean().item(), kl.std().item() / len(kl) ** 0.5


def relative_spectrum(displacement: Tensor) -> str:
    values = torch.linalg.svdvals(displacement.double())
    return f"{(values[1] / values[0]).item():.1e}, {(values[2] / values[0]).item():.1e}"


@torch.no_grad()
def objective_of(model: LatentModel, draws: Tensor, points: Tensor, weights: Tensor, examples: Tensor) -> float:
    """Return J against all training examples, at draws that are the same for every pseudocoreset."""
    scores = LinearScores(model.likelihood, draws)
    data = sum(
        scores.sum_over_examples(model.flatten(x), torch.ones(len(x), dtype=torch.float64))
        for x in examples.split(10_000)
    )
    return psvi_gradient(scores, model.flatten(points), weights, data).objective


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=12)
    arguments = parser.parse_args()
    images = read_images(arguments.folder / "train-images-idx3-ubyte")
    examples, validation = images[:50_000], images[50_000:]

    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    prior = PseudocoresetPrior(Pseudocoreset.from_source(TensorSource(examples), SIZE, generator=generator))
    model = mlp_vae((1, 28, 28), prior)
    train(model, examples, arguments.epochs, generator)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    pseudocoreset = prior.pseudocoreset
    start_points, start_weights = pseudocoreset.points.clone(), pseudocoreset.weights
    draws = model.decode(model.prior_distribution().sample((SIZE,), generator=generator))

    print(f"\n{arguments.folder.name}, {arguments.epochs} epochs, then frozen. {machine()}\n")
    print("| pseudocoreset | J on all 50,000 images | validation KL, nats | singular values 2 and 3 of 1 |")
    print("| --- | --- | --- | --- |")

    def report(name: str, points: Tensor, weights: Tensor, spectrum: str = "-") -> None:
        j = objective_of(model, draws, points, weights, examples)
        with torch.no_grad():
            means = torch.cat([model.encode(x).mean for x in points.split(10_000)])
        kl, error = validation_kl(model, validation, NormalMixture(means, prior.log_variance, weights.log()))
        print(f"| {name} | {j:.3g} | {kl:.3f} ± {error:.3f} | {spectrum} |", flush=True)

    report("all 50,000 images", examples, torch.ones(len(examples), dtype=torch.float64))
    report("500 random images, equal weights: the start", start_points, start_weights)
    report("one mean image, weight N", examples.mean(0, keepdim=True), torch.tensor([5e4], dtype=torch.float64))
    batches = list(examples[torch.randperm(len(examples), generator=generator)].split(BATCH))
    for name, rule, data_range, num_steps in (
        ("one plain step, 3e-10 times the gradient, not clamped", InverseTimeSteps(3e-10), None, 1),
        ("four steps of Adam, 0.1 / j, not clamped", RestartedAdam(pseudocoreset, 0.1), None, 4),
        ("a pass of Adam, step 0.1 / j, not clamped", RestartedAdam(pseudocoreset, 0.1), None, len(batches)),
        ("a pass of Adam, step 0.1 / j, clamped", RestartedAdam(pseudocoreset, 0.1), (0.0, 1.0), len(batches)),
        ("a pass of Adam, step 0.5 / j, clamped", RestartedAdam(pseudocoreset, 0.5), (0.0, 1.0), len(batches)),
    ):
        pseudocoreset.assign(start_points, start_weights)
        pseudocoreset.data_range = data_range
        PSVI(rule).update(model, batches[:num_steps], generator=generator)
        displacement = (pseudocoreset.points - start_points).flatten(1)
        report(name, pseudocoreset.points, pseudocoreset.weights, relative_spectrum(displacement))


if __name__ == "__main__":
    main()
