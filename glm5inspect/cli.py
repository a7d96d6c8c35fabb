# SPDX-License-Identifier: AGPL-3.0-only
"""The command line: parse, one library call, render, exit. No rule about tensors and no format stands here."""

import errno
import gc
import os
import sys
import traceback
from datetime import UTC, datetime
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from glm5inspect.options import (
    CacheDirOption,
    DialectOption,
    Exit,
    Run,
    ScopeOption,
    SourceArgument,
    Sources,
    SubfolderOption,
    VersionOption,
    check_label,
    check_output,
    check_parts,
    command,
    find_code,
    refuse_empty_source,
    source_help,
)
from glm5inspect.report import printable
from glm5inspect.scope import Scope
from glm5inspect.streams import abandon, complain, read_names, tell

WITHOUT_POLICY = ("fail_on", "exit_zero", "select", "ignore", "quiet")
"""The options of a command that has a verdict."""

WHAT_IT_DOES = """\
glm5inspect accounts for every tensor of a GLM-5.3-Flash checkpoint, from the headers alone.
  glm5inspect verify SOURCE        every check: modules, encodings, quantization config, and the census
  glm5inspect census SOURCE        count everything; an unknown name is an error
  glm5inspect verify-dsa SOURCE    the 14 tensors of every sparse-attention block
  glm5inspect find-mtp SOURCE      the multi-token-prediction layer: is it there, and whole
  glm5inspect show SOURCE [GLOB]   dtype, shape and place of tensors
  glm5inspect classify NAME        what a tensor name is for
  glm5inspect explain CODE         what a finding means, and what to do

SOURCE is a folder of shards, owner/name of the Hub, or snapshot:reference. More: glm5inspect --help"""


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


@app.callback(invoke_without_command=True)
def _root(context: typer.Context, version: VersionOption = False) -> None:  # noqa: ARG001, FBT002 - Typer's form
    """Account for every tensor of a GLM-5.3-Flash checkpoint before anyone loads a byte.

    Exit codes: 0 everything was checked and nothing found; 1 findings; 2 wrong usage; 3 could not answer (unreadable,
    malformed, missing); 70 a bug in glm5inspect; 130 interrupted.
    """
    if context.invoked_subcommand is None:
        typer.echo(WHAT_IT_DOES)
        raise typer.Exit(Exit.USAGE)


@command(app, "census")
def census(
    run: Run,
    sources: Sources,
    source: SourceArgument,
    subfolder: SubfolderOption = None,
    patterns: Annotated[bool, typer.Option("--patterns", help="List every pattern.")] = False,  # noqa: FBT002
    layers: Annotated[bool, typer.Option("--layers", help="List every layer.")] = False,  # noqa: FBT002
    against: Annotated[
        str | None,
        typer.Option(
            "--against", metavar="SOURCE", callback=refuse_empty_source, help="Compare with this source, name by name."
        ),
    ] = None,
    dialect: DialectOption = None,
    scope: ScopeOption = Scope.AUTO,
) -> None:
    """Count every tensor, give each a role, and check headers and index.

    A name that no rule teaches is an error, as is whatever headers, files and index say against each other.

    Example: glm5inspect census ./GLM-5.3-Flash-NVFP4 --against snapshot:reference
    """
    from glm5inspect.census import take_census
    from glm5inspect.render.progress import ShardProgress

    with ShardProgress(sys.stderr) as progress:
        other = sources.open_other(against, progress) if against else None
        opened = sources.open(source, progress, subfolder=subfolder)
        wanted = {"patterns": patterns, "layers": layers}
        report = take_census(opened, **wanted, against=other, scope=scope, dialect=dialect, progress=progress)
    run.finish(report, other=other.info if other else None)


