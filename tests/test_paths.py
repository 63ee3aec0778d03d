"""The commands that the pages print: few up to the first picture, and valid."""

import re
import shlex

import pytest

from bype.cli import main
from printed import ROOT, commands, section

MOST_COMMANDS = 4
PATHS = {
    "photographs": [("README.md", "Install"), ("README.md", "Three commands")],
    "research": [("docs/guide/start.md", "Start in five minutes"), ("docs/guide/start.md", "For a research question")],
    "cluster": [("README.md", "Install"), ("docs/scaling/running.md", "Several processes")],
}
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))]


def path_of(person: str) -> list[str]:
    """Return the commands that are printed for a person, up to the first that names a picture."""
    found = [command for place in PATHS[person] for command in commands(section(*place))]
    ends = [number for number, command in enumerate(found, 1) if ".png" in command]
    return found[: ends[0]] if ends else found


@pytest.mark.parametrize("person", PATHS)
def test_a_path_has_few_commands_and_begins_with_the_installation(person):
    path = path_of(person)
    assert path[0].startswith("pip install")
    assert 2 <= len(path) <= MOST_COMMANDS


def test_commands_are_taken_from_blocks_without_a_language():
    text = "```\nbype a \\\n--b c # why\nls\n```\nbype no\n```python\nbype not\n```\n\n```\ntorchrun -m bype d\n```\n"
    assert commands(text) == ["bype a  --b c # why", "torchrun -m bype d"]


@pytest.mark.parametrize("page", PAGES)
def test_printed_commands_exist_and_have_the_options(page, capsys):
    for command in commands((ROOT / page).read_text(encoding="utf-8")):
        words = shlex.split(command, comments=True)
        if words[0] == "torchrun":
            words = words[words.index("-m") + 1 :]
        if words[0] != "bype" or words[1].startswith("-"):
            continue
        words = [word for word in words[1:] if word != "…"]
        with pytest.raises(SystemExit, match="0"):  # options of bype train depend on the recipe and the rule
            main([*words, "--help-all" if words[0] == "train" else "--help"])
        known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
        assert {word for word in words if word.startswith("--")} <= known, command
