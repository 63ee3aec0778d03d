"""Data sets on the Hugging Face hub, by name and revision."""

import importlib
import re
from dataclasses import replace
from pathlib import Path

from bype.data.sources.base import Source, SourceError, SourceOptions, require_package
from bype.data.sources.parquet import open_parquet
from bype.wording import first_line

PREFIX = "hf:"


def open_hub(name: str, options: SourceOptions) -> Source:
    """Download the parquet files of a data set and open them.

    Parameters
    ----------
    name
        ``hf:OWNER/NAME@REVISION``: a commit, a tag or a branch. Only files are taken, no code is run.
    options
        As for parquet files.
    """
    match = re.fullmatch(r"hf:([\w.-]+(?:/[\w.-]+)?)@([\w./-]+)", name)
    if match is None:
        raise SourceError(
            f"{name!r} names no data set and revision; write hf:OWNER/NAME@REVISION, with a commit or a tag as the "
            f"revision, so that the same command always means the same data"
        )
    require_package("huggingface_hub")
    hub = importlib.import_module("huggingface_hub")
    data_set, revision = match.groups()
    try:
        folder = Path(
            hub.snapshot_download(data_set, repo_type="dataset", revision=revision, allow_patterns="*.parquet")
        )
    except hub_errors() as error:
        raise SourceError(f"cannot download {name}: {first_line(error)}") from error
    if next(folder.rglob("*.parquet"), None) is None:
        raise SourceError(
            f"{data_set} has no parquet files at revision {revision}; the hub keeps a converted copy of most data sets "
            f"at revision refs/convert/parquet"
        )
    commit = folder.name if re.fullmatch(r"[0-9a-f]{40}", folder.name) else revision
    return replace(open_parquet(folder, options), description=f"{data_set} at {commit}")


def hub_errors() -> tuple[type[Exception], ...]:
    """Return the kinds of error that the hub's client raises, with those of the network library below it."""
    utils = importlib.import_module("huggingface_hub.utils")
    return (OSError, ValueError, *utils.HfHubHTTPError.__bases__)
