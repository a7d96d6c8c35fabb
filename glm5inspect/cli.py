# SPDX-License-Identifier: AGPL-3.0-only
"""The command line: parse, one library call, render, exit. No rule about tensors and no format stands here."""

import errno
import gc
import sys
import traceback
from datetime import UTC, datetime
from typing import Annotated, NoReturn

import typer

from glm5inspect.options import (
    CacheDirOption,
    DialectOption,
    Exit,
    MaxRequestsOption,
    MaxScaleRatioOption,
    RequireOption,
    ScopeOption,
    SourceArgument,
    SourcesArgument,
    SubfolderOption,
    ValuesOption,
    VersionOption,
    check_label,
    check_output,
    source_argument,
    source_help,
    source_option,
)
from glm5inspect.program import EXIT_CODES, WHAT_IT_DOES, Group
from glm5inspect.report import Report
from glm5inspect.running import Run, Sources, command, find_code
from glm5inspect.scope import DEFAULT_MAX_REQUESTS, Scope, ValueOptions
from glm5inspect.streams import abandon, complain, read_names, tell

WITHOUT_POLICY = ("fail_on", "exit_zero", "select", "ignore", "accept", "quiet")
"""The options of a command that has a verdict."""


app = typer.Typer(
    cls=Group,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True, epilog=EXIT_CODES)
def _root(context: typer.Context, version: VersionOption = False) -> None:  # noqa: ARG001, FBT002 - Typer's form
    """Account for every tensor of a GLM-5.3-Flash checkpoint before anyone loads a byte."""
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
    against: Annotated[str | None, source_option("--against", "Compare with this source, name by name.")] = None,
    dialect: DialectOption = None,
    scope: ScopeOption = Scope.AUTO,
) -> None:
    """Count every tensor, give each a role; check headers and index.

    A name that no rule teaches is an error, as is whatever headers, files and index say against each other.

    Examples:
        glm5inspect census snapshot:reference --layers
        glm5inspect census ./GLM-5.3-Flash-NVFP4 --against snapshot:reference
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
    source: Annotated[str, source_argument("A", source_help("The first"))],
    other: Annotated[str, source_argument("B", "The second, likewise.")],
    subfolder: SubfolderOption = None,
    rename: Annotated[
        list[str] | None,
        typer.Option("--rename", metavar="OLD=NEW", help="Replace whole parts of names of A first; repeatable."),
    ] = None,
) -> None:
    """Compare two sources: what B has otherwise than A. --subfolder and --revision are about A.

    Tensors that only one of them has, other dtypes, shapes and encodings, and keys of config.json. How tensors are cut
    into shards does not matter.

    Examples:
        glm5inspect diff snapshot:official-fp8 ./GLM-5.3-Flash-NVFP4
        glm5inspect diff zai-org/GLM-5.3-Flash ./mine --rename model.visual=visual
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
    source: Annotated[str | None, source_option("--from", "Classify every name of this source.")] = None,
) -> None:
    """Say what tensor names are for.

    Examples:
        glm5inspect classify model.language_model.layers.45.eh_proj.weight
        glm5inspect classify --from ./GLM-5.3-Flash-NVFP4 --format csv
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
    """Check the 14 tensors of every DSA block.

    Each must be there with its dtype, shape and bytes, and nothing more.

    Examples:
        glm5inspect verify-dsa snapshot:reference
        glm5inspect verify-dsa ./GLM-5.3-Flash-NVFP4 --layer 45
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
    """Find the multi-token-prediction layer.

    It is found by its names, and must be whole, and where the config puts it.

    Examples:
        glm5inspect find-mtp ./GLM-5.3-Flash-NVFP4
        glm5inspect find-mtp zai-org/GLM-5.3-Flash --format json
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
    names: SourcesArgument,
    subfolder: SubfolderOption = None,
    require: RequireOption = None,
    dialect: DialectOption = None,
    scope: ScopeOption = Scope.AUTO,
    values: ValuesOption = False,  # noqa: FBT002
    max_scale_ratio: MaxScaleRatioOption = None,
    max_requests: MaxRequestsOption = None,
) -> None:
    """Run every check on the whole checkpoint.

    Modules, encodings, quantization config, and all that census checks.

    Examples:
        glm5inspect verify ./GLM-5.3-Flash-NVFP4 --require mtp
        glm5inspect verify zai-org/GLM-5.3-Flash --report junit=verify.xml
    """
    from glm5inspect.overview import answer_each
    from glm5inspect.render.progress import ShardProgress
    from glm5inspect.verify import verify as run_checks

    if len(names) > 1 and sources.revision is not None:
        raise typer.BadParameter("say it with each SOURCE: owner/name@revision", param_hint="--revision")

    for option, value in (("--max-scale-ratio", max_scale_ratio), ("--max-requests", max_requests)):
        if value is not None and not values:
            raise typer.BadParameter("is about values, which only --values reads", param_hint=option)
    wanted = ValueOptions(max_scale_ratio, max_requests or DEFAULT_MAX_REQUESTS) if values else None

    def ask(name: str) -> Report:
        opened = sources.open(name, progress, subfolder=subfolder)
        parts = require or ()
        return run_checks(opened, dialect=dialect, require=parts, scope=scope, values=wanted, progress=progress)

    with ShardProgress(sys.stderr) as progress:
        reports = list(answer_each(names, ask)) if len(names) > 1 else [ask(names[0])]
    run.finish(*reports)


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
    """List the tensors whose names match.

    Each with dtype, shape, bytes, role, shard, and byte span in the file.

    Examples:
        glm5inspect show ./GLM-5.3-Flash-NVFP4 '*.layers.45.*norm*'
        glm5inspect show snapshot:reference '*.eh_proj.*' --format csv
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
    """Write the inventory of a source as a snapshot file.

    Nothing is written unless the verdict is good.

    Examples:
        glm5inspect record ./GLM-5.3-Flash-NVFP4 -o mine.json --repo me/mine
        glm5inspect record zai-org/GLM-5.3-Flash --output official.json
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
    code: Annotated[
        str | None,
        typer.Argument(metavar="[CODE]", help="A finding code; none lists all."),
    ] = None,
) -> None:
    """Explain a finding: its meaning, usual cause and remedy.

    Examples:
        glm5inspect explain dsa-shape
        glm5inspect explain --format csv --output findings.csv
    """
    from glm5inspect.explain import explain as explain_codes

    run.finish(explain_codes(() if code is None else (find_code(code, "CODE"),)))


cache_app = typer.Typer(help="Look at the headers kept from the Hub, or remove them.", rich_markup_mode=None)
app.add_typer(cache_app, name="cache")


def _on_cache(run: Run, cache_dir: str | None, *, clear: bool) -> NoReturn:
    from glm5inspect.keeping import look_at_cache

    run.finish(look_at_cache(cache_dir, clear=clear))


@command(cache_app, "info", without=WITHOUT_POLICY)
def cache_info(run: Run, cache_dir: CacheDirOption = None) -> None:
    """Say where headers are kept, how many, and how large.

    Examples:
        glm5inspect cache info
        glm5inspect cache info --cache-dir ./headers --format json
    """
    _on_cache(run, cache_dir, clear=False)


@command(cache_app, "clear", without=WITHOUT_POLICY)
def cache_clear(run: Run, cache_dir: CacheDirOption = None) -> None:
    """Remove the headers that are kept.

    The cache of huggingface_hub is not touched.

    Examples:
        glm5inspect cache clear
        glm5inspect cache clear --cache-dir ./headers
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
