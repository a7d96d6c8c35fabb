# SPDX-License-Identifier: AGPL-3.0-only
"""A progress bar on standard error, for work that takes long enough to wonder."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self, TextIO

from glm5inspect.report import printable
from glm5inspect.streams import complain

if TYPE_CHECKING:
    from types import TracebackType

    from rich.progress import Progress

PATIENCE = 1.0
"""Seconds before a bar appears; a full local census takes less."""


class ShardProgress:
    """Count the shards read; show a bar when it takes long and the stream is a terminal.

    Use it as a context manager and pass it as the ``progress`` callback.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._errors = stream
        self._stream = stream if stream is not None and stream.isatty() else None
        self._began = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        """Start counting."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Take the bar away."""
        if self._bar:
            self._bar.stop()

    def note(self, text: str) -> None:
        """Say one line on the stream, terminal or not, above the bar if there is one."""
        if self._bar:
            self._bar.console.print(f"glm5inspect: {printable(text)}", markup=False, highlight=False, emoji=False)
        else:
            complain(self._errors, text)

    def __call__(self, done: int, total: int, nbytes: int) -> None:
        """Report that ``done`` of ``total`` shards are read, and how many bytes of headers that was."""
        if self._stream is None or time.monotonic() - self._began < PATIENCE:
            return
        if self._bar is None:
            self._bar = self._start(self._stream)
        self._bar.update(self._bar.task_ids[0], completed=done, total=total, read=f"{nbytes / 1e6:.1f} MB")

    def _start(self, stream: TextIO) -> Progress:
        from rich.console import Console  # noqa: PLC0415 - only when a bar is wanted
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: PLC0415

        bar = Progress(
            TextColumn("reading"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[read]}"),
            console=Console(file=stream),
            transient=True,
        )
        bar.add_task("shards", read="")
        bar.start()
        return bar
