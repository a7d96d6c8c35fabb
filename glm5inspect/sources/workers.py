# SPDX-License-Identifier: AGPL-3.0-only
"""Threads that wait for the network, so that the one that has to hear Ctrl-C never does."""

from __future__ import annotations

from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")


class Workers:
    """A fixed number of threads, started as they are needed.

    They are daemons, other than those of an executor of the standard library: an interrupted process ends at once,
    whatever they wait for.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._threads: list[Thread] = []
        self._queue: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def submit(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have something done, and return its coming result; first come, first served."""
        future: Future[T] = Future()

        def work() -> None:
            try:
                future.set_result(function(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - belongs to whoever waits for it
                future.set_exception(error)

        self._queue.put(work)
        if len(self._threads) < self._count:
            thread = Thread(target=self._serve, daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def _serve(self) -> None:
        while True:
            self._queue.get()()
