"""Finding unusual examples."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bype.cli.examples import split_of
from bype.cli.options import Device, Force, MaybeName, MaybePath, RunFolder, UsageError, parse, require_free
from bype.cli.output import result, say

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SHOWN = 5
_ABOUT = """Score each example. Unusual ones have small scores; only log_ratio can also be large.

Compare several scores: log p(x) alone is known to rank some outliers above the data, such as plain images."""


@dataclass(frozen=True)
class _Score:
    run: RunFolder
    out: Path
    """Write a line for each example to this .csv, .npz or .parquet file"""
    data: MaybePath = None
    """Score other examples: a folder of images, a .csv, .npy, .npz or .parquet file, or a store"""
    split: MaybeName = None
    """Choose the split; if left out, test, or else validation, or else train"""
    samples: int = 100
    """Estimate log p(x) with this many draws, the same for each example"""
    references: int = 2000
    """Compute percentiles from this many training examples, spread evenly"""
    device: Device = "cpu"
    force: Force = False


def score(words: list[str]) -> int:
    """Score the examples of a split."""
    options = parse(_Score, words, "bype score", _ABOUT)
    if options.out.suffix not in (".csv", ".npz", ".parquet"):
        raise UsageError(f"cannot write scores to {options.out}; choose a name that ends in .csv, .npz or .parquet")
    require_free(options.out, options.force)
    if options.samples < 1 or options.references < 1:
        raise UsageError("--samples and --references must be at least 1")
    import numpy as np

    from bype.console import progress_bar
    from bype.data.columns import to_npz
    from bype.data.files import write_atomic
    from bype.data.sources.base import require_package
    from bype.distributed import device_named
    from bype.evaluation.outliers import ScoreOptions, score_examples
    from bype.run.opened import TrainedRun

    if options.out.suffix == ".parquet":
        require_package("pyarrow")
    run = TrainedRun.open(options.run, options.data, device_named(options.device))
    chosen = ScoreOptions(options.samples, options.references)
    with split_of(run, options.data, options.split) as (store, split):
        found = score_examples(run, split.name, data=store.folder, options=chosen, stage=progress_bar)
        columns = found.as_columns(run.data.names)
        if split.has_labels:
            labels, classes = split.labels(found.rows), store.manifest.classes
            columns["label"] = np.array(classes)[labels]
    write_atomic(options.out, {".csv": _csv, ".npz": to_npz, ".parquet": _parquet}[options.out.suffix](columns))
    total = store.manifest.num_examples
    of_all = f" of {total:,}" if total > len(found.rows) else ""
    what = "example" if len(found.rows) == total == 1 else "examples"
    count = f"{len(found.rows):,}{of_all} {what}" + (f" (split {split.name})" if of_all else "")
    print(f"{count} in {options.out}; log p(x) with {found.num_samples} draws")
    if options.split is None and of_all:
        others = " or ".join(f"--split {name}" for name in store.manifest.splits if name != split.name)
        print(f"to score the others: {others}")
    if found.percentile is None:
        print(f"no percentiles and no log ratios: the training data of {options.run} are not there;")
        print(f"if you have them, bring the same store to {options.run / 'store'}")
    else:
        print(f"percentiles compare with {found.num_references:,} training examples, which the model has seen;")
        print("new examples get smaller percentiles, and much smaller ones if the model is overfitted")
    print("the least likely (compare the other scores: log p(x) alone ranks some outliers high):")
    least = found.least_likely(_SHOWN)
    result(
        file=options.out,
        split=split.name,
        examples=len(found.rows),
        least_likely=found.rows[least].tolist(),
        least_likely_sources=None if found.sources is None else found.sources[least].tolist(),
    )
    names = run.data.column_names()
    sources = found.sources if found.sources is not None and found.sources.dtype.kind == "i" else found.rows
    for place in least:
        row = f" (row {found.rows[place]} of the split)" if sources[place] != found.rows[place] else ""
        line = f"  {found.name_of(place)}{row}: log p(x) {found.log_likelihood[place]:.2f}"
        if found.percentile is not None and found.log_ratio is not None:
            line += f", percentile {found.percentile[place]:.1f}, log ratio {found.log_ratio[place]:+.2f}"
        if found.columns is not None:
            line += ", by " + ", ".join(names[k] for k in found.columns[place])
        say(line)
    return 0


def _csv(columns: "dict[str, NDArray[Any]]") -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))
    return text.getvalue().encode()


def _parquet(columns: "dict[str, NDArray[Any]]") -> bytes:
    from bype.data.columns import to_parquet

    return to_parquet({name: values.tolist() for name, values in columns.items()})
