"""The training loop: alternating optimisation of the network and the pseudocoreset (Algorithm 2)."""

import hashlib
import json
import math
import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bype.coreset import PSVI, ELBOAscent
from bype.data.order import Rows, derive_key
from bype.data.store import Split, Store
from bype.distributed import Group
from bype.distributions import BatchSlice, Distribution
from bype.objective import ELBOTerms, kl_weight
from bype.training.checkpoint import Checkpoint, CheckpointError
from bype.training.config import Span, TrainingConfig
from bype.training.examples import StoreSource, TrainingOrder
from bype.training.identity import DataIdentity
from bype.training.lock import stale_seconds
from bype.training.monitor import Timings
from bype.training.progress import Display
from bype.training.randomness import generator_for
from bype.training.record import Record, RunRecord
from bype.training.rows import encode_chosen, spread_rows
from bype.training.run import RunDirectory, RunError
from bype.training.signals import StopRequest
from bype.training.state import TrainingState, named_sums
from bype.training.step import TrainingStep

_VALIDATION_BATCH = 500
_COMPARED_EXAMPLES = 5000
_TRAINING_SIZE = 6
"""No file of a checkpoint is larger than so many times the model: Adam keeps two moments, a rule two in float64."""


@dataclass(frozen=True)
class Outcome:
    """How a call of :func:`train` ended."""

    state: str
    """``finished`` or ``stopped``; the same call goes on with a stopped run."""
    step: int
    best: float | None
    """The smallest validation loss (minus ELBO), nats per example on the likelihood's scale."""
    signal: int | None = None


