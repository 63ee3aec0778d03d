"""Does a model give its training examples away? How near its points and samples are to them, beside new examples."""

import copy
import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from bype.console import Stage, no_stage
from bype.data.decode import decode_file
from bype.data.examples import StoreSource, spread_rows
from bype.data.files import FileError, to_json, write_atomic
from bype.data.origins import name_examples
from bype.data.scaling import Batches, Scaling, mean_and_variance
from bype.evaluation.generation import sample
from bype.evaluation.neighbours import Nearest, nearest
from bype.priors.base import ExampleSource, MappedSource
from bype.randomness import generator_for
from bype.run.directory import RunError
from bype.run.opened import TrainedRun, open_store
from bype.wording import counted

FILE_NAME = "audit.json"
SHARE = 0.05
"""Thresholds are the values below which this share of held-out examples lies."""
SIGNIFICANCE = 0.01
LARGE_SHARE = 0.10
"""A finding needs both: a share that chance explains in less than 1% of cases, and at least this share."""
_ROUNDING = {"pixels": 0.5 / 256, "scaled columns": 1e-6}
"""Two examples are equal if they differ by less in each number. For pixels, the bytes of a picture are then equal."""
MAX_SAMPLES = 1_000_000
_MOST_QUERIES = 2000
_MOST_POINTS = 2000
_MOST_FOR_MEAN = 20_000
_PAIRS = 10


@dataclass(frozen=True)
class Pair:
    """A point or a sample, and the training example nearest to it."""

    number: int
    """Of the point or the sample, counted from 0."""
    row: int
    """Of the training example."""
    distance: float
    ratio: float
    """The distance over that of the second nearest training example; at one contrast, if ``by_contrast`` is larger."""


@dataclass(frozen=True)
class Share:
    """How many lie below a threshold that 5% of held-out examples lie below."""

    threshold: float
    share: float
    p_value: float
    """The probability of so many or more, if these were new examples like the held-out ones."""

    @property
    def is_large(self) -> bool:
        """Whether the share is more than chance explains, and not small."""
        return self.p_value < SIGNIFICANCE and self.share >= LARGE_SHARE


@dataclass(frozen=True)
class Closeness:
    """How near the points, or samples, of a model are to its training examples."""

    kind: Literal["points", "samples"]
    count: int
    num_copies: int
    """How many equal a training example, up to rounding."""
    held_out_copies: int
    """How many held-out examples do; in a table with few distinct values that is usual."""
    median_distance: float
    by_distance: Share
    """Closer to the nearest training example than 95% of held-out examples are."""
    by_ratio: Share
    """Closer in proportion to the second nearest one: it tells a copy from what is merely smooth or typical."""
    closest: list[Pair]
    """Those with the smallest ratios, the smallest first; at one contrast, if ``by_contrast`` is larger."""
    by_contrast: Share | None = None
    """As ``by_ratio``, after all examples are brought to one contrast: it finds faded copies. None in older audits."""

    def __post_init__(self) -> None:
        if not 0 <= self.num_copies <= self.count <= MAX_SAMPLES or self.count == 0 or self.held_out_copies < 0:
            raise ValueError(f"{self.num_copies} copies among {self.count} {self.kind} make no sense")

    @property
    def nearer(self) -> Share:
        """The larger of the two shares that tell copies: by ratio, and by ratio at one contrast."""
        return max((share for share in (self.by_ratio, self.by_contrast) if share is not None), key=lambda s: s.share)