@command(app, "diff")
def diff(
    run: Run,
    sources: Sources,
    source: Annotated[str, typer.Argument(metavar="A", callback=refuse_empty_source, help=source_help("The first"))],
    other: Annotated[str, typer.Argument(metavar="B", callback=refuse_empty_source, help="The second, likewise.")],
    subfolder: SubfolderOption = None,
    rename: Annotated[
        list[str] | None,
        typer.Option("--rename", metavar="OLD=NEW", help="Replace whole parts of names of A first; repeatable."),
    ] = None,
) -> None:
    """Compare two sources: what B has otherwise than A. --subfolder and --revision are about A.

    Tensors that only one of them has, other dtypes, shapes and encodings, and keys of config.json. How tensors are cut
    into shards does not matter.

    Example: glm5inspect diff snapshot:official-fp8 ./GLM-5.3-Flash-NVFP4
    """
    from glm5inspect.difference import diff as compare
    from glm5inspect.renaming import parse_rename
    from glm5inspect.render.progress import ShardProgress

    renames = [parse_rename(text) for text in rename or ()]
    with ShardProgress(sys.stderr) as progress:
        opened_other = sources.open_other(other, progress)
        opened = sources.open(source, progress, subfolder=subfolder)
        report = compare(opened, opened_other, renames=renames, progress=progress)
    run.finish(report, other=opened_other.info)


@command(app, "classify")
def classify(
    run: Run,
    sources: Sources,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="Tensor names, or - to read them line by line.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="SOURCE", callback=refuse_empty_source, help="Classify every name of this source."
        ),
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

        with ShardProgress(sys.stderr) as progress:
            report = classify_source(sources.open(source, progress), progress=progress)
        run.finish(report)
    run.finish(classify_names(read_names(sys.stdin) if names == ["-"] else names or ()))


@command(app, "verify-dsa")
def verify_dsa(
    run: Run,
    sources: Sources,
    source: SourceArgument,
    subfolder: SubfolderOption = None,
    layers: Annotated[
        list[int] | None, typer.Option("--layer", metavar="I", min=0, help="Check only this layer; repeatable.")
    ] = None,
    dialect: DialectOption = None,
    scope: ScopeOption = Scope.AUTO,
) -> None:
    """Check the 14 tensors of every DSA block: there, dtype, shape, bytes, and nothing more.

    Example: glm5inspect verify-dsa ./GLM-5.3-Flash-NVFP4 --layer 45
    """
    from glm5inspect.dsa import verify_dsa as check_blocks
    from glm5inspect.render.progress import ShardProgress

    with ShardProgress(sys.stderr) as progress:
        opened = sources.open(source, progress, subfolder=subfolder)
        report = check_blocks(opened, layers=layers or (), scope=scope, dialect=dialect, progress=progress)
    run.finish(report)


@command(app, "find-mtp")
def find_mtp(
    run: Run,
    sources: Sources,
    source: SourceArgument,
    subfolder: SubfolderOption = None,
    dialect: DialectOption = None,
    scope: ScopeOption = Scope.AUTO,
) -> None:
    """Locate the multi-token-prediction layer by its names, and check that it is whole and in its place.

    Example: glm5inspect find-mtp ./GLM-5.3-Flash-NVFP4
    """
    from glm5inspect.mtp import find_mtp as find
    from glm5inspect.render.progress import ShardProgress

    with ShardProgress(sys.stderr) as progress:
        opened = sources.open(source, progress, subfolder=subfolder)
        report = find(opened, scope=scope, dialect=dialect, progress=progress)
    run.finish(report)


@command(app, "verify")
def verify(
    run: Run,
    sources: Sources,
    source: SourceArgument,
    subfolder: SubfolderOption = None,
    require: Annotated[
        list[str] | None,
        typer.Option(
            "--require",
            metavar="PART[,PART]",
            callback=check_parts,
            help="What must be there: mtp, vision; repeatable.",
        ),
    ] = None,
    dialect: DialectOption = None,
    scope: ScopeOption = Scope.AUTO,
) -> None:
    """Run every check on the whole checkpoint: modules, encodings, quantization config, and all that census checks.

    Example: glm5inspect verify ./GLM-5.3-Flash-NVFP4 --require mtp
    """
    from glm5inspect.render.progress import ShardProgress
    from glm5inspect.verify import verify as run_checks

    with ShardProgress(sys.stderr) as progress:
        opened = sources.open(source, progress, subfolder=subfolder)
        report = run_checks(opened, dialect=dialect, require=require or (), scope=scope, progress=progress)
    run.finish(report)


