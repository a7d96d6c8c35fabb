# SPDX-License-Identifier: AGPL-3.0-only
"""What the commands of the command line share: options, exit codes, and the way from a report to an exit."""

import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from glm5inspect import __version__
from glm5inspect.catalogue import BY_SLUG, Code, Severity
from glm5inspect.errors import Glm5InspectError, OutputError, UsageError
from glm5inspect.render import Format, View, render
from glm5inspect.report import Policy, Report, SourceInfo, Waiver, printable
from glm5inspect.scope import CHECKS, DIALECT_NAMES, REQUIRED_PARTS, Scope
from glm5inspect.sources.base import INDEX_SUFFIX, SHARD_SUFFIX
from glm5inspect.sources.hub_options import DEFAULT_JOBS, DEFAULT_TIMEOUT, HubOptions
from glm5inspect.streams import complain, write_out

if TYPE_CHECKING:
    from glm5inspect.inventory import Source
    from glm5inspect.render.progress import ShardProgress


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


def _print_version(asked: bool) -> None:  # noqa: FBT001 - the form Typer asks for
    if asked:
        typer.echo(f"glm5inspect {__version__}")
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
]


def refuse_empty_source(value: str | None) -> str | None:
    """Refuse an empty SOURCE: an unset variable in a script must not pass as something else."""
    if value is not None and not value.strip():
        raise typer.BadParameter("is empty; give a folder, a file, snapshot:NAME or owner/name")
    return value


def check_output(value: str | None) -> str | None:
    """Refuse an empty FILE, as an unset variable leaves it, and one that would overwrite a part of a checkpoint."""
    if value == "":
        raise typer.BadParameter("is empty; give the name of a file")
    if value == "-":
        raise typer.BadParameter("is no file name here; standard output is what you get without this option")
    if value is not None and value.endswith((SHARD_SUFFIX, INDEX_SUFFIX)):
        raise typer.BadParameter(f"{printable(value)} is the name of a shard or an index; nothing is written over one")
    return value


def check_reports(value: list[str] | None) -> list[str]:
    """Refuse what is no format with the name of a file."""
    for text in value or ():
        form, _, path = text.partition("=")
        if form not in list(Format):
            raise typer.BadParameter(f"{printable(text)!r} is not FORMAT=FILE with one of {', '.join(Format)}")
        check_output(path)
    return value or []


def check_label(value: str | None) -> str | None:
    """Refuse an empty text, and one that no file could hold."""
    if value is not None and (not value.strip() or not value.isprintable()):
        raise typer.BadParameter("is empty, or has characters that cannot be printed")
    return value


def refuse_empty_folder(value: str | None) -> str | None:
    """Refuse an empty PATH: it would mean the root, and nobody asked for that."""
    if value is not None and not value.strip():
        raise typer.BadParameter("is empty; give the name of a folder, or leave the option out")
    return value


def source_help(what: str) -> str:
    """Explain a SOURCE."""
    return f"{what}: a folder, a .safetensors or index file, a snapshot file, snapshot:NAME, or owner/name[@revision]."


SourceArgument = Annotated[
    str, typer.Argument(metavar="SOURCE", callback=refuse_empty_source, help=source_help("What to look at"))
]


def check_token(value: str | None) -> str | None:
    """Refuse an empty token, as an unset variable leaves it, and one that no header may hold; never show it."""
    if value is not None and not (value.isascii() and value.isprintable() and value and " " not in value):
        raise typer.BadParameter("is empty, or has characters that no token has")
    return value


SubfolderOption = Annotated[
    str | None,
    typer.Option("--subfolder", metavar="PATH", callback=refuse_empty_folder, help="Where the model is below SOURCE."),
]


def _check_number(value: float) -> float:
    if value != value:  # noqa: PLR0124 - NaN, which is between no bounds and passes them all
        raise typer.BadParameter("is not a number")
    return value


