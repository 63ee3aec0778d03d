"""What all commands have in common: examples, one JSON object, silence, colours, completion, nothing overwritten."""

import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bype.cli import _COMMANDS, main
from bype.data.writer import StoreWriter
from bype.run.opened import TrainedRun


def help_of(name: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        main([*name, "--help"])
    assert caught.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", _COMMANDS, ids=" ".join)
def test_help_has_an_example_whose_options_exist(name, capsys):
    page = help_of(name, capsys)
    (example,) = re.findall(r"Example: (.*)", page)
    words = shlex.split(example)
    assert words[: len(name) + 1] == ["bype", *name]
    assert {word for word in words if word.startswith("--")} <= set(re.findall(r"--[a-z-]+", page))
    assert "--json" in page


def test_the_guide_lists_all_commands():
    page = (Path(__file__).parent.parent / "docs" / "guide" / "commands.md").read_text()
    listed = re.findall(r"^\| \[`bype (.*?)`\]\(.*?\) \| (.*) \|$", page, re.MULTILINE)
    assert listed == [(" ".join(name), text) for name, (_, _, text) in _COMMANDS.items()]


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> dict:
    """Run a command with --json, and return the one object that it prints."""
    assert main([*map(str, words), "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert isinstance(found, dict)
    return found


def test_data_as_json(tmp_path, capsys):
    rows = np.arange(40, dtype=np.float32).reshape(20, 2)
    np.save(tmp_path / "x.npy", rows)
    made = printed(capsys, "data", "prepare", tmp_path / "x.npy", "--out", tmp_path / "store", "--validation", 3)
    assert made["shape"] == [2]
    assert sum(made["examples"].values()) == 20
    assert made["examples"]["validation"] == 3
    found = printed(capsys, "data", "check", tmp_path / "store")
    splits = found["splits"].values()
    assert min(split["lowest"] for split in splits) == 0
    assert max(split["highest"] for split in splits) == 39
    assert sum(split["mean"] * split["examples"] for split in splits) == pytest.approx(20 * rows.mean())


def test_recipes_and_config_as_json(capsys):
    assert "mnist/vae/bype" in printed(capsys, "recipes")["recipes"]
    assert printed(capsys, "train", "mnist/vae/bype", "--print-config", "--seed", 7)["seed"] == 7


def test_a_run_as_json(bype_run, tmp_path, capsys):
    found = printed(capsys, "sample", bype_run, "--count", 5, "--out", tmp_path / "x.npy")
    assert found == {"out": str(tmp_path / "x.npy"), "examples": 5}
    assert len(np.load(tmp_path / "x.npy")) == 5
    found = printed(capsys, "reconstruct", bype_run, "--examples", 0, 1, "--out", tmp_path / "r.npy")
    assert found["examples"] == 2
    x, made = TrainedRun.open(bype_run).store().split("test").read(np.arange(2)), np.load(tmp_path / "r.npy")
    assert found["squared_error"] == pytest.approx(np.square((x + 0.5) / 256 - made).sum((1, 2, 3)).mean(), rel=1e-4)
    assert printed(capsys, "interpolate", bype_run, "--between", 0, 1, "--out", tmp_path / "i.png")["lines"] == 1
    assert printed(capsys, "coreset", bype_run, "--out", tmp_path / "c")["points"] == 20
    assert printed(capsys, "embed", bype_run, "--out", tmp_path / "e")["parts_done"] == 1
    page = printed(capsys, "report", bype_run, "--out", tmp_path / "r.html")
    assert page["bytes"] == (tmp_path / "r.html").stat().st_size
    measured = printed(capsys, "evaluate", bype_run, "--samples", 5, "--images", 8, "--no-map")
    (kept,) = json.loads((bype_run / "evaluation.json").read_text())["evaluations"]
    assert measured["density"] == kept["density"]


def test_the_end_of_training_as_json(labelled_store, tmp_path, capsys):
    words = ["--components", 10, "--hidden", 8, "--latent-dim", 2, "--length", "4 steps", "--warm-up", "0 epochs"]
    found = printed(capsys, "train", "--data", labelled_store, "--out", tmp_path / "run", *words)
    assert (found["state"], found["step"]) == ("finished", 4)
    assert (
        main(["train", "--data", str(labelled_store), "--out", str(tmp_path / "run"), *map(str, words), "--quiet"]) == 0
    )
    assert capsys.readouterr() == ("", "")


def test_an_error_is_a_line_and_no_object(tmp_path, capsys):
    assert main(["sample", str(tmp_path), "--out", str(tmp_path / "x.png"), "--json"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("bype: ")
    assert main(["recipes"]) == 0
    assert capsys.readouterr().out  # words are shown again


@pytest.mark.parametrize(
    ("words", "flag", "name"),
    [
        (("sample",), "--out", "x.png"),
        (("reconstruct",), "--out", "x.png"),
        (("interpolate",), "--out", "x.png"),
        (("report",), "--out", "x.html"),
        (("data", "check"), "--sheet", "x.png"),
    ],
    ids=str,
)
def test_nothing_is_overwritten_without_force(words, flag, name, trained_bype, labelled_store, tmp_path, capsys):
    command = [*words, str(labelled_store if words[0] == "data" else trained_bype), flag, str(tmp_path / name)]
    (tmp_path / name).write_text("mine")
    assert main(command) == 1
    assert "--force" in capsys.readouterr().err
    assert (tmp_path / name).read_text() == "mine"
    assert main([*command, "--force"]) == 0
    assert (tmp_path / name).stat().st_size > 100
    assert [path.name for path in tmp_path.iterdir()] == [name]


def on_a_terminal(environment: dict[str, str]) -> bytes:
    """Return what ``bype sample --help`` writes to a terminal."""
    terminal, other = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", **environment}
    with subprocess.Popen([sys.executable, "-m", "bype", "sample", "--help"], stdout=other, env=environment):
        os.close(other)
        found = b""
        try:
            while content := os.read(terminal, 4096):
                found += content
        except OSError:  # the other end is closed
            pass
    os.close(terminal)
    return found


def test_colours_are_left_out_on_request():
    assert b"\x1b[" in on_a_terminal({})
    assert b"\x1b[" not in on_a_terminal({"NO_COLOR": "1"})


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_completion_in_bash(tmp_path, capsys):
    assert main(["--print-completion", "bash"]) == 0
    script = tmp_path / "completion"
    script.write_text(capsys.readouterr().out)
    (tmp_path / "photos").mkdir()

    def complete(*words: str) -> set[str]:
        line = f"source {script}; COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; _bype; "
        command = [str(shutil.which("bash")), "-c", line + 'echo "${COMPREPLY[@]}"']
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
        assert done.stderr == ""
        return set(done.stdout.split())

    assert complete("bype", "re") == {"recipes", "reconstruct", "report", "reproduce"}
    assert complete("bype", "reproduce", "l") == {"list"}
    assert complete("bype", "data", "") == {"prepare", "check"}
    assert complete("bype", "sample", "run", "--li") == {"--like"}
    assert complete("bype", "data", "check", "--s") == {"--sheet"}
    assert complete("bype", "fit", "pho") == {"photos"}
    assert main(["--print-completion", "fish"]) == 2


def test_completion_in_zsh_is_the_same_after_one_line(capsys):
    scripts = []
    for shell in ("bash", "zsh"):
        assert main(["--print-completion", shell]) == 0
        scripts.append(capsys.readouterr().out.splitlines())
    assert scripts[1][0] == "autoload -U +X bashcompinit && bashcompinit"
    assert scripts[1][2:] == scripts[0][1:]


def test_names_of_strangers_give_no_commands_to_the_terminal(tmp_path, capsys):
    with StoreWriter(tmp_path / "s", (2,), "float32", source="\x1b[2Jcleared\x07", has_labels=False) as writer:
        writer.append("train", np.zeros((20, 2), dtype=np.float32))
    assert main(["data", "check", str(tmp_path / "s")]) == 0
    assert "\\x1b[2Jcleared\\x07" in capsys.readouterr().out
