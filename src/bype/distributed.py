"""Several processes that share one job: who takes which part, sums over all of them, and checks that they agree.

``torchrun`` starts them, each with the same command; PyTorch's collectives join them. This is the only file that
uses ``torch.distributed``. It sends tensors and plain bytes, never objects.
"""

import datetime
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from bype.system import launcher
from bype.wording import first_line

_START_SECONDS = 300
"""How many seconds processes wait for each other at the start, while some still load their libraries."""


class GroupError(RuntimeError):
    """Processes that lost each other, or disagree."""


def timeout_seconds() -> float:
    """Return how many seconds a process waits for the others before it fails: BYPE_TIMEOUT, or 30."""
    text = os.environ.get("BYPE_TIMEOUT", "30")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise GroupError(f"the environment variable BYPE_TIMEOUT must be a number of seconds, not {text!r}")
    return seconds


class Group:
    """The processes of a run, seen from one of them. One process alone is a group too, in which nothing is sent.

    Parameters
    ----------
    rank
        The number of this process. Process 0 writes; the others only work.
    size
        How many there are.
    launcher
        The id of the process that started this one and watches over it, if there is one.
    """

    def __init__(self, rank: int = 0, size: int = 1, launcher: int | None = None) -> None:
        self.rank = rank
        self.size = size
        self.launcher = launcher
        self.seconds = 0.0
        """How many seconds this process has spent on communication, waiting included."""
        self._channel: dist.ProcessGroup | None = None

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def part(self, count: int) -> slice:
        """Return which of ``count`` items this process takes; all processes together take each item once.

        Examples
        --------
        >>> [Group(rank, 3).part(100) for rank in range(3)]
        [slice(0, 33, None), slice(33, 66, None), slice(66, 100, None)]
        """
        return slice(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def check_launcher(self) -> None:
        """Stop if the launcher is gone: nobody could stop this process, while another one may take its place."""
        if self.launcher is not None and os.getppid() != self.launcher:
            raise GroupError("the launcher of this process is gone, so this process stops; start the command again")

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes, the same to the bit in each.

        Tensors of one dtype on one device travel together. Shapes must be the same in all processes.
        """
        if self.size == 1:
            return
        for kind in dict.fromkeys((tensor.dtype, tensor.device) for tensor in tensors):
            alike = [tensor for tensor in tensors if (tensor.dtype, tensor.device) == kind]
            flat = torch.cat([tensor.reshape(-1) for tensor in alike])
            self._timed(lambda flat=flat: dist.all_reduce(flat, group=self._channel))  # type: ignore[misc]
            parts = torch.split(flat, [tensor.numel() for tensor in alike])
            for tensor, part in zip(alike, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    def broadcast(self, content: bytes, is_patient: bool = False) -> bytes:
        """Return the content that process 0 has; set ``is_patient`` if it may take minutes to arrive."""
        if self.size == 1:
            return content
        channel = None if is_patient else self._channel
        length = torch.tensor([len(content)])
        self._timed(lambda: dist.broadcast(length, 0, group=channel))
        buffer = _as_tensor(content) if self.is_first else torch.empty(int(length), dtype=torch.uint8)
        if len(buffer):
            self._timed(lambda: dist.broadcast(buffer, 0, group=channel))
        return buffer.numpy().tobytes()

    def copy_first_(self, tensors: Sequence[Tensor], is_patient: bool = False) -> None:
        """Replace each tensor by that of process 0, because processors of different kinds round differently.

        Shapes and dtypes must be the same in all processes. Set ``is_patient`` if process 0 may take minutes.
        """
        if self.size == 1:
            return
        plain = [tensor.detach().cpu().contiguous() for tensor in tensors]
        content = self.broadcast(b"".join(tensor.numpy().tobytes() for tensor in plain), is_patient)
        start = 0
        for tensor, own in zip(tensors, plain, strict=True):
            stop = start + own.numel() * own.element_size()
            found = torch.frombuffer(bytearray(content[start:stop]), dtype=own.dtype) if stop > start else own
            tensor.detach().copy_(found.view_as(own))
            start = stop

    def require_same_rounding(self, numbers: bytes) -> None:
        """Refuse processors that draw or add differently from process 0's: their models would drift apart."""
        remedy = "start all on machines of one kind, or with the same ATEN_CPU_CAPABILITY in the environment"
        self.require_same(numbers, "the processors' rounding", remedy)

    def gather(self, content: bytes) -> list[bytes]:
        """Return the content that each process has, in order."""
        if self.size == 1:
            return [content]
        lengths = [torch.tensor([0]) for _ in range(self.size)]
        self._timed(lambda: dist.all_gather(lengths, torch.tensor([len(content)]), group=self._channel))
        longest = max(1, *(int(length) for length in lengths))
        padded = _as_tensor(content.ljust(longest, b"\0"))
        found = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
        self._timed(lambda: dist.all_gather(found, padded, group=self._channel))
        return [part[: int(length)].numpy().tobytes() for part, length in zip(found, lengths, strict=True)]

    def gather_rows(self, rows: Tensor) -> Tensor:
        """Return the rows that each process has, joined in order; only their number may differ."""
        if self.size == 1:
            return rows
        found = self.gather(rows.detach().cpu().contiguous().numpy().tobytes())
        joined = torch.frombuffer(bytearray(b"".join(found)), dtype=rows.dtype)
        return joined.reshape(-1, *rows.shape[1:]).to(rows.device)

    def require_same(self, content: bytes, what: str, remedy: str = "start all with the same command") -> None:
        """Stop all processes if their ``content`` differs."""
        found = self.gather(content)
        others = [str(rank) for rank, other in enumerate(found) if other != found[0]]
        if others:
            raise GroupError(f"{what} differs between process 0 and {', '.join(others)}; {remedy}")

    def _timed(self, action: Callable[[], object]) -> None:
        start = time.perf_counter()
        try:
            action()
        except RuntimeError as error:
            self.check_launcher()
            raise GroupError(f"process {self.rank} of {self.size} has lost the others: {_cause(error)}") from error
        self.seconds += time.perf_counter() - start


def _cause(error: Exception) -> str:
    """Return the message of a collective's error, without source locations and advice."""
    cause = re.sub(r"\[/\S+\] ", "", first_line(error)).split(". This is")[0]
    return f"{cause}; set BYPE_TIMEOUT to wait for more seconds" if "Timed out" in cause else cause


def _as_tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)


