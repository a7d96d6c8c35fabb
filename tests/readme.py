# SPDX-License-Identifier: AGPL-3.0-only
"""Keep the README's generated parts in step with the product.

    python tests/readme.py

writes the catalogue of findings between its two markers, and runs the commands of every ``console`` block to write what
they print below them. `test_readme.py` holds the file to both.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from checkpoints import write_stand_in
from loopback_hub import LoopbackHub, Repo

from glm5inspect.catalogue import Code
from glm5inspect.explanations import EXPLANATIONS

PUBLISHED = "LibertAIDAI/GLM-5.3-Flash-NVFP4"
COMMIT = "9e0d74e3cef17f634e84fb8e2223707e02616290"
README = Path(__file__).parents[1] / "README.md"
BEGIN = "<!-- findings: written by tests/readme.py -->\n"
END = "<!-- end of findings -->\n"
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


def with_catalogue(text: str) -> str:
    """Return the text of a README with its catalogue brought up to date."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{catalogue()}\n{END}{tail}"


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


def main() -> None:
    """Write the README again."""
    hub = LoopbackHub()
    with tempfile.TemporaryDirectory() as folder:
        stand_in = write_stand_in(Path(folder, "stand-in"), "reference", shards=120)
        hub.repos[PUBLISHED] = Repo(stand_in, commit=COMMIT)
        own = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": f"{folder}/hf", "GLM5INSPECT_CACHE": f"{folder}/headers"}
        os.environ.update(own)
        here = Path(folder, "here")
        here.mkdir()
        text = SESSION.sub(lambda found: run_session(found[0], here), README.read_text())
    README.write_text(with_catalogue(text))


if __name__ == "__main__":
    main()
