"""Compare several processes with one, step by step from the same state; each process does both.

Started by torchrun. Prints the largest differences as JSON.
"""

import copy
import json
import sys
from pathlib import Path

import torch

from bype.data.examples import StoreSource, TrainingOrder
from bype.data.store import Store
from bype.distributed import Group, open_group
from bype.randomness import BatchSlice, generator_for
from bype.run.build import labels_for
from bype.training.step import TrainingStep
from small_runs import config_of


class Side:
    """A model that is trained by a group of processes, and what its newest step has found."""

    def __init__(self, config, split, group, dtype):
        self.group, self.dtype, self.config, self.split = group, dtype, config, split
        self.labels = labels_for(config, split)
        self.step = TrainingStep.build(config, split.shape, StoreSource(split), group=group, labels=self.labels)
        self.step.model.to(dtype)
        self.step.rule.to(dtype)
        self.order = TrainingOrder(split, config.seed, config.batch_size, None)
        self.loss, self.gradients = 0.0, []
        apply = self.step.optimizer.step

        def watched():
            self.gradients = [gradient.clone() for gradient in self.step.optimizer.gradients()]
            apply()

        self.step.optimizer.step = watched

    def batch(self, number):
        rows = self.order.rows(number)
        part = self.group.part(len(rows))
        x = StoreSource(self.split).read(rows[part]).to(self.dtype)
        noise = BatchSlice(generator_for(0, "latents", number), part, len(rows))
        return x, torch.from_numpy(rows[part]), noise

    def take(self, number, beta=0.7):
        x, rows, noise = self.batch(number)
        total = torch.zeros(1, dtype=torch.float64)
        labels = None if self.labels is None else self.labels[rows]
        for_prior = generator_for(0, "prior", number)
        outcome = self.step(x, rows, beta, generator=noise, prior_generator=for_prior, labels=labels)
        total += float(outcome.terms.loss.detach().double())
        self.group.sum_([total])
        self.loss = float(total)

    def update(self, number):
        x, _, noise = self.batch(number)
        return self.step.rule.update_step(self.step.model, x, generator=noise, group=self.group)

    def state(self):
        return self.step.model.state_dict() | {f"rule.{k}": v for k, v in self.step.rule.state_dict().items()}

    def load(self, other):
        self.step.model.load_state_dict(copy.deepcopy(other.step.model.state_dict()))
        self.step.optimizer.load_state(copy.deepcopy(other.step.optimizer.state()))
        self.step.rule.load_state_dict(copy.deepcopy(other.step.rule.state_dict()))


def compare(store: Path, mode: str, num_steps: int, fields: dict[str, object], group: Group) -> dict[str, float]:
    """Return the largest relative difference of losses and gradients, and the largest of any number at the end."""
    config = config_of(fields)
    split = Store(store).split("train")
    dtype = torch.float32 if mode == "lockstep" else torch.float64
    found = {"loss": 0.0, "gradient": 0.0, "state": 0.0}
    alone, together = Side(config, split, Group(), dtype), Side(config, split, group, dtype)
    together.load(alone)
    # Some gradients are small differences of large sums, and near zero at the start: those of the prior's log variance
    # and of weights that are still equal. Each one is compared with the largest that it has in the whole run.
    num_parameters = sum(1 for _ in alone.step.model.parameters())
    largest, difference = [0.0] * num_parameters, [0.0] * num_parameters
    for number in range(num_steps):
        if mode == "lockstep":
            together.load(alone)
        alone.take(number)
        together.take(number)
        if not all(gradient.isfinite().all() for gradient in together.gradients):
            raise ValueError("a gradient is not finite")
        found["loss"] = max(found["loss"], abs(together.loss - alone.loss) / abs(alone.loss))
        for k, (ours, theirs) in enumerate(zip(together.gradients, alone.gradients, strict=True)):
            largest[k] = max(largest[k], float(theirs.norm()))
            difference[k] = max(difference[k], float((ours - theirs).norm()))
    pairs = zip(difference, largest, strict=True)
    found["gradient"] = max(between / max(size, 1e-12) for between, size in pairs)
    if mode == "update":
        together.load(alone)
        for side in (alone, together):
            side.step.rule.start_update()
            for number in range(10):
                side.update(number)
    ours, theirs = together.state(), alone.state()
    if not all(value.isfinite().all() for value in ours.values()):
        raise ValueError("a number is not finite")
    for name, value in theirs.items():
        if mode != "update" or "pseudocoreset" in name:
            found["state"] = max(found["state"], float((ours[name].double() - value.double()).abs().max()))
    digest = [float(value.double().sum()) for value in ours.values()]
    group.require_same(json.dumps(digest).encode(), "the state")
    return found


def main() -> int:
    store, cases = Path(sys.argv[1]), json.loads(sys.argv[2])
    with open_group() as group:
        found = {name: compare(store, *case, group) for name, case in cases.items()}
        if group.is_first:
            print(json.dumps(found))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
