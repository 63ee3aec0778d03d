"""The command line as a user meets it."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from bype.cli import main
from bype.data.check import contact_sheet
from bype.data.decode import decode
from bype.data.prepare import prepare
from bype.data.store import Store
from bype.paper.recipes import RECIPES
from bype.pseudocoreset.settings import PSVISettings, TrackingSettings
from bype.run.config import TrainingConfig


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "bype", *words], capture_output=True, text=True, check=False)


def test_help_is_quick_and_loads_no_torch():
    code = "import sys, bype.cli; bype.cli.main(['--help']); print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("False False\n")
    seconds = []
    for _ in range(5):
        before = os.times()
        assert run("--help").returncode == 0
        after = os.times()  # of the processor: a busy machine is not to blame
        seconds.append(after.children_user + after.children_system - before.children_user - before.children_system)
    assert min(seconds) < 0.5


def test_drawing_and_scoring_do_not_wait_for_scikit_learn():
    modules = ("embedding", "evaluate", "generation", "outliers", "pseudopoints")
    code = f"import sys, {', '.join(f'bype.evaluation.{name}' for name in modules)}; print('sklearn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_help_shows_the_flags_that_matter_and_all_of_them_on_request(capsys):
    shown = []
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as caught:
            main(["train", "paper/mnist/vae/bype", flag])
        assert caught.value.code == 0
        shown.append(set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out)) - {"--json", "--quiet"})
    assert len(shown[0]) <= 20
    assert len(shown[1]) > 28
    assert "--rule-step-size" not in shown[0]
    assert "--rule-step-size" in shown[1]
    assert "--seed" in shown[0]


def test_recipes_are_listed_a_line_each(capsys):
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(RECIPES) == 50
    assert lines[0].startswith("mnist/vae/bype")
    assert lines[10].startswith("paper/mnist/vae/gaussian")


def test_recipes_follow_the_papers_protocol():
    config = RECIPES["paper/cifar10/convhvae/bype"].config
    assert (config.components, config.latent_dim, config.batch_size, config.learning_rate) == (500, 40, 100, 5e-4)
    assert (config.warm_up, config.patience, config.length) == ("100 epochs", "50 epochs", "4000 epochs")
    assert (config.rule.every, config.rule.steps, config.rule.optimiser) == ("10 epochs", None, "adam")
    assert config.rule.draws == 500
    assert RECIPES["paper/celeba/residual/vamp"].config.components == 240


def test_our_own_recipes_change_nothing_but_the_pseudocoreset():
    ours, theirs = RECIPES["fashion-mnist/vae/bype"].config, RECIPES["paper/fashion-mnist/vae/bype"].config
    changed = {line.split(":")[0] for line in ours.differences(theirs)}
    assert {name for name in changed if not name.startswith("rule_")} == {"rule", "clamp_points"}
    assert (ours.rule, theirs.rule) == (TrackingSettings(), PSVISettings())


def test_print_config_needs_no_data(capsys):
    assert main(["train", "paper/mnist/hvae/vamp", "--seed", "5", "--print-config"]) == 0
    fields = json.loads(capsys.readouterr().out)
    assert (fields["network"], fields["prior"], fields["seed"]) == ("hvae", "vamp", 5)


def test_without_a_recipe_a_pseudocoreset_is_tracked(capsys):
    assert main(["train", "--print-config"]) == 0
    assert json.loads(capsys.readouterr().out) == TrainingConfig().to_fields()
    with pytest.raises(SystemExit):
        main(["train"])
    assert "--data" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (["--rule-live-points", "4"], TrackingSettings(live_points=4)),
        (["--rule-live-points", "None"], TrackingSettings(live_points=None)),
        (["--rule", "psvi", "--rule-every", "3 epochs"], PSVISettings(every="3 epochs")),
        (["--rule=psvi", "--rule-optimiser=plain"], PSVISettings(optimiser="plain")),
        (["paper/mnist/hvae/bype"], PSVISettings(draws=500)),
        (["paper/mnist/hvae/bype", "--rule-steps", "7"], PSVISettings(draws=500, steps=7)),
        (["paper/mnist/hvae/bype", "--rule", "tracking"], TrackingSettings()),
        (["paper/mnist/hvae/bype", "--prior", "vamp"], None),
        (["paper/mnist/hvae/vamp", "--prior", "bype", "--rule", "psvi"], PSVISettings()),
    ],
    ids=str,
)
def test_flags_choose_a_rule_and_its_settings(words, rule, capsys):
    assert main(["train", *words, "--print-config"]) == 0
    assert decode(TrainingConfig, json.loads(capsys.readouterr().out)).rule == rule


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rule-every", "3 epochs"], "the rule tracking has no --rule-every; it has --rule-live-points, "),
        (
            ["--rule", "psvi", "--rule-live-points", "4"],
            "the rule psvi has no --rule-live-points; it has --rule-every, ",
        ),
        (["--rule", "frozen", "--rule-every", "3 epochs"], "the rule frozen has no --rule-every\n"),
        (["--prior", "vamp", "--rule", "psvi"], "the prior vamp has no rule; leave out --rule\n"),
    ],
    ids=str,
)
def test_a_rule_has_no_flags_but_its_own(words, message, capsys):
    assert main(["train", *words, "--print-config"]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "paper/mnist/vae/laplace", "--data", "x", "--out", "y"], "bype recipes"),
        (["train", "paper/mnist/vae/bype", "--data", "nowhere", "--out", "y"], "bype data prepare"),
        (["train", "paper/mnist/vae/bype", "--data", "x", "--out", "y", "--length", "3 weeks"], "10 epochs"),
        (["train", "paper/mnist/vae/bype", "--data", "x", "--out", "y", "--rule-every", "3 weeks"], "10 epochs"),
        (["train", "paper/mnist/vae/bype", "--data", "x", "--out", "y", "--rule-draws", "1"], "at least 2"),
        (["train", "--data", "x", "--out", "y", "--rule-live-points", "0"], "live_points must be positive"),
        (["data", "prepare", "nowhere", "--out", "y"], "does not exist"),
        (["data", "check", "nowhere"], "not a bype store"),
    ],
)
def test_mistakes_give_one_line_with_the_way_out(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 1
    error = capsys.readouterr().err
    assert error.startswith("bype: ")
    assert error.count("\n") == 1
    assert message in error
    assert list(tmp_path.iterdir()) == []


def test_unknown_commands_show_what_there_is(capsys):
    assert main(["sing"]) == 2
    assert "bype data prepare" in capsys.readouterr().err
    assert main([]) == 0
    assert "bype data prepare" in capsys.readouterr().out


def test_a_contact_sheet_has_all_classes_of_sorted_data(tmp_path, monkeypatch):
    monkeypatch.setattr("bype.data.check._CHUNK_ROWS", 1)
    shades = np.repeat(np.array([20, 220], dtype=np.uint8), 120)
    np.savez(tmp_path / "two.npz", x=np.broadcast_to(shades[:, None, None], (240, 12, 12)), y=shades)
    prepare(tmp_path / "two.npz", tmp_path / "store", validation=0, test=0)
    pixels = np.asarray(contact_sheet(Store(tmp_path / "store")).convert("L"))
    assert pixels.shape == (2 * 14 - 2, 10 * 14 - 2)
    assert (pixels[5, 5], pixels[19, 5]) == (20, 220)
    assert (pixels[5, -5], pixels[19, -5]) == (20, 220)


def test_prepare_check_dry_run_and_train(tmp_path, capsys):
    for name, grey in (("dark", 20), ("light", 220)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for k in range(20):
            Image.new("L", (12, 12), grey + k % 7).save(tmp_path / "photos" / name / f"{k}.png")
    (tmp_path / "photos" / "dark" / "broken.png").write_bytes(b"no picture")
    store, sheet = tmp_path / "store", tmp_path / "sheet.png"
    assert main(["data", "prepare", str(tmp_path / "photos"), "--out", str(store)]) == 0
    printed = capsys.readouterr()
    assert "skipped dark/broken.png: not an image" in printed.err
    assert "32 train, 4 validation, 4 test" in printed.out

    assert main(["data", "check", str(store), "--sheet", str(sheet)]) == 0
    assert "all checksums match" in capsys.readouterr().out
    pixels = np.asarray(Image.open(sheet).convert("L"))
    assert pixels.shape == (2 * 14 - 2, 10 * 14 - 2)
    assert pixels[5, 5] < 40  # a row of the dark ones
    assert 200 < pixels[19, 5] < 240  # and one of the light ones

    words = ["train", "paper/mnist/vae/bype", "--data", str(store), "--out", str(tmp_path / "run")]
    small = ["--components", "5", "--hidden", "8", "--latent-dim", "2", "--batch-size", "8", "--length", "2 epochs"]
    assert main([*words, *small, "--dry-run"]) == 0
    assert "parameters" in capsys.readouterr().out
    assert main([*words, *small, "--dry-run", "--length", "60 seconds"]) == 0
    assert "epochs in 60 seconds; validation and updates take from it" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()
    assert main([*words, *small]) == 0
    printed = capsys.readouterr().out
    assert "epoch 2 | train -ELBO" in printed
    assert "finished at step 8" in printed


def test_the_lazy_names_are_all_there():
    import bype

    for name in bype.__all__:
        assert getattr(bype, name) is not None
    assert set(bype.__all__) <= set(dir(bype))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = bype.nothing


@pytest.mark.parametrize(
    ("words", "warning"),
    [
        (["--variance", "0.01"], "--variance changes nothing with the likelihood squared-error"),
        (["--prior", "gaussian", "--components", "9"], "--components changes nothing with the prior gaussian"),
        (["--network", "residual", "--hidden", "7"], "--hidden changes nothing with the network residual"),
        (["--vamp-start", "examples"], "--vamp-start changes nothing with the prior bype"),
        (["--prior", "vamp", "--clamp-points", "False"], "--clamp-points changes nothing with the prior vamp"),
        (["--likelihood", "gaussian", "--variance", "0.01"], ""),
        (["--out", "steps"], ""),  # a folder, and no unit of a length
        (["--prior", "vamp", "--vamp-start", "examples", "--components", "9"], ""),
    ],
)
def test_settings_that_change_nothing_are_told(words, warning, capsys):
    assert main(["train", *words, "--print-config"]) == 0
    assert capsys.readouterr().err == (f"warning: {warning}\n" if warning else "")


def test_no_help_breaks_a_line_within_a_sentence(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "400")
    for words in (["sample"], ["interpolate"], ["fit"], ["data", "prepare"], ["reproduce", "page"], ["train"]):
        with pytest.raises(SystemExit):
            main([*words, "--help"])
        options = capsys.readouterr().out.split("options ")[-1]
        lines = [line.strip("│ ") for line in options.splitlines() if line.startswith("│")]
        assert all(line.startswith("-") for line in lines), lines
