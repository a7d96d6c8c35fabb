# SPDX-License-Identifier: AGPL-3.0-only
"""The command line as a process: streams that break, signals, permissions, and what the environment asks for."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from checkpoints import Kind, shard_name, tiny, write_checkpoint, write_raw

COMMAND = [sys.executable, "-m", "glm5inspect"]
QUIET = {"COLUMNS", "FORCE_COLOR", "NO_COLOR", "PYTHONIOENCODING", "PYTHONUNBUFFERED", "TERM", "TTY_COMPATIBLE"}

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals, pipes and devices of POSIX")


def environment(**extra: str) -> dict[str, str]:
    """Return the environment without what changes output, and with what shall."""
    return {**{key: value for key, value in os.environ.items() if key not in QUIET}, **extra}


def run(*arguments: str | Path, **extra: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command line in a process of its own."""
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=environment(**extra), check=False)


def shell(command: str, **extra: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command line with the redirections of a shell; ``GLM`` stands for the program."""
    text = re.sub(r"\bGLM\b", shlex.join(COMMAND), command)
    return subprocess.run(["/bin/sh", "-c", text], capture_output=True, env=environment(**extra), check=False)


def one_line(stderr: bytes) -> str:
    """Return the only line of standard error."""
    text = stderr.decode()
    assert text.count("\n") == 1
    assert text.startswith("glm5inspect: ")
    return text


READER_GONE = {
    "healthy": (["show", "snapshot:reference"], 0),
    "unknown name": (["classify", "x" * 200_000], 1),
    "bad usage": (["show"], 2),
    "help": (["--help"], 0),
}


@pytest.mark.parametrize(("arguments", "code"), READER_GONE.values(), ids=READER_GONE)
def test_a_reader_that_goes_away(arguments: list[str], code: int, tmp_path: Path) -> None:
    """As with ``| head -1``: no complaint, and the code of the verdict."""
    if len(arguments[-1]) > 1000:  # longer than an argument may be
        names = tmp_path / "names"
        names.write_text(arguments[-1])
        arguments = ["classify", "-"]
    else:
        names = Path(os.devnull)
    read_end, write_end = os.pipe()
    with names.open("rb") as stdin:
        process = subprocess.Popen(
            [*COMMAND, *arguments], stdin=stdin, stdout=write_end, stderr=subprocess.PIPE, env=environment()
        )
        os.close(write_end)
        os.close(read_end)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == code
    assert (b"" if code != 2 else b"Missing argument") in stderr
    assert b"Traceback" not in stderr
    assert code == 2 or stderr == b""


BROKEN = {
    "report, stdout closed": ("GLM classify lm_head.weight >&-", 3, "standard output is closed"),
    "report, disk full": ("GLM classify lm_head.weight >/dev/full", 3, "No space left"),
    "large report, disk full": ("GLM show snapshot:reference >/dev/full", 3, "No space left"),
    "file, disk full": ("GLM classify lm_head.weight --output /dev/full", 3, "/dev/full: cannot be written: No space"),
    "help, disk full": ("GLM --help >/dev/full", 3, "No space left"),
    "version, disk full": ("GLM --version >/dev/full", 3, "No space left"),
    "no command, disk full": ("GLM >/dev/full", 3, "No space left"),
    "stdin closed": ("GLM classify - <&-", 3, "standard input is closed"),
    "stdin is write-only": ("GLM classify - 0>/dev/null", 3, "standard input: cannot be read: Bad file descriptor"),
    "no such folder": ("GLM classify lm_head.weight --output /nowhere/x", 3, "/nowhere/x: cannot be written: No such"),
    "output is a folder": ("GLM classify lm_head.weight --output /", 3, "/: cannot be written: Is a directory"),
    "snapshot to nowhere": ("GLM record snapshot:reference -o /nowhere/x", 3, "/nowhere/x: cannot be written: No such"),
}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize(("command", "code", "message"), BROKEN.values(), ids=BROKEN)
def test_a_stream_that_is_no_use(command: str, code: int, message: str) -> None:
    """Could not answer: one line says what could not be written or read, and nothing is added at exit."""
    done = shell(command)
    assert (done.returncode, done.stdout) == (code, b"")
    assert message in one_line(done.stderr)


SILENCED = {
    "refusal, closed": ("GLM census /nowhere 2>&-", 3),
    "refusal, full": ("GLM census /nowhere 2>/dev/full", 3),
    "usage, full": ("GLM census 2>/dev/full", 2),
    "census, closed": ("GLM census snapshot:reference --quiet 2>&- >/dev/null", 0),
    "everything closed": ("GLM classify lm_head.weight <&- >&- 2>&-", 3),
    "everything full": ("GLM --version >/dev/full 2>/dev/full", 3),
}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize(("command", "code"), SILENCED.values(), ids=SILENCED)
def test_without_standard_error_the_code_still_speaks(command: str, code: int) -> None:
    """The exit code does not depend on whether anybody can be told why."""
    done = shell(command)
    assert (done.returncode, done.stdout, done.stderr) == (code, b"", b"")


WAITING = """
import io, sys
from glm5inspect.__main__ import main

class Telling(io.BufferedReader):
    def read(self, size=-1):
        print("waiting", flush=True)
        return super().read(size)

sys.stdin = io.TextIOWrapper(Telling(sys.stdin.buffer.detach()))
sys.argv = ["glm5inspect", "classify", "-"]
main()
"""

STARTING = """
import sys
from glm5inspect.__main__ import main

def wait(event, arguments):
    if event == "import" and arguments[0] == "glm5inspect.cli":
        print("waiting", flush=True)
        sys.stdin.read()

sys.addaudithook(wait)
main()
"""


@pytest.mark.parametrize("code", [WAITING, STARTING], ids=["waiting for names", "starting"])
def test_an_interrupt_ends_quietly(code: str) -> None:
    """Ctrl-C: 130, and no traceback; the process says when it waits, and nothing ever comes."""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout
    assert process.stdout.readline() == b"waiting\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert process.communicate() == (b"", b"")


BUG = """
import sys
import glm5inspect.census
glm5inspect.census.take_census = lambda *_, **__: 1 / 0
from glm5inspect.__main__ import main
sys.argv = ["glm5inspect", "census", "snapshot:reference"]
main()
"""


@pytest.mark.parametrize("stderr", ["", " 2>&-", " 2>/dev/full"], ids=["heard", "closed", "full"])
def test_a_bug_is_a_bug(stderr: str) -> None:
    """A defect of the program exits 70 with a traceback, and never looks like findings."""
    done = shell(f"{shlex.join([sys.executable, '-c', BUG])}{stderr}")
    assert (done.returncode, done.stdout) == (70, b"")
    assert (b"ZeroDivisionError" in done.stderr) == (stderr == "")


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A folder with things that are named like shards and are none."""
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "device.safetensors").symlink_to("/dev/zero")
    (tmp_path / "folder.safetensors").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("pipe.safetensors", "a pipe, not a regular file"),
        ("device.safetensors", "a character device, not a regular file"),
        ("", "folder.safetensors: a directory, not a regular file"),
    ],
    ids=["pipe", "device", "all"],
)
def test_what_is_no_file_is_not_read(name: str, what: str, odd: Path) -> None:
    """A pipe would block and a device never end: both are named, with a report and 3."""
    done = run("census", odd / name)
    assert (done.returncode, done.stderr) == (3, b"")
    assert what in done.stdout.decode()
    assert done.stdout.decode().splitlines()[-1].startswith("INCOMPLETE: ")


