"""The command line: parse, call, print. Commands import what they need when they run, so that help is quick."""

import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from bype.paper.recipes import RECIPES, recipe_named
from bype.training.config import ConfigError, TrainingConfig

_USAGE = """\
usage: bype COMMAND ...

  bype data prepare SOURCE --out DIR     turn images, arrays or a table into a store
  bype data check DIR                    verify a store and show what is in it
  bype recipes                           list what can be trained
  bype train RECIPE --data DIR --out RUN train a model, or go on with a run

Each command explains itself with --help.
"""

Options = TypeVar("Options")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    commands: dict[tuple[str, ...], Callable[[list[str]], int]] = {
        ("data", "prepare"): _data_prepare,
        ("data", "check"): _data_check,
        ("recipes",): _recipes,
        ("train",): _train,
    }
    if words == ["--version"]:
        from importlib import metadata

        print(f"bype {metadata.version('bype')}")
        return 0
    for name, command in commands.items():
        if tuple(words[: len(name)]) == name:
            return _guarded(command, words[len(name) :])
    asked = not words or (words[0] in ("-h", "--help", "data") and set(words[1:]) <= {"-h", "--help"})
    if not asked:
        print(f"bype: there is no command {' '.join(words[:2])!r}\n", file=sys.stderr)
    print(_USAGE, end="", file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


def _guarded(command: Callable[[list[str]], int], words: list[str]) -> int:
    """Run a command; what went wrong becomes one line."""
    from bype.data.files import FileError
    from bype.data.sources.base import SourceError

    try:
        return command(words)
    except (ConfigError, FileError, SourceError, _run_error()) as error:
        print(f"bype: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        print(f"bype: {error.strerror or error}{where}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bype: interrupted", file=sys.stderr)
        return 130


def _run_error() -> type[Exception]:
    """Return the error of runs, if a command got as far as loading them."""
    module = sys.modules.get("bype.training.run")
    error: type[Exception] = module.RunError if module else ConfigError
    return error


def _parse(options: type[Options], words: list[str], prog: str, description: str) -> Options:
    return tyro.cli(options, args=words, prog=prog, description=description, config=(tyro.conf.FlagCreatePairsOff,))


@dataclass(frozen=True)
class _Prepare:
    source: tyro.conf.Positional[str]
    """a folder of images (folders in it are classes), a folder with the files of MNIST, Fashion-MNIST or CIFAR-10, a
    .npy, .npz, .csv or .parquet file or a folder of the last, or hf:OWNER/NAME@REVISION on the Hugging Face hub"""
    out: Path
    """the store to make; it must not exist"""
    size: int | None = None
    """resize images to so many pixels in height and width, cutting off what is not square"""
    label: str | None = None
    """the column of a table that holds the label; in parquet the one called label if left out"""
    validation: float | None = None
    """examples to set apart for validation: a number, or below 1 a share"""
    test: float | None = None
    """the same for test"""
    seed: int = 0
    """for which ones are set apart"""


def _data_prepare(words: list[str]) -> int:
    options = _parse(_Prepare, words, "bype data prepare", "Turn what you have into a store.")
    from bype.console import progress_bar
    from bype.data.prepare import prepare
    from bype.data.sources import SourceOptions

    with progress_bar("preparing") as progress:
        prepared = prepare(
            options.source,
            options.out,
            SourceOptions(label=options.label, size=options.size),
            validation=options.validation,
            test=options.test,
            seed=options.seed,
            progress=progress,
        )
    for line in prepared.skipped[:20]:
        print(f"skipped {line}", file=sys.stderr)
    if len(prepared.skipped) > 20:
        print(f"skipped {len(prepared.skipped) - 20} more", file=sys.stderr)
    counts = ", ".join(f"{split.num_rows:,} {name}" for name, split in prepared.manifest.splits.items())
    print(f"{options.out}: {prepared.manifest.source}, examples of shape {prepared.manifest.shape}, {counts}")
    return 0


@dataclass(frozen=True)
class _Check:
    folder: tyro.conf.Positional[Path]
    """the store"""
    sheet: Path | None = None
    """write a contact sheet of images of each class to this PNG file"""


def _data_check(words: list[str]) -> int:
    options = _parse(_Check, words, "bype data check", "Verify a store and show what is in it.")
    from bype.data.check import check, contact_sheet
    from bype.data.store import Store

    store = Store(options.folder)
    for line in check(store):
        print(line)
    if options.sheet is not None:
        contact_sheet(store).save(options.sheet)
        print(f"contact sheet: {options.sheet}")
    return 0


def _recipes(words: list[str]) -> int:
    _parse(_NoOptions, words, "bype recipes", "List what can be trained.")
    width = max(map(len, RECIPES))
    for recipe in RECIPES.values():
        print(f"{recipe.name:<{width}}  {recipe.description}")
    return 0


@dataclass(frozen=True)
class _NoOptions:
    pass


def _train_options(base: TrainingConfig, hide_advanced: bool) -> type[Any]:
    """Return the options of ``bype train``: one flag for each field of the config, with the recipe's defaults."""
    fields: list[tuple[str, Any, Any]] = [
        ("data", Annotated[Path, tyro.conf.arg(help="the store to train on")], dataclasses.field()),
        (
            "out",
            Annotated[Path, tyro.conf.arg(help="the run directory; if a run is there, it goes on")],
            dataclasses.field(),
        ),
        (
            "print_config",
            Annotated[bool, tyro.conf.arg(help="print the config and leave")],
            dataclasses.field(default=False),
        ),
        (
            "dry_run",
            Annotated[bool, tyro.conf.arg(help="say how large and how long, and leave")],
            dataclasses.field(default=False),
        ),
    ]
    for field in dataclasses.fields(TrainingConfig):
        marks: tuple[Any, ...] = (tyro.conf.arg(help=field.metadata["help"]),)
        if field.metadata["advanced"] and hide_advanced:
            marks = (*marks, tyro.conf.Suppress)
        if field.type is bool:
            marks = (*marks, tyro.conf.FlagConversionOff)
        annotated = Annotated.__class_getitem__((field.type, *marks))  # type: ignore[attr-defined]
        fields.append((field.name, annotated, dataclasses.field(default=getattr(base, field.name))))
    return dataclasses.make_dataclass("_Train", fields, frozen=True)


def _train(words: list[str]) -> int:
    show_all = "--help-all" in words
    words = ["--help" if word == "--help-all" else word for word in words]
    wants_help = bool({"-h", "--help"} & set(words))
    name = words.pop(0) if words and not words[0].startswith("-") else None
    if name is None and not wants_help:
        raise ConfigError("say what to train: bype train RECIPE --data DIR --out RUN; bype recipes lists them")
    base = recipe_named(name).config if name else TrainingConfig()
    if "--print-config" in words:  # needs neither data nor out
        words += [] if "--data" in words else ["--data", "."]
        words += [] if "--out" in words else ["--out", "."]
    description = "Train a model, or go on with the run in --out." + (
        "" if show_all else " --help-all shows every flag."
    )
    options_class = _train_options(base, hide_advanced=wants_help and not show_all)
    options = _parse(options_class, words, "bype train RECIPE", description)
    config = TrainingConfig(
        **{field.name: getattr(options, field.name) for field in dataclasses.fields(TrainingConfig)}
    )
    if options.print_config:
        from bype.data.files import to_json

        print(to_json(config.to_fields()).decode(), end="")
        return 0
    if options.dry_run:
        from bype.training.dry_run import dry_run

        for line in dry_run(config, options.data):
            print(line)
        return 0
    from rich.console import Console

    from bype.training.loop import train
    from bype.training.progress import LiveDisplay, PlainDisplay

    console = Console()
    outcome = train(config, options.data, options.out, LiveDisplay(console) if console.is_terminal else PlainDisplay())
    best = "" if outcome.best is None else f"; best validation -ELBO {outcome.best:.3f} nats per example"
    if outcome.state == "stopped":
        print(f"stopped at step {outcome.step}{best}. The same command goes on.")
        return 128 + (outcome.signal or 0)
    print(f"finished at step {outcome.step}{best}. The model is in {options.out / 'best'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