def train(
    config: TrainingConfig,
    data: Path,
    out: Path,
    display: Display | None = None,
    group: Group | None = None,
    device: torch.device | str = "cpu",
) -> Outcome:
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
    group
        The processes that share the work; each makes this call. The first one writes.
    device
        What computes. It is no part of the run, which may go on on another one.
    """
    group = group or Group()
    store = Store(data)
    identity = DataIdentity.of(store)
    asked = json.dumps([config.to_fields(), identity.fingerprint], sort_keys=True)
    group.require_same(asked.encode(), "the config or the data")
    # Under a launcher, which starts lost processes anew: the one before may hold the run until it notices, or is stale.
    patience = 0.0 if group.launcher is None else stale_seconds() + 5
    with ExitStack() as at_end:
        run = at_end.enter_context(RunDirectory(out, patience)) if group.is_first else None
        record = Record()
        if run is not None:
            run.settle_config(config, identity)
            run.describe_machine(identity, torch.get_num_threads(), group.size, str(device))
            record = RunRecord(run, display or Display())
        at_end.callback(record.close)
        trainer = None
        try:
            trainer = Trainer(config, store, record, group, device)
            outcome = trainer.run()
        except BaseException as error:
            step = trainer.state.step if trainer else None
            try:
                record.set_status("failed", step=step, error=f"{type(error).__name__}: {error}")
            except (OSError, RunError) as second:  # a full disk, or a run that is another's by now
                error.add_note(f"the status could not be written: {second}")
            raise
        record.set_status(outcome.state, step=outcome.step, best=outcome.best)
        return outcome


class Trainer:
    """One run, in one process or in one of several that share its work.

    Every process takes a part of each batch and holds the whole model; after each step all hold the same numbers.
    """

    def __init__(
        self,
        config: TrainingConfig,
        store: Store,
        record: Record,
        group: Group | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self._config = config
        self._record = record
        self._group = group or Group()
        self._stop = StopRequest()
        train_split = store.split("train")
        self._device = torch.device(device)
        self._source = _LivelySource(train_split, record, self._device)
        self._validation = store.split("validation") if "validation" in store.manifest.splits else None
        self._order = TrainingOrder(train_split, config.seed, config.batch_size, config.window_blocks)
        update_seed, update_batch = derive_key(config.seed, "update order"), config.update_batch or config.batch_size
        self._update_order = TrainingOrder(train_split, update_seed, update_batch, config.window_blocks)
        self._update_steps = config.update_steps or self._update_order.steps_per_epoch
        self._step = TrainingStep(config, train_split.shape, self._source, self._update_steps, self._group, device)
        self.model, self._rule = self._step.model, self._step.rule
        self._update_rule = self._rule if isinstance(self._rule, PSVI | ELBOAscent) else None
        self.state = TrainingState()
        self._saved: tuple[int, bool] | None = None
        """Of what state the newest checkpoint is: the step, and whether an update is still due."""
        self._restore()
        self._timings = Timings(self._group.rank, self._group.size)

    def _steps(self, span: str) -> int:
        return Span.parse(span).in_steps(self._order.steps_per_epoch)

    def _is_due(self, span: str) -> bool:
        return Span.parse(span).is_due(self.state.step, self._order.steps_per_epoch)

    def run(self) -> Outcome:
        """Train to the end, or until a signal asks one of the processes to stop."""
        last_step, steps_per_epoch = self._steps(self._config.length), self._order.steps_per_epoch
        with self._stop.listening():
            self._record.begin(self.state, steps_per_epoch, last_step, self._timings)
            shall_stop = self._update_if_due()  # a run that stopped in the midst of an update goes on with it
            while not shall_stop and not self._is_complete():
                shall_stop = self._train_step()
                self._validate_if_due()
                self.state.is_update_due = self._update_rule is not None and self._is_due(self._config.update_every)
                shall_stop = shall_stop or self._update_if_due()
                if self._is_due(self._config.checkpoint_every):
                    self._save()
            self._save()
        if self.state.is_update_due or not self._is_complete():
            return Outcome("stopped", self.state.step, self.state.best, self._stop.signal or signal.SIGTERM)
        return Outcome("finished", self.state.step, self.state.best)

    def _is_complete(self) -> bool:
        return self.state.step >= self._steps(self._config.length) or self._is_patience_over()

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

    def _own(self, rows: Rows, generator: torch.Generator) -> tuple[Rows, BatchSlice]:
        """Return the rows of a batch that this process takes, and their share of what is drawn for all."""
        part = self._group.part(len(rows))
        return rows[part], BatchSlice(generator, part.start, part.stop, len(rows))

    def _train_step(self) -> bool:
        """Take a step; tell whether all processes shall stop after it."""
        self._group.check_launcher()
        step, seed = self.state.step, self._config.seed
        start, waited = time.perf_counter(), self._group.seconds
        batch = self._order.rows(step)
        rows, noise = self._own(batch, generator_for(seed, "latents", step))
        x = self._source.read(rows)
        read = time.perf_counter()
        stop = self._wish_to_stop()
        try:
            outcome = self._step(
                x,
                torch.from_numpy(rows),
                self._beta(),
                num_examples=len(batch),
                generator=noise,
                prior_generator=generator_for(seed, "prior", step) if self.model.prior.needs_training_batch else None,
                also_sum=(stop, self._timings.tell()),
            )
        except ValueError as error:
            raise RunError(f"training step {step} failed: {error}") from error
        self._timings.hear()
        if not outcome.is_finite:
            self._report_broken(outcome.terms, rows)
        self.state.add(outcome.terms)
        self.state.step += 1
        communication = self._group.seconds - waited
        self._timings.add(read - start, time.perf_counter() - read - communication, communication)
        self._record.stepped(self.state.step, self._timings)
        return bool(stop > 0)

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
        place = self._group.broadcast(self._record.save_broken(content).encode()).decode()
        what = f"{', '.join(broken)} broke on training rows {bad_rows[:10]}" if broken else "the sum is too large"
        way_out = "try a smaller learning_rate"
        if self.state.step == 0:  # nothing has moved yet, so the data are at fault
            way_out = "bring the data to a common scale, with values of some units at most"
        raise RunError(f"the loss is not finite at step {self.state.step}: {what}; see {place}; {way_out}")

    def _validate_if_due(self) -> None:
        if self._validation is not None and self._is_due(self._config.validate_every):
            self._validate(self._validation)
        elif self._validation is None and self._is_due(self._config.validate_every):
            self._log({"train": self.state.take_means(self._group)})

    def _wish_to_stop(self) -> Tensor:
        """Return what to sum over all processes: above zero if one of them has been asked to stop."""
        return torch.tensor([0.0 if self._stop.signal is None else 1.0])

    def _update_if_due(self) -> bool:
        """Update the pseudocoreset, if that is due; tell whether all processes shall stop, and it still is."""
        if self.state.is_update_due and self._update_rule is not None:
            self.state.is_update_due = not self._update_pseudocoreset(self._update_rule)
        return self.state.is_update_due

    def _log(self, line: dict[str, Any], prior: Distribution | None = None) -> None:
        self._group.check_launcher()
        epoch = self.state.step / self._order.steps_per_epoch
        self._record.log(self.state.step, epoch, line)
        if prior is not None:
            self._record.show_pictures(self.state.step, self.model, prior, self._config.seed)

    @torch.no_grad()
    def _validate(self, split: Split) -> None:
        """Score the validation split, with the same noise each time, and keep the best model."""
        source = _LivelySource(split, self._record, self._device)
        prior = self.model.prior_distribution()
        totals: dict[str, float] = {}
        for number, first in enumerate(range(0, len(split), _VALIDATION_BATCH)):
            batch = np.arange(first, min(first + _VALIDATION_BATCH, len(split)), dtype=np.int64)
            rows, noise = self._own(batch, generator_for(self._config.seed, "validation", number))
            terms = self._step.objective(source.read(rows), prior=prior, generator=noise)
            for name, value in named_sums(terms).items():
                totals[name] = totals.get(name, 0.0) + value
        sums = torch.tensor(list(totals.values()), dtype=torch.float64)
        self._group.sum_([sums])
        means = dict(zip(totals, (sums / len(split)).tolist(), strict=True))
        if not math.isfinite(means["negative_elbo"]):
            raise RunError(f"the validation loss is not finite at step {self.state.step}: {means}")
        is_best = self.state.best is None or means["negative_elbo"] < self.state.best
        self._log({"train": self.state.take_means(self._group), "validation": means, "best": is_best}, prior)
        if is_best:
            self.state.best, self.state.best_step = means["negative_elbo"], self.state.step
            state = self.state.to_fields(self._group)
            self._record.save_best(Checkpoint(self.state.step, self.model.state_dict(), {}, state))

    def _update_pseudocoreset(self, rule: PSVI | ELBOAscent) -> bool:
        """Take the rule's steps; each has batches and draws of its own, derived from the step it follows.

        The published rule is followed as it is. Ascent on the ELBO is taken only if validation agrees. An update may be
        a pass over all data: who is asked to stop meanwhile goes back to where it began, and returns False.
        """
        step = self.state.step
        before, rule_before = _copy_of(self.model.prior), _copy_of(rule)
        kl_before = self._validation_kl()
        rule.start_update()
        try:
            objectives: list[float] = []
            while len(objectives) < self._update_steps:
                objectives.append(self._update_step(rule, len(objectives)))
                if isinstance(rule, ELBOAscent) and rule.has_settled(objectives):
                    break
                wish = self._wish_to_stop()
                self._group.sum_([wish])
                if wish > 0 and len(objectives) < self._update_steps:
                    self.model.prior.load_state_dict(before)
                    rule.load_state_dict(rule_before)
                    return False
        except ValueError as error:
            raise RunError(f"the update of the pseudocoreset at step {step} failed: {error}") from error
        found = {"steps": len(objectives), "objective_first": objectives[0], "objective_last": objectives[-1]}
        if kl_before is not None:
            kl_after = self._validation_kl()
            if kl_after is None:
                raise RuntimeError("the validation split is gone")
            found |= {"kl_before": kl_before, "kl_after": kl_after}
            if kl_after > kl_before and isinstance(rule, ELBOAscent):
                self.model.prior.load_state_dict(before)
                found["taken_back"] = 1
        self._log({"update": found})
        return True

    def _update_step(self, rule: PSVI | ELBOAscent, j: int) -> float:
        self._group.check_launcher()
        step = self.state.step
        batch = self._update_order.rows(step * self._update_order.steps_per_epoch + j)
        rows, noise = self._own(batch, generator_for(self._config.seed, "update", step, j))
        return rule.step(self.model, self._source.read(rows), generator=noise, group=self._group)

    @torch.no_grad()
    def _validation_kl(self) -> float | None:
        """Return the KL term of the top level on some validation examples, with the same noise each time."""
        if self._validation is None:
            return None
        chosen = spread_rows(len(self._validation), _COMPARED_EXAMPLES)
        rows, noise = self._own(chosen, generator_for(self._config.seed, "comparison"))
        source = _LivelySource(self._validation, self._record, self._device)
        z, log_posterior = encode_chosen(self.model, source, rows).sample_and_score(generator=noise)
        total = (log_posterior - self.model.prior_distribution().log_prob(z)).double().sum()
        self._group.sum_([total])
        return float(total / len(chosen))

    def _save(self) -> None:
        """Write a checkpoint, unless that of this state is there already."""
        now = self.state.step, self.state.is_update_due
        if self._saved == now:
            return
        self._group.check_launcher()
        self.state.metrics_bytes = self._record.sync_metrics()
        training = {f"adam.{name}": value for name, value in self._step.optimizer.state().items()}
        if self._rule is not None:
            training |= {f"rule.{name}": value for name, value in self._rule.state_dict().items()}
        model = self.model.state_dict()
        if self._group.size > 1:
            self._group.require_same(_digest(model | training), "the model")
        self._record.save(Checkpoint(self.state.step, model, training, self.state.to_fields(self._group)))
        self._saved = now

    def _restore(self) -> None:
        """Go on from the newest checkpoint that is whole; process 0 reads it for all."""
        model_bytes = sum(value.numel() * value.element_size() for value in self.model.state_dict().values())
        checkpoint = self._record.newest_checkpoint(_TRAINING_SIZE * model_bytes + 2**22)
        if self._group.size > 1:
            content = self._group.broadcast(b"" if checkpoint is None else checkpoint.to_bytes(), is_patient=True)
            checkpoint = Checkpoint.from_bytes(content) if content else None
        if checkpoint is None:
            return
        try:
            self.model.load_state_dict(checkpoint.model)
            self._step.optimizer.load_state(_part(checkpoint.training, "adam."))
            if self._rule is not None:
                self._rule.load_state_dict(_part(checkpoint.training, "rule."))
            self.state = TrainingState.from_fields(checkpoint.state, self._group)
            if self.state.step != checkpoint.step:
                raise ValueError(f"its state is of step {self.state.step}")
            if self.state.is_update_due and self._update_rule is None:
                raise ValueError("an update is due, and there is no rule for it")
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            first_line = str(error).splitlines()[0]
            raise CheckpointError(f"checkpoint {checkpoint.step} does not fit this config: {first_line}") from error
        self._saved = checkpoint.step, self.state.is_update_due


class _LivelySource(StoreSource):
    """Examples, each reading of which is a sign of life: some priors read all of them in one go."""

    def __init__(self, split: Split, record: Record, device: torch.device) -> None:
        super().__init__(split, device)
        self._record = record

    def read(self, rows: Rows) -> Tensor:
        self._record.beat()
        return super().read(rows)


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _copy_of(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def _digest(tensors: dict[str, Tensor]) -> bytes:
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return digest.digest()