@dataclass(frozen=True)
class Audit:
    """The content of ``audit.json``. It is a measure, not a guarantee: it sees copies, not all that could leak.

    Examples
    --------
    >>> share = Share(threshold=0.8, share=0.04, p_value=0.9)
    >>> near = Closeness("samples", 1000, 0, 0, 3.5, share, share, [])
    >>> Audit(500, "", "pixels", 50_000, "test", 2000, 3.9, [near]).verdict
    'No sign of copies. Unusually near to one training example: 4.0% of samples; 5.0% of new examples would be.'
    """

    version: Literal[2] = dataclasses.field(default=2, kw_only=True)
    step: int
    fingerprint: str
    """Of the store."""
    unit: Literal["pixels", "scaled columns"]
    """Distances are Euclidean: of pixels between 0 and 1, or of columns with standard deviation 1."""
    num_train: int
    held_out: str
    """The split that held-out examples come from."""
    num_held_out: int
    median_distance: float
    """Of held-out examples."""
    groups: list[Closeness]

    def __post_init__(self) -> None:
        most = max((group.held_out_copies for group in self.groups), default=0)
        if not max(1, most) <= self.num_held_out <= MAX_SAMPLES:
            raise ValueError(f"{most} copies among {self.num_held_out} held-out examples make no sense")

    def finds_copies(self, group: Closeness) -> bool:
        """Tell whether too many are close to one training example and far from the next, or too many equal one."""
        return (group.nearer.is_large and not self._is_blind) or self._equal_too_often(group)

    @property
    def are_copies(self) -> bool:
        """Whether points or samples give training examples away."""
        return any(self.finds_copies(group) for group in self.groups)

    @property
    def expected_share(self) -> float:
        """The share of new examples that is expected below a threshold: about 5%, if not very few are held out."""
        return _rank(self.num_held_out) / (self.num_held_out + 1)

    @property
    def cannot_tell(self) -> str | None:
        """Why the audit could not find copies, if there were some; None if it could."""
        if self._is_blind:
            return f"{100 * SHARE:.0f}% or more of new examples are training examples themselves"
        rank = _rank(self.num_held_out)
        for group in self.groups:
            if _tail(group.count, group.count, rank, self.num_held_out - rank + 1) >= SIGNIFICANCE:
                held_out = counted(self.num_held_out, "held-out example")
                return f"{held_out} and {group.count} {group.kind} are too few, even if all were copies"
        return None

    @property
    def verdict(self) -> str:
        """Say in plain words what was found. The rule is :meth:`finds_copies`."""
        shares = " and ".join(f"{100 * group.nearer.share:.1f}% of {group.kind}" for group in self.groups)
        expected = f"{100 * self.expected_share:.1f}% of new examples would be"
        compared = f"Unusually near to one training example: {shares}; {expected}."
        equal = " and ".join(f"{group.num_copies} {group.kind}" for group in self.groups if group.num_copies)
        if equal:
            known = max(group.held_out_copies for group in self.groups)
            compared += f" Equal to one: {equal}; {known} of {self.num_held_out} new examples are."
        if not self.are_copies and self.cannot_tell is not None:
            return f"This audit cannot tell: {self.cannot_tell}."
        if not self.are_copies:
            return f"No sign of copies. {compared}"
        bad = " and ".join(group.kind for group in self.groups if self.finds_copies(group))
        return f"The {bad} give training examples away. {compared}"

    @property
    def _is_blind(self) -> bool:
        """Whether new examples are so often training examples that a small ratio means nothing."""
        return any(
            group.by_ratio.threshold == 0 or group.held_out_copies >= SHARE * self.num_held_out for group in self.groups
        )

    def _equal_too_often(self, group: Closeness) -> bool:
        """Tell whether more equal a training example than chance explains, if new examples do so as well."""
        if group.held_out_copies == 0:
            return group.num_copies > 0
        return _upper_tail(group.num_copies, group.count, group.held_out_copies, self.num_held_out) < SIGNIFICANCE


@dataclass(frozen=True, eq=False)
class Shown:
    """The closest pairs as examples, in the units of the data."""

    kind: str
    made: NDArray[np.float32]
    real: NDArray[np.float32]
    names: list[str]
    """Of the training examples: their files or rows in the source, or else their rows in the split."""


