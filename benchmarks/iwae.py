"""The importance-weighted likelihood: at most 1.35 times the bare time of decoding the same latents.

Run from the root of the repository: ``python benchmarks/iwae.py``. A slice of images is measured, for the Gaussian
prior and for one with 500 components, and scaled to 5,000 draws for 10,000 images. The bare time is that of the best of
several batch sizes, in a process that keeps freed memory as an evaluation does. Beside it stands the usual way, image
by image: a batch of copies, encoded, drawn, decoded, scored. It exits with 1 if a claim fails: 1.35 times the bare time
at most, and at least twice as fast as the usual way.
"""

import math
import statistics
import sys

import torch

from bype.likelihoods import SquaredError
from bype.memory import keep_freed_memory
from bype.models import mlp_vae
from bype.objective import importance_weighted_bound
from bype.priors import GaussianPrior, Pseudocoreset, PseudocoresetPrior
from measure import interleaved_seconds, machine

SHAPE = (1, 28, 28)
NUM_IMAGES = 16
NUM_SAMPLES = 5000
REPETITIONS = 15
WHOLE = 10_000


def make_model(prior):
    torch.manual_seed(0)
    if prior == "gaussian":
        return mlp_vae(SHAPE, GaussianPrior(40), SquaredError())
    model = mlp_vae(SHAPE, PseudocoresetPrior(Pseudocoreset(torch.rand(500, *SHAPE), 50_000)), SquaredError())
    model.prior.log_variance.data.zero_()  # components as wide as posteriors, as after training
    return model


@torch.no_grad()
def bare(model, batch):
    z = torch.randn(batch, 40)
    for _ in range(math.ceil(NUM_IMAGES * NUM_SAMPLES / batch)):
        model.decode(z)


@torch.no_grad()
def image_by_image(model, images, num_images):
    """As programs of the field do it: copies of an image go through the whole model, 500 at a time."""
    prior = model.prior_distribution()
    for x in images[:num_images]:
        weights = []
        for _ in range(NUM_SAMPLES // 500):
            copies = x.expand(500, *SHAPE)
            posterior = model.encode(copies)
            z = posterior.sample()
            reconstruction = model.likelihood.log_prob(model.flatten(copies), model.decode(z))
            weights.append(reconstruction + prior.log_prob(z) - posterior.log_prob(z))
        torch.logsumexp(torch.cat(weights), 0).item()


def main():
    keep_freed_memory()
    images = torch.rand(NUM_IMAGES, *SHAPE)
    few = 4
    functions = {}
    for name in ("gaussian", "500 components"):
        model = make_model(name)
        prior = model.prior_distribution()
        functions[f"{name}, ours"] = lambda model=model, prior=prior: importance_weighted_bound(
            model, images, NUM_SAMPLES, prior=prior
        )
        functions[f"{name}, image by image"] = lambda model=model: image_by_image(model, images, few)
    for batch in (512, 1024, 2048):
        functions[f"bare decoding, {batch} at a time"] = lambda batch=batch: bare(model, batch)
    seconds = interleaved_seconds(functions, REPETITIONS)
    scale = {name: WHOLE / (few if "image by image" in name else NUM_IMAGES) for name in functions}
    medians = {name: statistics.median(values) * scale[name] for name, values in seconds.items()}
    best = min((name for name in functions if name.startswith("bare")), key=medians.get)

    print(f"{machine()}\n")
    print(f"| 5,000 draws for 10,000 images, from slices | s (median, range of {REPETITIONS}) | of bare decoding |")
    print("| --- | --- | --- |")
    for name, values in seconds.items():
        low, high = min(values) * scale[name], max(values) * scale[name]
        print(f"| {name} | {medians[name]:.0f} ({low:.0f} to {high:.0f}) | {medians[name] / medians[best]:.2f} |")
    ratios = {n: medians[f"{n}, ours"] / medians[best] for n in ("gaussian", "500 components")}
    gains = {n: medians[f"{n}, image by image"] / medians[f"{n}, ours"] for n in ratios}
    print()
    for name in ratios:
        print(
            f"{name}: {ratios[name]:.2f} of bare decoding ({best}); {gains[name]:.2f} times as fast as image by image"
        )
    failed = any(ratio > 1.35 for ratio in ratios.values()) or any(gain < 2 for gain in gains.values())
    print("\n" + ("FAILED" if failed else "The claims hold."))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
