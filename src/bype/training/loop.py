"""The training loop: alternating optimisation of the network and the pseudocoreset (Algorithm 2)."""

import json
import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bype.data.augment import Augmentation
from bype.data.examples import StoreSource, TrainingOrder
from bype.data.order import Rows, derive_key
from bype.data.store import Split, Store
from bype.distributed import Group, GroupError, device_named
from bype.models.linear_start import linear_batches, start_as_linear
from bype.networks.dense import draw_dropout
from bype.objective import ELBOTerms
from bype.randomness import BatchSlice, generator_for
from bype.run.build import labels_for, require_fitting, require_known_classes, require_white, scaling_for
from bype.run.checkpoint import Checkpoint
from bype.run.config import ConfigError, TrainingConfig
from bype.run.directory import RunDirectory, RunError
from bype.run.identity import DataIdentity
from bype.run.lock import stale_seconds
from bype.run.own import OwnPrior, OwnRule, with_own_prior, with_own_rule
from bype.span import Span
from bype.training.average import RunningAverage
from bype.training.display import Display, display_here
from bype.training.monitor import Timings
from bype.training.optimizer import rounding
from bype.training.reporter import Reporter, RunReporter
from bype.training.resume import Snapshot
from bype.training.schedule import Schedule
from bype.training.signals import StopRequest
from bype.training.step import TrainingStep
from bype.training.updates import Updates
from bype.training.validation import Validation

_SAVING_SHARE = 0.05
"""Checkpoints at an interval in percent take at most about this share of the time."""


@dataclass(frozen=True)
class Outcome:
    """How a call of :func:`train` ended.

    Examples
    --------
    >>> outcome = Outcome("finished", step=20_000, best=22.1)
    >>> f"{outcome.state} after {outcome.step:,} steps"
    'finished after 20,000 steps'
    """

    state: str
    """``finished`` or ``stopped``; the same call resumes a stopped run."""
    step: int
    best: float | None
    """The smallest validation loss (minus ELBO), nats per example on the likelihood's scale."""
    signal: int | None = None
    """The signal that asked to stop, if one did; also if it came too late to stop anything."""


def train(
    config: TrainingConfig,
    data: Path | str,
    out: Path | str,
    display: Display | bool = False,
    group: Group | None = None,
    device: torch.device | str = "cpu",
    rule: OwnRule | None = None,
    prior: OwnPrior | None = None,
) -> Outcome:
    """Train a model, or resume the run in ``out``.

    Parameters
    ----------
    config
        What to train. A run in ``out`` with another config is refused.
    data
        The store.
    out
        The run directory.
    display
        Whether to print the progress.
    group
        The processes that share the work; each makes this call. The first one writes.
    device
        The device that computes. A run may be resumed on another device.
    rule
        A rule of your own that moves the pseudocoreset: a subclass of :class:`bype.Rule` that is built from the model,
        or a function that returns one. The run records its name, and resumes only with this rule.
    prior
        A prior of your own, in place of the pseudocoreset: a subclass of :class:`bype.Prior` that is built from the
        number of latent dimensions, or a function that returns one. The run records its name, and resumes only with
        this prior. :meth:`TrainedRun.open` takes it too.
    """
    group = group or Group()
    device = device_named(device) if isinstance(device, str) else device
    store = Store(data)
    if prior is not None:
        config = with_own_prior(config, prior)
    if rule is not None:
        config = with_own_rule(config, rule)
    identity = DataIdentity.of(store)
    require_fitting(config, identity.shape, identity.num_train)
    require_white(config, store.split("train"))
    asked = json.dumps([config.to_fields(), identity.fingerprint], sort_keys=True)
    group.require_same(asked.encode(), "the config or the data")
    group.require_same_rounding(rounding())
    _require_to_see_the_run(Path(out), group)
    # A launcher restarts lost processes. The one before may hold the run until it notices, or until its lock is stale.
    patience = 0.0 if group.launcher is None else stale_seconds() + 5
    with ExitStack() as at_end:
        if isinstance(display, bool):
            display = display_here() if display else Display()
        run = at_end.enter_context(RunDirectory(Path(out), patience, display.warn)) if group.is_first else None
        reporter = Reporter()
        if run is not None:
            run.save_or_compare_config(config, identity)
            reporter = RunReporter(run, display)
        at_end.callback(reporter.close)
        trainer = None
        try:
            trainer = Trainer(config, store, reporter, group, device, rule, prior)
            if run is not None:  # the checkpoint can be used
                run.save_changes(config, identity)
                run.describe_machine(identity, torch.get_num_threads(), group.size, str(device))
            outcome = trainer.run()
        except BaseException as error:
            step = trainer.state.step if trainer else None
            try:
                reporter.fail(step, f"{type(error).__name__}: {error}")
            except (OSError, RunError) as second:  # a full disk, or a run that another process holds now
                error.add_note(f"the status could not be written: {second}")
            raise
        reporter.set_status(outcome.state, step=outcome.step, best=outcome.best)
        return outcome


