"""Training."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from bype.cli.data import warn_of_scales
from bype.cli.options import parse
from bype.paper.recipes import RECIPES, recipe_named
from bype.training.config import ConfigError, TrainingConfig


@dataclass(frozen=True)
class _NoOptions:
    pass


def recipes(words: list[str]) -> int:
    """List the recipes."""
    parse(_NoOptions, words, "bype recipes", "List what can be trained.")
    width = max(map(len, RECIPES))
    for recipe in RECIPES.values():
        print(f"{recipe.name:<{width}}  {recipe.description}")
    return 0


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
            "device",
            Annotated[str, tyro.conf.arg(help="what computes: cpu, or cuda for a GPU; a run may go on on another one")],
            dataclasses.field(default="cpu"),
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


def train(words: list[str]) -> int:
    """Train, or go on with a run."""
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
    whose = f"of {name}" if name else "of the paper's VAE; name a recipe for its own"
    description = f"Train a model, or go on with the run in --out. Defaults are those {whose}." + (
        "" if show_all else " --help-all shows every flag."
    )
    options_class = _train_options(base, hide_advanced=wants_help and not show_all)
    options = parse(options_class, words, "bype train RECIPE", description)
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
    from bype.data.store import Store
    from bype.distributed import device_named, open_group
    from bype.training import loop
    from bype.training.progress import display_here

    device = device_named(options.device)
    with open_group(device=device) as group:
        if group.is_first:
            warn_of_scales(Store(options.data))
        display = display_here() if group.is_first else None
        outcome = loop.train(config, options.data, options.out, display, group, device)
    if not group.is_first:
        return 0 if outcome.state == "finished" else 128 + (outcome.signal or 0)
    best = "" if outcome.best is None else f"; best validation -ELBO {outcome.best:.3f} nats per example"
    if outcome.state == "stopped":
        print(f"stopped at step {outcome.step}{best}. The same command goes on.")
        return 128 + (outcome.signal or 0)
    place = options.out / ("checkpoints" if outcome.best is None else "best")
    print(f"finished at step {outcome.step}{best}. The model is in {place}")
    return 0
