"""The plan of the house, kept by reading the source."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import bype

SOURCE = Path(__file__).parent.parent / "src" / "bype"
FILES = sorted(SOURCE.rglob("*.py"))

# Each layer may import those before it; names in one row do not know each other.
LAYERS = [
    {"randomness", "factors"},
    {"distributions"},
    {"likelihoods", "mixtures", "networks"},
    {"priors"},
    {"models"},
    {"objective"},
    {"pseudocoreset"},
    {"run"},
    {"training", "evaluation", "export"},
    {"report"},
    {"paper", "share"},
    {"estimator", "cli"},
    {"__main__"},
]
# Networks hold no probability; data and the several processes know nothing of the method.
FORBIDDEN = {"networks": {"distributions", "likelihoods"}}
INDEPENDENT = {"data", "distributed"}
LEAVES = {"console", "memory", "plates", "span", "system", "wording"}
MAY_NAME_PRIORS_AND_RULES = {"priors", "pseudocoreset"}
BUILDER = SOURCE / "run" / "build.py"


def imported_modules(path: Path) -> set[str]:
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            modules |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return modules


def bype_parts(path: Path) -> set[str]:
    modules = imported_modules(path)
    assert "bype" not in modules, f"{path} imports the whole package"
    return {module.split(".")[1] for module in modules if module.startswith("bype.")}


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def rank(part: str) -> int:
    (layer,) = (i for i, parts in enumerate(LAYERS) if part in parts)
    return layer


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(SOURCE).as_posix())
def test_arrows_run_one_way(path):
    part = part_of(path)
    imports = {other for other in bype_parts(path) if other != part}
    if path == SOURCE / "__init__.py":
        return
    if part in INDEPENDENT | LEAVES:
        assert imports <= (LEAVES if part in INDEPENDENT else set())
        return
    for other in imports - INDEPENDENT - LEAVES:
        assert rank(other) < rank(part), f"{part} must not import {other}"
    assert not imports & FORBIDDEN.get(part, set())


def test_only_one_file_may_know_of_processes():
    for path in FILES:
        if path != SOURCE / "distributed.py":
            assert not {m for m in imported_modules(path) if m.startswith("torch.distributed")}, path


def test_only_one_file_opens_files_by_descriptor():
    """It follows no links, on systems that can be told so and on others."""
    found = {path.relative_to(SOURCE).as_posix() for path in FILES if "os.open(" in path.read_text()}
    assert found == {"system.py", "cli/__init__.py"}  # the latter opens what swallows everything


def priors_and_rules() -> set[str]:
    """Return the names of all priors and rules, and of what only one of them has."""
    names = set()
    for path in FILES:
        if part_of(path) in MAY_NAME_PRIORS_AND_RULES:
            classes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
            names |= {node.name for node in classes if re.search(r"Prior|Rule|PSVI|Ascent|Tracking|Tracked", node.name)}
    settings = {name for name in names if name.endswith("Settings")}
    return names - settings - {"Prior", "PriorPoints", "Rule"}  # the contracts are for everyone


def names_in(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.name for alias in node.names}
    return found


def test_the_names_of_priors_and_rules_are_found():
    assert {
        "PSVI",
        "ELBOAscent",
        "Tracking",
        "VampPrior",
        "GaussianPrior",
        "JointPseudocoresetPrior",
    } <= priors_and_rules()


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(SOURCE).as_posix())
def test_nobody_asks_which_prior_or_rule_it_is(path):
    if part_of(path) not in MAY_NAME_PRIORS_AND_RULES and path not in (BUILDER, SOURCE / "__init__.py"):
        assert not names_in(path) & priors_and_rules()


@pytest.mark.parametrize("name", bype.__all__)
def test_every_public_class_has_an_example(name):
    value = getattr(bype, name)
    assert inspect.getdoc(value), f"{name} has no docstring"
    if inspect.isclass(value):
        assert ">>> " in value.__doc__, f"{name} has no example"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(SOURCE).as_posix())
def test_nothing_unsafe(path):
    text = path.read_text()
    assert not {m for m in imported_modules(path) if m.split(".")[0] in {"pickle", "dill", "cloudpickle", "joblib"}}
    assert not {m for m in imported_modules(path) if m in {"torch.load", "torch.jit.load", "torch.jit", "marshal"}}
    for pattern in (r"pickle", r"torch\.(jit\.)?load\b", r"allow_pickle", r"\beval\(", r"\bexec\("):
        assert not re.search(pattern, text), pattern
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, f"bare except at line {node.lineno}"


def test_the_checks_above_can_fail(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text(
        "import torch\nfrom bype.models import VAE\ntry:\n    torch.load('x')\nexcept:\n    pass\n"
        "isinstance(prior, VampPrior)\n"
    )
    assert bype_parts(bad) == {"models"}
    assert names_in(bad) & priors_and_rules() == {"VampPrior"}
    with pytest.raises(AssertionError):
        test_nothing_unsafe(bad)
    with pytest.raises(AssertionError):
        assert rank("models") < rank("priors")