def _require_to_see_the_run(out: Path, group: Group) -> None:
    """Refuse to begin anew because process 0 does not see the checkpoints that another process sees.

    If torchrun replaces machines, process 0 may be on another one than before, with a disk of its own. The other
    processes need not be able to read the run.
    """
    try:
        steps = RunDirectory(out).checkpoints.steps()
    except OSError:
        steps = []
    found = [bool(seen) for seen in group.gather(b"yes" if steps else b"")]
    if any(found) and not found[0]:
        raise GroupError(
            f"process {found.index(True)} sees checkpoints in {out}, and process 0, which reads and writes them, does "
            f"not; put the run on a disk that all machines can read, or start process 0 on the machine that has it; "
            f"for a new run, choose another --out"
        )


class Trainer:
    """One run, in one process or in one of several that share its work.

    Every process takes a part of each batch and holds the whole model; after each step all hold the same numbers.
    """

    def __init__(
        self,
        config: TrainingConfig,
        store: Store,
        reporter: Reporter,
        group: Group | None = None,
        device: torch.device | str = "cpu",
        own_rule: OwnRule | None = None,
        own_prior: OwnPrior | None = None,
    ) -> None:
        self._config, self._reporter, self._group = config, reporter, group or Group()
        self._device = torch.device(device)
        self._stop = StopRequest()
        split = store.split("train")
        self._source = self._with_heartbeat(split)
        self._order = TrainingOrder(split, config.seed, config.batch_size, config.window_blocks)
        scaling = scaling_for(config, split.shape)
        has_checkpoint = b"1" if reporter.has_checkpoint() else b"0"
        resumes = self._group.broadcast(has_checkpoint, is_patient=True) == b"1"  # process 0 may wait for the lock
        if scaling is not None and not resumes:  # else it is in the checkpoint, and the rows may be hundreds of GB
            scaling.fit(linear_batches(self._source, config.seed, most=len(split)))
        if scaling is not None:
            scaling.to(self._device)
        labels = labels_for(config, split)
        self._step = TrainingStep.build(
            config,
            split.shape,
            self._source,
            group=self._group,
            device=device,
            own_rule=own_rule,
            scaling=scaling,
            labels=labels,
            own_prior=own_prior,
        )
        self._split = split
        self._augmentation = Augmentation(config.flips, config.shifts)
        self.model = self._step.model
        self._validation = None
        if "validation" in store.manifest.splits:
            source = self._with_heartbeat(store.split("validation"))
            self._validation = Validation(self._step.objective, source, config.seed, self._group)
        self._updates = Updates(
            self.model,
            self._step.rule,
            self._source,
            config,
            self._group,
            self._anybody_wants_to_stop,
            None if self._validation is None else self._validation.kl,
        )
        if config.average > 0 and self._validation is None:
            raise ConfigError("validation decides which average is kept; prepare the store with a validation split")
        self._average = RunningAverage(self.model, config.average)
        self._snapshot = Snapshot(self._step, self._average, reporter, self._group, self._start)
        self.state = self._snapshot.restore()
        require_known_classes(self.model, len(store.manifest.classes))
        self._schedule = Schedule(
            config, self._order.steps_per_epoch, reporter.paces(), reporter.save_paces, self._group
        )
        self._timings = Timings(self._group.rank, self._group.size)
        self._began = time.perf_counter()

    def run(self) -> Outcome:
        """Train to the end, or until a signal asks one of the processes to stop."""
        steps_per_epoch = self._order.steps_per_epoch
        self._began = time.perf_counter()
        with self._stop.listening():
            self._schedule.resume(self.state.step)
            self._reporter.begin(self.state, steps_per_epoch, self._schedule.share, self._timings)
            self._group.broadcast(b"", is_patient=True)  # process 0 loads TensorBoard, which may take long
            self._warn_of_a_long_warm_up(self._schedule.last_beta)
            if not self._is_complete():
                self._reporter.return_to_best(self.state.best_step)
            if self.state.step == 0 and self._config.network == "dense":
                self._validate()  # it begins as a model that may already be the best
            shall_stop = self._update_if_due()  # a run that stopped during an update resumes with that update
            while not shall_stop and not self._is_complete():
                shall_stop = self.take_step()
                if self._is_due(self._config.validate_every):
                    self._validate()
                self.state.is_update_due = self._updates.is_due(self.state.step, steps_per_epoch)
                shall_stop = shall_stop or self._update_if_due()
                if self._is_checkpoint_due():
                    self._snapshot.save(self.state)
            self._snapshot.save(self.state)
            if self._schedule.last_beta is None and self.state.step > 0:  # only now is it known which step is the last
                self._warn_of_a_long_warm_up(self._schedule.beta(self.state.step - 1))
            is_finished = self._is_complete() and not self.state.is_update_due
            if is_finished and self.state.has_terms:
                self._validate(is_last=True)  # after the checkpoint: a longer run continues as if it had not been made
        if is_finished:
            return Outcome("finished", self.state.step, self.state.best, self._stop.signal)
        return Outcome("stopped", self.state.step, self.state.best, self._stop.signal or signal.SIGTERM)

    def _warn_of_a_long_warm_up(self, weight: float | None) -> None:
        """Warn if training ends before the KL terms have their full weight; ``weight`` is the last, if it is known."""
        config = self._config
        if weight is not None and weight < 1:
            self._reporter.warn(
                f"the KL terms only reach {weight:.2g} of their weight: the warm-up of {config.warm_up} is longer than "
                f"the training of {config.length}; take a shorter --warm-up"
            )

    def take_step(self) -> bool:
        """Take a step; tell whether all processes shall stop after it."""
        self._group.check_launcher()
        step, seed = self.state.step, self._config.seed
        start, waited = time.perf_counter(), self._group.seconds
        batch = self._order.rows(step)
        part = self._group.part(len(batch))
        rows, noise = batch[part], BatchSlice(generator_for(seed, "latents", step), part, len(batch))
        x = self._augmented(self._source.read(rows, derive_key(seed, "bits", step)), part, len(batch))
        read = time.perf_counter()
        self._step.optimizer.set_rate(self._schedule.learning_rate(step))
        if self._config.dropout > 0:
            draw_dropout(self.model, generator_for(seed, "dropout", step))
        stop = self._wish_to_stop()
        try:
            outcome = self._step(
                x,
                torch.from_numpy(rows),
                self._schedule.beta(step),
                generator=noise,
                prior_generator=generator_for(seed, "prior", step) if self.model.prior.needs_training_batch else None,
                also_sum=(stop, self._timings.to_sum()),
                labels=torch.from_numpy(self._split.labels(rows)) if self._config.labelled else None,
            )
        except ValueError as error:
            raise RunError(f"training step {step} failed: {error}") from error
        finally:
            if self._config.dropout > 0:
                draw_dropout(self.model, None)
        self._timings.add_sum()
        if not outcome.is_finite:
            self._report_broken(outcome.terms, rows)
        self.state.add(outcome.terms)
        self.state.step += 1
        self._average.add(self.state.step)
        communication = self._group.seconds - waited
        self._timings.add(read - start, time.perf_counter() - read - communication, communication)
        self._schedule.advance(self.state.step)
        self._reporter.stepped(self.state.step, self._schedule.share, self._timings)
        return bool(stop > 0)

    @torch.no_grad()
    def _validate(self, is_last: bool = False) -> None:
        """Score the validation split and keep the best model; without a split, log the training terms alone."""
        if self._validation is None:
            self._log({"train": self.state.take_means(self._group)})
            return
        start = time.monotonic()
        with self._average.shown():
            prior = self.model.prior_distribution()
            means = self._validation.means(prior)
            is_best = self.state.best is None or means["negative_elbo"] < self.state.best
            self._log({"train": self.state.take_means(self._group), "validation": means, "best": is_best})
            self._reporter.show_samples(self.state.step, self.model, prior, self._config.seed)
            if is_best:
                self.state.best, self.state.best_step = means["negative_elbo"], self.state.step
                self._reporter.save_best(Checkpoint(self.state.step, self.model.state_dict(), {}, {}), is_last)
        self._schedule.reserve(time.monotonic() - start)

    def _update_if_due(self) -> bool:
        """Update the pseudocoreset if that is due; tell whether a request to stop interrupted the update."""
        if self.state.is_update_due:
            found = self._updates.make(self.state.step)
            if found is not None:
                self.state.is_update_due = False
                self._log({"update": found})
        return self.state.is_update_due

    def _log(self, line: dict[str, object]) -> None:
        self._group.check_launcher()
        self._reporter.log(self.state.step, self.state.step / self._order.steps_per_epoch, line)

    def _steps(self, span: str) -> int:
        return Span.parse(span).in_steps(self._order.steps_per_epoch)

    def _is_due(self, span: str) -> bool:
        return self._schedule.is_due(span, self.state.step)

    def _is_checkpoint_due(self) -> bool:
        """Tell whether to save now; of an interval in percent, some are left out if saving takes much of the time."""
        if not self._is_due(self._config.checkpoint_every):
            return False
        if Span.parse(self._config.checkpoint_every).unit != "percent":
            return True
        is_cheap = self._snapshot.seconds <= _SAVING_SHARE * (time.perf_counter() - self._began)
        return self._group.broadcast(b"1" if is_cheap else b"0") == b"1"

    def _is_complete(self) -> bool:
        return self._schedule.share >= 1 or self._is_patience_over()

    def _is_patience_over(self) -> bool:
        patience = self._steps(self._config.patience)
        if patience == 0 or self._validation is None or self.state.best is None:
            return False
        if self.state.has_terms:  # of steps since the last validation, and nobody knows yet whether they were good
            return False
        return self.state.step - max(self.state.best_step, self._steps(self._config.warm_up)) >= patience

    def _wish_to_stop(self) -> Tensor:
        """Return what to sum over all processes: above zero if one of them has been asked to stop."""
        return torch.tensor([0.0 if self._stop.signal is None else 1.0])

    def _anybody_wants_to_stop(self) -> bool:
        wish = self._wish_to_stop()
        self._group.sum_([wish])
        return bool(wish > 0)

    def _start(self) -> None:
        """Prepare the model of a run that begins."""
        if self._config.network == "dense":
            held_out = self._source if self._validation is None else self._validation.source
            start_as_linear(self.model, self._source, held_out, self._config.seed, self._augmentation)

    def _augmented(self, x: Tensor, part: slice, batch_size: int) -> Tensor:
        if not self._augmentation.changes_anything:
            return x
        numbers = torch.rand(batch_size, 3, generator=generator_for(self._config.seed, "flips", self.state.step))
        return self._augmentation(x, numbers[part].to(x.device))

    def _with_heartbeat(self, split: Split) -> StoreSource:
        return _HeartbeatSource(split, self._reporter, self._device)

    def _report_broken(self, terms: ELBOTerms, rows: Rows) -> None:
        """Save what made a loss that is not finite, and stop; all processes get here together."""
        named = {"reconstruction": terms.reconstruction, **{f"kl_{level}": kl for level, kl in terms.kl.items()}}
        broken = [name for name, values in named.items() if not values.isfinite().all()]
        bad = torch.stack([~values.isfinite() for values in named.values()]).any(0).cpu().numpy()
        own = {"terms": broken, "rows": rows.tolist(), "broken_rows": rows[bad].tolist()}
        found = [json.loads(text) for text in self._group.gather(json.dumps(own).encode())]
        broken = list(dict.fromkeys(term for part in found for term in part["terms"]))
        all_rows, bad_rows = ([row for part in found for row in part[name]] for name in ("rows", "broken_rows"))
        content = {"step": self.state.step, "terms": broken, "rows": all_rows, "broken_rows": bad_rows}
        place = self._group.broadcast(self._reporter.save_broken(content).encode()).decode()
        what = f"{', '.join(broken)} broke on training rows {bad_rows[:10]}" if broken else "the sum is too large"
        way_out = "try a smaller learning_rate"
        if self.state.step == 0:  # nothing has moved yet, so the data are at fault
            way_out = "bring the data to a common scale, with values of some units at most"
        raise RunError(f"the loss is not finite at step {self.state.step}: {what}; see {place}; {way_out}")


class _HeartbeatSource(StoreSource):
    """Examples that send a heartbeat whenever they are read: some priors read all of them in one call."""

    def __init__(self, split: Split, reporter: Reporter, device: torch.device) -> None:
        super().__init__(split, device)
        self._reporter = reporter

    def read(self, rows: Rows, bits_key: int | None = None) -> Tensor:
        self._reporter.beat()
        return super().read(rows, bits_key)
