# SPDX-License-Identifier: AGPL-3.0-only
"""A real bash on a terminal of its own, to press the tabulator in."""

from __future__ import annotations

import os
import pty
import select
import subprocess
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SETUP = r"""
bind 'set show-all-if-ambiguous on' 'set completion-query-items 0' 'set page-completions off'
bind 'set enable-bracketed-paste off' 'set bell-style none'
bind -x '"\C-t": printf "<line>%s</line>" "$READLINE_LINE"; READLINE_LINE='
PS1='<ready>'
"""
"""Of several words the common part is inserted, and all are listed at once; Ctrl-T prints the line and empties it."""

PATIENCE = 60.0
"""Seconds without an answer after which something is broken."""


class Completed(NamedTuple):
    """The line as it stands after the tabulator, and what was listed."""

    line: str
    listed: str


class Bash:
    """An interactive bash that has read a script, in a folder."""

    def __init__(self, script: str, folder: Path, environment: Mapping[str, str]) -> None:
        """Start it.

        Args:
            script: What it reads first, as from ``.bashrc``.
            folder: Where it is to stand; a file of its own is left there.
            environment: All of it.
        """
        rc = folder / ".rc"
        rc.write_text(SETUP + script)
        self.terminal, inner = pty.openpty()
        # The first terminal that the leader of a session opens becomes its own.
        start = 'exec bash --noprofile --rcfile "$1" -i <>"$0" >&0 2>&0'
        self.process = subprocess.Popen(
            ["/bin/bash", "-c", start, os.ttyname(inner), str(rc)],
            cwd=folder,
            env={**environment, "INPUTRC": "/dev/null"},
            start_new_session=True,
        )
        self._read_until_ready("")
        os.close(inner)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)

    def complete(self, typed: str) -> Completed:
        """Type a line and the tabulator, and return what that made of it."""
        os.write(self.terminal, typed.encode() + b"\t\x14")
        listed, _, rest = self._read_until_ready("</line>").partition("<line>")
        return Completed(rest.partition("</line>")[0], listed)

    def _read_until_ready(self, after: str) -> str:
        seen = ""
        while not (after in seen and seen.endswith("<ready>")):
            assert select.select([self.terminal], [], [], PATIENCE)[0], f"not ready: {seen!r}"
            seen += os.read(self.terminal, 1 << 16).decode()
        return seen
