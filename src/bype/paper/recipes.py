"""Recipes: a name for each cell of the paper's tables and for our own choice, and the configuration that trains it."""

from dataclasses import dataclass

from bype.pseudocoreset.settings import PSVISettings, TrackingSettings
from bype.run.config import ConfigError, Network, PriorName, TrainingConfig
from bype.wording import did_you_mean

_DATA_NAMES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "celeba": "CelebA at 64x64"}
_NETWORK_NAMES: dict[Network, str] = {
    "vae": "VAE",
    "hvae": "HVAE of two levels",
    "convhvae": "ConvHVAE",
    "residual": "residual network",
}
_PRIOR_NAMES: dict[PriorName, str] = {
    "gaussian": "standard normal prior",
    "vamp": "VampPrior of {components} pseudo-inputs",
    "exemplar": "Exemplar prior, {components} exemplars in a step",
    "bype": "pseudocoreset of {components} points, updated by PSVI every 10 epochs",
}


@dataclass(frozen=True)
class Recipe:
    """A configuration with a name."""

    name: str
    description: str
    config: TrainingConfig


def _paper_recipe(data: str, network: Network, prior: PriorName) -> Recipe:
    components = 240 if data == "celeba" else 500
    # The authors let pseudo-points leave the data's range, and took 500 draws for models of two levels.
    draws = 500 if network in ("hvae", "convhvae") else None
    rule = PSVISettings(draws=draws) if prior == "bype" else None
    config = TrainingConfig(network=network, prior=prior, components=components, clamp_points=False, rule=rule)
    text = f"{_DATA_NAMES[data]}, {_NETWORK_NAMES[network]}, {_PRIOR_NAMES[prior].format(components=components)}"
    return Recipe(f"paper/{data}/{network}/{prior}", text, config)


def _own_recipe(data: str, network: Network) -> Recipe:
    components = 240 if data == "celeba" else 500
    config = TrainingConfig(network=network, components=components, rule=TrackingSettings())
    text = (
        f"{_DATA_NAMES[data]}, {_NETWORK_NAMES[network]}, pseudocoreset of {components} points that follows each step"
    )
    return Recipe(f"{data}/{network}/bype", text, config)


def _all_recipes() -> dict[str, Recipe]:
    networks: dict[str, tuple[Network, ...]] = {
        data: ("residual",) if data == "celeba" else ("vae", "hvae", "convhvae") for data in _DATA_NAMES
    }
    cells = [(data, network) for data in _DATA_NAMES for network in networks[data]]
    recipes = [_own_recipe(data, network) for data, network in cells]
    recipes += [_paper_recipe(data, network, prior) for data, network in cells for prior in _PRIOR_NAMES]
    return {recipe.name: recipe for recipe in recipes}


RECIPES = _all_recipes()
"""All recipes by name."""


def recipe_named(name: str) -> Recipe:
    """Return a recipe, or say which ones there are."""
    if name not in RECIPES:
        raise ConfigError(f"there is no recipe {name!r}; see the list with: bype recipes{did_you_mean(name, RECIPES)}")
    return RECIPES[name]