def test_a_malformed_shard_is_reported_and_leaves_the_answer_open(checkpoint: Path) -> None:
    """A report about what could be read, and 3 although nothing shall fail."""
    write_raw(checkpoint / shard_name(1, 3), b"[]")
    done = run("census", checkpoint, "--exit-zero")
    assert (done.returncode, done.stderr) == (3, b"")
    assert f"error header-json: {shard_name(1, 3)}: " in done.stdout.decode()


AS_NOBODY = """
import importlib, os, pkgutil, sys
import glm5inspect
from glm5inspect.__main__ import main

for module in pkgutil.walk_packages(glm5inspect.__path__, "glm5inspect."):
    importlib.import_module(module.name)  # where Python is, nobody may be unable to read
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
main()
"""


def as_nobody(*arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    """Run a command line as somebody whom permissions stop; root is not."""
    command = [sys.executable, "-c", AS_NOBODY, *map(str, arguments)]
    measured = {key: "" for key in os.environ if key.startswith("COVERAGE")}  # by whom nobody may not report to
    return subprocess.run(command, capture_output=True, env=environment(**measured), check=False)


@pytest.mark.parametrize("inner", ["", "checkpoint"], ids=["itself", "its parent"])
def test_a_folder_without_permission(inner: str) -> None:
    """One line, and nothing on standard output; pytest's own folders are closed to nobody, so it is not one of them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "closed")
        write_checkpoint(folder / "checkpoint", tiny())
        Path(name).chmod(0o755)
        folder.chmod(0)
        done = as_nobody("census", folder / inner)
        folder.chmod(0o700)
    assert (done.returncode, done.stdout) == (3, b"")
    assert f"{folder / inner}: " in (line := one_line(done.stderr))
    assert "Permission denied" in line


def test_a_shard_without_permission(checkpoint: Path) -> None:
    """The others are read, and the report says which one could not be."""
    with tempfile.TemporaryDirectory() as name:
        folder = shutil.copytree(checkpoint, Path(name, "checkpoint"))
        Path(name).chmod(0o755)
        folder.chmod(0o755)
        (folder / shard_name(2, 3)).chmod(0)
        done = as_nobody("census", folder)
    assert (done.returncode, done.stderr) == (3, b"")
    assert f"error header-unreadable: {shard_name(2, 3)}: Permission denied\n" in done.stdout.decode()


def test_an_output_without_permission() -> None:
    """A file that may not be written is one line as well."""
    done = as_nobody("classify", "lm_head.weight", "--output", "/report")
    assert (done.returncode, done.stdout) == (3, b"")
    assert "/report: cannot be written: Permission denied" in one_line(done.stderr)


def test_the_current_folder_is_gone(tmp_path: Path) -> None:
    """A relative SOURCE means nothing then: one line, 3."""
    gone = tmp_path / "gone"
    gone.mkdir()
    done = shell(f"cd {gone} && rmdir {gone} && GLM census .")
    assert (done.returncode, done.stdout) == (3, b"")
    assert "the current folder is not there any more" in one_line(done.stderr)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A healthy tiny checkpoint, not to be written to."""
    return write_checkpoint(tmp_path_factory.mktemp("tiny") / "checkpoint", tiny())


COLOURS: dict[str, tuple[dict[str, str], bool, bool]] = {
    "a pipe": ({}, False, False),
    "FORCE_COLOR": ({"FORCE_COLOR": "1"}, True, True),
    "FORCE_COLOR and NO_COLOR": ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, True),
    "FORCE_COLOR on a dumb terminal": ({"FORCE_COLOR": "1", "TERM": "dumb"}, False, False),
}


