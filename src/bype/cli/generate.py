"""Looking at what a run has learned."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from bype.cli.examples import named_examples, save_lines
from bype.cli.options import (
    ExampleNames,
    Force,
    MaybeCount,
    MaybeName,
    MovedStore,
    Numbers,
    OtherStore,
    RunFolder,
    Seed,
    SplitOfRows,
    UsageError,
    parse,
    require_free,
    require_store,
    without_default,
)
from bype.cli.output import result
from bype.wording import counted


@dataclass(frozen=True)
class _Sample:
    run: RunFolder
    out: Path
    """Write the examples to this file: a picture to .png, numbers to .npy, rows of a table to .csv"""
    count: MaybeCount = None
    """Generate this many, 64 if left out; with --component, --heaviest or --like, this many for each, 9 if left out"""
    component: Numbers = ()
    """Draw from these components of the prior (bype coreset shows their numbers); a line for each"""
    label: MaybeName = None
    """Draw from the pseudo-points of this class; works only if the points have labels"""
    heaviest: int = 0
    """Draw from this many components of largest weight; a line for each"""
    like: Annotated[
        tuple[str, ...],
        without_default(
            "EXAMPLE ...",
            "Generate examples like these: image files, or row numbers of --split; of a table, only row numbers. A "
            "picture also shows these",
        ),
    ] = ()
    noise: Annotated[
        bool,
        tyro.conf.arg(
            help="Draw pixels from the likelihood, as in the paper's Algorithm 1; if left out, show its mean. Rows of "
            "a table are always drawn",
            help_behavior_hint="",
        ),
    ] = False
    data: Annotated[
        Path | None,
        without_default(
            "PATH",
            "Take the rows of --like from this store, not from the one that the run was trained on; an exemplar prior "
            "looks here for its training data, if they have moved",
        ),
    ] = None
    split: SplitOfRows = None
    seed: Seed = 0
    force: Force = False


def sample(words: list[str]) -> int:
    """Generate examples."""
    options = parse(_Sample, words, "bype sample", "Generate new examples.")
    import torch

    from bype.evaluation import generation, pseudopoints
    from bype.run.opened import TrainedRun

    is_each = bool(options.component or options.heaviest or options.like)
    count = options.count if options.count is not None else 9 if is_each else 64
    if count < 1 or options.heaviest < 0:
        raise UsageError("--count must be at least 1, --heaviest not negative")
    chosen = options.component, options.heaviest, options.like, options.label is not None
    if sum(map(bool, chosen)) > 1:
        raise UsageError("choose one of --component, --heaviest, --like and --label")
    if options.like and options.noise:
        raise UsageError("--noise is for samples of the prior; leave it out with --like")
    if options.split is not None and not options.like:
        raise UsageError("--split is for the row numbers of --like")
    require_free(options.out, options.force)
    require_store(options.data)
    run = TrainedRun.open(options.run, options.data)
    if options.data is not None and not options.like and run.config.prior != "exemplar":
        raise UsageError("--data is for the row numbers of --like; leave it out")
    model = run.model
    generator = torch.Generator().manual_seed(options.seed)
    if options.like:
        lines = []
        for x in named_examples(run, options.like, options.data, options.split):
            copies = x.expand(count, *x.shape)
            made = generation.generate_like(model, copies, generation.default_way(model), generator=generator)
            lines.append(torch.cat([x[None], made]) if options.out.suffix == ".png" else made)
    else:
        prior = model.prior_distribution()
        try:
            if options.label is not None:
                label = run.data.class_number(options.label)
                pseudopoints.require_points_of_class(model, label, run.data.classes)
                prior = model.prior.given_label(prior, label)
            components = options.component or generation.heaviest_components(prior, options.heaviest)
            lines = [
                generation.sample(
                    model,
                    count,
                    component=k,
                    with_noise=options.noise or None,  # None draws rows of a table
                    prior=prior,
                    generator=generator,
                )
                for k in components or (None,)
            ]
        except ValueError as error:
            raise UsageError(str(error)) from error
        if not components:
            lines = list(torch.split(lines[0], max(1, round(count**0.5))))
    save_lines(lines, options.out, run.data.shape, run.data.names)
    given = len(lines) if options.like and options.out.suffix == ".png" else 0
    made_here = sum(map(len, lines)) - given
    print(f"{counted(made_here, 'example')} in {options.out}" + (", after the given ones" if given else ""))
    result(out=options.out, examples=made_here)
    return 0


@dataclass(frozen=True)
class _Reconstruct:
    run: RunFolder
    out: Path
    """Write a picture to this .png file, examples above reconstructions; or only reconstructions to .npy or .csv"""
    examples: ExampleNames = ()
    """Reconstruct these: image files, or row numbers of --split; 20 rows, evenly spread, if left out"""
    data: OtherStore = None
    split: SplitOfRows = None
    force: Force = False


def reconstruct(words: list[str]) -> int:
    """Show examples and their reconstructions."""
    options = parse(_Reconstruct, words, "bype reconstruct", "Show examples and their reconstructions.")
    import torch

    from bype.evaluation import generation
    from bype.plates import is_image_shape
    from bype.run.opened import TrainedRun

    require_free(options.out, options.force)
    run = TrainedRun.open(options.run, options.data)
    x = named_examples(run, options.examples, options.data, options.split, most=20)
    made = generation.reconstruct(run.model, x)
    error = (made.double() - x.double()).square().flatten(1).sum(1)
    lines = [made]
    if options.out.suffix == ".png":
        lines = [part for pair in zip(torch.split(x, 10), torch.split(made, 10), strict=True) for part in pair]
    save_lines(lines, options.out, run.data.shape, run.data.names)
    what = "examples and their reconstructions" if options.out.suffix == ".png" else "reconstructions"
    units = "" if is_image_shape(run.data.shape) else " in the units of the data"
    print(
        f"{len(x)} {what} in {options.out}; "
        f"squared error {error.mean():.3f}{units}, summed over dimensions, mean over examples"
    )
    result(out=options.out, examples=len(x), squared_error=float(error.mean()))
    return 0


@dataclass(frozen=True)
class _Interpolate:
    run: RunFolder
    out: Path
    """Write the examples to this file: a picture to .png, numbers to .npy, rows of a table to .csv"""
    between: Annotated[
        tuple[str, ...],
        without_default(
            "EXAMPLE ...",
            "Interpolate between pairs of these: image files, or row numbers of --split; if left out, 16 rows, evenly "
            "spread. Each pair is a line",
        ),
    ] = ()
    steps: int = 10
    """Show this many examples in a line; the first and the last are what the decoder makes of both ends"""
    data: OtherStore = None
    split: SplitOfRows = None
    force: Force = False


def interpolate(words: list[str]) -> int:
    """Interpolate between examples."""
    options = parse(_Interpolate, words, "bype interpolate", "Interpolate between examples.")
    from bype.evaluation import generation
    from bype.run.opened import TrainedRun

    if options.steps < 2 or len(options.between) % 2:
        raise UsageError("give --between its examples in pairs, and --steps at least 2, for both ends")
    require_free(options.out, options.force)
    run = TrainedRun.open(options.run, options.data)
    ends = named_examples(run, options.between, options.data, options.split, most=16)
    if len(ends) < 2:
        raise UsageError("the split has only one example; name two with --between")
    pairs = zip(ends[::2], ends[1::2], strict=False)  # the last of an odd number of examples has no partner
    lines = [generation.interpolate(run.model, start, end, options.steps) for start, end in pairs]
    save_lines(lines, options.out, run.data.shape, run.data.names)
    print(f"{len(lines)} lines of {options.steps} examples in {options.out}")
    result(out=options.out, lines=len(lines), examples=len(lines) * options.steps)
    return 0


@dataclass(frozen=True)
class _Coreset:
    run: RunFolder
    out: Path
    """Write coreset.npz, weights.svg, a store of the points, and two pictures or points.csv to this new folder"""
    data: MovedStore = None


def coreset(words: list[str]) -> int:
    """Show and export the pseudocoreset."""
    options = parse(_Coreset, words, "bype coreset", "Show the pseudocoreset by weight, and export it.")
    from bype.evaluation import pseudopoints
    from bype.report.export import export_points
    from bype.run.opened import TrainedRun, open_store

    run = TrainedRun.open(options.run, options.data)
    points = pseudopoints.coreset(run, options.data)
    export_points(points, run, open_store(run.folder, run.data, options.data), options.out)
    heaviest = zip(points.component[:5], points.weights[:5], strict=True)
    top = ", ".join(f"{component} ({weight:.0f})" for component, weight in heaviest)
    print(f"{len(points.weights)} pseudo-points that stand for {points.weights.sum():,.0f} examples in {options.out}")
    print(f"as varied as {points.effective_number:.0f} of equal weight; the heaviest, by number and weight: {top}")
    result(
        out=options.out,
        points=len(points.weights),
        examples=float(points.weights.sum()),
        effective_number=float(points.effective_number),
        heaviest=[int(component) for component in points.component[:5]],
    )
    return 0
