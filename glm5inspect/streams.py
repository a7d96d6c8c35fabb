# SPDX-License-Identifier: AGPL-3.0-only
"""The standard streams of a process, any of which may be closed, full, or a pipe whose other end has gone away."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from glm5inspect.errors import OutputError, SourceError
from glm5inspect.report import printable

if TYPE_CHECKING:
    from typing import TextIO


def abandon(stream: TextIO) -> None:
    """Let what could not be written go nowhere; it would be tried again at exit, and complained about."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def write_out(stream: TextIO | None, text: str) -> None:
    """Write to standard output; a reader that has gone away is no error.

    Raises:
        OutputError: It is closed, or the disk is full.
    """
    if stream is None:
        raise OutputError("standard output is closed, so the report went nowhere")
    try:
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a character still gets it
        stream.write(text)
        stream.flush()
    except OSError as error:
        abandon(stream)
        if not isinstance(error, BrokenPipeError):
            raise OutputError(f"standard output: cannot be written: {error.strerror}") from error


def complain(stream: TextIO | None, text: str) -> None:
    """Say one line on standard error, if it is there to be said to; the text may hold anything."""
    tell(stream, f"glm5inspect: {printable(text)}\n")


def tell(stream: TextIO | None, text: str) -> None:
    """Write to standard error as it is, if it is there to be written to."""
    if stream is None:
        return
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        abandon(stream)  # nobody is left to tell; the exit code still speaks


def read_names(stream: TextIO | None) -> list[str]:
    """Read names from standard input, one a line; blank lines do not count.

    Raises:
        SourceError: It is closed, is not UTF-8, or holds no name.
    """
    if stream is None:
        raise SourceError("standard input is closed; give the names as arguments")
    try:
        text = stream.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise SourceError(f"standard input: not UTF-8 at byte {error.start}") from error
    except OSError as error:
        raise SourceError(f"standard input: cannot be read: {error.strerror}") from error
    names = [name for line in text.split("\n") if (name := line.removesuffix("\r")).strip()]
    if not names:
        raise SourceError("standard input: no name in it, so nothing was classified")
    return names
