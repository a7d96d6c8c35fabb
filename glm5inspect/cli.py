# SPDX-License-Identifier: AGPL-3.0-only
"""The command line: parse, one library call, render, exit. No rule about tensors and no format stands here."""

import errno
import gc
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from glm5inspect import __version__
from glm5inspect.catalogue import BY_SLUG, Code, Severity
from glm5inspect.errors import Glm5InspectError
from glm5inspect.render import Format, View, render
from glm5inspect.report import Policy, Report, Waiver, printable
from glm5inspect.streams import abandon, complain, read_names, tell, write_out

WHAT_IT_DOES = """\
glm5inspect accounts for every tensor of a GLM-5.3-Flash checkpoint, from the headers alone.

  glm5inspect census SOURCE        count and check everything; an unknown name is an error
  glm5inspect verify-dsa SOURCE    the 14 tensors of every sparse-attention block
  glm5inspect find-mtp SOURCE      the multi-token-prediction layer: is it there, and whole
  glm5inspect show SOURCE [GLOB]   dtype, shape and place of tensors
  glm5inspect classify NAME        what a tensor name is for

SOURCE is a folder of shards, one .safetensors file, or snapshot:reference. More: glm5inspect --help"""


class Exit(IntEnum):
    """What the exit code says."""

    OK = 0
    FINDINGS = 1
    USAGE = 2
    UNANSWERED = 3
    BUG = 70
    INTERRUPTED = 130


class FailOn(StrEnum):
    """The least severity that makes the answer *no*."""

    ERROR = "error"
    WARNING = "warning"
    NEVER = "never"


class _Group(TyperGroup):
    """The commands; a SOURCE without a command is told which one to put before it."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 - classes of Typer's own Click
        """Find a command, or say what was probably meant."""
        command = super().get_command(ctx, cmd_name)
        if command is None and (set("/.:") & set(cmd_name) or os.path.exists(cmd_name)):  # noqa: PTH110 - any text
            name = printable(cmd_name)
            ctx.fail(f"{name} is not a command. Did you mean: glm5inspect census {name}")
        return command


app = typer.Typer(
    cls=_Group,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:  # noqa: FBT001 - the form Typer asks for
    if asked:
        typer.echo(f"glm5inspect {__version__}")
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
]


@app.callback(invoke_without_command=True)
def _root(context: typer.Context, version: VersionOption = False) -> None:  # noqa: ARG001, FBT002 - Typer's form
    """Account for every tensor of a GLM-5.3-Flash checkpoint before anyone loads a byte.

    Exit codes: 0 everything was checked and nothing found; 1 findings; 2 wrong usage; 3 could not answer (unreadable,
    malformed, missing); 70 a bug in glm5inspect; 130 interrupted.
    """
    if context.invoked_subcommand is None:
        typer.echo(WHAT_IT_DOES)
        raise typer.Exit(Exit.USAGE)


def _not_empty(value: str | None) -> str | None:
    """Refuse an empty SOURCE: an unset variable in a script must not pass as something else."""
    if value is not None and not value.strip():
        raise typer.BadParameter("is empty; give a folder, a file, snapshot:NAME or owner/name")
    return value


def _source_help(what: str) -> str:
    return f"{what}: a folder, a .safetensors or index file, a snapshot file, or snapshot:NAME."


SourceArgument = Annotated[
    str, typer.Argument(metavar="SOURCE", callback=_not_empty, help=_source_help("What to look at"))
]
SubfolderOption = Annotated[
    str | None, typer.Option("--subfolder", metavar="PATH", help="Where the model is below SOURCE.")
]

FormatOption = Annotated[Format, typer.Option("--format", "-f", help="How to write the report.")]
OutputOption = Annotated[
    str | None, typer.Option("--output", "-o", metavar="FILE", help="Write the report to FILE, whole or not at all.")
]
FailOnOption = Annotated[FailOn, typer.Option("--fail-on", help="The least severity that makes the exit code 1.")]
ExitZeroOption = Annotated[bool, typer.Option("--exit-zero", help="The same as --fail-on never.")]
SelectOption = Annotated[
    list[str] | None, typer.Option("--select", metavar="CODE", help="Report only findings of CODE; repeatable.")
]
IgnoreOption = Annotated[
    list[str] | None,
    typer.Option("--ignore", metavar="CODE[:GLOB]", help="Waive findings of CODE, on tensors like GLOB; repeatable."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print only findings and the verdict.")]


def _common(
    fmt: FormatOption = Format.TABLE,
    output: OutputOption = None,
    fail_on: FailOnOption = FailOn.ERROR,
    exit_zero: ExitZeroOption = False,  # noqa: FBT002
    select: SelectOption = None,
    ignore: IgnoreOption = None,
    quiet: QuietOption = False,  # noqa: FBT002
    version: VersionOption = False,  # noqa: ARG001, FBT002 - answered by its callback
) -> "Run":
    """Turn the common options into what a command needs of them."""
    fail = None if exit_zero or fail_on is FailOn.NEVER else Severity[fail_on.name]
    waivers = []
    for text in ignore or ():
        slug, _, glob = text.partition(":")
        waivers.append(Waiver(_code(slug, "--ignore"), glob or None))
    chosen = frozenset(_code(slug, "--select") for slug in select or ())
    return Run(fmt, output, Policy(chosen, tuple(waivers), fail), quiet)


def _code(slug: str, option: str) -> Code:
    if slug in BY_SLUG:
        return BY_SLUG[slug]
    from difflib import get_close_matches

    close = get_close_matches(slug, BY_SLUG, n=1)
    hint = f"did you mean {close[0]}?" if close else "glm5inspect explain lists them"
    raise typer.BadParameter(f"{printable(slug)!r} is not a finding code; {hint}", param_hint=option)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a command: where its report goes, and what makes it fail."""

    fmt: Format
    output: str | None
    policy: Policy
    quiet: bool

    def finish(self, report: Report, *, snapshot: tuple[str, str] | None = None) -> NoReturn:
        """Judge the report, write it, and exit.

        Args:
            report: What the command answered.
            snapshot: A further file and its text, written only when the verdict is good.
        """
        from glm5inspect.output import write_file

        judged = report.judged(self.policy)
        if snapshot and judged.ok:
            write_file(*snapshot)
        code = Exit.OK if judged.ok else Exit.FINDINGS if judged.complete else Exit.UNANSWERED
        if self.output is not None:
            write_file(self.output, render(judged, self.fmt, View(None, self.quiet)))
        else:
            write_out(sys.stdout, render(judged, self.fmt, View(sys.stdout, self.quiet)))
        raise typer.Exit(code)


