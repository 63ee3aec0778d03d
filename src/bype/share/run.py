"""A trained run that can be shared."""

from pathlib import Path
from typing import Self

from bype.run import opened
from bype.run.directory import RunError
from bype.run.opened import write_model
from bype.share.mixin import HubMixin


class TrainedRun(HubMixin, opened.TrainedRun):
    """The best model of a run directory, which may come from a stranger.

    Examples
    --------
    >>> TrainedRun.open("nowhere")
    Traceback (most recent call last):
    bype.run.directory.RunError: nowhere does not exist; give a run, such as bype fit makes
    """

    def _write_model(self, folder: Path) -> None:
        if self.config.has_own_prior:
            raise RunError(
                f"{self.config.prior} is code of your own, which is not shared; share a run with a prior of the library"
            )
        if self.config.prior == "exemplar":
            raise RunError(
                "an exemplar prior is made of the training data, which are not shared; "
                "share a run with another prior, or write its components alone with: bype export"
            )
        write_model(folder, self.config, self.data.without_place(), self.step, self.model.state_dict())

    def _records_folder(self) -> Path | None:
        return self.folder

    @classmethod
    def _from_folder(cls, folder: Path) -> Self:
        return cls.open(folder)