@torch.no_grad()
def audit_run(
    run: TrainedRun, data: Path | str | None = None, num_samples: int = 1000, stage: Stage = no_stage
) -> tuple[Audit, list[Shown]]:
    """Measure how near a run's points and samples are to its training examples, and write ``audit.json``.

    Distances are compared with those of held-out examples, of the test split or else the validation split. Sampled
    images are the means of the likelihood, as ``bype sample`` shows them; sampled rows of a table have its noise, as
    the rows of the data have.

    Parameters
    ----------
    run
        The run.
    data
        Where the store that it was trained on may be, if it has moved.
    num_samples
        How many samples to draw.
    stage
        Called with the title of each stage.
    """
    if not 1 <= num_samples <= MAX_SAMPLES:
        raise ValueError(f"num_samples must be between 1 and {MAX_SAMPLES:,}, not {num_samples}")
    store = open_store(run.folder, run.data, data)
    name = next((name for name in ("test", "validation") if name in store.manifest.splits), None)
    if name is None:
        raise RunError(f"{store.folder} has no test or validation split; an audit compares with held-out examples")
    held_out = StoreSource(store.split(name))
    train_split = store.split("train")
    train = StoreSource(train_split)
    train_split.check_origins()  # before the work begins
    scaling = _scaling(run, train)
    unit: Literal["scaled columns", "pixels"] = "scaled columns" if len(run.data.shape) == 1 else "pixels"
    drawn = sample(run.model, num_samples, generator=generator_for(0, "audit"))
    made = {"samples": drawn.cpu()}
    if (own := run.model.prior.own_points()) is not None:
        heaviest = torch.argsort(own.probabilities, descending=True, stable=True)[:_MOST_POINTS].sort().values
        made = {"points": run.model.to_data_units(own.points)[heaviest].cpu(), **made}
    known = held_out.read(spread_rows(len(held_out), _MOST_QUERIES))
    queries = torch.cat([scaling(x).flatten(1) for x in (known, *made.values())])
    sizes = [len(known), *map(len, made.values())]
    scaled = MappedSource(train, scaling)
    with stage("comparing with training examples") as report:
        near, *others = _split(nearest(queries, scaled, report), sizes)
    contrast = _Contrast(mean_and_variance(_batches(scaled))[0].float())
    with stage("comparing at one contrast") as report:
        near_faded, *others_faded = _split(nearest(contrast(queries), MappedSource(scaled, contrast), report), sizes)
    numbers = {"points": heaviest.cpu().numpy()} if own is not None else {}
    groups, shown = [], []
    for kind, group, faded in zip(made, others, others_faded, strict=True):
        own_numbers = numbers.get(kind, np.arange(len(group.rows)))
        by_ratio, by_contrast = compare(group.ratio, near.ratio), compare(faded.ratio, near_faded.ratio)
        chosen = faded if by_contrast.share > by_ratio.share else group
        order = np.argsort(chosen.ratio, kind="stable")[:_PAIRS]
        rows = chosen.rows[order]
        ends = (scaling(x).flatten(1) for x in (made[kind][order], train.read(rows)))
        distances = torch.linalg.vector_norm(next(ends) - next(ends), dim=1).tolist()
        groups.append(
            Closeness(
                kind="points" if kind == "points" else "samples",
                count=len(group.rows),
                num_copies=int((group.largest < _ROUNDING[unit]).sum()),
                held_out_copies=int((near.largest < _ROUNDING[unit]).sum()),
                median_distance=float(np.median(group.distance)),
                by_distance=compare(group.distance, near.distance),
                by_ratio=by_ratio,
                closest=[
                    Pair(int(own_numbers[k]), int(row), distance, float(chosen.ratio[k]))
                    for k, row, distance in zip(order, rows, distances, strict=True)
                ],
                by_contrast=by_contrast,
            )
        )
        names = name_examples(rows, train_split.origins(rows))
        shown.append(Shown(kind, made[kind][order].numpy(), train.read(rows).numpy(), names))
    audit = Audit(
        step=run.step,
        fingerprint=store.manifest.fingerprint,
        unit=unit,
        num_train=len(train),
        held_out=name,
        num_held_out=len(known),
        median_distance=float(np.median(near.distance)),
        groups=groups,
    )
    write_audit(run.folder, audit)
    return audit, shown


def _split(found: Nearest, sizes: list[int]) -> list[Nearest]:
    """Divide what was found for all queries into groups of these sizes."""
    parts = np.cumsum(sizes)[:-1]
    columns = (np.split(getattr(found, field.name), parts) for field in dataclasses.fields(found))
    return [Nearest(*group) for group in zip(*columns, strict=True)]