def _command(name: str, *, without: tuple[str, ...] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command whose first parameter is a `Run`, and give it the common options, but for some."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        common = inspect.signature(_common).parameters
        shared = [parameter for key, parameter in common.items() if key not in without]
        _, *own = inspect.signature(function).parameters.values()

        def call(**values: Any) -> None:  # noqa: ANN401 - what Typer parsed, by name
            run = _common(**{parameter.name: values.pop(parameter.name) for parameter in shared})
            try:
                function(run, **values)
            except Glm5InspectError as error:
                complain(sys.stderr, str(error))
                raise typer.Exit(Exit.UNANSWERED) from error

        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own, *shared)]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # what Typer reads
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        call.__doc__ = function.__doc__
        app.command(name)(call)
        return function

    return register


@_command("census")
def census(
    run: Run,
    source: SourceArgument,
    subfolder: SubfolderOption = None,
    patterns: Annotated[bool, typer.Option("--patterns", help="List every pattern.")] = False,  # noqa: FBT002
    layers: Annotated[bool, typer.Option("--layers", help="List every layer.")] = False,  # noqa: FBT002
    against: Annotated[
        str | None,
        typer.Option(
            "--against", metavar="SOURCE", callback=_not_empty, help="Compare with this source, name by name."
        ),
    ] = None,
) -> None:
    """Count every tensor, give each a role, and check headers and index.

    A name that no rule teaches is an error, as is whatever headers, files and index say against each other.

    Example: glm5inspect census ./GLM-5.3-Flash-NVFP4 --against snapshot:reference
    """
    from glm5inspect.census import take_census
    from glm5inspect.render.progress import ShardProgress
    from glm5inspect.resolve import open_source

    other = open_source(against) if against else None
    with ShardProgress(sys.stderr) as progress:
        opened = open_source(source, subfolder=subfolder)
        report = take_census(opened, patterns=patterns, layers=layers, against=other, progress=progress)
    run.finish(report)


@_command("classify")
def classify(
    run: Run,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="Tensor names, or - to read them line by line.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="SOURCE", callback=_not_empty, help="Classify every name of this source."),
    ] = None,
) -> None:
    """Say what tensor names are for.

    Example: glm5inspect classify model.language_model.layers.3.self_attn.indexer.wk.weight
    """
    from glm5inspect.classification import classify_names, classify_source

    if bool(names) == bool(source):
        raise typer.BadParameter("give tensor names, - for standard input, or --from SOURCE", param_hint="NAMES")
    if source:
        from glm5inspect.render.progress import ShardProgress
        from glm5inspect.resolve import open_source

        with ShardProgress(sys.stderr) as progress:
            report = classify_source(open_source(source), progress=progress)
        run.finish(report)
    run.finish(classify_names(read_names(sys.stdin) if names == ["-"] else names or ()))


