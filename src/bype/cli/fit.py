"""From the data of a user to a report, in one go."""

import dataclasses
import math
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bype.cli.data import say_findings
from bype.cli.evaluate import describe
from bype.cli.fit_folder import REQUEST, FitOptions, Request, alone_in, is_free, require_same_request, write_request
from bype.cli.options import UsageError, parse
from bype.cli.output import result, say
from bype.wording import counted

if TYPE_CHECKING:
    from bype.data.store import Store
    from bype.evaluation.records import Evaluation
    from bype.run.config import TrainingConfig
    from bype.run.opened import TrainedRun

_DRAWS, _IMAGES = 500, 500
_FEWEST, _FEWEST_FOR_TRAINING = 10, 4
_MAX_MINUTES = 60 * 24 * 365


def fit(words: list[str]) -> int:
    """Prepare, train, evaluate and report."""
    options = parse(
        FitOptions,
        words,
        "bype fit",
        "Prepare the data, train a model, evaluate it, and write a report. To resume, run the same command.",
    )
    if not 0 < options.minutes <= _MAX_MINUTES:
        raise UsageError(f"--minutes must be positive, and at most {_MAX_MINUTES:,} (a year), not {options.minutes}")
    if options.latent_dim is not None and options.latent_dim < 1:
        raise UsageError(f"--latent-dim must be at least 1, not {options.latent_dim}")
    from bype.console import progress_bar
    from bype.data.files import name_of, write_atomic
    from bype.distributed import place_among_processes
    from bype.evaluation.density import DensityOptions
    from bype.evaluation.evaluate import earlier_evaluation, evaluate
    from bype.report.contents import gather
    from bype.report.page import render
    from bype.run.choice import length_of, suitable_config
    from bype.run.directory import RunDirectory, read_config
    from bype.run.opened import TrainedRun
    from bype.span import Span
    from bype.training.display import Display, display_here
    from bype.training.loop import train

    if place_among_processes()[1] > 1:
        raise UsageError("bype fit is for one process; under torchrun use bype data prepare, train and evaluate")
    request, is_trained = Request.of(options), False
    with alone_in(options.out):
        if (options.out / "store").exists() or (options.out / "config.json").exists():
            request = require_same_request(options, request)
            if is_trained := RunDirectory(options.out).is_finished():
                say(
                    f"{options.out} is trained already; showing its results. To train longer, choose another --out and "
                    f"more --minutes."
                )
            else:
                say(f"resuming {options.out}")
        store = _store(options, request)
        if (options.out / "config.json").exists():
            config, _ = read_config(options.out)
        else:
            config = suitable_config(
                store,
                length_of(options.minutes),
                options.seed,
                latent_dim=options.latent_dim,
                points_start=options.points_start,
            )
            if (options.out / REQUEST).exists() or is_free(options.out):  # not into a folder that training may refuse
                write_request(options.out, request)
        if not is_trained:
            length = Span.parse(config.length)
            say(f"training {_in_words(config, store)}, for {counted(length.count, length.unit.rstrip('s'))}")
        outcome = train(config, store.folder, options.out, Display() if is_trained else display_here())
    if outcome.signal is not None:  # also if training had just ended: evaluating takes minutes
        say(f"stopped at step {outcome.step}. To resume, run the same command.")
        result(run=options.out, state=outcome.state, step=outcome.step)
        return 128 + outcome.signal
    run = TrainedRun.open(options.out, store.folder)
    known = earlier_evaluation(run, store, store.default_split)
    is_known = (
        known is not None
        and known.density is not None
        and known.density.num_samples >= _DRAWS  # bype evaluate may have measured less since
        and known.density.num_images >= min(_IMAGES, len(store.split(known.split)))
    )
    density = None if is_known else DensityOptions(_DRAWS, _IMAGES)
    found = evaluate(
        run, store.default_split, data=store.folder, density=density, with_baseline=True, stage=progress_bar
    )
    for line in _beside_the_linear_model(found, math.prod(run.data.shape)):
        say(line)
    page = options.out / "report.html"
    result(run=options.out, report=page, **dataclasses.asdict(found))
    write_atomic(page, render([gather(options.out, name_of(options.out), store.folder)]).encode())
    print(f"\nopen {page.absolute()} in a browser: pictures, and all figures")
    _say_what_to_try(run)
    return 0


def _in_words(config: "TrainingConfig", store: "Store") -> str:
    if (config.network, config.prior) != ("dense", "bype"):  # the config of another run, copied to repeat it
        return "a model"
    start = "PCA" if len(store.manifest.shape) == 3 else "factor analysis"
    return f"a VAE that begins as {start}, with {config.components} pseudo-points"