RevisionOption = Annotated[
    str | None,
    typer.Option("--revision", metavar="REV", callback=check_label, help="Branch, tag or commit of a repository."),
]
TokenOption = Annotated[
    str | None,
    typer.Option("--token", metavar="TOKEN", callback=check_token, help="For the Hub; better kept in HF_TOKEN."),
]
JobsOption = Annotated[int, typer.Option("--jobs", metavar="N", min=1, max=64, help="Requests at once.")]
TimeoutOption = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0.1,
        max=3600,
        callback=_check_number,
        help="Silence after which a request has failed.",
    ),
]
CacheDirOption = Annotated[
    str | None,
    typer.Option(
        "--cache-dir",
        metavar="PATH",
        callback=refuse_empty_folder,
        help="Where headers from the Hub are kept; else GLM5INSPECT_CACHE, else ~/.cache/glm5inspect.",
    ),
]
NoCacheOption = Annotated[bool, typer.Option("--no-cache", help="Neither use nor keep headers from the Hub.")]
OfflineOption = Annotated[bool, typer.Option("--offline", help="Use only what is cached.")]


def check_parts(value: list[str] | None) -> list[str]:
    """Take ``mtp,vision`` apart, and refuse what is no part that can be required."""
    parts = [part.strip() for text in value or () for part in text.split(",")]
    if strange := [part for part in parts if part not in REQUIRED_PARTS]:
        raise typer.BadParameter(f"{printable(strange[0])!r} is none of {', '.join(REQUIRED_PARTS)}")
    return parts


def _check_dialect(value: str | None) -> str | None:
    if value is not None and value not in DIALECT_NAMES:
        raise typer.BadParameter(f"{printable(value)!r} is none of {', '.join(DIALECT_NAMES)}")
    return value


DialectOption = Annotated[
    str | None,
    typer.Option("--dialect", metavar="NAME", callback=_check_dialect, help="Accept modules named as NAME does it."),
]
ScopeOption = Annotated[
    Scope, typer.Option("--scope", help="What is accepted: any known encoding, or the reference's.")
]

