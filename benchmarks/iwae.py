"""The importance-weighted likelihood: at most 1.35 times the bare time of decoding the same latents.

Run from the root of the repository: ``python benchmarks/iwae.py``. A slice of images is measured, for the Gaussian
prior and for one with 500 components, and scaled to 5,000 draws for 10,000 images. The bare time is that of the best of
several batch sizes, in a process that keeps freed memory as an evaluation does. Beside it stands a plain loop, image by
image: each is encoded once, then drawn, decoded and scored as many latents at a time as ours. It exits with 1 if the
claim fails, 1.35 times the bare time at most; how much faster we are than the plain loop is told, whatever it is.
"""

import argparse
import math
import statistics
import sys

import torch

from bype.likelihoods import SquaredError
from bype.memory import keep_freed_memory
from bype.models import mlp_vae
from bype.objective import importance_weighted_bound
from bype.priors import GaussianPrior
from bype.pseudocoreset.coreset import Pseudocoreset
from bype.pseudocoreset.prior import PseudocoresetPrior
from measure import interleaved_seconds, machine

SHAPE = (1, 28, 28)
NUM_IMAGES = 16
NUM_SAMPLES = 5000
MAX_ROWS = 2048  # latents decoded at once, ours and image by image
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
def image_by_image(model, prior, images):
    """Return log p(x) of each image, as a careful program without batches over images computes it."""
    found = []
    for x in images:
        posterior = model.encode(x[None])
        flat, weights = model.flatten(x[None]), []
        for first in range(0, NUM_SAMPLES, MAX_ROWS):
            z, log_q = posterior.rsample_and_score((min(MAX_ROWS, NUM_SAMPLES - first),))
            reconstruction = model.likelihood.log_prob(flat, model.decode(z[:, 0]))
            weights.append(reconstruction + prior.log_prob(z[:, 0]) - log_q[:, 0])
        found.append(torch.logsumexp(torch.cat(weights), 0) - math.log(NUM_SAMPLES))
    return torch.stack(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=15)
    repetitions = parser.parse_args().repetitions
    keep_freed_memory()
    images = torch.rand(NUM_IMAGES, *SHAPE)
    few = 4
    functions = {}
    for name in ("gaussian", "500 components"):
        model = make_model(name)
        prior = model.prior_distribution()
        functions[f"{name}, ours"] = lambda model=model, prior=prior: importance_weighted_bound(
            model, images, NUM_SAMPLES, prior=prior, max_rows=MAX_ROWS
        )
        functions[f"{name}, image by image"] = lambda model=model, prior=prior: image_by_image(
            model, prior, images[:few]
        )
    for batch in (512, 1024, 2048):
        functions[f"bare decoding, {batch} at a time"] = lambda batch=batch: bare(model, batch)
    seconds = interleaved_seconds(functions, repetitions)
    scale = {name: WHOLE / (few if "image by image" in name else NUM_IMAGES) for name in functions}
    medians = {name: statistics.median(values) * scale[name] for name, values in seconds.items()}
    best = min((name for name in functions if name.startswith("bare")), key=medians.get)

    print(f"{machine()}\n")
    print(f"| 5,000 draws for 10,000 images, from slices | s (median, range of {repetitions}) | of bare decoding |")
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
    failed = any(ratio > 1.35 for ratio in ratios.values())
    print("\n" + ("FAILED: more than 1.35" if failed else "The claim holds: at most 1.35."))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
