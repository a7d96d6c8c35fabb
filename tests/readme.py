# SPDX-License-Identifier: AGPL-3.0-only
"""Keep the README's generated parts in step with the product.

    python tests/readme.py

writes the catalogue of findings and the help of every command between their markers, and runs the commands of every
``console`` block to write what they print below them. `test_readme.py` holds the file to all of it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from checkpoints import write_stand_in
from loopback_hub import LoopbackHub, Repo
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner
from valued import expert, fill

from glm5inspect.catalogue import Code
from glm5inspect.cli import app
from glm5inspect.explanations import EXPLANATIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PUBLISHED = "LibertAIDAI/GLM-5.3-Flash-NVFP4"
COMMIT = "9e0d74e3cef17f634e84fb8e2223707e02616290"
README = Path(__file__).parents[1] / "README.md"
SESSION = re.compile(r"(?<=```console\n).*?(?=```)", flags=re.DOTALL)


def catalogue() -> str:
    """Return one Markdown section per finding."""
    sections = []
    for code in Code:
        meaning, cause, remedy = EXPLANATIONS[code]
        sections.append(
            f"#### `{code.value}` ({code.severity.name.lower()})\n\n"
            f"{code.title[0].upper()}{code.title[1:]}. {meaning}\n\n"
            f"- *Usual cause*: {cause}\n"
            f"- *Remedy*: {remedy}\n"
        )
    return "\n".join(sections)


def _command_names(group: TyperGroup, before: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from _command_names(command, f"{before}{name} ")
        else:
            yield f"{before}{name}"


def _program() -> TyperGroup:
    program = get_command(app)
    assert isinstance(program, TyperGroup)
    return program


COMMANDS = sorted(_command_names(_program()))
"""Every command, as it is typed."""


@cache
def help_of(command: str, columns: int = 80) -> str:
    """Return the help of a command, of a group, or with an empty name of the program, for a terminal so wide."""
    environment = {"COLUMNS": str(columns)}
    return CliRunner().invoke(app, [*command.split(), "--help"], prog_name="glm5inspect", env=environment).stdout


def manual() -> str:
    """Return what to unfold for the help of each command."""
    pages = [
        f"<details><summary><code>{f'glm5inspect {command}'.strip()} --help</code></summary>\n\n"
        f"```text\n{help_of(command)}```\n\n</details>\n"
        for command in ("", *COMMANDS)
    ]
    return "\n".join(pages)


GENERATED: dict[str, Callable[[], str]] = {"findings": catalogue, "help": manual}
"""The parts between two markers, and what writes them."""


def with_generated(text: str) -> str:
    """Return the text of a README with its generated parts brought up to date."""
    for name, write in GENERATED.items():
        begin, end = f"<!-- {name}: written by tests/readme.py -->\n", f"<!-- end of {name} -->\n"
        head, found, rest = text.partition(begin)
        _, closed, tail = rest.partition(end)
        assert found, f"no {begin}"
        assert closed, f"no {end}"
        text = f"{head}{begin}\n{write()}\n{end}{tail}"
    return text


def run_session(session: str, folder: Path) -> str:
    """Type the commands of a session, and return them with what they print on standard output and standard error."""
    script = []
    for command in re.findall(r"^\$ (.*)$", session, flags=re.MULTILINE):
        shown = command.replace("'", "'\\''")
        script += [f"(exit $code); printf '%s\\n' '$ {shown}'; (exit $code)", command, "code=$?"]
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "FORCE_COLOR", "TERM")}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    done = subprocess.run(
        ["/bin/bash", "-c", "exec 2>&1; code=0\n" + "\n".join(script)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.stdout


def publishable(folder: Path) -> Path:
    """Write a full-size stand-in of the reference, with values: in layers 5 and 40, up's scales are not gate's."""
    write_stand_in(folder, "reference", shards=120)
    unequal = {
        expert(layer, number, "up_proj", "weight_scale_2"): [0.0123 * (1.1 + number / 1000)]
        for layer in (5, 40)
        for number in range(288)
    }
    return fill(folder, unequal)


def main() -> None:
    """Write the README again."""
    hub = LoopbackHub()
    with tempfile.TemporaryDirectory() as folder:
        stand_in = publishable(Path(folder, "stand-in"))
        hub.repos[PUBLISHED] = Repo(stand_in, commit=COMMIT)
        own = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": f"{folder}/hf", "GLM5INSPECT_CACHE": f"{folder}/headers"}
        os.environ.update(own)
        here = Path(folder, "here")
        here.mkdir()
        text = SESSION.sub(lambda found: run_session(found[0], here), README.read_text())
    README.write_text(with_generated(text))


if __name__ == "__main__":
    main()
