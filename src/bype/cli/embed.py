"""Embedding a whole store."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from bype.cli.options import MaybeName, MaybePath, RunFolder, UsageError, parse, quiet


@dataclass(frozen=True)
class _Embed:
    run: RunFolder
    """the run directory"""
    out: Path
    """a folder for parts of 16,384 rows, part-000000.npz and so on: ids, means and labels"""
    data: MaybePath = None
    """another store than the one that the run remembers"""
    split: MaybeName = None
    """test if left out, or what there is"""
    format: Literal["npz", "parquet"] = "npz"
    """of the parts"""
    samples: int = 0
    """also estimate the log-likelihood of each example, with so many draws"""
    device: str = "cpu"
    """what computes: cpu, or cuda for a GPU"""
    shard: Annotated[str | None, quiet("I/N")] = None
    """such as 2/8: be the third of eight workers, started in any way; under torchrun leave it out"""


def embed(words: list[str]) -> int:
    """Write latent means."""
    options = parse(_Embed, words, "bype embed", "Write latent means; interrupted, the same command goes on.")
    from bype.console import progress_bar
    from bype.distributed import device_named, place_among_processes
    from bype.evaluation.embedding import EmbeddingOptions, embed_split
    from bype.evaluation.evaluate import default_split
    from bype.training.trained import TrainedRun

    shard = place_among_processes() if options.shard is None else _shard(options.shard)
    if options.samples < 0:
        raise UsageError("--samples must not be negative")
    run = TrainedRun.open(options.run, options.data, device_named(options.device))
    store = run.store(options.data)
    split = store.split(options.split or default_split(store))
    chosen = EmbeddingOptions(options.format, options.samples, shard)
    with progress_bar("embedding") as report:
        found = embed_split(run, split, store.manifest.fingerprint, options.out, chosen, report)
    parts = "1 part" if found.num_parts == 1 else f"{found.num_parts} parts"
    if found.num_done == found.num_parts:
        print(f"{len(split):,} latent means of {run.config.latent_dim} dimensions in {options.out}, {parts}")
    else:
        print(f"shard {shard[0]}/{shard[1]} is done; of {parts} in {options.out}, {found.num_done} are there by now")
    return 0


def _shard(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise UsageError(f"--shard is a number from 0 and how many there are, such as 2/8, not {text!r}")
    return int(number), int(count)
