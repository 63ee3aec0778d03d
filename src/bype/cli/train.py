"""Training."""

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tyro

from bype.cli.options import UsageError, parse
from bype.cli.output import result, say
from bype.paper.recipes import RECIPES, recipe_named
from bype.pseudocoreset.settings import SETTINGS, RuleSettings
from bype.run.config import ConfigError, PriorName, TrainingConfig

_IDLE: dict[str, Callable[[TrainingConfig], str | None]] = {
    "components": lambda config: "prior gaussian" if config.prior == "gaussian" else None,
    "vamp_start": lambda config: None if config.prior == "vamp" else f"prior {config.prior}",
    "clamp_points": lambda config: None if config.prior == "bype" else f"prior {config.prior}",
    "variance": lambda config: None if config.likelihood == "gaussian" else f"likelihood {config.likelihood}",
    "hidden": lambda config: "network residual" if config.network == "residual" else None,
}
"""Settings that some models do not have; for each, what the model has instead, or nothing if it has the setting."""
_UNITS = ("step", "steps", "epoch", "epochs", "second", "seconds", "percent")


@dataclass(frozen=True)
class _NoOptions:
    pass


def recipes(words: list[str]) -> int:
    """List the recipes."""
    parse(_NoOptions, words, "bype recipes", "List the recipes of bype train.")
    width = max(map(len, RECIPES))
    for recipe in RECIPES.values():
        print(f"{recipe.name:<{width}}  {recipe.description}")
    result(recipes={recipe.name: recipe.description for recipe in RECIPES.values()})
    return 0


def _train_options(base: TrainingConfig, hide_advanced: bool) -> type[Any]:
    """Return the options of ``bype train``: a flag for each field of the config and of its rule."""
    fields: list[tuple[str, Any, Any]] = [
        _flag("data", Path, "Train on this store"),
        _flag("out", Path, "Write to this run directory; resume if it holds a run"),
        _flag("device", str, "Compute on cpu, or on cuda for a GPU; a run may resume on another device", "cpu"),
        _flag("print_config", bool, "Print the config and stop", False),
        _flag("dry_run", bool, "Print the size of the model and the time that training takes, and stop", False),
    ]
    for field in dataclasses.fields(TrainingConfig):
        if field.name == "rule":
            fields += _rule_flags(base.rule, hide_advanced)
            continue
        marks: list[Any] = [tyro.conf.Suppress] if field.metadata.get("advanced") and hide_advanced else []
        marks += [tyro.conf.FlagConversionOff] if field.type is bool else []
        kind = PriorName if field.name == "prior" else field.type  # a prior of one's own is for Python
        fields.append(_flag(field.name, kind, field.metadata["help"], getattr(base, field.name), *marks))
    return dataclasses.make_dataclass("_Train", fields, frozen=True)


def _rule_flags(rule: RuleSettings | None, hide_advanced: bool) -> list[tuple[str, Any, Any]]:
    """Return ``--rule``, and a flag ``--rule-NAME`` for each setting of that rule."""
    if rule is None:
        return []
    flags = [_flag("rule", Literal[tuple(SETTINGS)], "Choose the rule that moves the pseudocoreset", rule.name)]
    marks = [tyro.conf.Suppress] if hide_advanced else []
    for field in dataclasses.fields(rule):
        if field.name != "name":
            value = getattr(rule, field.name)
            flags.append(_flag(f"rule_{field.name}", field.type, field.metadata["help"], value, *marks))
    return flags


def _flag(name: str, kind: Any, text: str, default: Any = dataclasses.MISSING, *marks: Any) -> tuple[str, Any, Any]:
    # Do not show a default that is None, nor that a switch is off.
    is_plain = default is None or (kind is bool and not marks)
    described = tyro.conf.arg(help=text, help_behavior_hint="" if is_plain else None)
    annotated = Annotated.__class_getitem__((kind, described, *marks))  # type: ignore[attr-defined]
    return name, annotated, dataclasses.field(default=default)


def _with_rule_of(base: TrainingConfig, words: list[str]) -> TrainingConfig:
    """Return the config with the prior and the rule that the words name, whose settings then have flags."""
    asked = {
        flag: words[place + 1] if word == flag else word.removeprefix(f"{flag}=")
        for flag in ("--prior", "--rule")
        for place, word in enumerate(words)
        if word.startswith(f"{flag}=") or (word == flag and place + 1 < len(words))
    }
    prior: Any = asked.get("--prior", base.prior)
    rule = asked.get("--rule")
    if prior in get_args(PriorName) and prior != base.prior:
        base = dataclasses.replace(base, prior=prior, rule=None)
    if rule in SETTINGS and base.rule is not None and rule != base.rule.name:
        base = dataclasses.replace(base, rule=SETTINGS[rule]())
    return base


