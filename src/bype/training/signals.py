"""Requests to stop: SIGINT and SIGTERM ask, and the training loop stops when it can."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from bype.system import replaceable


class StopRequest:
    """Whether this process was asked to stop, and by which signal."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Let SIGINT and SIGTERM ask to stop instead of killing the process; a second SIGINT kills it.

        Only the main thread of a process may listen; in others nothing is changed. A signal that the process ignores
        stays ignored.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, frame: FrameType | None) -> None:
            self.signal = number
            if number == signal.SIGINT:
                signal.signal(signal.SIGINT, signal.default_int_handler)

        previous = {number: signal.signal(number, ask) for number in replaceable((signal.SIGINT, signal.SIGTERM))}
        try:
            yield
        finally:
            for number, old in previous.items():
                signal.signal(number, old)
