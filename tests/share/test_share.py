"""Sharing models: the hub's own client, with a folder in the place of its transfers."""

import dataclasses
import json
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.exceptions import NotFittedError

import bype
from bype.cli import main
from bype.data.files import FileError
from bype.data.sources.base import SourceError
from bype.evaluation.audit import audit_run
from bype.evaluation.audit_records import read_audit, write_audit
from bype.evaluation.density import DensityOptions
from bype.evaluation.evaluate import evaluate
from bype.evaluation.records import Results, read_results, write_results
from bype.run.directory import RunError
from bype.share.card import _plain
from bype.share.mixin import AuditWarning

hub = pytest.importorskip("huggingface_hub", reason="needs huggingface_hub")
utils = pytest.importorskip("huggingface_hub.utils")

pytestmark = pytest.mark.filterwarnings("ignore::bype.share.mixin.AuditWarning")
NAME = "someone/stripes"
ALWAYS = {"README.md", "config.json", "points.png"}
CHECKPOINT = {"manifest.json", "model.safetensors", "state.json", "training.safetensors"}


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


class FolderHub:
    """Repositories as folders. Uploads and downloads choose files by patterns as the hub's client does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.private: dict[str, bool] = {}
        self.downloaded: set[str] = set()
        self.asked: dict[str, object] = {}

    def place(self, repo_id: str, revision: str | None = None) -> Path:
        return self.folder / "repositories" / repo_id / (revision or "main")

    def create_repo(self, api, repo_id, *, private=None, exist_ok=False):
        assert exist_ok
        self.private.setdefault(repo_id, bool(private))

    def create_branch(self, api, repo_id, *, branch, exist_ok=False):
        self.place(repo_id, branch).mkdir(parents=True, exist_ok=exist_ok)

    def model_info(self, api, repo_id):
        return SimpleNamespace(private=self.private[repo_id])

    def upload_folder(self, api, *, repo_id, folder_path, commit_message, revision, create_pr, delete_patterns):
        self.asked |= {"token": api.token, "create_pr": create_pr}
        place = self.place(repo_id, revision)
        place.mkdir(parents=True, exist_ok=True)
        for name in utils.filter_repo_objects(files_of(place), allow_patterns=delete_patterns):
            (place / name).unlink()
        shutil.copytree(folder_path, place, dirs_exist_ok=True)
        return hub.CommitInfo(
            commit_url="https://huggingface.co/someone/stripes/commit/abc",
            commit_message=commit_message,
            commit_description="",
            oid="abc",
        )

    def snapshot_download(self, repo_id, *, revision, token, local_files_only, allow_patterns):
        """Lay out links to blobs, as the client does in its cache."""
        self.asked |= {"token": token, "local_files_only": local_files_only}
        place = self.place(repo_id, revision)
        if not place.is_dir():
            raise utils.RepositoryNotFoundError(
                f"404 for {repo_id}", response=SimpleNamespace(headers={}, request=None, json=dict)
            )
        snapshot = self.folder / "cache" / f"{len(list((self.folder / 'cache').glob('*'))):040x}"
        blobs = self.folder / "blobs" / snapshot.name
        self.downloaded = set(utils.filter_repo_objects(files_of(place), allow_patterns=allow_patterns))
        for name in self.downloaded:
            for parent in (snapshot / name, blobs / name):
                parent.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(place / name, blobs / name)
            (snapshot / name).symlink_to(blobs / name)
        OPENED.clear()  # what was opened here is the client's business
        return str(snapshot)


@pytest.fixture
def folder_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderHub:
    fake = FolderHub(tmp_path / "hub")
    (tmp_path / "hub" / "cache").mkdir(parents=True)
    for name in ("create_repo", "create_branch", "model_info", "upload_folder"):
        method = getattr(fake, name)
        monkeypatch.setattr(hub.HfApi, name, lambda api, *args, _method=method, **more: _method(api, *args, **more))
    monkeypatch.setattr(hub, "snapshot_download", fake.snapshot_download)
    assets = hub.cached_assets_path
    monkeypatch.setattr(
        hub, "cached_assets_path", lambda *names: assets(*names, assets_dir=tmp_path / "hub" / "assets")
    )
    return fake


@pytest.fixture
def measured_run(bype_run: Path) -> bype.TrainedRun:
    run = bype.TrainedRun.open(bype_run)
    evaluate(run, "test", density=DensityOptions(num_samples=5, num_images=20), with_map=True)
    audit_run(run, num_samples=50)
    return run


def assert_same_model(first: bype.TrainedRun, second: bype.TrainedRun) -> None:
    ours, theirs = first.model.state_dict(), second.model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert (first.config, first.step, first.fingerprint) == (second.config, second.step, second.fingerprint)


def test_a_run_goes_to_the_hub_and_back_to_the_bit(measured_run, folder_hub):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is audited
        address = measured_run.push_to_hub(NAME)
    assert address.endswith("commit/abc")
    assert folder_hub.private == {NAME: False}
    back = bype.TrainedRun.from_pretrained(NAME)
    assert_same_model(measured_run, back)
    assert back.data == measured_run.data.without_place()
    assert back.folder.is_dir()
    assert not any(path.is_symlink() for path in back.folder.rglob("*"))
    assert read_audit(back.folder) == read_audit(measured_run.folder)
    (ours,), (theirs,) = (read_results(run.folder).evaluations for run in (measured_run, back))
    assert theirs.density == ours.density
    assert ours.map is not None
    assert theirs.map is None  # it has labels of examples
    again = bype.TrainedRun.from_pretrained(back.folder)
    assert_same_model(back, again)
    with pytest.raises(RunError, match="came without its data"):
        back.store()
    assert len(back.store(measured_run.data.store).split("test")) == 75


def test_the_callers_token_and_wishes_reach_the_hub(measured_run, folder_hub):
    one, other = "hf_one", "hf_other"
    measured_run.push_to_hub(NAME, token=one, create_pr=True)
    assert folder_hub.asked == {"token": one, "create_pr": True}
    folder_hub.asked.clear()
    bype.TrainedRun.from_pretrained(NAME, token=other, local_files_only=True)
    assert folder_hub.asked == {"token": other, "local_files_only": True}


def test_a_folder_names_no_place(measured_run, tmp_path):
    measured_run.save_pretrained(tmp_path / "shared")
    best = {f"best/{measured_run.step}/{name}" for name in CHECKPOINT}
    assert files_of(tmp_path / "shared") == ALWAYS | best | {"audit.json", "evaluation.json"}
    for name in files_of(tmp_path / "shared"):
        content = (tmp_path / "shared" / name).read_bytes()
        for secret in (measured_run.data.store, str(measured_run.folder), str(Path.home()), "/tmp/"):  # noqa: S108
            assert secret.encode() not in content, name
    assert (tmp_path / "shared" / "best" / str(measured_run.step) / "state.json").read_text() == "{}\n"
    optimiser = (tmp_path / "shared" / "best" / str(measured_run.step) / "training.safetensors").read_bytes()
    assert len(optimiser) < 20  # a header, and no tensor
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_a_folder_to_share_warns_as_an_upload_does(trained_bype, tmp_path):
    with pytest.warns(AuditWarning, match="not audited"):
        bype.TrainedRun.open(trained_bype).save_pretrained(tmp_path / "shared")


def test_the_card(measured_run, tmp_path):
    measured_run.save_pretrained(tmp_path / "shared", repo_id=NAME)
    text = (tmp_path / "shared" / "README.md").read_text()
    assert text.startswith("---\nlibrary_name: bype\n")
    assert (
        'import bype\nrun = bype.TrainedRun.from_pretrained("someone/stripes")\nnew = bype.sample(run.model, 16)\n'
        in text
    )
    assert "arrays in data.npz" in text
    assert "465 images of 1 × 12 × 12" in text
    audit, (found,) = read_audit(measured_run.folder), read_results(measured_run.folder).evaluations
    assert audit.verdict in text
    assert f"{found.density.negative_log_likelihood.value:.3f}" in text
    assert "Not audited" not in text
    assert "![The points of the prior](points.png)" in text
    with Image.open(tmp_path / "shared" / "points.png") as picture:
        assert picture.size == (2 * (20 * 14 - 2), 2 * 12)  # 20 points, 2 pixels between, doubled


def test_what_was_measured_on_other_data_is_not_shared(bype_run, tmp_path):
    run = bype.TrainedRun.open(bype_run)
    own = evaluate(run, "test", density=None, max_examples=20)
    other = dataclasses.replace(own, fingerprint="0" * 64)
    write_results(bype_run, Results(evaluations=[own, other], augmentation=[]))
    with pytest.warns(AuditWarning, match="not audited"):
        run.save_pretrained(tmp_path / "shared")
    (found,) = read_results(tmp_path / "shared").evaluations
    assert found.fingerprint == run.data.fingerprint


def test_without_audit_the_card_and_a_warning_say_so(bype_run, folder_hub):
    run = bype.TrainedRun.open(bype_run)
    audit_run(run, num_samples=20)
    stale = json.loads((bype_run / "audit.json").read_text())
    (bype_run / "audit.json").write_text(json.dumps({**stale, "step": run.step + 1}))  # of an earlier model
    with pytest.warns(AuditWarning, match="bype audit"):
        run.push_to_hub(NAME)
    card = (folder_hub.place(NAME) / "README.md").read_text()
    assert "**Not audited.**" in card
    assert "**Not evaluated**" in card
    assert not (folder_hub.place(NAME) / "audit.json").exists()


def test_a_model_whose_audit_found_copies_is_shared_with_a_warning(bype_run, tmp_path, capsys, folder_hub):
    run = bype.TrainedRun.open(bype_run)
    found, _ = audit_run(run, num_samples=20)
    large = dataclasses.replace(found.groups[0].by_ratio, share=1.0, p_value=0.0)
    groups = [dataclasses.replace(group, by_contrast=large) for group in found.groups]
    write_audit(bype_run, dataclasses.replace(found, groups=groups))
    assert main(["share", str(bype_run), "--out", str(tmp_path / "shared")]) == 0
    assert "gives training examples away" in capsys.readouterr().err
    with pytest.warns(AuditWarning, match="bype fit --points-start noise"):
        run.push_to_hub(NAME)


def test_text_of_the_data_is_no_markup(trained_features, tmp_path):
    bype.TrainedRun.open(trained_features).save_pretrained(tmp_path / "shared")
    text = (tmp_path / "shared" / "README.md").read_text()
    assert "<b>" not in text
    assert "&lt;b&gt;depth&lt;/b&gt;" in text
    assert "points.png" not in text  # rows of a table have no picture
    assert "| Classes | high, low |" in text


def test_text_of_an_evaluation_is_no_markup(measured_run, tmp_path):
    path = measured_run.folder / "evaluation.json"
    fields = json.loads(path.read_text())
    for found in fields["evaluations"]:
        ((_, value),) = found["density"]["kl"].items()
        found["density"]["kl"] = {"z |\n\n<img src=x> [here](javascript:x)\n# Title": value}
    path.write_text(json.dumps(fields))
    measured_run.save_pretrained(tmp_path / "shared")
    text = (tmp_path / "shared" / "README.md").read_text()
    assert "<img" not in text
    assert "\n# Title" not in text
    assert r"KL of z \| &lt;img" in text


OPENED: list[str] = []


@pytest.fixture
def opened(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Names of all files that Python opens from now on."""
    if not getattr(sys, "_bype_listens", False):
        sys.addaudithook(lambda event, args: OPENED.append(str(args[0])) if event == "open" else None)
        sys._bype_listens = True
    OPENED.clear()
    return OPENED