FormatOption = Annotated[Format, typer.Option("--format", "-f", help="How to write the report.")]
OutputOption = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        callback=check_output,
        help="Write the report to FILE, whole or not at all.",
    ),
]
ReportOption = Annotated[
    list[str] | None,
    typer.Option(
        "--report", metavar="FORMAT=FILE", callback=check_reports, help="Write FILE as well, as FORMAT; repeatable."
    ),
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


def common_options(
    fmt: FormatOption = Format.TABLE,
    output: OutputOption = None,
    report: ReportOption = None,
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
        slug, colon, glob = text.partition(":")
        if colon and not glob:
            raise typer.BadParameter(f"{printable(text)} has an empty GLOB; leave the colon out", param_hint="--ignore")
        waivers.append(Waiver(_code_or_check(slug, "--ignore"), glob or None))
    chosen = frozenset(_code_or_check(slug, "--select") for slug in select or ())
    reports = (
        (fmt, output),
        *((Format(form), path) for form, _, path in (text.partition("=") for text in report or ())),
    )
    files = [os.path.realpath(path) for _, path in reports if path is not None]
    if len({*files}) < len(files):
        raise typer.BadParameter("two reports cannot have one file", param_hint="--report")
    return Run(reports, Policy(chosen, tuple(waivers), fail), quiet)


@dataclass(frozen=True, slots=True)
class Sources:
    """How a command opens the sources that it was given."""

    revision: str | None
    hub: HubOptions

    def open(self, text: str, progress: "ShardProgress", *, subfolder: str | None = None) -> "Source":
        """Open SOURCE."""
        return self._open(text, progress, subfolder, self.revision)

    def open_other(self, text: str, progress: "ShardProgress") -> "Source":
        """Open a source beside SOURCE; --subfolder and --revision are not about it."""
        return self._open(text, progress, None, None)

    def open_to_label(self, text: str, progress: "ShardProgress", *, subfolder: str | None) -> "Source":
        """Open SOURCE where --revision is only a label unless it is a repository."""
        from glm5inspect.resolve import is_local

        return self._open(text, progress, subfolder, None if is_local(text) else self.revision)

    def _open(self, text: str, progress: "ShardProgress", subfolder: str | None, revision: str | None) -> "Source":
        from glm5inspect.resolve import open_source

        return open_source(text, subfolder=subfolder, revision=revision, hub=self.hub, note=progress.note)


def source_options(
    revision: RevisionOption = None,
    token: TokenOption = None,
    jobs: JobsOption = DEFAULT_JOBS,
    timeout: TimeoutOption = DEFAULT_TIMEOUT,
    cache_dir: CacheDirOption = None,
    no_cache: NoCacheOption = False,  # noqa: FBT002
    offline: OfflineOption = False,  # noqa: FBT002
) -> Sources:
    """Turn the options about repositories of the Hub into what a command needs of them."""
    options = HubOptions(
        token=token, jobs=jobs, timeout=timeout, cache_dir=cache_dir, use_cache=not no_cache, offline=offline
    )
    return Sources(revision, options)


def _code_or_check(slug: str, option: str) -> Code | str:
    """Return what --select and --ignore name: the name of a check of `verify`, or a finding code."""
    return slug if slug in CHECKS else find_code(slug, option)


def find_code(slug: str, option: str) -> Code:
    """Return the finding code of a name, or say which one was probably meant.

    Raises:
        typer.BadParameter: There is none of that name.
    """
    if slug in BY_SLUG:
        return BY_SLUG[slug]
    from difflib import get_close_matches

    close = get_close_matches(slug, BY_SLUG, n=1)
    hint = f"did you mean {close[0]}?" if close else "glm5inspect explain lists them"
    raise typer.BadParameter(f"{printable(slug)!r} is not a finding code; {hint}", param_hint=option)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a command: where its report goes, ``None`` for standard output, and what makes it fail."""

    reports: tuple[tuple[Format, str | None], ...]
    policy: Policy
    quiet: bool

    def finish(
        self,
        report: Report,
        *,
        other: SourceInfo | None = None,
        snapshot: tuple[str, str | Glm5InspectError] | None = None,
    ) -> NoReturn:
        """Judge the report, write it, and exit.

        Args:
            report: What the command answered.
            other: A second source that it looked at; nothing is written over a part of that one either.
            snapshot: A further file and its text, written only when the verdict is good; or why there is no text.
        """
        from glm5inspect.output import write_apart_from

        named = {*self.policy.select, *(waiver.code for waiver in self.policy.waivers)}
        if report.command != "verify" and (checks := sorted(code for code in named if isinstance(code, str))):
            raise UsageError(f"{checks[0]}: the name of a check, which only verify has; give a finding code")
        judged = report.judged(self.policy)
        if snapshot:
            path, text = snapshot
            if os.path.realpath(path) in {os.path.realpath(file) for _, file in self.reports if file is not None}:
                raise UsageError(f"{path}: is to be the snapshot, and cannot be a report as well")
            if isinstance(text, Glm5InspectError):
                complain(sys.stderr, f"{path}: not written: {text}")
            elif judged.ok:
                write_apart_from(path, text, judged.source)
            else:
                complain(sys.stderr, f"{path}: not written, because of the findings")
        code = Exit.OK if judged.ok else Exit.FINDINGS if judged.complete else Exit.UNANSWERED
        for form, file in self.reports:
            try:
                if file is None:
                    write_out(sys.stdout, render(judged, form, View(sys.stdout, self.quiet)))
                else:
                    write_apart_from(file, render(judged, form, View(None, self.quiet)), judged.source, other)
            except OutputError as error:  # the others are written all the same
                complain(sys.stderr, str(error))
                code = Exit.UNANSWERED
        raise typer.Exit(code)


_BUNDLES: dict[str, Callable[..., Any]] = {"run": common_options, "sources": source_options}
"""Parameters of commands that stand for several options, and what makes one of them."""


def command(
    app: typer.Typer, name: str, *, without: tuple[str, ...] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command, with the options that its parameters ``run`` and ``sources`` stand for, but for some."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        parameters = inspect.signature(function).parameters
        own = [parameter for key, parameter in parameters.items() if key not in _BUNDLES]
        shared = {
            bundle: [p for key, p in inspect.signature(_BUNDLES[bundle]).parameters.items() if key not in without]
            for bundle in reversed(_BUNDLES)
            if bundle in parameters
        }

        def call(**values: Any) -> None:  # noqa: ANN401 - what Typer parsed, by name
            try:
                bundles = {
                    bundle: _BUNDLES[bundle](**{p.name: values.pop(p.name) for p in options})
                    for bundle, options in shared.items()
                }
                function(**bundles, **values)
            except UsageError as error:
                raise typer.BadParameter(printable(str(error))) from error
            except Glm5InspectError as error:
                complain(sys.stderr, str(error))
                raise typer.Exit(Exit.UNANSWERED) from error

        every = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own, *chain.from_iterable(shared.values()))]
        call.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined] # what Typer reads
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
        call.__doc__ = function.__doc__
        app.command(name)(call)
        return function

    return register