def _config(options: Any, base: TrainingConfig) -> TrainingConfig:
    fields: dict[str, Any] = {field.name: getattr(options, field.name, None) for field in dataclasses.fields(base)}
    try:
        if base.rule is not None:
            names = [field.name for field in dataclasses.fields(base.rule) if field.name != "name"]
            settings = {name: getattr(options, f"rule_{name}") for name in names}
            fields["rule"] = dataclasses.replace(base.rule, **settings)
        return TrainingConfig(**fields)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _refuse_slips(words: list[str], base: TrainingConfig) -> None:
    """Say what is wrong with words that the parser would only call unknown."""
    for before, word in zip(["", *words], words, strict=False):
        flag = word.split("=")[0]
        if word in _UNITS and before.split("=")[-1].isdigit():
            raise UsageError(f"put a number and its unit in quotes: '{before} {word}'")
        if word in RECIPES and not before.startswith("--"):
            raise UsageError(f"the recipe comes first: bype train {word} ...")
        if flag.startswith("--rule") and base.rule is None:
            raise UsageError(f"the prior {base.prior} has no rule; leave out {flag}")
        if flag.startswith("--rule-") and base.rule is not None:
            known = [f"--rule-{field.name.replace('_', '-')}" for field in dataclasses.fields(base.rule)[1:]]
            if flag.replace("_", "-") not in known:
                has = f"; it has {', '.join(known)}" if known else ""
                raise UsageError(f"the rule {base.rule.name} has no {flag}{has}")


def train(words: list[str]) -> int:
    """Train, or resume a run."""
    show_all = "--help-all" in words
    words = ["--help" if word == "--help-all" else word for word in words]
    wants_help = bool({"-h", "--help"} & set(words))
    name = words.pop(0) if words and not words[0].startswith("-") else None
    base = _with_rule_of(recipe_named(name).config if name else TrainingConfig(), words)
    if "--print-config" in words and "--data" not in words:
        words += ["--data", "."]
    if {"--print-config", "--dry-run"} & set(words) and "--out" not in words:  # nothing is written
        words += ["--out", "."]
    description = "Train a model, or resume the run in --out.\n\n"
    if name:
        description += f"Defaults are those of {name}."
    else:
        description += "RECIPE names a set of defaults, such as fashion-mnist/vae/bype, and comes first; bype recipes "
        description += "lists all. Without it, defaults are those of a VAE with a tracked pseudocoreset."
    description += "" if show_all else "\n\nTo see all options, use --help-all."
    _refuse_slips(words, base)
    options_class = _train_options(base, hide_advanced=wants_help and not show_all)
    options = parse(options_class, words, "bype train [RECIPE]", description)
    config = _config(options, base)
    for name, place in _IDLE.items():
        if getattr(config, name) != getattr(base, name) and place(config):
            flag = name.replace("_", "-")
            say(f"warning: --{flag} changes nothing with the {place(config)}", sys.stderr)
    if options.print_config:
        from bype.data.files import to_json

        print(to_json(config.to_fields()).decode(), end="")
        result(**config.to_fields())
        return 0
    if options.dry_run:
        from bype.distributed import device_named
        from bype.training.dry_run import dry_run

        lines = list(dry_run(config, options.data, device_named(options.device)))
        print(*lines, sep="\n")
        result(lines=lines)
        return 0
    from bype.distributed import device_named, open_group
    from bype.training import loop

    device = device_named(options.device)
    with open_group(device=device) as group:
        outcome = loop.train(config, options.data, options.out, group.is_first, group, device)
    if not group.is_first:
        return 0 if outcome.state == "finished" else 128 + (outcome.signal or 0)
    result(out=options.out, state=outcome.state, step=outcome.step, best_negative_elbo=outcome.best)
    best = "" if outcome.best is None else f"; best validation -ELBO {outcome.best:.3f} nats per example"
    if outcome.state == "stopped":
        say(f"stopped at step {outcome.step}{best}. To resume, run the same command.")
        return 128 + (outcome.signal or 0)
    place = options.out / ("checkpoints" if outcome.best is None else "best")
    say(f"finished at step {outcome.step}{best}. The model is in {place}")
    return 0