@pytest.mark.parametrize("is_local", [True, False])
def test_planted_files_are_never_opened(bype_run, folder_hub, opened, is_local):
    run = bype.TrainedRun.open(bype_run)
    place = folder_hub.place(NAME)
    run.save_pretrained(place)
    planted = ["pytorch_model.bin", "model.pkl", "modeling.py", f"best/{run.step}/evil.pkl", "best/x/model.safetensors"]
    for name in planted:
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    opened.clear()
    back = bype.TrainedRun.from_pretrained(place if is_local else NAME)
    assert_same_model(run, back)
    assert any(str(folder_hub.folder) in name and name.endswith("/model.safetensors") for name in opened)
    ends = tuple(f"/{name}" for name in planted)
    assert [name for name in opened if str(folder_hub.folder) in name and name.endswith(ends)] == []
    if not is_local:
        assert folder_hub.downloaded.isdisjoint(set(planted) - {"best/x/model.safetensors"})  # a pattern has it
        assert files_of(back.folder) == {"config.json"} | {f"best/{run.step}/{name}" for name in CHECKPOINT}


def pickled(folder: Path) -> None:
    (file,) = folder.glob("best/*/model.safetensors")
    file.write_bytes(b"cos\nsystem\n(S'false'\ntR.".ljust(file.stat().st_size))


