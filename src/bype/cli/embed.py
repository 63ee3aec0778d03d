"""Embedding a whole store."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from bype.cli.options import parse


@dataclass(frozen=True)
class _Embed:
    run: tyro.conf.Positional[Path]
    """the run directory"""
    out: Path
    """a folder for parts of 65,536 rows, part-000000.npz and so on: ids, means and labels"""
    data: Path | None = None
    """another store than the one that the run remembers"""
    split: str | None = None
    """test if left out, or what there is"""


def embed(words: list[str]) -> int:
    """Write latent means."""
    options = parse(_Embed, words, "bype embed", "Write latent means; interrupted, the same command goes on.")
    from bype.console import progress_bar
    from bype.evaluation.embedding import embed_split
    from bype.evaluation.evaluate import default_split
    from bype.training.trained import TrainedRun

    run = TrainedRun.open(options.run, options.data)
    store = run.store(options.data)
    split = store.split(options.split or default_split(store))
    with progress_bar("embedding") as report:
        num_parts = embed_split(run, split, store.manifest.fingerprint, options.out, report)
    parts = "1 part" if num_parts == 1 else f"{num_parts} parts"
    print(f"{len(split):,} latent means of {run.config.latent_dim} dimensions in {options.out}, {parts}")
    return 0