@command(app, "show")
def show(
    run: Run,
    sources: Sources,
    source: SourceArgument,
    globs: Annotated[
        list[str] | None, typer.Argument(metavar="[GLOB]...", help="Globs on whole names; none means all.")
    ] = None,
    subfolder: SubfolderOption = None,
) -> None:
    """List the tensors whose names match: dtype, shape, bytes, role, shard, and byte span in the file.

    Example: glm5inspect show ./GLM-5.3-Flash-NVFP4 '*.layers.45.*norm*'
    """
    if "" in (globs or ()):
        raise typer.BadParameter("is empty; give a glob, or leave it out", param_hint="GLOB")
    from glm5inspect.listing import show as list_tensors
    from glm5inspect.render.progress import ShardProgress

    with ShardProgress(sys.stderr) as progress:
        report = list_tensors(sources.open(source, progress, subfolder=subfolder), globs or (), progress=progress)
    run.finish(report)


@command(app, "record", without=("output",))
def record(
    run: Run,
    sources: Sources,
    source: SourceArgument,
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FILE", callback=check_output, help="The snapshot file to write."),
    ],
    subfolder: SubfolderOption = None,
    provenance: Annotated[
        str | None, typer.Option(callback=check_label, help="One sentence: how the inventory was obtained.")
    ] = None,
    repo: Annotated[
        str | None, typer.Option(metavar="OWNER/NAME", callback=check_label, help="The repository recorded.")
    ] = None,
    recorded: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%d"], metavar="YYYY-MM-DD", help="The day, else today.")
    ] = None,
) -> None:
    """Write the inventory of a source as a snapshot file; nothing is written unless the verdict is good.

    Example: glm5inspect record ./GLM-5.3-Flash-NVFP4 --output mine.json --repo me/mine
    """
    from glm5inspect.recording import record as take
    from glm5inspect.render.progress import ShardProgress

    with ShardProgress(sys.stderr) as progress:
        opened = sources.open_to_label(source, progress, subfolder=subfolder)
        report, text = take(
            opened,
            today=datetime.now(UTC).date().isoformat(),
            repo=repo,
            revision=None if opened.info.kind == "hub" else sources.revision,
            recorded=recorded.date().isoformat() if recorded else None,
            provenance=provenance,
            progress=progress,
        )
    run.finish(report, snapshot=(output, text))


@command(app, "explain", without=WITHOUT_POLICY)
def explain(
    run: Run,
    code: Annotated[str | None, typer.Argument(metavar="[CODE]", help="A finding code; none lists all.")] = None,
) -> None:
    """Explain a finding: what it means, how it usually comes about, what to do.

    Example: glm5inspect explain dsa-shape
    """
    from glm5inspect.explain import explain as explain_codes

    run.finish(explain_codes(() if code is None else (find_code(code, "CODE"),)))


cache_app = typer.Typer(
    help="Look at the headers that are kept of repositories of the Hub, or remove them.", rich_markup_mode=None
)
app.add_typer(cache_app, name="cache")


def _on_cache(run: Run, cache_dir: str | None, *, clear: bool) -> NoReturn:
    from glm5inspect.keeping import look_at_cache

    run.finish(look_at_cache(cache_dir, clear=clear))


@command(cache_app, "info", without=WITHOUT_POLICY)
def cache_info(run: Run, cache_dir: CacheDirOption = None) -> None:
    """Say where headers are kept, how many, and how large.

    Example: glm5inspect cache info
    """
    _on_cache(run, cache_dir, clear=False)


@command(cache_app, "clear", without=WITHOUT_POLICY)
def cache_clear(run: Run, cache_dir: CacheDirOption = None) -> None:
    """Remove the headers that are kept.

    The cache of huggingface_hub is not touched.

    Example: glm5inspect cache clear
    """
    _on_cache(run, cache_dir, clear=True)


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
        # A broken pipe is Typer's 1, but who asked for help and closed it has read enough.
        if isinstance(error.code, int) and not isinstance(error.__context__, BrokenPipeError):
            return error.code
    except Exception as error:  # noqa: BLE001 - a bug must not exit 1, which says "findings"
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EPIPE):
            return _could_not_print(error)
        tell(sys.stderr, traceback.format_exc())
        return Exit.BUG
    return Exit.OK