def changed_config(**changes: object):
    def change(folder: Path) -> None:
        fields = json.loads((folder / "config.json").read_text())
        fields["data"].update(changes)
        (folder / "config.json").write_text(json.dumps(fields))

    return change


HOSTILE = {
    "a pickle for a model": (pickled, "checksum"),
    "a huge shape": (changed_config(shape=[3, 9000, 9000]), "does not fit its config|MiB"),
    "another type": (changed_config(num_train="many"), "not a whole number"),
    "an unknown field": (changed_config(auto_map="modeling.py"), "unknown"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "no config.json"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(bype_run, folder_hub, name):
    change, message = HOSTILE[name]
    place = folder_hub.place(NAME)
    bype.TrainedRun.open(bype_run).save_pretrained(place)
    change(place)
    for source in (NAME, place):
        with pytest.raises((FileError, RunError), match=message):
            bype.TrainedRun.from_pretrained(source)
    assert files_of(folder_hub.folder / "assets") == set()


def test_an_estimator_goes_to_the_hub_and_back_to_the_bit(folder_hub, tmp_path):
    rows = np.random.default_rng(0).normal(size=(60, 4))
    vae = bype.ByPEVAE(8, max_epochs=2, n_draws=5, run_dir=tmp_path / "run")
    with pytest.raises(NotFittedError):
        vae.push_to_hub(NAME)
    assert folder_hub.private == {}
    vae.fit(rows, np.repeat(["a", "b"], 30))
    with pytest.warns(AuditWarning, match="not audited"):
        vae.push_to_hub(NAME, private=True, branch="first")
    assert folder_hub.private == {NAME: True}
    assert "bype.ByPEVAE.from_pretrained" in (folder_hub.place(NAME, "first") / "README.md").read_text()
    back = bype.ByPEVAE.from_pretrained(NAME, "first")
    np.testing.assert_array_equal(back.score_samples(rows), vae.score_samples(rows))
    np.testing.assert_array_equal(back.transform(rows), vae.transform(rows))
    np.testing.assert_array_equal(back.sample(3, y="b", random_state=1), vae.sample(3, y="b", random_state=1))
    np.testing.assert_array_equal(back.coreset_.points, vae.coreset_.points)
    for name in files_of(folder_hub.place(NAME, "first")):
        assert str(tmp_path).encode() not in (folder_hub.place(NAME, "first") / name).read_bytes(), name
    assert bype.TrainedRun.from_pretrained(NAME, "first").config == vae.config_


def test_a_new_model_replaces_the_old_one(bype_run, trained_gaussian, folder_hub):
    place = folder_hub.place(NAME)
    with pytest.warns(AuditWarning):
        bype.TrainedRun.open(bype_run).push_to_hub(NAME)
    (place / "LICENSE").write_text("mine")
    (place / "best" / "99999999").mkdir()
    (place / "best" / "99999999" / "model.safetensors").write_bytes(b"old")
    other = bype.TrainedRun.open(trained_gaussian)
    with pytest.warns(AuditWarning):
        other.push_to_hub(NAME)
    best = {f"best/{other.step}/{name}" for name in CHECKPOINT}
    assert files_of(place) == {"LICENSE", "README.md", "config.json"} | best  # a Gaussian prior has no points
    assert_same_model(other, bype.TrainedRun.from_pretrained(NAME))


def test_a_public_repository_does_not_become_private_by_wish(bype_run, folder_hub):
    folder_hub.private[NAME] = False
    with pytest.warns(AuditWarning), pytest.raises(FileError, match="is public"):
        bype.TrainedRun.open(bype_run).push_to_hub(NAME, private=True)
    assert not folder_hub.place(NAME).exists()


def test_errors_of_the_hub_are_one_line(bype_run, folder_hub, monkeypatch, capsys):
    with pytest.raises(FileError, match="cannot download nobody/nothing: 404"):
        bype.TrainedRun.from_pretrained("nobody/nothing")
    with pytest.raises(FileError, match="OWNER/NAME"):
        bype.TrainedRun.from_pretrained("../elsewhere/x")

    def no_network(*args, **more):
        raise utils.HfHubHTTPError.__bases__[0]("Name or service not known\nsecond line")

    monkeypatch.setattr(hub.HfApi, "create_repo", no_network)
    assert main(["share", str(bype_run), "--to", NAME]) == 1
    warning, error = capsys.readouterr().err.splitlines()
    assert "not audited" in warning
    assert error == f"bype: cannot upload to {NAME}: Name or service not known"


def test_an_exemplar_prior_is_refused(trained_exemplar, tmp_path):
    with pytest.raises(RunError, match="training data, which are not shared"):
        bype.TrainedRun.open(trained_exemplar).save_pretrained(tmp_path / "shared")
    assert list(tmp_path.iterdir()) == []


def test_folders_are_replaced_only_on_request(bype_run, tmp_path):
    run = bype.TrainedRun.open(bype_run)
    run.save_pretrained(tmp_path / "shared")
    before = {name: (tmp_path / "shared" / name).read_bytes() for name in files_of(tmp_path / "shared")}
    with pytest.raises(FileError, match="not empty"):
        run.save_pretrained(tmp_path / "shared")
    run.save_pretrained(tmp_path / "shared", force=True)
    assert before == {name: (tmp_path / "shared" / name).read_bytes() for name in files_of(tmp_path / "shared")}
    (tmp_path / "empty").mkdir()
    run.save_pretrained(tmp_path / "empty", force=True)
    (tmp_path / "shared" / ".git").mkdir()
    (tmp_path / "shared" / "LICENSE").write_text("mine")
    with pytest.raises(FileError, match=r"also holds \.git and LICENSE, which would be lost"):
        run.save_pretrained(tmp_path / "shared", force=True)
    assert (tmp_path / "shared" / "LICENSE").read_text() == "mine"
    before = files_of(bype_run)
    with pytest.raises(FileError, match="something else"):
        run.save_pretrained(bype_run, force=True)  # it could no longer resume
    assert files_of(bype_run) == before


def test_a_shared_model_is_not_overwritten_by_a_training(bype_run, labelled_store, tmp_path):
    run = bype.TrainedRun.open(bype_run)
    run.save_pretrained(tmp_path / "shared")
    before = {name: (tmp_path / "shared" / name).read_bytes() for name in files_of(tmp_path / "shared")}
    with pytest.raises(RunError, match="cannot be trained further"):
        bype.train(run.config, labelled_store, tmp_path / "shared")
    assert before == {name: (tmp_path / "shared" / name).read_bytes() for name in before}  # there is a lock too


def test_without_the_extra(bype_run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setattr("bype.data.sources.base.importlib.util.find_spec", lambda name: None)
    run = bype.TrainedRun.open(bype_run)
    run.save_pretrained(tmp_path / "shared")  # a folder needs no hub
    assert_same_model(run, bype.TrainedRun.from_pretrained(tmp_path / "shared"))
    with pytest.warns(AuditWarning), pytest.raises(SourceError, match="pip install huggingface-hub"):
        run.push_to_hub(NAME)
    with pytest.raises(SourceError, match="pip install huggingface-hub"):
        bype.TrainedRun.from_pretrained(NAME)


def test_commands(bype_run, folder_hub, tmp_path, capsys):
    assert main(["share", str(bype_run), "--out", str(tmp_path / "shared"), "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"out": str(tmp_path / "shared"), "audited": False}
    assert "not audited" in shown.err
    assert main(["share", str(bype_run), "--out", str(tmp_path / "shared")]) == 1
    assert "not empty" in capsys.readouterr().err
    assert main(["share", str(bype_run), "--out", str(tmp_path / "shared"), "--force", "--quiet"]) == 0
    assert main(["share", str(bype_run), "--to", NAME, "--private"]) == 0
    assert folder_hub.private == {NAME: True}
    assert main(["fetch", NAME, "--out", str(tmp_path / "fetched")]) == 0
    assert_same_model(bype.TrainedRun.open(bype_run), bype.TrainedRun.open(tmp_path / "fetched"))
    assert main(["sample", str(tmp_path / "fetched"), "--count", "2", "--out", str(tmp_path / "x.npy")]) == 0
    assert main(["fetch", NAME, "--out", str(tmp_path / "fetched")]) == 1
    for words in ([], ["--out", "x", "--to", NAME], ["--out", "x", "--private"]):
        assert main(["share", str(bype_run), *words]) == 1
    (folder_hub.place(NAME) / "config.json").write_text("[]")
    assert main(["fetch", NAME, "--out", str(tmp_path / "bad")]) == 1
    assert not (tmp_path / "bad").exists()


def test_a_place_that_a_stranger_names_is_never_looked_at(bype_run, folder_hub, tmp_path):
    place = folder_hub.place(NAME)
    bype.TrainedRun.open(bype_run).save_pretrained(place)
    config = json.loads((place / "config.json").read_text())
    config["data"]["store"] = str(tmp_path / "strange")
    (place / "config.json").write_text(json.dumps(config))
    fetched = bype.TrainedRun.from_pretrained(NAME)
    assert fetched.data.store == ""
    assert "strange" not in (fetched.folder / "config.json").read_text()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("see https://evil.example/x", "see https&#58;//evil.example/x"),
        ("WWW.evil.example", "WWW&#46;evil.example"),
        ("R&D &amp; #1", "R&amp;D &amp;amp; \\#1"),
        ("a: b", "a: b"),
    ],
)
def test_text_makes_no_links_and_stays_what_it_is(text, shown):
    assert _plain(text) == shown
