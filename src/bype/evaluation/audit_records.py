"""The content of ``audit.json``: what an audit measured, its verdict, and the probabilities behind it."""

import dataclasses
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bype.data.decode import decode_file
from bype.data.files import FileError, to_json, write_atomic
from bype.wording import counted

FILE_NAME = "audit.json"
SHARE = 0.05
"""Thresholds are the values below which this share of held-out examples lies."""
SIGNIFICANCE = 0.01
LARGE_SHARE = 0.10
"""A finding needs both: a share that chance explains in less than 1% of cases, and at least this share."""
MAX_SAMPLES = 1_000_000


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
        kinds = [group.kind for group in self.groups]
        if len(set(kinds)) != len(kinds) or not 1 <= len(kinds) <= 2:
            raise ValueError(f"an audit is of points, of samples or of both, not of {len(kinds)} groups")
        most = max(group.held_out_copies for group in self.groups)
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


@cache  # a page asks for the verdict several times, and a million samples take a second
def _tail(least: int, count: int, a: float, b: float) -> float:
    """Return the probability that a beta-binomial number of ``count`` is at least ``least``."""

    def log_beta(p: float, q: float) -> float:
        return math.lgamma(p) + math.lgamma(q) - math.lgamma(p + q)

    whole = log_beta(a, b)
    terms = (_log_choose(count, k) + log_beta(k + a, count - k + b) - whole for k in range(least, count + 1))
    return min(1.0, sum(map(math.exp, terms)))


@cache
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
