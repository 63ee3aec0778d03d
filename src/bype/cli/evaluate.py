"""Measuring a trained run."""

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from bype.cli.options import (
    Device,
    Flag,
    MaybeCount,
    MaybeName,
    OtherStore,
    RunFolder,
    Seed,
    UsageError,
    parse,
    require_writable,
)
from bype.cli.output import result, say

if TYPE_CHECKING:
    from bype.evaluation.records import Estimate, Evaluation


_LONGEST_BLOCK = 6 * 3600.0
"""How many seconds processes wait for each other: a block of examples may take many minutes with a large network."""


@dataclass(frozen=True)
class _Evaluate:
    run: RunFolder
    data: OtherStore = None
    split: MaybeName = None
    """Choose the split; if left out, test, or else validation, or else train"""
    samples: int = 5000
    """Estimate the likelihood of each example with this many draws; skip this if 0"""
    images: MaybeCount = None
    """Estimate the likelihood of N examples only, spread evenly over the split"""
    rows: int = 2048
    """Decode at most this many latents at once; more need more memory"""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Choose the precision of the networks; bfloat16 is faster on some machines, and the difference is measured"""
    no_map: Flag = False
    """Leave out the t-SNE map"""
    device: Device = "cpu"
    seed: Seed = 0


def evaluate(words: list[str]) -> int:
    """Measure a run on a split."""
    options = parse(_Evaluate, words, "bype evaluate", "Measure a run. To resume, run the same command.")
    from bype.console import progress_bar
    from bype.distributed import device_named, open_group, place_among_processes
    from bype.evaluation.density import DensityOptions
    from bype.evaluation.evaluate import assist, earlier_evaluation
    from bype.evaluation.evaluate import evaluate as measure
    from bype.run.opened import TrainedRun

    if options.samples < 0 or options.rows < 1 or (options.images is not None and options.images < 1):
        raise UsageError("--samples must not be negative, --images and --rows at least 1")
    run = TrainedRun.open(options.run, options.data, device_named(options.device))
    if place_among_processes()[0] == 0:
        require_writable(options.run)
    density = None
    if options.samples:
        density = DensityOptions(options.samples, options.images, options.rows, options.precision, options.seed)
    store = run.store(options.data)
    split = options.split or store.default_split
    known = earlier_evaluation(run, store, split)
    if known and known.density and density and place_among_processes()[0] == 0:
        earlier, num_images = known.density, min(len(store.split(split)), options.images or sys.maxsize)
        if earlier.num_samples > options.samples or earlier.num_images > num_images:
            draws, examples = f"{earlier.num_samples:,} draws", f"{earlier.num_images:,} examples"
            say(f"note: this replaces a measurement with {draws} for each of {examples}", sys.stderr)
    with open_group(_LONGEST_BLOCK) as group:
        if not group.is_first:
            if density is not None:
                assist(run, split, options.data, density, group)
            return 0
        shown = not options.no_map
        found = measure(run, split, data=options.data, density=density, with_map=shown, stage=progress_bar, group=group)
    for line in describe(found):
        say(line)
    if density is None and found.density:
        say("the likelihood is that of an earlier evaluation")
    result(run=options.run, **asdict(found))
    say(f"written to {options.run / 'evaluation.json'}; to see it: bype report {options.run} --out report.html")
    return 0


def describe(found: "Evaluation") -> Iterator[str]:
    """Describe in lines what an evaluation found."""
    yield f"{found.split} split of {found.source}, model of step {found.step}"
    if density := found.density:
        unit = "nats per example" + (", the paper's scale, not normalised" if density.scale == "unnormalised" else "")
        value = density.negative_log_likelihood
        yield f"negative log-likelihood  {value.value:.3f} {unit}"
        errors = {"over examples": value.error, "of the draws": density.monte_carlo_error}
        if known := [f"{name} {error:.3g}" for name, error in errors.items() if error]:  # one example tells of none
            yield f"  standard error {', '.join(known)}"
        yield (
            f"  {density.num_samples:,} draws for each of {density.num_images:,} examples; effective sample size: "
            f"median {density.median_effective_sample_size:.0f}, smallest {density.smallest_effective_sample_size:.1f}"
        )
        if density.has_few_draws:
            yield "  the effective sample size is small, so the value is too high; take more --samples"
        if density.precision_difference is not None:
            yield f"  {density.precision}: {density.precision_difference:+.4f} against float32 with the same draws"
        if density.scale == "unnormalised" and density.normalised is not None:
            yield f"  normalised (Gaussian of variance 1/2) {density.normalised:.3f} nats per example"
        if density.bits_per_dimension is not None:
            yield f"  {density.bits_per_dimension:.4f} bits per dimension"
        yield f"  {density.seconds:.0f} s"
        kl = "".join(f", KL of {level} {_pm(value)}" for level, value in density.kl.items())
        yield f"-ELBO                    {_pm(density.negative_elbo)}"
        yield f"  -reconstruction {_pm(density.negative_reconstruction)}{kl}"
    if gap := found.prior_gap:
        low, high = (max(0.0, end.value) for end in (gap.smallest_gap, gap.largest_gap))
        kl_of_top = f"a KL of {gap.kl.value:.3f}"
        yield f"prior gap                {low:.3f} to {high:.3f} of {kl_of_top}: what a better prior could still save"
        ends = f"{_pm(gap.smallest_gap)} and {_pm(gap.largest_gap)}"
        yield f"  estimates of the two ends: {ends}, from {gap.num_references:,} references"
        if not gap.is_known:
            yield "  the two ends are far apart: there are too few examples to know the gap"
    if units := found.active_units:
        yield f"active units             {units.num_active} of {units.num_units}"
    if representation := found.representation:
        shares = ", ".join(f"{k}: {100 * share:.2f}" for k, share in representation.knn_accuracy.items())
        yield f"kNN accuracy, %          {shares}"
        yield f"linear probe, %          {100 * representation.probe_accuracy:.2f}"
    if (baseline := found.baseline) and found.density:
        yield f"{baseline.kind:<24} {_pm(baseline.negative_log_likelihood)} nats per example"
        if baseline.gain_in_training is not None:
            yield f"  training gained {baseline.gain_in_training:.3f} nats of validation -ELBO over its start"
        own, other = f"{baseline.own_squared_error:.4g}", f"{baseline.squared_error:.4g}"
        yield f"  squared error of reconstructions {own}, of {baseline.kind} {other}"
        if baseline.knn_accuracy:
            shares = ", ".join(f"{k}: {100 * share:.2f}" for k, share in baseline.knn_accuracy.items())
            yield f"  kNN accuracy on as many principal components, %  {shares}"


def _pm(estimate: "Estimate") -> str:
    return f"{estimate.value:.3f} ± {estimate.error:.3f}" if estimate.error > 0 else f"{estimate.value:.3f}"
