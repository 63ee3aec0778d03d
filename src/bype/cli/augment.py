"""Augmenting the training data of classifiers."""

import statistics
from dataclasses import asdict, dataclass
from typing import Literal

from bype.cli.options import MaybePath, OtherStore, RunFolder, UsageError, parse
from bype.cli.output import result
from bype.wording import counted


@dataclass(frozen=True)
class _Augment:
    run: RunFolder
    data: OtherStore = None
    way: Literal["posterior", "prior", "shifts"] = "posterior"
    """Draw latents of generated examples from the example's posterior, or from the prior's component around it; shifts
    generates nothing and shifts real images by up to 2 pixels instead, to compare"""
    lambdas: tuple[float, ...] = (0.4, 1.0)
    """Weight real examples in the loss by each of these in turn; with 1 nothing is generated"""
    seeds: int = 3
    """Train this many classifiers for each weight"""
    epochs: int = 100
    """Train each classifier for this many epochs; the authors' program takes 100"""
    export: MaybePath = None
    """Train nothing; write a new store with one generated, labelled example for each training example"""


@dataclass(frozen=True)
class _Trained:
    """The result of one classifier; a line of the journal."""

    share: float
    seed: int
    error: float


def augment(words: list[str]) -> int:
    """Train classifiers with generated examples, or write such examples."""
    what = "Train classifiers on real and generated examples. To resume, run the same command."
    options = parse(_Augment, words, "bype augment", what)
    from bype.console import progress_bar
    from bype.evaluation.augmentation import classifier_error, export_generated, require_labels
    from bype.evaluation.generation import default_way
    from bype.evaluation.journal import Journal, journal_path
    from bype.evaluation.records import ClassifierError, change_results
    from bype.run.opened import TrainedRun

    if options.seeds < 1 or options.epochs < 1 or not all(0 <= share <= 1 for share in options.lambdas):
        raise UsageError("take at least one seed and one epoch, and lambdas between 0 and 1")
    run = TrainedRun.open(options.run, options.data)
    store = run.store(options.data)
    if options.way == "prior" and default_way(run.model) != "prior":
        raise UsageError("this run's prior has no components around examples; take --way posterior")
    if options.way == "shifts" and (options.export is not None or len(run.data.shape) != 3):
        raise UsageError("shifts are for classifiers of images; take --way posterior or --way prior")
    if options.export is not None and options.way != "shifts":
        with progress_bar("generating") as report:
            made = export_generated(run, store, options.way, options.export, report=report)
        print(f"{made.splits['train'].num_rows:,} generated examples in {options.export}")
        result(out=options.export, examples=made.splits["train"].num_rows)
        return 0
    require_labels(store)
    identity = {
        "model": run.fingerprint,
        "store": store.manifest.fingerprint,
        "way": options.way,
        "epochs": options.epochs,
    }
    found, fingerprint = [], store.manifest.fingerprint
    with Journal(journal_path(run.folder, "augmentation", identity), identity, _Trained, 2**20) as journal:
        done = {(entry.share, entry.seed): entry.error for entry in journal.entries}
        for share in options.lambdas:
            for seed in range(options.seeds):
                if (share, seed) not in done:
                    with progress_bar(f"lambda {share:g}, seed {seed}") as report:
                        error = classifier_error(
                            run.model, store, options.way, share, epochs=options.epochs, seed=seed, report=report
                        )
                    done[share, seed] = error
                    journal.write(_Trained(share, seed, error))
            errors = [done[share, seed] for seed in range(options.seeds)]
            spread = f" ± {statistics.stdev(errors) / len(errors) ** 0.5:.3f}" if len(errors) > 1 else ""
            seeds = counted(len(errors), "seed")
            print(f"lambda {share:g}: test error {statistics.mean(errors):.3f}{spread} % over {seeds}")
            num_examples = len(store.split("train"))
            found.append(
                ClassifierError(run.step, fingerprint, options.way, share, options.epochs, num_examples, errors)
            )
        change_results(run.folder, lambda results: results.with_augmentation(found))
    journal.remove()
    result(run=options.run, classifiers=[asdict(each) for each in found])
    epochs = counted(options.epochs, "epoch")
    how = "real images shifted" if options.way == "shifts" else f"latents from the {options.way}"
    print(f"{epochs} each, {how}; written to {run.folder / 'evaluation.json'}")
    return 0
