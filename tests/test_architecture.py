"""The plan of the house, kept by reading the source."""

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "bype"
FILES = sorted(SOURCE.rglob("*.py"))

# Each layer may import those before it; names in one row do not know each other.
LAYERS = [
    {"distributions"},
    {"likelihoods", "mixtures"},
    {"networks", "bounded", "inverted"},
    {"priors"},
    {"models"},
    {"objective", "coreset"},
    {"training"},
    {"evaluation"},
    {"report", "paper"},
    {"estimator", "cli"},
    {"__main__"},
]
# Networks hold no probability; data and the several processes know nothing of the method.
FORBIDDEN = {"networks": {"distributions", "likelihoods"}}
INDEPENDENT = {"data", "distributed"}
LEAVES = {"console", "memory", "pictures"}


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
    bad.write_text("import torch\nfrom bype.models import VAE\ntry:\n    torch.load('x')\nexcept:\n    pass\n")
    assert bype_parts(bad) == {"models"}
    with pytest.raises(AssertionError):
        test_nothing_unsafe(bad)
    with pytest.raises(AssertionError):
        assert rank("models") < rank("priors")