@_command("verify-dsa")
def verify_dsa(
    run: Run,
    source: SourceArgument,
    subfolder: SubfolderOption = None,
    layers: Annotated[
        list[int] | None, typer.Option("--layer", metavar="I", min=0, help="Check only this layer; repeatable.")
    ] = None,
) -> None:
    """Check the 14 tensors of every DSA block: there, dtype, shape, bytes, and nothing more.

    Example: glm5inspect verify-dsa ./GLM-5.3-Flash-NVFP4 --layer 45
    """
    from glm5inspect.dsa import verify_dsa as verify
    from glm5inspect.render.progress import ShardProgress
    from glm5inspect.resolve import open_source

    with ShardProgress(sys.stderr) as progress:
        report = verify(open_source(source, subfolder=subfolder), layers=layers or (), progress=progress)
    run.finish(report)


@_command("find-mtp")
def find_mtp(run: Run, source: SourceArgument, subfolder: SubfolderOption = None) -> None:
    """Locate the multi-token-prediction layer by its names, and check that it is whole and in its place.

    Example: glm5inspect find-mtp ./GLM-5.3-Flash-NVFP4
    """
    from glm5inspect.mtp import find_mtp as find
    from glm5inspect.render.progress import ShardProgress
    from glm5inspect.resolve import open_source

    with ShardProgress(sys.stderr) as progress:
        report = find(open_source(source, subfolder=subfolder), progress=progress)
    run.finish(report)


@_command("show")
def show(
    run: Run,
    source: SourceArgument,
    globs: Annotated[
        list[str] | None, typer.Argument(metavar="[GLOB]...", help="Globs on whole names; none means all.")
    ] = None,
    subfolder: SubfolderOption = None,
) -> None:
    """List the tensors whose names match: dtype, shape, bytes, role, shard, and byte span in the file.

    Example: glm5inspect show ./GLM-5.3-Flash-NVFP4 '*.layers.45.*norm*'
    """
    from glm5inspect.listing import show as list_tensors
    from glm5inspect.render.progress import ShardProgress
    from glm5inspect.resolve import open_source

    with ShardProgress(sys.stderr) as progress:
        report = list_tensors(open_source(source, subfolder=subfolder), globs or (), progress=progress)
    run.finish(report)


@_command("record", without=("output",))
def record(
    run: Run,
    source: SourceArgument,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="The snapshot file to write.")],
    subfolder: SubfolderOption = None,
    provenance: Annotated[str | None, typer.Option(help="One sentence: how the inventory was obtained.")] = None,
    repo: Annotated[str | None, typer.Option(metavar="OWNER/NAME", help="The repository recorded.")] = None,
    revision: Annotated[str | None, typer.Option(help="The commit recorded.")] = None,
    recorded: Annotated[str | None, typer.Option(metavar="YYYY-MM-DD", help="The day, else today.")] = None,
) -> None:
    """Write the inventory of a source as a snapshot file; nothing is written unless the verdict is good.

    Example: glm5inspect record ./GLM-5.3-Flash-NVFP4 --output mine.json --repo me/mine
    """
    from datetime import UTC, datetime

    from glm5inspect.recording import record as take
    from glm5inspect.render.progress import ShardProgress
    from glm5inspect.resolve import open_source

    with ShardProgress(sys.stderr) as progress:
        report, text = take(
            open_source(source, subfolder=subfolder),
            today=datetime.now(UTC).date().isoformat(),
            repo=repo,
            revision=revision,
            recorded=recorded,
            provenance=provenance,
            progress=progress,
        )
    run.finish(report, snapshot=None if text is None else (output, text))


@_command("explain", without=("fail_on", "exit_zero", "select", "ignore", "quiet"))
def explain(
    run: Run,
    code: Annotated[str | None, typer.Argument(metavar="[CODE]", help="A finding code; none lists all.")] = None,
) -> None:
    """Explain a finding: what it means, how it usually comes about, what to do.

    Example: glm5inspect explain dsa-shape
    """
    from glm5inspect.explain import explain as explain_codes

    run.finish(explain_codes(() if code is None else (_code(code, "CODE"),)))


def _could_not_print(error: OSError) -> int:
    """Give up on what Typer wanted to print: why the usage is wrong, or help, or the version."""
    usage: int | None = getattr(error.__context__, "exit_code", None)
    if usage is not None:
        abandon(sys.stderr)
        return usage
    abandon(sys.stdout)
    complain(sys.stderr, f"standard output: cannot be written: {error.strerror}")
    return Exit.UNANSWERED


def run() -> int:
    """Run the command line and return its exit code."""
    # A census makes a million objects and no cycle; the collector would only look at them again and again.
    gc.disable()
    try:
        app()
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):
            return Exit.OK  # who asked for help has read enough; Typer says 1
        return error.code if isinstance(error.code, int) else Exit.OK
    except Exception as error:  # noqa: BLE001 - a bug must not exit 1, which says "findings"
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EPIPE):
            return _could_not_print(error)
        tell(sys.stderr, traceback.format_exc())
        return Exit.BUG
    return Exit.OK