def place_among_processes() -> tuple[int, int]:
    """Return the number of this process and how many there are, as ``torchrun`` sets them.

    Processes that work independently of each other need nothing else.
    """
    try:
        rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        rank, size = -1, 0
    if not 0 <= rank < size:
        raise GroupError("RANK and WORLD_SIZE in the environment make no sense; start processes with torchrun")
    return rank, size


def device_named(name: str) -> torch.device:
    """Return the device of this process: ``cuda`` is a GPU of its own for each process on a machine.

    Examples
    --------
    >>> device_named("cpu")
    device(type='cpu')
    """
    device = None
    with suppress(RuntimeError):
        device = torch.device(name)
    if device is None or device.type not in ("cpu", "cuda"):
        raise GroupError(f"bype does not know the device {name!r}; choose cpu, cuda or cuda:1")
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise GroupError("this PyTorch finds no GPU; choose the device cpu, or install PyTorch for your GPU")
    if device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    if device.index >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise GroupError(f"there is no device cuda:{device.index}; the last one is cuda:{count - 1}")
    torch.cuda.set_device(device)
    return device


def _agree_on_round(store: Store, rank: int, size: int) -> str:
    """Return a name that all processes of this start share, and none of an earlier start has.

    The launcher's store outlives the processes that it restarts, and still holds the addresses of dead ones. Every
    process says hello with its own secret; process 0 answers each hello until all live processes have received it.
    """
    own = secrets.token_hex(8)
    if rank > 0:
        store.set(f"bype/hello/{rank}", own)
        store.wait([f"bype/answer/{rank}/{own}"])
        name: str = store.get(f"bype/answer/{rank}/{own}").decode()
        store.set(f"bype/received/{name}/{rank}", "yes")
        return name
    waiting = set(range(1, size))
    deadline = time.monotonic() + _START_SECONDS
    while waiting:
        for other in sorted(waiting):
            if store.check([f"bype/received/{own}/{other}"]):
                waiting.discard(other)
            elif store.check([f"bype/hello/{other}"]):
                store.set(f"bype/answer/{other}/{store.get(f'bype/hello/{other}').decode()}", own)
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes {sorted(waiting)} did not start in time")
        time.sleep(0.02)
    return own


def _joining_seconds() -> float:
    # Process 0 may wait for a lock whose holder has died, which takes twice the timeout, and the others for process 0.
    return max(_START_SECONDS, 2 * timeout_seconds() + 60)


@contextmanager
def open_group(seconds: float | None = None, device: torch.device | None = None) -> Iterator[Group]:
    """Join the processes that ``torchrun`` started; without it, work alone.

    Parameters
    ----------
    seconds
        How long each process may keep the others waiting; :func:`timeout_seconds` if left out.
    device
        The device that computes, if it is not the CPU; tensors are sent from it.
    """
    rank, size = place_among_processes()
    group = Group(rank, size, launcher() if "TORCHELASTIC_RUN_ID" in os.environ else None)
    if size == 1:
        yield group
        return
    timeout, patience = (datetime.timedelta(seconds=s) for s in (seconds or timeout_seconds(), _joining_seconds()))
    try:
        store, _, _ = next(rendezvous("env://", timeout=patience))
        fresh = PrefixStore(_agree_on_round(store, rank, size), store)
        backend = "cpu:gloo,cuda:nccl" if device is not None and device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=fresh, rank=rank, world_size=size, timeout=patience)
        group._channel = dist.new_group(timeout=timeout)
    except (RuntimeError, ValueError) as error:
        raise GroupError(f"process {rank} of {size} cannot join the others: {_cause(error)}") from error
    try:
        yield group
    finally:
        group._channel = None
        dist.destroy_process_group()