@dataclass(frozen=True)
class _Contrast:
    """Brings examples to one contrast: a point between the mean and an example then equals the example."""

    mean: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return normalize(x.flatten(1) - self.mean, dim=1)


def write_audit(run: Path, audit: Audit) -> None:
    """Write the audit of a run, all or nothing."""
    write_atomic(run / FILE_NAME, to_json(dataclasses.asdict(audit)))


def read_audit(run: Path) -> Audit | None:
    """Read the audit of a run, which is not trusted; ``None`` if there is none yet."""
    path = run / FILE_NAME
    try:
        return decode_file(Audit, path, _newest) if path.exists() else None
    except FileError as error:
        raise FileError(f"{error}; remove the file and audit again") from error


def _newest(content: Any) -> Any:
    """Return the content of a file of version 1 as version 2 has it: nothing is known at one contrast."""
    if not isinstance(content, dict) or content.get("version") != 1 or not isinstance(content.get("groups"), list):
        return content
    groups = [{**group, "by_contrast": None} if isinstance(group, dict) else group for group in content["groups"]]
    return {**content, "version": 2, "groups": groups}


def compare(values: NDArray[np.float64], held_out: NDArray[np.float64]) -> Share:
    """Return how many values lie below the threshold that 5% of held-out values lie below.

    The threshold is the k-th smallest of n held-out values. If m new values were drawn like them, the number below
    it would have a beta-binomial distribution with parameters m, k and n - k + 1; so its p-value is exact.

    Examples
    --------
    >>> compare(np.arange(100.0), np.arange(100.0)).share
    0.04
    """
    k = _rank(len(held_out))
    threshold = float(np.sort(held_out)[k - 1])
    below = int((values < threshold).sum())
    return Share(threshold, below / len(values), _tail(below, len(values), k, len(held_out) - k + 1))


def _rank(num_held_out: int) -> int:
    """Return which of the held-out values, sorted from 1 on, is the threshold."""
    return max(1, int(SHARE * num_held_out))


def _tail(least: int, count: int, a: float, b: float) -> float:
    """Return the probability that a beta-binomial number of ``count`` is at least ``least``."""

    def log_beta(p: float, q: float) -> float:
        return math.lgamma(p) + math.lgamma(q) - math.lgamma(p + q)

    whole = log_beta(a, b)
    terms = (_log_choose(count, k) + log_beta(k + a, count - k + b) - whole for k in range(least, count + 1))
    return min(1.0, sum(map(math.exp, terms)))


def _upper_tail(found: int, count: int, found_there: int, count_there: int) -> float:
    """Return the p-value of Fisher's exact test that ``found`` of ``count`` is a larger rate than the other one."""
    total = found + found_there
    whole = _log_choose(count + count_there, total)
    ways = (
        _log_choose(count, k) + _log_choose(count_there, total - k) - whole for k in range(found, min(count, total) + 1)
    )
    return min(1.0, sum(map(math.exp, ways)))


def _log_choose(count: int, chosen: int) -> float:
    return math.lgamma(count + 1) - math.lgamma(chosen + 1) - math.lgamma(count - chosen + 1)


def _scaling(run: TrainedRun, train: ExampleSource) -> Scaling:
    """Return what brings examples to the units of distances: columns of a table to one scale, pixels as they are."""
    if len(run.data.shape) == 3:
        return Scaling(run.data.shape[-1])  # not fitted, it changes nothing
    if run.model.scaling is not None:
        return copy.deepcopy(run.model.scaling).cpu()  # distances are worked out on the CPU
    scaling = Scaling(run.data.shape[0])
    scaling.fit(_batches(train))
    return scaling


def _batches(source: ExampleSource) -> Batches:
    """Return flat examples, spread over the source: enough of them for a mean."""
    rows = torch.split(torch.from_numpy(spread_rows(len(source), _MOST_FOR_MEAN)), 500)
    return lambda: (source.take(chunk).flatten(1) for chunk in rows)
