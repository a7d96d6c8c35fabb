# SPDX-License-Identifier: AGPL-3.0-only
"""The program as a whole: what it says of itself, and what it does beside its commands."""

import os
from typing import Any

from typer.core import TyperGroup

from glm5inspect.options import Exit
from glm5inspect.report import printable
from glm5inspect.shells import teach_shells

WHAT_IT_DOES = """\
glm5inspect accounts for every tensor of a GLM-5.3-Flash checkpoint, from the headers alone.
  glm5inspect verify SOURCE        every check: modules, encodings, quantization config, and the census
  glm5inspect census SOURCE        count everything; an unknown name is an error
  glm5inspect diff A B             what one source has otherwise than the other
  glm5inspect verify-dsa SOURCE    the 14 tensors of every sparse-attention block
  glm5inspect find-mtp SOURCE      the multi-token-prediction layer: is it there, and whole
  glm5inspect show SOURCE [GLOB]   dtype, shape and place of tensors
  glm5inspect classify NAME        what a tensor name is for
  glm5inspect explain CODE         what a finding means, and what to do
SOURCE is a folder of shards, owner/name of the Hub, or snapshot:reference. More: glm5inspect --help"""

_MEANINGS = {
    Exit.OK: "everything was checked, and nothing found",
    Exit.FINDINGS: "findings: the checkpoint is not what it should be",
    Exit.USAGE: "wrong usage",
    Exit.UNANSWERED: "could not answer: something is unreadable, malformed or missing",
    Exit.BUG: "a bug in glm5inspect",
    Exit.INTERRUPTED: "interrupted",
}
EXIT_CODES = "\n  ".join(("\b\nExit codes:", *(f"{code:<4} {_MEANINGS[code]}" for code in Exit)))
"""The end of the help; the first line keeps it from being wrapped."""


def _is_source(word: str) -> bool:
    return bool(set("/.:") & set(word)) or os.path.exists(word)  # noqa: PTH110 - any text


class Group(TyperGroup):
    """The commands; a SOURCE without a command is told which one to put before it."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 - classes of Typer's own Click
        """Find a command, or say what was probably meant."""
        command = super().get_command(ctx, cmd_name)
        if command is None and not ctx.resilient_parsing and _is_source(cmd_name):
            name = printable(cmd_name)
            ctx.fail(f"{name} is not a command. Did you mean: glm5inspect census {name}")
        return command

    def _main_shell_completion(self, *arguments: Any, **more: Any) -> None:  # noqa: ANN401 - the same
        """Answer a shell that asks, in our way: by now Typer has made its own known."""
        teach_shells()
        super()._main_shell_completion(*arguments, **more)
