"""The training loop: alternating optimisation of the network and the pseudocoreset (Algorithm 2)."""

import dataclasses
import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from bype.coreset import PSVI, ELBOAscent
from bype.data.order import derive_key
from bype.data.store import Split, Store
from bype.objective import ELBOTerms, kl_weight
from bype.training.board import Board, open_board
from bype.training.checkpoint import Checkpoint, CheckpointError
from bype.training.config import Span, TrainingConfig
from bype.training.examples import StoreSource, TrainingOrder
from bype.training.identity import DataIdentity
from bype.training.progress import Display
from bype.training.randomness import generator_for
from bype.training.rows import encode_rows, spread_rows
from bype.training.run import MetricsFile, RunDirectory, RunError
from bype.training.step import TrainingStep

_VALIDATION_BATCH = 500
_COMPARED_EXAMPLES = 5000
_TRAINING_SIZE = 6
"""No file of a checkpoint is larger than so many times the model: Adam keeps two moments, a rule two in float64."""


@dataclass
class TrainingState:
    """What changes while a run goes on, apart from tensors. All of it is in every checkpoint."""

    step: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    """Of each term over the examples since the last line of metrics."""
    num_examples: int = 0
    best: float | None = None
    """The smallest validation loss (minus ELBO) so far, nats per example."""
    best_step: int = 0
    metrics_bytes: int = 0

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        """Read the fields of a checkpoint, which may come from a stranger."""
        if set(fields) != {each.name for each in dataclasses.fields(cls)}:
            raise ValueError("its fields are others")
        state = cls(**fields)
        counts = (state.step, state.num_examples, state.best_step, state.metrics_bytes)
        numbers = [*state.sums.values(), *([] if state.best is None else [state.best])]
        if not all(type(count) is int and 0 <= count < 2**62 for count in counts):
            raise ValueError("its counts are no counts")
        if not all(isinstance(number, int | float) and abs(number) < 1e30 for number in numbers):
            raise ValueError("its sums are no numbers")
        return state

    def add(self, terms: ELBOTerms) -> None:
        """Add a step's terms to the sums."""
        for name, value in named_sums(terms).items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.num_examples += len(terms.reconstruction)

    def take_means(self) -> dict[str, float]:
        """Return the means over examples, and begin anew."""
        means = {name: value / max(1, self.num_examples) for name, value in self.sums.items()}
        self.sums, self.num_examples = {}, 0
        return means


def named_sums(terms: ELBOTerms) -> dict[str, float]:
    """Return the sums over examples of minus ELBO, minus reconstruction, and the KL of each level."""
    stacked = torch.stack([terms.reconstruction, *terms.kl.values()]).detach().sum(1, dtype=torch.float64)
    reconstruction, *kl = stacked.tolist()
    named = {"negative_elbo": sum(kl) - reconstruction, "negative_reconstruction": -reconstruction}
    return named | {f"kl_{level}": value for level, value in zip(terms.kl, kl, strict=True)}


@dataclass(frozen=True)
class Outcome:
    """How a call of :func:`train` ended."""

    state: str
    """``finished`` or ``stopped``; the same call goes on with a stopped run."""
    step: int
    best: float | None
    """The smallest validation loss (minus ELBO), nats per example on the likelihood's scale."""
    signal: int | None = None


def train(config: TrainingConfig, data: Path, out: Path, display: Display | None = None) -> Outcome:
    """Train a model, or go on with the run that is in ``out``.

    Parameters
    ----------
    config
        What to train. A run in ``out`` with another one is refused.
    data
        The store.
    out
        The run directory.
    display
        Where progress is shown.
    """
    store = Store(data)
    identity = DataIdentity.of(store)
    with RunDirectory(out) as run:
        run.settle_config(config, identity)
        run.describe_machine(identity, torch.get_num_threads())
        trainer = Trainer(config, store, run, display or Display())
        try:
            trainer.board = open_board(run.subfolder("tensorboard"), trainer.state.step)
            outcome = trainer.run()
        except BaseException as error:
            try:
                run.set_status("failed", step=trainer.state.step, error=f"{type(error).__name__}: {error}")
            except (OSError, RunError) as second:  # a full disk, or a run that is another's by now
                error.add_note(f"the status could not be written: {second}")
            raise
        finally:
            trainer.close()
        run.set_status(outcome.state, step=outcome.step, best=outcome.best)
        return outcome


