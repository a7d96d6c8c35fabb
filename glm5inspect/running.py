# SPDX-License-Identifier: AGPL-3.0-only
"""From what was typed to an exit: options that several commands have, the report judged and written, the exit code."""

import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from glm5inspect.catalogue import BY_SLUG, Code, Severity, hint_for
from glm5inspect.errors import Glm5InspectError, OutputError, UsageError
from glm5inspect.options import (
    AcceptOption,
    CacheDirOption,
    Exit,
    ExitZeroOption,
    FailOn,
    FailOnOption,
    FormatOption,
    IgnoreOption,
    JobsOption,
    NoCacheOption,
    OfflineOption,
    OutputOption,
    QuietOption,
    ReportOption,
    RevisionOption,
    SelectOption,
    TimeoutOption,
    TokenOption,
    VersionOption,
)
from glm5inspect.render import Format, View, render
from glm5inspect.report import Finding, Policy, Report, SourceInfo, Waiver, in_order, printable
from glm5inspect.scope import CHECKS
from glm5inspect.sources.hub_options import DEFAULT_JOBS, DEFAULT_TIMEOUT, HubOptions
from glm5inspect.streams import complain, write_out

if TYPE_CHECKING:
    from glm5inspect.inventory import Source
    from glm5inspect.render.progress import ShardProgress


def common_options(
    fmt: FormatOption = Format.TABLE,
    output: OutputOption = None,
    report: ReportOption = None,
    fail_on: FailOnOption = FailOn.ERROR,
    exit_zero: ExitZeroOption = False,  # noqa: FBT002
    select: SelectOption = None,
    ignore: IgnoreOption = None,
    accept: AcceptOption = None,
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
    for path in accept or ():
        from glm5inspect.accepting import read_accepted

        waivers += read_accepted(path)
    chosen = frozenset(_code_or_check(slug, "--select") for slug in select or ())
    reports = (
        (fmt, output),
        *((Format(form), path) for form, _, path in (text.partition("=") for text in report or ())),
    )
    files = [os.path.realpath(path) for _, path in reports if path is not None]
    if len({*files}) < len(files):
        raise typer.BadParameter("two reports cannot have one file", param_hint="--report")
    if not {*files}.isdisjoint(map(os.path.realpath, accept or ())):
        raise typer.BadParameter("is to be a report as well; nothing is written over the list", param_hint="--accept")
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
    raise typer.BadParameter(f"{printable(slug)!r} is not a finding code; {hint_for(slug)}", param_hint=option)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a command: where its report goes, ``None`` for standard output, and what makes it fail."""

    reports: tuple[tuple[Format, str | None], ...]
    policy: Policy
    quiet: bool

    def finish(
        self,
        *reports: Report,
        other: SourceInfo | None = None,
        snapshot: tuple[str, str | Glm5InspectError] | None = None,
    ) -> NoReturn:
        """Judge the report, or those on several sources, write it, and exit.

        Args:
            reports: What the command answered.
            other: A second source that it looked at; nothing is written over a part of that one either.
            snapshot: A further file and its text, written only when the verdict is good; or why there is no text.
        """
        from glm5inspect.output import write_apart_from

        judged = self._judge(reports)
        sources = [*(report.source for report in reports), other]
        if snapshot:
            path, text = snapshot
            if os.path.realpath(path) in {os.path.realpath(file) for _, file in self.reports if file is not None}:
                raise UsageError(f"{path}: is to be the snapshot, and cannot be a report as well")
            if isinstance(text, Glm5InspectError):
                complain(sys.stderr, f"{path}: not written: {text}")
            elif judged.ok:
                write_apart_from(path, text, *sources)
            else:
                complain(sys.stderr, f"{path}: not written, because of the findings")
        code = Exit.OK if judged.ok else Exit.FINDINGS if judged.complete else Exit.UNANSWERED
        for form, file in self.reports:
            try:
                if file is None:
                    write_out(sys.stdout, render(judged, form, View(sys.stdout, self.quiet)))
                else:
                    write_apart_from(file, render(judged, form, View(None, self.quiet)), *sources)
            except OutputError as error:  # the others are written all the same
                complain(sys.stderr, str(error))
                code = Exit.UNANSWERED
        raise typer.Exit(code)

    def _judge(self, reports: tuple[Report, ...]) -> Report:
        """Apply the policy; what is said of its own entries belongs to all reports together."""
        named = {*self.policy.select, *(waiver.code for waiver in self.policy.waivers)}
        if reports[0].command != "verify" and (checks := sorted(code for code in named if isinstance(code, str))):
            raise UsageError(f"{checks[0]}: the name of a check, which only verify has; give a finding code")
        unused: list[Finding] = []
        if any(waiver.reason is not None for waiver in self.policy.waivers):
            from glm5inspect.accepting import unused_entries

            unused = list(unused_entries(self.policy.waivers, reports))
        if len(reports) == 1:
            whole = replace(reports[0], findings=in_order((*reports[0].findings, *unused))) if unused else reports[0]
        else:
            from glm5inspect.overview import gather

            whole = gather([report.judged(self.policy) for report in reports], unused)
        return whole.judged(self.policy)


_BUNDLES: dict[str, Callable[..., Any]] = {"run": common_options, "sources": source_options}
"""Parameters of commands that stand for several options, and what makes one of them."""


def command(
    app: typer.Typer, name: str, *, without: tuple[str, ...] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command, with the options that its parameters ``run`` and ``sources`` stand for, but for some.

    The examples at the end of its docstring come at the end of its help, as they are: neither cut nor wrapped.
    """

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
        call.__doc__, heading, examples = inspect.cleandoc(function.__doc__ or "").partition("Examples:\n")
        app.command(name, epilog=f"\b\n{heading}{examples}".replace("\n    ", "\n  "))(call)
        return function

    return register
