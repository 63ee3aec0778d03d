"""Embedding a whole split."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from bype.cli.examples import split_of
from bype.cli.options import Device, MaybeName, MaybePath, RunFolder, UsageError, parse, shard_of, without_default
from bype.cli.output import result
from bype.wording import counted


@dataclass(frozen=True)
class _Embed:
    run: RunFolder
    out: Path
    """Write part-000000.npz and so on to this folder: ids, sources, means (embeddings), labels of 16,384 rows each"""
    data: MaybePath = None
    """Embed other examples: a folder of images, a .csv, .npy, .npz or .parquet file, or a store"""
    split: MaybeName = None
    """Choose the split; if left out, test, or else validation, or else train"""
    format: Literal["npz", "parquet"] = "npz"
    """Choose the file format of the parts"""
    samples: int = 0
    """Also estimate the log-likelihood of each example, as bype score does, with this many draws"""
    device: Device = "cpu"
    shard: Annotated[str | None, without_default("I/N")] = None
    """Do the part of worker I of N, counted from 0, such as 2/8; leave it out under torchrun"""


def embed(words: list[str]) -> int:
    """Write embeddings."""
    about = "Write embeddings, as ByPEVAE.transform gives them. To resume, run the same command."
    options = parse(_Embed, words, "bype embed", about)
    from bype.console import progress_bar
    from bype.data.store import is_store
    from bype.distributed import device_named, place_among_processes
    from bype.evaluation.embedding import EmbeddingOptions, embed_split
    from bype.run.opened import TrainedRun

    shard = place_among_processes() if options.shard is None else shard_of(options.shard)
    if options.out.suffix in (".csv", ".npy", ".npz", ".parquet"):
        raise UsageError(f"--out is a folder of files; leave out {options.out.suffix}, and see --format")
    if options.samples < 0:
        raise UsageError("--samples must not be negative")
    if shard[1] > 1 and options.data is not None and not is_store(options.data):
        raise UsageError(f"several workers need a store; make one with: bype data prepare {options.data} --out STORE")
    run = TrainedRun.open(options.run, options.data, device_named(options.device))
    chosen = EmbeddingOptions(options.format, options.samples, shard)
    with split_of(run, options.data, options.split) as (store, split), progress_bar("embedding") as report:
        found = embed_split(run, split, options.out, chosen, report)
    result(
        out=options.out,
        examples=len(split),
        latent_dim=run.config.latent_dim,
        parts=found.num_parts,
        parts_done=found.num_done,
    )
    total = store.manifest.num_examples
    count = f"{len(split):,}" + (f" of {total:,} (split {split.name})" if total > len(split) else "")
    parts = counted(found.num_parts, "part")
    if found.num_done == found.num_parts:
        print(f"{count} embeddings of {run.config.latent_dim} dimensions in {options.out}, {parts}")
    else:
        print(f"shard {shard[0]}/{shard[1]} is done; {found.num_done} of {parts} are in {options.out} so far")
    return 0