def _say_what_to_try(run: "TrainedRun") -> None:
    """Print commands that the run can be used with."""
    from bype.data.files import harmless

    print("\nthen try:")
    plate = "more.png" if len(run.data.shape) == 3 else "more.csv"
    folder = shlex.quote(str(run.folder))
    print(f"  bype sample {folder} --like 0 --count 9 --out {plate}")
    points = run.model.prior.own_points()
    if points is not None and points.labels is not None:
        name = run.data.classes[int(points.labels[0])]
        if harmless(name) == name:  # else nobody could paste it
            print(f"  bype sample {folder} --label {shlex.quote(name)} --out class{Path(plate).suffix}")
    print(f"  bype coreset {folder} --out coreset")
    print(f"  bype embed {folder} --out embedding")
    print(f"  bype score {folder} --out scores.csv")
    print(f"  bype audit {folder}  # before you share the model")
    print(f"  bype evaluate {folder}  # slower, and more exact")


def _beside_the_linear_model(found: "Evaluation", num_dimensions: int) -> Iterator[str]:
    """Say in a few lines how good the model is; the report has the rest."""
    from bype.evaluation.beside import beside_linear, drawbacks

    rows = beside_linear(found)
    if not rows or found.density is None or found.baseline is None:
        yield from describe(found)
        return
    linear, own = found.baseline, found.density
    wide, examples = len(linear.kind), "on " + counted(own.num_images, f"{found.split} example")
    yield ""
    yield f"{examples:<36}  this model  {linear.kind}"
    for row in rows:
        yield f"{row.name.replace('−', '-'):<36}  {row.own:>10}  {row.linear:>{wide}}"
    yield ""
    yield linear.verdict(own, num_dimensions)
    if worse := drawbacks(found):
        yield worse
    if linear.gain_in_training is not None:
        yield f"Training gained {linear.gain_in_training:.1f} nats of validation -ELBO over the start of the model."


def _store(options: FitOptions, request: Request) -> "Store":
    """Open the store, or make it."""
    from bype.console import progress_bar
    from bype.data.prepare import prepare, with_workable_size
    from bype.data.sources import SourceOptions
    from bype.data.store import Store, is_store
    from bype.data.writer import partial_of

    if is_store(options.data):
        if options.size is not None or options.label is not None:
            raise UsageError("a store is prepared already; leave out --size and --label")
        store = Store(options.data)
        if "validation" not in store.manifest.splits:
            raise UsageError(
                f"{options.data} has no split to validate on, and bype fit sets examples apart only where it prepares "
                f"the data itself; take bype train, or bype.ByPEVAE().fit({str(options.data)!r}) in Python"
            )
        _require_usable(store)
        return store
    folder = options.out / "store"
    if folder.exists():
        return Store(folder)
    if (options.out / "config.json").exists():
        raise UsageError(
            f"the data of {options.out} are gone from {folder}; bring the store back, choose another --out, or look at "
            f"the run with: bype report {options.out} --out report.html"
        )
    if not is_free(options.out):
        raise UsageError(f"{options.out} exists and is not empty; choose another --out")
    chosen, why = with_workable_size(options.data, SourceOptions(label=options.label, size=options.size))
    if why:
        say(f"{why}: they are cropped and resized to {chosen.size} x {chosen.size} pixels; --size sets another size")
    options.out.mkdir(parents=True, exist_ok=True)
    write_request(options.out, request)  # before the store, so that no other command can take it for its own
    is_ours = False
    try:
        with progress_bar("preparing") as report:
            prepared = prepare(options.data, folder, chosen, seed=options.seed, progress=report)
        is_ours = True
        say_findings(prepared)
        _require_usable(Store(folder))
    except Exception:
        if is_ours:  # so that this command reads the data again when the user has corrected them
            shutil.rmtree(folder, ignore_errors=True)
        if not (folder.exists() or partial_of(folder).exists()):  # else another process is at work here
            (options.out / REQUEST).unlink(missing_ok=True)
        raise
    counts = ", ".join(f"{split.num_rows:,} {name}" for name, split in prepared.manifest.splits.items())
    skipped = f"; {len(prepared.skipped)} files were skipped, see above" if prepared.skipped else ""
    say(f"{prepared.manifest.source}: {counts}{skipped}")
    return Store(folder)


def _require_usable(store: "Store") -> None:
    from bype.run.choice import require_normal

    require_normal(store)
    total = store.manifest.num_examples
    if total < _FEWEST:
        raise UsageError(f"{store.manifest.source} has {counted(total, 'example')}; bype fit needs at least {_FEWEST}")
    if (count := store.manifest.splits["train"].num_rows) < _FEWEST_FOR_TRAINING:
        raise UsageError(f"{store.manifest.source} has {counted(count, 'training example')}; give more")
    if "validation" not in store.manifest.splits:
        raise UsageError(
            f"{store.manifest.source} leaves no example to validate with; give more, or repair the skipped files"
        )
