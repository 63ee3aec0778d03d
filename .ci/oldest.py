"""The oldest versions that pyproject.toml allows, and the record of a test run with them.

``python .ci/oldest.py versions`` prints them as requirements; ``python .ci/oldest.py record FOLDER OUT.JSON`` writes
what is installed and how many tests passed, by FOLDER/tests.xml and, if some had a second try, FOLDER/again.xml.
``.ci/oldest`` calls both.
"""

import json
import platform
import sys
import tomllib
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent


def oldest() -> dict[str, str]:
    """Return the lower bound of everything that bype needs, its extras included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    pairs = (word.split(">=") for words in groups for word in words)
    return dict(sorted((name, bound) for name, bound in pairs))


def counts(tests: Path) -> dict[str, int]:
    """Read a JUnit file."""
    (suite,) = ElementTree.parse(tests).getroot().iter("testsuite")  # noqa: S314  pytest has just written it
    found = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    failed = found["failures"] + found["errors"]
    return {"passed": found["tests"] - failed - found["skipped"], "failed": failed, "skipped": found["skipped"]}


def record(folder: Path) -> dict[str, object]:
    """Describe a test run by its JUnit files and what is installed."""
    first = counts(folder / "tests.xml")
    again = counts(folder / "again.xml") if (folder / "again.xml").exists() else {"passed": 0, "failed": 0}
    if again["passed"] + again["failed"] != first["failed"]:
        raise SystemExit("not all tests that failed had a second try")
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "bype": version("bype"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {name: version(name) for name in oldest()},
        "passed": first["passed"] + again["passed"],
        "passed_at_the_second_try": again["passed"],
        "failed": again["failed"],
        "skipped": first["skipped"],
    }


def main() -> None:
    """Do what the command line says."""
    match sys.argv[1:]:
        case ["versions"]:
            sys.stdout.writelines(f"{name}=={bound}\n" for name, bound in oldest().items())
        case ["record", folder, out]:
            Path(out).write_text(json.dumps(record(Path(folder)), indent=2) + "\n")
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
