"""Sharing a model, and taking one over from the Hugging Face hub."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from bype.cli.options import Flag, Force, MaybeName, MaybePath, RunFolder, UsageError, parse, without_default
from bype.cli.output import result

_ABOUT = """Share the model of a run: write a folder, or upload it to the Hugging Face hub.

The folder or repository has the config, the model, its evaluation and audit, a picture of the points and a model
card. It has no data files, no paths, and no names of machines or users. It has the names of classes and columns,
and of the file or folder of the data. The points may be nearly equal to training examples: see bype audit. Log in
to the hub first, with: hf auth login"""


@dataclass(frozen=True)
class _Share:
    run: RunFolder
    out: MaybePath = None
    """Write the files to this new folder"""
    to: Annotated[str | None, without_default("OWNER/NAME")] = None
    """Upload the files to this repository of the hub; it is made if it does not exist"""
    private: Flag = False
    """Let only the owner see the repository"""
    force: Force = False


def share(words: list[str]) -> int:
    """Share a model."""
    options = parse(_Share, words, "bype share", _ABOUT)
    if (options.out is None) == (options.to is None):
        raise UsageError("say where: either --out FOLDER or --to OWNER/NAME")
    if options.force and options.out is None:
        raise UsageError("--force is for --out; the hub keeps what was there before")
    if options.private and options.to is None:
        raise UsageError("--private is for --to; a folder is as private as you keep it")
    import warnings

    from bype.report.contents import measured
    from bype.share.mixin import AuditWarning, warning_of
    from bype.share.run import TrainedRun

    run = TrainedRun.open(options.run)
    audit = measured(run, "").audit
    is_audited = audit is not None
    if (warning := warning_of(audit)) is not None:
        print(f"bype: warning: {warning}", file=sys.stderr)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AuditWarning)  # said above
        if options.out is not None:
            run.save_pretrained(options.out, force=options.force)
            print(f"{options.out}; its README.md is the model card")
            result(out=options.out, audited=is_audited)
        if options.to is not None:
            address = run.push_to_hub(options.to, private=options.private or None)
            print(f"{options.to}: {address}")
            result(to=options.to, address=address, audited=is_audited)
    return 0


@dataclass(frozen=True)
class _Fetch:
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OWNER/NAME")]
    """Download the model of this repository of the hub"""
    out: Path
    """Write a run directory to this new folder"""
    revision: MaybeName = None
    """Take this commit, tag or branch"""


def fetch(words: list[str]) -> int:
    """Download a model."""
    about = "Download a model from the Hugging Face hub as a run directory. No file is executed."
    options = parse(_Fetch, words, "bype fetch", about)
    from bype.share.hub import copy_known_files, download
    from bype.share.run import TrainedRun

    if options.out.exists():
        raise UsageError(f"{options.out} exists; choose another --out")
    snapshot = download(options.name, options.revision)
    copy_known_files(snapshot, options.out)
    run = TrainedRun.open(options.out)
    print(f"{options.out}: the model of step {run.step:,}, for examples of shape {run.data.shape}; try: bype sample")
    result(out=options.out, step=run.step, commit=snapshot.name)
    return 0
