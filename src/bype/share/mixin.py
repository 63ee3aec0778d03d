"""The three methods that models have on the Hugging Face hub."""

import os
import tempfile
import warnings
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self

from bype.data.files import FileError, new_folder
from bype.evaluation.audit_records import Audit, read_audit
from bype.run.directory import RunError, read_config
from bype.share.hub import WRITTEN, folder_of, require_name, upload

NOT_AUDITED = (
    "this model is not audited, so it may give training examples away; run bype audit on its run before you share it "
    "(an estimator keeps its run and its data if it is fitted with run_dir)"
)


FOUND_COPIES = (
    "the audit of this model found that it gives training examples away; whoever has the model can see them; if the "
    "data are private, train another with: bype fit --points-start noise, or ByPEVAE(points_start='noise')"
)


CANNOT_TELL = (
    "the audit of this model could not find copies of training examples, even if there were some; if the data are "
    "private, look at its points before you share it"
)


class AuditWarning(UserWarning):
    """A model is shared without an audit, or with an audit that found copies or could not tell."""


def warning_of(audit: Audit | None) -> str | None:
    """Return what to know before a model with this audit is shared."""
    if audit is None:
        return NOT_AUDITED
    if audit.are_copies:
        return FOUND_COPIES
    return None if audit.cannot_tell is None else CANNOT_TELL


class HubMixin(ABC):
    """Save a model to share it, push it to the Hugging Face hub, and load it from there.

    The methods are called as in ``huggingface_hub.ModelHubMixin``. It is not a subclass of that class, so that bype can
    be imported without the extra ``hub``. Files are those of a run directory, and are checked in the same way when they
    are read. No file of another kind is downloaded or opened, and nothing in a file is executed.
    """

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], *, repo_id: str | None = None, force: bool = False
    ) -> None:
        """Write the model to a new folder, as it would be pushed.

        An :class:`AuditWarning` says if the model was not audited, or if its audit found copies or could not tell.
        The folder has the config, the model, its evaluation and its audit if there are any, a picture of the points
        for images, and a model card, ``README.md``. It has no training data, no state of the optimiser, no path, and
        no name of a machine or a user.

        Parameters
        ----------
        save_directory
            The folder.
        repo_id
            The name that the model will have on the hub, for the model card.
        force
            Replace the folder if it holds a model that was saved in this way, and nothing else.
        """
        folder = Path(save_directory)
        is_taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
        if force and is_taken and not _is_shared(folder):
            raise FileError(f"{folder} holds something else than a shared model; choose another folder")
        from bype.run.opened import TrainedRun
        from bype.share.card import add_card, add_records

        with new_folder(folder, replace=WRITTEN if force else None) as partial:
            self._write_model(partial)
            written = TrainedRun.open(partial)
            add_records(written, self._records_folder())
            add_card(written, repo_id, self.__class__.__name__)
        if (warning := warning_of(read_audit(folder))) is not None:
            warnings.warn(warning, AuditWarning, stacklevel=2)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        commit_message: str = "Add a model of bype",
        private: bool | None = None,
        token: str | None = None,
        branch: str | None = None,
        create_pr: bool | None = None,
    ) -> str:
        """Upload the model to the Hugging Face hub, and return the address of the commit. It needs the extra ``hub``.

        An :class:`AuditWarning` says if the model was not audited, or if its audit found copies or could not tell.
        Files of an earlier model of bype in the repository are removed; other files stay.

        Parameters
        ----------
        repo_id
            ``OWNER/NAME``. The repository is made if it does not exist.
        commit_message
            The first line of the commit.
        private
            Whether only the owner can see the repository. ``True`` is refused if the repository exists and is public.
        token
            Of the hub; if left out, the one that ``hf auth login`` keeps.
        branch
            The branch to upload to.
        create_pr
            Whether to open a pull request instead.
        """
        require_name(repo_id)
        with tempfile.TemporaryDirectory(prefix="bype-") as scratch:
            folder = Path(scratch) / "model"
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", AuditWarning)
                self.save_pretrained(folder, repo_id=repo_id)
            for each in caught:
                warnings.warn(each.message, stacklevel=2)  # it names the line that calls this method
            return upload(folder, repo_id, commit_message, private, token, branch, create_pr)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        revision: str | None = None,
        *,
        token: str | None = None,
        local_files_only: bool = False,
    ) -> Self:
        """Load a model from a folder or, with the extra ``hub``, from the Hugging Face hub.

        Parameters
        ----------
        pretrained_model_name_or_path
            A folder, or ``OWNER/NAME`` on the hub.
        revision
            A commit, a tag or a branch. Only a commit always means the same model.
        token
            Of the hub, for a private repository.
        local_files_only
            Whether to take only what was downloaded before.
        """
        return cls._from_folder(folder_of(pretrained_model_name_or_path, revision, token, local_files_only))

    @abstractmethod
    def _write_model(self, folder: Path) -> None:
        """Write a run directory into an empty folder, without anything that names the machine."""

    @abstractmethod
    def _records_folder(self) -> Path | None:
        """Return where the evaluation and the audit of the model are, if there is such a place."""

    @classmethod
    @abstractmethod
    def _from_folder(cls, folder: Path) -> Self:
        """Open what :meth:`_write_model` wrote."""


def _is_shared(folder: Path) -> bool:
    """Tell whether a folder holds a model that was saved to be shared, and nothing to resume from."""
    try:
        _, data = read_config(folder)
    except RunError:
        return False
    return not data.store and not (folder / "checkpoints").exists()
