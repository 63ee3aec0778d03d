"""Run directories from a stranger: each gives one clear line, in bounded memory and time, and touches nothing else."""

import dataclasses
import hashlib
import json
import os
import re
import shutil
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from bype.data.files import FileError, to_json
from bype.data.prepare import prepare
from bype.pseudocoreset.settings import PSVISettings
from bype.run.config import ConfigError, TrainingConfig
from bype.run.directory import RunError
from bype.run.opened import TrainedRun
from bype.training.display import Display
from bype.training.loop import train

MAX_MEGABYTES = 300
MAX_SECONDS = 5
CONFIG = TrainingConfig(
    prior="bype",
    components=10,
    latent_dim=3,
    hidden=8,
    batch_size=25,
    length="2 epochs",
    rule=PSVISettings(every="1 epoch"),
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the memory of a process in /proc")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    np.save(folder / "x.npy", np.random.default_rng(0).integers(0, 256, (120, 6, 6), dtype=np.uint8))
    prepare(folder / "x.npy", folder / "store", validation=20, test=0)
    return folder / "store"


@pytest.fixture(scope="module")
def trained(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    train(CONFIG, store, folder)
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    content = json.loads(path.read_text())
    changed = change(content)
    path.write_bytes(to_json(content if changed is None else changed))


def config(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    return lambda run: edit(run / "config.json", change)


def text(content: bytes) -> Callable[[Path], None]:
    def write(run: Path) -> None:
        (run / "config.json").write_bytes(content)

    return write


def half_character(path: Path, name: str) -> None:
    """Give a field half of a character of two, which JSON can hold and UTF-8 cannot."""
    content = re.sub(rf'("{name}": ")', r"\1\\ud800", path.read_text())
    path.write_text(content)


def best(run: Path) -> Path:
    (folder,) = (run / "best").iterdir()
    return folder


def newest(run: Path) -> Path:
    return max((run / "checkpoints").iterdir(), key=lambda path: int(path.name))


def sign(folder: Path, name: str) -> None:
    """Make a checkpoint's manifest agree with a file, as a stranger would."""
    content = (folder / name).read_bytes()
    entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    edit(folder / "manifest.json", lambda manifest: manifest["files"].update({name: entry}))


def tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def apply(run: Path) -> None:
        path = best(run) / "model.safetensors"
        content = load(path.read_bytes())
        change(content)
        path.write_bytes(save(content))
        sign(best(run), path.name)

    return apply


def header(make: Callable[[dict[str, Any], bytes], bytes]) -> Callable[[Path], None]:
    """Replace the header of the model's file, consistently with the manifest."""

    def apply(run: Path) -> None:
        path = best(run) / "model.safetensors"
        content = path.read_bytes()
        size = int.from_bytes(content[:8], "little")
        path.write_bytes(make(json.loads(content[8 : 8 + size]), content[8 + size :]))
        sign(best(run), path.name)

    return apply


def packed(fields: dict[str, Any], data: bytes) -> bytes:
    described = json.dumps(fields).encode()
    return struct.pack("<Q", len(described)) + described + data


def changed_entry(**changes: Any) -> Callable[[Path], None]:
    def make(fields: dict[str, Any], data: bytes) -> bytes:
        fields["prior.pseudocoreset.points"].update(changes)
        return packed(fields, data)

    return header(make)


def state(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def apply(run: Path) -> None:
        for folder in (run / "checkpoints").iterdir():
            edit(folder / "state.json", change)
            sign(folder, "state.json")

    return apply


def adam(key: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], None]:
    """Change a part of Adam's state, for all parameters."""

    def apply(run: Path) -> None:
        for folder in (run / "checkpoints").iterdir():
            path = folder / "training.safetensors"
            content = load(path.read_bytes())
            changed = {name: change(value) for name, value in content.items() if name.endswith(f".{key}")}
            assert changed
            path.write_bytes(save(content | changed))
            sign(folder, path.name)

    return apply


def linked(name: str) -> Callable[[Path], None]:
    def apply(run: Path) -> None:
        place, elsewhere = run / name, run.parent / "elsewhere"
        if place.exists():
            place.rename(elsewhere)
        elif not elsewhere.exists():
            elsewhere.mkdir()
        place.symlink_to(elsewhere)

    return apply


def linked_best(run: Path) -> None:
    """Nothing is written through the link unless a better model is found: the next one is."""
    state(lambda s: s.update(best=1e6))(run)
    linked("best")(run)


def piped(run: Path) -> None:
    (run / "config.json").unlink()
    os.mkfifo(run / "config.json")


def sparse(run: Path) -> None:
    path = best(run) / "model.safetensors"
    os.truncate(path, 2**36)
    edit(best(run) / "manifest.json", lambda m: m["files"]["model.safetensors"].update(bytes=2**36))


def sparse_training(run: Path) -> None:
    for folder in (run / "checkpoints").iterdir():
        os.truncate(folder / "training.safetensors", 2**36)
        edit(folder / "manifest.json", lambda m: m["files"]["training.safetensors"].update(bytes=2**36))


def no_best(run: Path) -> None:
    shutil.rmtree(run / "best")
    shutil.rmtree(run / "checkpoints")


BROKEN_WHEN_OPENED: dict[str, Callable[[Path], Any]] = {
    # the config
    "no config": lambda run: (run / "config.json").unlink(),
    "empty config": text(b""),
    "no JSON": text(b"{'a'"),
    "no text": text(b"\xff\xfe\x00"),
    "null": text(b"null"),
    "a list": text(b"[]"),
    "deep": text(b"[" * 10**6),
    "a million lists": text(b"[" + b"[]," * (2**23 // 3 - 2) + b"[]]"),
    "long": text(b" " * 2**25),
    "long number": text(b"9" * 10**6),
    "older version": config(lambda c: c.update(version=1)),
    "newer version": config(lambda c: c.update(version=99)),
    "no fields": config(lambda c: c.pop("config")),
    "fields of text": config(lambda c: c.update(config="vae")),
    "unknown field": config(lambda c: c["config"].update(command="rm -rf")),
    "missing field": config(lambda c: c["config"].pop("hidden")),
    "text for a number": config(lambda c: c["config"].update(hidden="8")),
    "unknown network": config(lambda c: c["config"].update(network="os.system")),
    "other network": config(lambda c: c["config"].update(network="hvae")),
    "wide": config(lambda c: c["config"].update(hidden=10**9)),
    "rather wide": config(lambda c: c["config"].update(hidden=20_000)),
    "deep latents": config(lambda c: c["config"].update(latent_dim=10**9)),
    "many components": config(lambda c: c["config"].update(components=10**9)),
    "some more components": config(lambda c: c["config"].update(components=11)),
    "other prior": config(lambda c: c["config"].update(prior="gaussian", rule=None)),
    "cache of exemplars": config(lambda c: c["config"].update(prior="exemplar", neighbours=10, rule=None)),
    "rule of another prior": config(lambda c: c["config"].update(prior="gaussian")),
    "rule of text": config(lambda c: c["config"].update(rule="psvi")),
    "rule without a name": config(lambda c: c["config"]["rule"].pop("name")),
    "unknown rule": config(lambda c: c["config"]["rule"].update(name="os.system")),
    "other rule": config(lambda c: c["config"].update(rule={"name": "joint"})),
    "settings of another rule": config(lambda c: c["config"]["rule"].update(name="tracking")),
    "missing setting": config(lambda c: c["config"]["rule"].pop("every")),
    "no updates": config(lambda c: c["config"]["rule"].update(every="0 epochs")),
    "negative": config(lambda c: c["config"].update(hidden=-8)),
    "no data": config(lambda c: c.pop("data")),
    "no shape": config(lambda c: c["data"].pop("shape")),
    "shape of nothing": config(lambda c: c["data"].update(shape=[])),
    "shape with zero": config(lambda c: c["data"].update(shape=[1, 0, 6])),
    "shape of text": config(lambda c: c["data"].update(shape=["1", "6", "6"])),
    "large shape": config(lambda c: c["data"].update(shape=[1, 10_000, 10_000])),
    "huge shape": config(lambda c: c["data"].update(shape=[10**6] * 3)),
    "other shape": config(lambda c: c["data"].update(shape=[1, 6, 7])),
    "objects": config(lambda c: c["data"].update(dtype="object")),
    "no examples": config(lambda c: c["data"].update(num_train=0)),
    "classes of text": config(lambda c: c["data"].update(classes="abc")),
    "half a character in the config": lambda run: half_character(run / "config.json", "store"),
    "linked config": linked("config.json"),
    "piped config": piped,
    "folder for config": lambda run: ((run / "config.json").unlink(), (run / "config.json").mkdir()),
    # the checkpoint
    "no model": no_best,
    "linked checkpoint": lambda run: linked(f"best/{best(run).name}")(run),
    "no file of the model": lambda run: (best(run) / "model.safetensors").unlink(),
    "linked model": lambda run: linked(f"best/{best(run).name}/model.safetensors")(run),
    "sparse model": sparse,
    "other step": lambda run: edit(best(run) / "manifest.json", lambda m: m.update(step=7)),
    "no manifest": lambda run: (best(run) / "manifest.json").unlink(),
    "manifest of nothing": lambda run: (best(run) / "manifest.json").write_bytes(b"{}"),
    "files of text": lambda run: edit(best(run) / "manifest.json", lambda m: m.update(files="all")),
    "negative size": lambda run: edit(
        best(run) / "manifest.json", lambda m: m["files"]["model.safetensors"].update(bytes=-1)
    ),
    "number for hash": lambda run: edit(
        best(run) / "manifest.json", lambda m: m["files"]["model.safetensors"].update(sha256=1)
    ),
    "half a character in the manifest": lambda run: half_character(best(run) / "manifest.json", "sha256"),
    "truth for a version": lambda run: edit(best(run) / "manifest.json", lambda m: m.update(version=True)),
    "a file more": lambda run: edit(
        best(run) / "manifest.json", lambda m: m["files"].update(more=m["files"]["state.json"])
    ),
    "a file less": lambda run: edit(best(run) / "manifest.json", lambda m: m["files"].pop("state.json")),
    # its tensors, signed
    "empty header": header(lambda fields, data: packed({}, data)),
    "no header": header(lambda fields, data: b""),
    "header longer than the file": header(lambda fields, data: struct.pack("<Q", 2**40) + data),
    "header of all bits": header(lambda fields, data: b"\xff" * 8 + data),
    "header of no JSON": header(lambda fields, data: struct.pack("<Q", 4) + b"{{{{" + data),
    "header of blanks": header(lambda fields, data: struct.pack("<Q", 2**21) + b" " * 2**21),
    "offsets outside": changed_entry(data_offsets=[0, 2**50]),
    "offsets backwards": changed_entry(data_offsets=[100, 0]),
    "offsets that overlap": changed_entry(data_offsets=[0, 1440]),
    "overflowing shape": changed_entry(shape=[2**62, 2**62]),
    "negative shape": changed_entry(shape=[-10, 1, 6, 6]),
    "unknown type": changed_entry(dtype="PICKLE"),
    "a tensor too many": tensors(lambda t: t.update(extra=torch.zeros(3))),
    "a tensor too few": tensors(lambda t: t.pop("prior.pseudocoreset.points")),
    "wrong shape": tensors(lambda t: t.update({"prior.pseudocoreset.points": torch.zeros(10, 36)})),
    "not finite": tensors(lambda t: t["prior.pseudocoreset.points"].fill_(torch.nan)),
    "weights not finite": tensors(lambda t: next(v for n, v in t.items() if n.startswith("decoder")).fill_(torch.inf)),
    "negative weights": tensors(lambda t: t["prior.pseudocoreset.probabilities"].sub_(1)),
    "points out of range": tensors(lambda t: t["prior.pseudocoreset.points"].add_(7)),
}

BROKEN_WHEN_CONTINUED: dict[str, Callable[[Path], Any]] = {
    "sparse moments": sparse_training,
    "state of a list": state(lambda s: []),
    "state of no JSON": lambda run: [(f / "state.json").write_bytes(b"{") for f in (run / "checkpoints").iterdir()],
    "state of nothing": state(lambda s: {}),
    "other step in the state": state(lambda s: s.update(step=s["step"] + 1)),
    "negative step": state(lambda s: s.update(step=-1)),
    "step of text": state(lambda s: s.update(step="one")),
    "negative metrics": state(lambda s: s.update(metrics_bytes=-5)),
    "sums of text": state(lambda s: s.update(shares=[[1, {"kl_z": "1"}]])),
    "sums of a list": state(lambda s: s.update(shares=[1])),
    "unknown state": state(lambda s: s.update(run="me")),
    "small moments": adam("exp_avg", lambda value: torch.zeros(1)),
    "moments of another type": adam("exp_avg_sq", lambda value: value.double()),
    "steps that are no number": adam("step", lambda value: torch.tensor(torch.nan)),
    "linked checkpoints": linked("checkpoints"),
    "linked best": linked_best,
    "linked metrics": linked("metrics.jsonl"),
    "linked lock": linked("lock"),
    "linked board": linked("tensorboard"),
}

PASSED_OVER_WHEN_CONTINUED: dict[str, Callable[[Path], Any]] = {
    "linked checkpoint": lambda run: linked(f"checkpoints/{newest(run).name}")(run),
    "linked timings": linked("timings.jsonl"),
    "metrics without end": state(lambda s: s.update(metrics_bytes=2**60)),
    "sparse metrics": lambda run: (
        os.truncate(run / "metrics.jsonl", 2**36),
        state(lambda s: s.update(metrics_bytes=2**36))(run),
    ),
}
"""There is a warning, and nothing is written through a link."""


def longer(run: Path) -> TrainingConfig:
    """Have a finished run go on."""
    edit(run / "config.json", lambda c: c["config"].update(length="3 epochs"))
    return dataclasses.replace(CONFIG, length="3 epochs")


def memory(name: str) -> float:
    """Megabytes, from the kernel: VmRSS now, VmHWM at most."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1024


def attempt(function: Callable[[], Any]) -> str:
    """Call a function that must refuse; return its message, once time, memory and form were found good."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before, start = memory("VmRSS"), time.process_time()  # a busy machine is not to blame
    with pytest.raises((FileError, RunError, ConfigError, OSError)) as caught:
        function()
    seconds, megabytes = time.process_time() - start, memory("VmHWM") - before
    assert seconds < MAX_SECONDS
    assert megabytes < MAX_MEGABYTES
    message = str(caught.value)
    assert message
    assert "\n" not in message
    assert len(message) < 500
    return message


def fingerprint(folder: Path) -> dict[str, bytes]:
    if folder.is_file():
        return {"": folder.read_bytes()}
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", BROKEN_WHEN_OPENED)
def test_opening(name, run):
    BROKEN_WHEN_OPENED[name](run)
    attempt(lambda: TrainedRun.open(run))


@pytest.mark.parametrize("name", BROKEN_WHEN_CONTINUED)
def test_continuing(name, run, store):
    BROKEN_WHEN_CONTINUED[name](run)
    elsewhere = run.parent / "elsewhere"
    before = fingerprint(elsewhere)
    attempt(lambda: train(longer(run), store, run))
    assert fingerprint(elsewhere) == before


@pytest.mark.parametrize("name", PASSED_OVER_WHEN_CONTINUED)
def test_what_is_passed_over_with_a_warning(name, run, store):
    PASSED_OVER_WHEN_CONTINUED[name](run)
    elsewhere = run.parent / "elsewhere"
    before = fingerprint(elsewhere)
    warnings: list[str] = []

    class Warned(Display):
        def warn(self, message: str) -> None:
            warnings.append(message)

    Path("/proc/self/clear_refs").write_text("5")
    resident = memory("VmRSS")
    assert train(longer(run), store, run, Warned()).step == 12
    assert memory("VmHWM") - resident < MAX_MEGABYTES
    assert warnings
    assert fingerprint(elsewhere) == before


def test_the_run_that_the_corpus_is_made_from_is_sound(run, store):
    assert TrainedRun.open(run).step == 8
    assert train(longer(run), store, run).step == 12


def refusal(folder: Path) -> str:
    """Open a run and return why it is refused; nothing if it is not."""
    try:
        TrainedRun.open(folder)
    except (FileError, RunError, ConfigError) as error:
        return str(error)
    return ""


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_flip_or_cut_of_any_file_is_refused_or_harmless(data, trained, store, tmp_path_factory):
    """Unsigned, every change of a checkpoint is noticed; in the config, it is noticed or is another sound config."""
    folder = tmp_path_factory.mktemp("flipped") / "run"
    shutil.copytree(trained, folder)
    names = ["config.json", *(f"best/{best(folder).name}/{n}" for n in ("manifest.json", "model.safetensors"))]
    path = folder / data.draw(st.sampled_from(names))
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[place:]
    path.write_bytes(content)
    start = time.process_time()  # a busy machine is not to blame
    message = refusal(folder)
    assert time.process_time() - start < MAX_SECONDS
    assert "\n" not in message
    if not message and path.name != "config.json":  # the change was in what is not needed to use the model
        ours, sound = (TrainedRun.open(f).model.state_dict() for f in (folder, trained))
        assert all(torch.equal(ours[name], sound[name]) for name in sound)
    shutil.rmtree(folder)


@settings(max_examples=100, deadline=None)
@given(junk=st.binary(max_size=300), keep=st.integers(0, 60))
def test_any_signed_header_is_refused_or_a_model(junk, keep, trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("signed") / "run"
    shutil.copytree(trained, folder)
    path = best(folder) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep] + junk + path.read_bytes()[keep + len(junk) :])
    sign(best(folder), path.name)
    assert "\n" not in refusal(folder)
    shutil.rmtree(folder)
