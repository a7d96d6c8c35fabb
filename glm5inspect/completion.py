# SPDX-License-Identifier: AGPL-3.0-only
"""What may stand where the cursor is, for the completion of shells; `glm5inspect.shells` tells them.

What the help calls a value decides what is offered for it. Each function gets what is typed of the word and the name of
the command, and returns words with their help texts, empty for none. Where no word begins as typed, the shell offers
paths.
"""

import os
from collections.abc import Callable
from contextlib import suppress

from glm5inspect.catalogue import Code
from glm5inspect.render import Format
from glm5inspect.scope import CHECKS, DIALECT_NAMES, REQUIRED_PARTS

Words = dict[str, str]


def sources(typed: str, _: str) -> Words:
    """Offer the bundled snapshots, and with them the paths that begin alike; paths alone are left to the shell."""
    from glm5inspect.snapshot import bundled_names  # noqa: PLC0415 - not for other words

    snapshots = [word for name in bundled_names() if (word := f"snapshot:{name}").startswith(typed)]
    return dict.fromkeys(snapshots + _paths_here(), "") if snapshots else {}


def _paths_here() -> list[str]:
    """List the current folder: folders end in a slash; hidden are hidden files, and names that no shell could tell."""
    with suppress(OSError), os.scandir() as entries:
        return sorted(
            f"{entry.name}/" if entry.is_dir() else entry.name
            for entry in entries
            if entry.name.isprintable() and not entry.name.startswith(".")
        )
    return []


def codes(_: str, __: str) -> Words:
    """Offer the finding codes, with their titles."""
    return {code.value: code.title for code in Code}


def codes_and_checks(typed: str, command: str) -> Words:
    """Offer the finding codes, and for `verify` its checks."""
    checks = CHECKS if command == "verify" else ()
    return codes(typed, command) | dict.fromkeys(checks, "a check of verify")


def dialects(_: str, __: str) -> Words:
    """Offer the dialects."""
    return dict.fromkeys(DIALECT_NAMES, "")


def parts(typed: str, _: str) -> Words:
    """Offer the parts that can be required and are not yet in the list."""
    before, comma, _ = typed.rpartition(",")
    return {f"{before}{comma}{part}": "" for part in REQUIRED_PARTS if part not in before.split(",")}


def reports(typed: str, _: str) -> Words:
    """Offer the formats; the name of the file is a path."""
    return {} if "=" in typed else {f"{form}=": "" for form in Format}


OFFERS: dict[str, Callable[[str, str], Words]] = {
    "SOURCE": sources,
    "SOURCE...": sources,
    "A": sources,
    "B": sources,
    "[CODE]": codes,
    "CODE": codes_and_checks,
    "CODE[:GLOB]": codes_and_checks,
    "NAME": dialects,
    "PART[,PART]": parts,
    "FORMAT=FILE": reports,
}
"""By the metavar of an argument or option; what has none here is a path, or one of its own few values."""
