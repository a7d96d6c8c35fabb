# SPDX-License-Identifier: AGPL-3.0-only
"""Compare whole processes, side by side: what a census costs beside the loops that people write instead.

    python tests/bench/compare.py [--pairs 9]

Every figure is from start to exit of a process, its output read and thrown away. Two commands are run in turn, A B A B,
and the ratio is taken pair by pair, because the speed of a shared machine drifts; only ratios mean something.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
from loopback_hub import LoopbackHub, Repo

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "model.language_model.layers.3.self_attn.indexer.wk.weight"

SAFE_OPEN = """
import sys
from pathlib import Path
from safetensors import safe_open
for path in sorted(Path(sys.argv[1]).glob("*.safetensors")):
    with safe_open(path, "numpy") as file:
        for name in file.keys():
            tensor = file.get_slice(name)
            print(name, tensor.get_dtype(), tensor.get_shape())
"""
HUB_PER_FILE = """
import sys
from pathlib import Path
from huggingface_hub import parse_local_safetensors_file_metadata
for path in sorted(Path(sys.argv[1]).glob("*.safetensors")):
    for name, tensor in parse_local_safetensors_file_metadata(path).tensors.items():
        print(name, tensor.dtype, tensor.shape)
"""
HUB_DIRECTORY = """
import sys
from huggingface_hub import get_local_safetensors_metadata
for file in get_local_safetensors_metadata(sys.argv[1]).files_metadata.values():
    for name, tensor in file.tensors.items():
        print(name, tensor.dtype, tensor.shape)
"""
HUB_REMOTE = """
import shutil, sys
from huggingface_hub import HfApi
shutil.rmtree(sys.argv[1], ignore_errors=True)
HfApi().get_safetensors_metadata("owner/name")
"""
HUB_OURS = """
import shutil, sys
from glm5inspect.__main__ import main
folder = sys.argv.pop(1)
shutil.rmtree(folder, ignore_errors=True)
main()
"""
BUILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from checkpoints import write_stand_in
from valued import fill
fill(write_stand_in(Path(sys.argv[1]), "reference", shards=120))
"""
BARE_TYPER = """
import typer
app = typer.Typer()
@app.command()
def one(name: str) -> None: print(name)
@app.command()
def two(name: str) -> None: print(name)
app()
"""


class Duel(NamedTuple):
    """Two commands to run in turn, and the ratio that ours should stay within."""

    title: str
    ours: list[str]
    theirs: list[str]
    limit: float


class Cost(NamedTuple):
    """What one process took: wall time in seconds, peak memory in bytes."""

    seconds: float
    peak: int


def remote_duels(hub: LoopbackHub, checkpoint: Path, home: Path) -> Iterator[Duel]:
    """Yield what is compared of a repository, nothing cached; the Hub takes 30 ms to answer."""
    hub.repos["owner/name"] = Repo(checkpoint)
    hub.latency = 0.03
    cached = {"HF_HOME": home / "hf", "GLM5INSPECT_CACHE": home / "headers"}
    os.environ.update({name: str(folder) for name, folder in cached.items()})
    ours = [sys.executable, "-c", HUB_OURS, str(home), "census", "owner/name", "--format", "json"]
    theirs = [sys.executable, "-c", HUB_REMOTE, str(home)]
    yield Duel("census owner/name : hub", ours, theirs, 0.85)
    hub.redirect = True
    yield Duel("the same behind redirects", ours, theirs, 0.65)


def local_duels(checkpoint: Path) -> list[Duel]:
    """List what is compared of a folder."""
    tool = [sys.executable, "-m", "glm5inspect"]
    census = [*tool, "census", str(checkpoint), "--format", "json"]
    loop = [sys.executable, "-c"]
    one, other = "snapshot:official-fp8", "snapshot:nvidia-nvfp4"
    diff = [*tool, "diff", one, other, "--format", "json", "--exit-zero"]
    values = [*tool, "verify", str(checkpoint), "--values", "--format", "json"]
    return [
        Duel("census : safe_open loop", census, [*loop, SAFE_OPEN, str(checkpoint)], 1.6),
        Duel("census : hub, file by file", census, [*loop, HUB_PER_FILE, str(checkpoint)], 1.0),
        Duel("census : hub, directory and index", census, [*loop, HUB_DIRECTORY, str(checkpoint)], 0.65),
        Duel("verify --values : census", values, census, 3),
        Duel("diff A B : census A", diff, [*tool, "census", one, "--format", "json"], 2),
        Duel("--version : bare Typer app", [*tool, "--version"], [*loop, BARE_TYPER, "one", "x"], 1.5),
        Duel("classify NAME : bare Typer app", [*tool, "classify", NAME], [*loop, BARE_TYPER, "one", "x"], 1.5),
    ]


def run(command: list[str]) -> Cost:
    """Run a process to its end and measure it.

    Raises:
        SystemExit: It failed, so there is nothing to compare.
    """
    began = time.perf_counter()
    output = os.open(os.devnull, os.O_WRONLY)
    process = os.posix_spawn(command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, output, 1)])
    _, status, usage = os.wait4(process, 0)
    seconds = time.perf_counter() - began
    os.close(output)
    if status:
        raise SystemExit(f"failed: {' '.join(command)}")
    return Cost(seconds, usage.ru_maxrss * 1024)


def compare(duel: Duel, pairs: int) -> str:
    """Run the two commands in turn, after one unmeasured run of each, and describe the outcome in a line."""
    run(duel.ours)
    run(duel.theirs)
    costs = [(run(duel.ours), run(duel.theirs)) for _ in range(pairs)]
    ratio = statistics.median(ours.seconds / theirs.seconds for ours, theirs in costs)
    ours, theirs = (statistics.median(pair[side].seconds for pair in costs) for side in (0, 1))
    peak = max(pair[0].peak for pair in costs) / (1 << 20)
    return f"{duel.title:34} {ours:8.3f} s {theirs:8.3f} s {ratio:8.2f} {duel.limit:8.2f} {peak:8.0f} MiB"


def main() -> None:
    """Build a full-size stand-in of the reference and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=9, help="how often each pair is run")
    pairs: int = parser.parse_args().pairs
    hub = LoopbackHub()
    os.environ |= {"HF_ENDPOINT": hub.endpoint, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "reference"
        # Built by a process of its own: the peak of a child counts from the memory of the process that started it.
        subprocess.run([sys.executable, "-c", BUILD, str(checkpoint), str(Path(__file__).parents[1])], check=True)
        print(f"{'ours : theirs':34} {'ours':>10} {'theirs':>10} {'ratio':>8} {'limit':>8} {'peak':>12}")
        for duel in chain(local_duels(checkpoint), remote_duels(hub, checkpoint, Path(folder) / "home")):
            print(compare(duel, pairs), flush=True)


if __name__ == "__main__":
    main()
