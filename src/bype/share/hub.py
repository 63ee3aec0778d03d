"""Files to and from the Hugging Face hub. What comes from there is not trusted."""

import importlib
import os
import re
import shutil
from pathlib import Path
from typing import Any

from bype.data.files import FileError, new_folder
from bype.data.sources.base import require_package
from bype.data.sources.hub import hub_errors
from bype.run.checkpoint import CheckpointFolder
from bype.run.directory import read_config
from bype.run.opened import TrainedRun, write_config
from bype.wording import first_line

_FILES = ("config.json", "evaluation.json", "audit.json", "estimator.json", "coreset.safetensors")
_CHECKPOINT_FILES = ("manifest.json", "model.safetensors", "training.safetensors", "state.json")
_READ = [*_FILES, *(f"best/*/{name}" for name in _CHECKPOINT_FILES)]
"""All that is downloaded."""
WRITTEN = (*_FILES, "points.png", "best", "README.md")
"""What the folder of a saved model may hold."""
_REPLACED = [*_FILES, "points.png", "best/*"]
"""What is removed if a new model does not have it. The model card is always written."""


def require_name(repo_id: str) -> None:
    """Refuse what cannot be the name of a repository."""
    if re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", repo_id, re.ASCII) is None:
        if Path(repo_id).is_dir():
            raise FileError(f"{repo_id} is a folder here; use it as it is, or name a model on the hub as OWNER/NAME")
        raise FileError(f"{repo_id!r} is no folder, and no name on the hub; such a name is OWNER/NAME")


def folder_of(
    name: str | os.PathLike[str], revision: str | None, token: str | None = None, local_files_only: bool = False
) -> Path:
    """Return a folder as it is, or one with the files of a repository, downloaded if they are not there yet."""
    if Path(name).is_dir():
        return Path(name)
    repo_id = str(name)
    snapshot = download(repo_id, revision, token, local_files_only)
    folder = Path(_client().cached_assets_path("bype", repo_id, snapshot.name)) / "run"
    if not folder.exists():
        try:
            copy_known_files(snapshot, folder)
        except FileError:
            if not folder.exists():
                raise  # else another process has copied the same files meanwhile
    return folder


def download(
    repo_id: str, revision: str | None = None, token: str | None = None, local_files_only: bool = False
) -> Path:
    """Download the files of a model that bype reads, and no others; return the folder of that commit."""
    require_name(repo_id)
    hub = _client()
    try:
        found = hub.snapshot_download(
            repo_id, revision=revision, token=token, local_files_only=local_files_only, allow_patterns=_READ
        )
    except hub_errors() as error:
        raise FileError(f"cannot download {repo_id}: {first_line(error)}") from error
    return Path(found)


def copy_known_files(snapshot: Path, out: Path) -> None:
    """Copy the files that bype reads to a new folder, if they hold a model.

    A snapshot consists of links, which no reader here follows. A place of the data on the machine that made the model
    is removed: this machine is not to look there.
    """
    names = list(_FILES)
    for step in CheckpointFolder(snapshot / "best", 1).steps()[:1]:
        names += [f"best/{step}/{name}" for name in _CHECKPOINT_FILES]
    with new_folder(out) as partial:
        for name in names:
            if (snapshot / name).is_file():
                (partial / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(snapshot / name, partial / name)
        if (partial / "config.json").exists():  # else opening says what is missing
            config, data = read_config(partial)
            write_config(partial, config, data.without_place())
        TrainedRun.open(partial)


def upload(
    folder: Path,
    repo_id: str,
    commit_message: str,
    private: bool | None,
    token: str | None,
    branch: str | None,
    create_pr: bool | None,
) -> str:
    """Upload a folder to a repository, which is made if it does not exist, and return the address of the commit."""
    hub = _client()
    api = hub.HfApi(token=token)
    try:
        api.create_repo(repo_id, private=private, exist_ok=True)
        if private and not api.model_info(repo_id).private:
            raise FileError(f"{repo_id} exists and is public; make it private on the hub, or choose another name")
        if branch is not None:
            api.create_branch(repo_id, branch=branch, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            commit_message=commit_message,
            revision=branch,
            create_pr=create_pr,
            delete_patterns=_REPLACED,
        )
    except FileError:
        raise
    except hub_errors() as error:
        raise FileError(f"cannot upload to {repo_id}: {first_line(error)}") from error
    return str(commit.pr_url or commit.commit_url)


def _client() -> Any:
    require_package("huggingface_hub")
    return importlib.import_module("huggingface_hub")
