# SPDX-License-Identifier: AGPL-3.0-only
"""How bash, zsh and fish are told what `glm5inspect.completion` offers, where Typer's own way falls short.

It takes bash's pieces of a word (``snapshot``, ``:``, ``ref``) for words, and knows no ``--option=VALUE``; it puts a
blank behind ``markdown=``; in zsh it leaves the first press of the key unanswered; and for help texts it imports Rich,
which makes every press three times as long.
"""

import os

from typer._click.shell_completion import (
    CompletionItem,
    ShellComplete,
    _resolve_context,
    _resolve_incomplete,
    add_completion_class,
    split_arg_string,
)
from typer._completion_classes import BashComplete, FishComplete, ZshComplete
from typer._completion_shared import _completion_scripts

from glm5inspect.completion import OFFERS

BASH_SCRIPT = """
%(complete_func)s() {
    local IFS=$'\\n'
    COMPREPLY=( $( env COMP_WORDS="${COMP_WORDS[*]}" \\
                   COMP_CWORD=$COMP_CWORD \\
                   %(autocomplete_var)s=complete_bash $1 ) )
    [[ ${#COMPREPLY[@]} == 1 && $COMPREPLY == *[=/] ]] && compopt -o nospace
    return 0
}

complete -o default -F %(complete_func)s %(prog_name)s
"""
"""Typer's script, and a line for words that go on."""

ZSH_SCRIPT = """
#compdef %(prog_name)s

%(complete_func)s() {
  eval $(env _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" %(autocomplete_var)s=complete_zsh %(prog_name)s)
}

compdef %(complete_func)s %(prog_name)s
[[ $zsh_eval_context[-1] == loadautofunc ]] && %(complete_func)s "$@"
"""
"""Typer's script, and a line for the press that loads it."""

GOES_ON = ("=", "/")
"""How a word ends that a blank must not follow."""


def _option_of(word: str) -> str:
    """Return ``--option=`` where a word begins so, else nothing."""
    option, sign, _ = word.partition("=")
    return option + sign if sign and word.startswith("-") else ""


class _Offering(ShellComplete):
    """Asks `OFFERS` first, and what Typer knows by itself after that: commands, options, and their few values."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """Return what may become of a word, without ``--option=`` before it."""
        context = _resolve_context(self.cli, self.ctx_args, self.prog_name, args)
        asked, typed = _resolve_incomplete(context, args, incomplete)
        offer = OFFERS.get(getattr(asked, "metavar", None) or "")
        if offer is None:
            return asked.shell_complete(context, typed)
        words = offer(typed, context.info_name or "")
        return [CompletionItem(word, help=text or None) for word, text in words.items() if word.startswith(typed)]


class _Bash(_Offering, BashComplete):
    """Words are put together again; what is offered begins where the piece does that bash replaces."""

    source_template = BASH_SCRIPT
    option = settled = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor's, and what is typed of that one."""
        place = int(os.environ["COMP_CWORD"])
        pieces = split_arg_string(os.environ["COMP_WORDS"])[: place + 1]
        pieces += [""] * (place + 1 - len(pieces))  # nothing is typed of the last
        words: list[str] = []
        goes_on = False
        for piece in pieces:
            separates = piece != "" and not piece.strip(":=")
            self.settled = words[-1] if words and (goes_on or separates) else ""
            if self.settled:
                words[-1] += piece
            else:
                words.append(piece)
            goes_on = separates
        if goes_on:
            self.settled = words[-1]
        self.option = _option_of(words[-1])
        return words[1:-1], words[-1]

    def format_completion(self, item: CompletionItem) -> str:
        """Return what is to stand in place of the piece."""
        return f"{self.option}{item.value}".removeprefix(self.settled)


class _Zsh(_Offering, ZshComplete):
    """Help texts without Rich; no blank behind a word that goes on."""

    source_template = ZSH_SCRIPT

    def complete(self) -> str:
        """Return commands for zsh to run."""
        args, incomplete = self.get_completion_args()
        items = self.get_completions(args, incomplete)
        # What stands before the last = is settled, of an option as of a format; zsh looks for the rest.
        told = ["compset -P '*='"] if "=" in incomplete else []
        for ending, suffix in ((True, "-S ''"), (False, "")):
            words = [self.format_completion(item) for item in items if item.value.endswith(GOES_ON) is ending]
            if words:
                told.append(f"local -a offered=({' '.join(words)}); _describe '' offered {suffix}")
        return "; ".join([*told, *([] if items else ["_files"])])

    def format_completion(self, item: CompletionItem) -> str:
        """Return a word and its help text as one word of zsh."""
        value = item.value.replace("\\", "\\\\").replace(":", "\\:")
        told = f"{value}:{item.help}" if item.help else value
        return "'" + told.replace("'", "'\\''") + "'"


class _Fish(_Offering, FishComplete):
    """Help texts without Rich; an option stays before its value."""

    option = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor's, and what is typed of that one."""
        args, incomplete = super().get_completion_args()
        self.option = _option_of(incomplete)
        return args, incomplete

    def format_completion(self, item: CompletionItem) -> str:
        """Return a word and its help text, with a tab between them."""
        value = f"{self.option}{item.value}"
        return f"{value}\t{' '.join(item.help.split())}" if item.help else value


def teach_shells() -> None:
    """Put these in the place of Typer's own, which it registers when it builds the command line."""
    classes: dict[str, type[ShellComplete]] = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}
    for name, shell in classes.items():
        add_completion_class(shell, name)
    _completion_scripts.update(bash=BASH_SCRIPT, zsh=ZSH_SCRIPT)