@pytest.mark.parametrize(("extra", "colour", "styled"), COLOURS.values(), ids=COLOURS)
def test_colours(extra: dict[str, str], colour: bool, styled: bool, healthy: Path) -> None:  # noqa: FBT001
    """Colours come when they are asked for and can be shown; no colour may still be bold."""
    text = run("census", healthy, **extra).stdout.decode()
    codes = {code for match in re.findall(r"\x1b\[([0-9;]*)m", text) for code in match.split(";")}
    assert bool(codes & {str(number) for number in range(30, 38)}) == colour
    assert bool(codes) == styled


WIDTHS: dict[str, tuple[dict[str, str], int | None]] = {
    "none": ({}, None),
    "80": ({"COLUMNS": "80"}, 80),
    "fewer than a table needs": ({"COLUMNS": "30"}, 72),
    "100": ({"COLUMNS": "100"}, 100),
    "colours": ({"FORCE_COLOR": "1"}, None),
    "empty": ({"COLUMNS": ""}, None),
    "zero": ({"COLUMNS": "0"}, None),
    "a word": ({"COLUMNS": "wide"}, None),
    "a digit that is none": ({"COLUMNS": "²"}, None),
    "endless": ({"COLUMNS": "9" * 5000}, None),
}


@pytest.mark.parametrize(("extra", "width"), WIDTHS.values(), ids=WIDTHS)
def test_columns(extra: dict[str, str], width: int | None, healthy: Path, tmp_path: Path) -> None:
    """Off a terminal tables end where COLUMNS says, and nowhere when it says nothing of use; names are never cut."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", run("census", healthy, "--layers", **extra).stdout.decode())
    longest = max(len(line) for line in text.splitlines() if line.startswith(" "))
    assert longest <= width if width else longest > 85
    name = "model.language_model.layers.3.self_attn.an_attention_tensor_that_nobody_knows_and_that_has_a_long_name"
    stray = write_checkpoint(tmp_path, tiny() | {name: Kind("U8", (1,))})
    unclaimed = run("verify-dsa", stray, "--quiet", **extra).stdout.decode()
    assert f": {name}: no row" in re.sub(r"\x1b\[[0-9;]*m", "", unclaimed)


def test_an_ascii_terminal_gets_escapes(healthy: Path) -> None:
    """What standard output cannot encode is escaped, and nothing is lost."""
    done = run("classify", "t\u00eate.weight", PYTHONIOENCODING="ascii")
    assert done.stderr == b""
    assert b"\nt\\xeate.weight  unknown" in done.stdout
    done = run("census", healthy, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\u" not in done.stdout
    assert done.stdout.isascii()


def test_the_console_script_is_the_module() -> None:
    """`glm5inspect` and `python -m glm5inspect` are the same program."""
    script = Path(sys.executable).parent / "glm5inspect"
    done = subprocess.run([script, "--version"], capture_output=True, check=False)
    assert done.stdout == run("--version").stdout
