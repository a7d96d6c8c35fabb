# SPDX-License-Identifier: AGPL-3.0-only
"""The options and arguments of the command line, what each of them refuses, and the exit codes."""

from enum import IntEnum, StrEnum
from typing import Annotated, Any

import typer

from glm5inspect import __version__
from glm5inspect.render import Format
from glm5inspect.report import printable
from glm5inspect.scope import DEFAULT_MAX_REQUESTS, DIALECT_NAMES, REQUIRED_PARTS, Scope
from glm5inspect.sources.base import INDEX_SUFFIX, SHARD_SUFFIX


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


def _print_version(context: typer.Context, asked: bool) -> None:  # noqa: FBT001 - the form Typer asks for
    if asked and not context.resilient_parsing:  # as a completion parses
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


def _refuse_empty_files(value: list[str] | None) -> list[str]:
    """Refuse an empty FILE: a list that nobody named must not pass as one that accepts nothing."""
    if not all(map(str.strip, value or ())):
        raise typer.BadParameter("is empty; give the name of a file, or leave the option out")
    return value or []


def source_help(what: str) -> str:
    """Explain a SOURCE."""
    return f"{what}: a folder, a .safetensors or index file, a snapshot file, snapshot:NAME, or owner/name[@revision]."


def source_argument(name: str, text: str) -> Any:  # noqa: ANN401 - as Typer types its own
    """Declare an argument that is a SOURCE."""
    return typer.Argument(metavar=name, callback=refuse_empty_source, help=text)


def source_option(name: str, text: str) -> Any:  # noqa: ANN401 - as Typer types its own
    """Declare an option that takes a SOURCE."""
    return typer.Option(name, metavar="SOURCE", callback=refuse_empty_source, help=text)


SourceArgument = Annotated[str, source_argument("SOURCE", source_help("What to look at"))]


def _refuse_empty_sources(value: list[str]) -> list[str]:
    for text in value:
        refuse_empty_source(text)
    return value


SourcesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        callback=_refuse_empty_sources,
        help=source_help("What to look at, each"),
    ),
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


def _check_number(value: float | None) -> float | None:
    if value is not None and value != value:  # noqa: PLR0124 - NaN, which is between no bounds and passes them all
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
        help="Where headers and values from the Hub are kept; else GLM5INSPECT_CACHE, else ~/.cache/glm5inspect.",
    ),
]
NoCacheOption = Annotated[bool, typer.Option("--no-cache", help="Neither use nor keep headers and values of the Hub.")]
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


RequireOption = Annotated[
    list[str] | None,
    typer.Option(
        "--require", metavar="PART[,PART]", callback=check_parts, help="What must be there: mtp, vision; repeatable."
    ),
]
DialectOption = Annotated[
    str | None,
    typer.Option(
        "--dialect",
        metavar="NAME",
        callback=_check_dialect,
        help="Accept modules named as NAME does it.",
    ),
]
ScopeOption = Annotated[
    Scope, typer.Option("--scope", help="What is accepted: any known encoding, or the reference's.")
]

ValuesOption = Annotated[
    bool, typer.Option("--values", help="Read values of small tensors too: scales, norms, helpers, markers.")
]
MaxScaleRatioOption = Annotated[
    float | None,
    typer.Option(
        "--max-scale-ratio",
        metavar="RATIO",
        min=1,
        callback=_check_number,
        help="With --values: scales of gate and up that differ by more are an error, not a warning.",
    ),
]
MaxRequestsOption = Annotated[
    int | None,
    typer.Option(
        "--max-requests",
        metavar="N",
        min=1,
        help=f"With --values, of the Hub: sample where all would take more than N, {DEFAULT_MAX_REQUESTS} unless said.",
    ),
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
        "--report",
        metavar="FORMAT=FILE",
        callback=check_reports,
        help="Write FILE as well, as FORMAT; repeatable.",
    ),
]
FailOnOption = Annotated[FailOn, typer.Option("--fail-on", help="The least severity that makes the exit code 1.")]
ExitZeroOption = Annotated[bool, typer.Option("--exit-zero", help="The same as --fail-on never.")]
SelectOption = Annotated[
    list[str] | None,
    typer.Option(
        "--select",
        metavar="CODE",
        help="Report only findings of CODE; repeatable.",
    ),
]
IgnoreOption = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore",
        metavar="CODE[:GLOB]",
        help="Waive findings of CODE, on tensors like GLOB; repeatable.",
    ),
]
AcceptOption = Annotated[
    list[str] | None,
    typer.Option(
        "--accept",
        metavar="FILE",
        callback=_refuse_empty_files,
        help="A reviewed list of findings that are accepted, in TOML: code, tensor, reason; repeatable.",
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print only findings and the verdict.")]