class Trainer:
    """One run in one process."""

    def __init__(self, config: TrainingConfig, store: Store, run: RunDirectory, display: Display) -> None:
        self._config = config
        self._run = run
        self._display = display
        train_split = store.split("train")
        self._source = StoreSource(train_split)
        self._validation = store.split("validation") if "validation" in store.manifest.splits else None
        self._order = TrainingOrder(train_split, config.seed, config.batch_size, config.window_blocks)
        update_seed, update_batch = derive_key(config.seed, "update order"), config.update_batch or config.batch_size
        self._update_order = TrainingOrder(train_split, update_seed, update_batch, config.window_blocks)
        self._update_steps = config.update_steps or self._update_order.steps_per_epoch
        self._step = TrainingStep(config, train_split.shape, self._source, self._update_steps)
        self.model, self._rule = self._step.model, self._step.rule
        self.state = TrainingState()
        self._restore()
        self._metrics = MetricsFile(run.folder / "metrics.jsonl", self.state.metrics_bytes)
        self.board: Board | None = None
        self._stop_signal: int | None = None
        self._start = time.perf_counter()

    def close(self) -> None:
        """Release files and the terminal."""
        self._metrics.close()
        self._display.close()
        if self.board is not None:
            self.board.close()

    def _steps(self, span: str) -> int:
        return Span.parse(span).in_steps(self._order.steps_per_epoch)

    def _is_due(self, span: str) -> bool:
        return Span.parse(span).is_due(self.state.step, self._order.steps_per_epoch)

    def run(self) -> Outcome:
        """Train to the end, or until a signal asks to stop."""
        last_step = self._steps(self._config.length)
        self._display.begin(self._order.steps_per_epoch, last_step, self.state.step)
        self._run.set_status("running", step=self.state.step)
        with _signals(self._ask_to_stop):
            while self.state.step < last_step and not self._is_patience_over():
                self._train_step()
                self._after_step()
                if self._stop_signal is not None:
                    self._save()
                    return Outcome("stopped", self.state.step, self.state.best, self._stop_signal)
        if self.state.step not in self._run.checkpoints.steps():
            self._save()
        return Outcome("finished", self.state.step, self.state.best)

    def _ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        self._stop_signal = number

    def _is_patience_over(self) -> bool:
        patience = self._steps(self._config.patience)
        if patience == 0 or self._validation is None or self.state.best is None:
            return False
        return self.state.step - max(self.state.best_step, self._steps(self._config.warm_up)) >= patience

    def _beta(self) -> float:
        warm_up = Span.parse(self._config.warm_up)
        if warm_up.unit == "steps":
            return kl_weight(self.state.step + 1, warm_up.count)
        return kl_weight(self.state.step // self._order.steps_per_epoch + 1, warm_up.count)

    def _train_step(self) -> None:
        step, seed = self.state.step, self._config.seed
        rows = self._order.rows(step)
        try:
            terms = self._step(
                self._source.read(rows),
                torch.from_numpy(rows),
                self._beta(),
                generator=generator_for(seed, "latents", step),
                prior_generator=generator_for(seed, "prior", step) if self.model.prior.needs_training_batch else None,
            )
        except ValueError as error:
            raise RunError(f"training step {step} failed: {error}") from error
        self.state.add(terms)
        if not math.isfinite(sum(self.state.sums.values())):
            self._report_broken(terms, rows)
        self.state.step += 1
        self._display.step(self.state.step)

    def _report_broken(self, terms: ELBOTerms, rows: np.ndarray[Any, Any]) -> None:
        """Save what made a loss that is not finite, and stop."""
        named = {"reconstruction": terms.reconstruction, **{f"kl_{level}": kl for level, kl in terms.kl.items()}}
        broken = [name for name, values in named.items() if not values.isfinite().all()]
        bad = torch.stack([~values.isfinite() for values in named.values()]).any(0).cpu().numpy()
        self._run.write(
            "broken.json",
            {"step": self.state.step, "terms": broken, "rows": rows.tolist(), "broken_rows": rows[bad].tolist()},
        )
        raise RunError(
            f"the loss is not finite at step {self.state.step}: {', '.join(broken)} broke on training rows "
            f"{rows[bad].tolist()[:10]}; see {self._run.folder / 'broken.json'}; try a smaller learning_rate"
        )

    def _after_step(self) -> None:
        if self._validation is not None and self._is_due(self._config.validate_every):
            self._validate(self._validation)
        elif self._validation is None and self._is_due(self._config.validate_every):
            self._log({"train": self.state.take_means()})
        if isinstance(self._rule, PSVI | ELBOAscent) and self._is_due(self._config.update_every):
            self._update_pseudocoreset(self._rule)
        if self._is_due(self._config.checkpoint_every):
            self._save()

    def _log(self, line: dict[str, Any]) -> None:
        epoch = self.state.step / self._order.steps_per_epoch
        self._metrics.append({"step": self.state.step, "epoch": round(epoch, 6), **line})
        seconds = round(time.perf_counter() - self._start, 3)
        self._run.append("timings.jsonl", {"step": self.state.step, "seconds_in_process": seconds})
        self._display.show(self.state.step, line)
        if self.board is not None:
            self.board.show(self.state.step, line)
            if "update" not in line:  # that follows a validation, and changes little to look at
                self.board.show_pictures(
                    self.state.step, self.model, generator_for(self._config.seed, "board", self.state.step)
                )

    @torch.no_grad()
    def _validate(self, split: Split) -> None:
        """Score the validation split, with the same noise each time, and keep the best model."""
        source = StoreSource(split)
        prior = self.model.prior_distribution()
        totals: dict[str, float] = {}
        for number, first in enumerate(range(0, len(split), _VALIDATION_BATCH)):
            rows = np.arange(first, min(first + _VALIDATION_BATCH, len(split)), dtype=np.int64)
            generator = generator_for(self._config.seed, "validation", number)
            terms = self._step.objective(source.read(rows), prior=prior, generator=generator)
            for name, value in named_sums(terms).items():
                totals[name] = totals.get(name, 0.0) + value
        means = {name: value / len(split) for name, value in totals.items()}
        if not math.isfinite(means["negative_elbo"]):
            raise RunError(f"the validation loss is not finite at step {self.state.step}: {means}")
        is_best = self.state.best is None or means["negative_elbo"] < self.state.best
        self._log({"train": self.state.take_means(), "validation": means, "best": is_best})
        if is_best:
            self.state.best, self.state.best_step = means["negative_elbo"], self.state.step
            self._run.best.save(Checkpoint(self.state.step, self.model.state_dict(), {}, asdict(self.state)))

    def _update_pseudocoreset(self, rule: PSVI | ELBOAscent) -> None:
        """Take the rule's steps; each has batches and draws of its own, derived from the step it follows.

        The published rule is followed as it is. Ascent on the ELBO is taken only if validation agrees.
        """
        seed, step = self._config.seed, self.state.step
        first = step * self._update_order.steps_per_epoch
        before = {name: value.clone() for name, value in self.model.prior.state_dict().items()}
        kl_before = self._validation_kl()
        rule.start_update()
        try:
            objectives = [
                rule.step(
                    self.model,
                    self._source.read(self._update_order.rows(first + j)),
                    generator=generator_for(seed, "update", step, j),
                )
                for j in range(self._update_steps)
            ]
        except ValueError as error:
            raise RunError(f"the update of the pseudocoreset at step {step} failed: {error}") from error
        found = {"steps": self._update_steps, "objective_first": objectives[0], "objective_last": objectives[-1]}
        if kl_before is not None:
            kl_after = self._validation_kl()
            if kl_after is None:
                raise RuntimeError("the validation split is gone")
            found |= {"kl_before": kl_before, "kl_after": kl_after}
            if kl_after > kl_before and isinstance(rule, ELBOAscent):
                self.model.prior.load_state_dict(before)
                found["taken_back"] = 1
        self._log({"update": found})

    @torch.no_grad()
    def _validation_kl(self) -> float | None:
        """Return the KL term of the top level on some validation examples, with the same noise each time."""
        if self._validation is None:
            return None
        rows = spread_rows(len(self._validation), _COMPARED_EXAMPLES)
        posterior = encode_rows(self.model, self._validation, rows)
        z, log_posterior = posterior.sample_and_score(generator=generator_for(self._config.seed, "comparison"))
        return float((log_posterior - self.model.prior_distribution().log_prob(z)).double().mean())

    def _save(self) -> None:
        self.state.metrics_bytes = self._metrics.sync()
        training = {f"adam.{name}": value for name, value in self._step.optimizer.state().items()}
        if self._rule is not None:
            training |= {f"rule.{name}": value for name, value in self._rule.state_dict().items()}
        self._run.checkpoints.save(Checkpoint(self.state.step, self.model.state_dict(), training, asdict(self.state)))
        self._run.set_status("running", step=self.state.step)

    def _restore(self) -> None:
        """Go on from the newest checkpoint that is whole."""
        model_bytes = sum(value.numel() * value.element_size() for value in self.model.state_dict().values())
        checkpoint = self._run.checkpoints.load_newest(self._display.warn, _TRAINING_SIZE * model_bytes + 2**22)
        if checkpoint is None:
            return
        try:
            self.model.load_state_dict(checkpoint.model)
            self._step.optimizer.load_state(_part(checkpoint.training, "adam."))
            if self._rule is not None:
                self._rule.load_state_dict(_part(checkpoint.training, "rule."))
            self.state = TrainingState.from_fields(checkpoint.state)
            if self.state.step != checkpoint.step:
                raise ValueError(f"its state is of step {self.state.step}")
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            first_line = str(error).splitlines()[0]
            raise CheckpointError(
                f"checkpoint {checkpoint.step} in {self._run.folder} does not fit this config: {first_line}"
            ) from error


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


@contextmanager
def _signals(handler: Any) -> Iterator[None]:
    """Have SIGINT and SIGTERM ask instead of kill; a second SIGINT kills."""

    def ask(number: int, frame: FrameType | None) -> None:
        handler(number, frame)
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in previous.items():
            signal.signal(number, old)
