"""Signals around a call of C that calls back into Python."""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable


class DeferredSignals:
    """An exception of a signal's handler is kept in `raised` meanwhile, but for when `listening` is set: then it is
    raised at once.

    Python runs handlers between any two of its steps, also before the first step of a callback: there ctypes would
    print what they raise and go on. Signals are the main thread's; in another one there is nothing to do.
    """

    def __init__(self, raised: list[BaseException]) -> None:
        self.raised, self.listening = raised, False
        # those before, and those in their place
        self._handlers: dict[int, tuple[Callable[..., object], Callable[..., object]]] = {}

    def __enter__(self) -> DeferredSignals:
        if threading.current_thread() is not threading.main_thread():
            return self
        try:
            for number in signal.valid_signals():
                if callable(before := signal.getsignal(number)):
                    self._handlers[number] = before, functools.partial(self._handle, before)
                    signal.signal(number, self._handlers[number][1])
        except BaseException:  # of a signal that had its own handler still
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._restore()
        finally:  # where a signal came between
            self._restore()

    def _restore(self) -> None:
        for number, (before, in_place) in self._handlers.items():
            if signal.getsignal(number) is in_place:  # else a callback has set another one
                signal.signal(number, before)

    def _handle(self, before: Callable[..., object], number: int, frame: object) -> None:
        try:
            before(number, frame)
        except BaseException as error:
            if self.listening:
                raise
            self.raised.append(error)
