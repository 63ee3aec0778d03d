"""What a user brings to a training: a prior or a rule of their own, and the name under which a run remembers it."""

import dataclasses
import functools
import json
from collections.abc import Callable
from typing import Any

from bype.models.base import LatentModel
from bype.priors import Prior
from bype.pseudocoreset.rule import Rule
from bype.pseudocoreset.settings import OwnSettings, TrackingSettings
from bype.run.config import ConfigError, TrainingConfig

OwnPrior = Callable[[int], Prior]
"""Makes a prior on so many latent dimensions: a prior's class, if it is built from their number alone."""
OwnRule = Callable[[LatentModel], Rule]
"""Makes a rule for a model: a rule's class, if it is built from a model alone."""


def with_own_prior(config: TrainingConfig, prior: OwnPrior) -> TrainingConfig:
    """Return the config with the name of a user's prior, in place of the prior that it has by default."""
    _require_maker("prior", prior, Prior, "number of latents")
    if not (config.prior == "bype" or config.has_own_prior) or config.rule not in (None, TrackingSettings()):
        what = f"the prior {config.prior}" if config.rule is None else f"the rule {config.rule.name}"
        raise ConfigError(f"the config has {what} already; leave one of the two out")
    return dataclasses.replace(config, prior=_name_of("prior", prior), rule=None)


def made_prior(config: TrainingConfig, prior: OwnPrior | None) -> Prior:
    """Return a prior of the user's own for a config that names one."""
    if prior is None:
        raise ConfigError(
            f"{config.prior} is a prior of somebody's own: hand it over in Python, as bype.train(..., prior=...) or "
            f"bype.TrainedRun.open(..., prior=...)"
        )
    made = prior(config.latent_dim)
    if not isinstance(made, Prior):
        raise ConfigError(f"the prior of your own must be a bype.Prior, not {type(made).__name__}")
    return made


def with_own_rule(config: TrainingConfig, rule: OwnRule) -> TrainingConfig:
    """Return the config with the name of a user's rule, in place of the rule that it has by default."""
    _require_maker("rule", rule, Rule, "model")
    if not (config.rule in (None, TrackingSettings()) or isinstance(config.rule, OwnSettings)):
        raise ConfigError(f"the config has the rule {config.rule.name} already; leave one of the two out")
    if config.prior != "bype":
        raise ConfigError(f"a rule moves a pseudocoreset, and the prior {config.prior} has none; take the prior bype")
    return dataclasses.replace(config, rule=OwnSettings(rule=_name_of("rule", rule)))


def _require_maker(what: str, given: Any, kind: type, argument: str) -> None:
    """Refuse what makes nothing: a finished prior or rule, whose state a resumed run could not begin with."""
    if isinstance(given, kind):
        raise ConfigError(
            f"{what} must be a class, or a function that makes a {what} from a {argument}, not a finished {what}"
        )
    if not callable(given):
        raise ConfigError(
            f"{what} is for a {what} of your own; settings of a known one go into TrainingConfig({what}=...)"
        )


def _name_of(what: str, maker: Callable[..., object]) -> str:
    """Return what a run is saved with, so that it resumes only with the same maker; refuse one without a clear name."""
    if isinstance(maker, functools.partial):
        try:
            json.dumps([maker.args, maker.keywords])
        except TypeError as error:
            raise ConfigError(
                f"a run saves the settings of its {what} as text: {error}; give numbers or words"
            ) from error
        return f"{_name_of(what, maker.func)}{maker.args}{maker.keywords}"
    name = f"{maker.__module__}.{getattr(maker, '__qualname__', type(maker).__qualname__)}"
    if not isinstance(maker, type) and ("<lambda>" in name or "<locals>" in name):
        raise ConfigError(
            f"the {what} {name} could be any function of this name; give a class, a function of a module, or a "
            f"functools.partial of one"
        )
    return name
