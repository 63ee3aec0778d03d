"""Requests to stop: SIGINT and SIGTERM ask, and the training loop stops when it can."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Whether this process was asked to stop, and by which signal."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Let SIGINT and SIGTERM ask to stop instead of killing the process; a second SIGINT kills it.

        Only the main thread of a process may listen; in others nothing is changed. A signal that the process ignores
        stays ignored: what a script starts in the background ignores Ctrl-C, which is meant for what runs in front.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, frame: FrameType | None) -> None:
            self.signal = number
            if number == signal.SIGINT:
                signal.signal(signal.SIGINT, signal.default_int_handler)

        kept = (None, signal.SIG_IGN)  # None: a handler of C code, which Python cannot put back
        numbers = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) not in kept]
        previous = {number: signal.signal(number, ask) for number in numbers}
        try:
            yield
        finally:
            for number, old in previous.items():
                signal.signal(number, old)
