"""The files around the source: valid, and true of it."""

import json
import re
import tomllib
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def load(name: str) -> dict:
    content = yaml.safe_load((ROOT / name).read_text())
    assert isinstance(content, dict)
    return content


def test_the_tests_cover_the_python_and_torch_that_are_promised():
    matrix = load(".github/workflows/tests.yml")["jobs"]["versions"]["strategy"]["matrix"]
    assert matrix["os"] == ["ubuntu-latest", "macos-latest", "windows-latest"]
    assert PROJECT["requires-python"] == f">={matrix['python'][0]}"
    assert matrix["python"][-1] == "3.14"
    assert f"pip install torch=={matrix['torch'][0]} " in (ROOT / ".ci" / "run").read_text()
    oldest = load(".github/workflows/nightly.yml")["jobs"]["oldest"]["steps"]
    assert oldest[1]["with"]["python-version"] == matrix["python"][0]
    assert oldest[2]["run"] == "bash .ci/oldest"


def test_every_job_installs_what_the_tests_import():
    """The packages that only tests need, as the job of the oldest versions names them."""
    script = (ROOT / ".ci" / "oldest").read_text().replace("\\\n", " ")
    words = re.search(r'pip install -r "\$work/oldest.txt" +(.*)', script)[1].replace('"', "").split()
    needed = {re.split("[<>=]", word)[0] for word in words} - {"build", "editables", "hatchling"}  # for the wheel
    steps = load(".github/workflows/tests.yml")["jobs"]["versions"]["steps"]
    (line,) = [step["run"] for step in steps if "pip install -e" in step.get("run", "")]
    assert {"pandas", "polars", "scipy", "skrub"} <= needed <= set(line.split())


def test_the_record_of_the_oldest_versions_is_of_those_that_are_promised():
    record = json.loads((ROOT / "results" / "oldest.json").read_text())
    assert f">={'.'.join(record['python'].split('.')[:2])}" == PROJECT["requires-python"]
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    for name, bound in (word.split(">=") for words in groups for word in words):
        found = record["versions"][name]
        assert found == bound or re.fullmatch(rf"{re.escape(bound)}(\.0)+", found), name
    assert record["failed"] == 0
    assert record["passed"] > 1000


@pytest.mark.parametrize("name", ["tests", "release", "nightly"])
def test_a_workflow_names_only_what_exists_and_may_do_little(name):
    workflow = load(f".github/workflows/{name}.yml")
    assert workflow["permissions"] == {"contents": "read"}
    jobs = workflow["jobs"]
    for job in jobs.values():
        needed = job.get("needs", [])
        assert {needed} <= set(jobs) if isinstance(needed, str) else set(needed) <= set(jobs)
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            for file in re.findall(r"\.ci/[a-z.]+", step.get("run", "")):
                assert (ROOT / file).exists()
            for extra in re.findall(r"\[([a-z,]+)\]", step.get("run", "")):
                assert set(extra.split(",")) <= set(PROJECT["optional-dependencies"])


def test_only_the_last_job_publishes_and_it_keeps_no_password():
    jobs = load(".github/workflows/release.yml")["jobs"]
    assert [name for name, job in jobs.items() if "environment" in job] == ["publish"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert jobs["publish"]["needs"] == "smoke"
    assert jobs["smoke"]["needs"] == "build"


def test_forms_for_issues_are_complete():
    names = sorted(path.name for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    assert names == ["bug.yml", "config.yml", "idea.yml"]
    for name in ("bug.yml", "idea.yml"):
        form = load(f".github/ISSUE_TEMPLATE/{name}")
        assert form["name"]
        assert form["description"]
        ids = [field["id"] for field in form["body"]]
        assert len(set(ids)) == len(ids)
        assert all(field["attributes"]["label"] and field["type"] in ("textarea", "input") for field in form["body"])
        assert any(field.get("validations", {}).get("required") for field in form["body"])


def test_the_citation_names_the_software_and_the_paper():
    citation = load("CITATION.cff")
    assert {"cff-version", "message", "title", "authors", "license", "type"} <= citation.keys()
    assert citation["license"] == PROJECT["license"]
    paper = citation["preferred-citation"]
    readable = ", ".join(f"{a['given-names'][0]}. {a['family-names']}" for a in paper["authors"])
    said = (ROOT / "src" / "bype" / "pseudocoreset" / "prior.py").read_text()
    assert readable.replace(", Z. Xu", " and Z. Xu") in said
    assert paper["title"] in said
    assert f"NeurIPS {paper['year']}" in said


def test_every_page_for_contributors_is_linked():
    text = (ROOT / "CONTRIBUTING.md").read_text() + (ROOT / "README.md").read_text()
    for name in ("SECURITY.md", "CODE_OF_CONDUCT.md", "CITATION.cff", "docs/development/versioning.md"):
        assert f"({name})" in text, name
        assert (ROOT / name).exists()
