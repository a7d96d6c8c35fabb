# SPDX-License-Identifier: AGPL-3.0-only
"""Hold what the config files declare about quantization against what is stored, Linear module by Linear module."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from glm5inspect.catalogue import Code, Severity
from glm5inspect.quantization.declared import Declaration, quantization_block, read_declaration
from glm5inspect.quantization.judging import PLAIN, Judged, Slice, disputes, judge, without
from glm5inspect.quantization.patterns import Target
from glm5inspect.quantization.remedy import entries_for, override, stem_of
from glm5inspect.quantization.schemes import Activations
from glm5inspect.quantization.unused import unused_entries
from glm5inspect.report import Finding, counted, layers_named, ranges, some

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

    from glm5inspect.report import Fact
    from glm5inspect.stored import StoredModule

FILES = ("config.json", "hf_quant_config.json")
"""The files that may declare something; where both do, loaders go by the first."""

_INPUT_SCALES = frozenset({"input_scale", "input_global_scale"})
_HEAD = "lm_head"
_MOST_ENTRIES = 20
_NO_OPTION = " vLLM's --hf-overrides would need the whole `quantization_config`, with these entries in it."


def check_quantization(
    configs: Mapping[str, Mapping[str, object] | None],
    modules: Sequence[StoredModule],
    *,
    has_kv_scales: bool,
    names: Iterable[str],
    whole: bool = True,
) -> tuple[list[Finding], int]:
    """Compare the quantization that is declared with the one that is stored.

    Args:
        configs: The config files by name, see `FILES`; ``None`` for one that is not there.
        modules: What is stored, each module once. Only Linear ones are compared.
        has_kv_scales: Whether there are scales of the KV cache.
        names: The name of every tensor, with ``E`` for the expert's number: entries may name other things than Linear
            modules, such as norms.
        whole: Whether these are all modules, or some are left out because they are damaged.

    Returns:
        The findings, and how many Linear modules were held against a declaration: where none is understood, those that
        would need one.
    """
    linear = sorted((module for module in modules if module.linear), key=lambda module: module.path)
    targets = [Target(module.path, module.experts) for module in linear]
    found = [read_declaration(file, configs.get(file)) for file in FILES]
    declarations = [declaration for declaration in found if declaration]
    judged = [judge(declaration, linear, targets) for declaration in declarations if declaration.known]
    quantized = [Slice(m, m.experts) for m in linear if m.reading.encoding.name != PLAIN]
    findings = [_unknown(declaration, quantized) for declaration in declarations if not declaration.known]
    findings += _kv_cache(declarations, has_kv_scales=has_kv_scales)
    if judged:
        disputed = list(disputes(*judged)) if len(judged) > 1 else []
        findings += _conflicts(disputed, judged)
        compared = _compare(judged[0], without(judged[0].slices, [piece for piece, _ in disputed]), configs)
        findings += _doubted(compared, judged[0].declaration)
        if whole:
            findings += _nothing_quantized(judged[0].declaration, linear, quantized)
        findings += unused_entries(judged, names)
        return findings, sum(module.count for module in linear)
    if not declarations:
        findings += _undeclared_schemes(quantized, "no config file declares")
    return findings, sum(piece.number for piece in quantized)


def _doubted(findings: Iterable[Finding], declaration: Declaration) -> Iterator[Finding]:
    """Take claims about what no entry names for what they are where entries could not be read: no certainty."""
    unread = sum(len(rule.patterns.unread) for rule in declaration.rules)
    for finding in findings:
        if unread and finding.code in (Code.QUANT_UNDECLARED, Code.QUANT_UNSTATED):
            what = f"{unread:,} entries" if unread > 1 else "an entry"
            message = f"{finding.message}; but {what} could not be read, and may say so"
            yield replace(finding, message=message, weight=Severity.WARNING)
        else:
            yield finding


def _nothing_quantized(
    declaration: Declaration, linear: Sequence[StoredModule], quantized: Sequence[Slice]
) -> Iterator[Finding]:
    """Report a quantization that is declared and of which nothing is stored; one module plain is no fault by itself."""
    everything = next((rule for rule in declaration.rules if rule.optional and rule.scheme), None)
    if everything and linear and not quantized:
        number = sum(module.count for module in linear)
        message = (
            f"{declaration.file} declares {declaration.method}, and all {number:,} Linear modules are stored plain"
        )
        hint = f"Remove the declaration, or store what it declares ({everything.key})."
        yield Finding(Code.QUANT_UNDECLARED, message, hint=hint, expected=declaration.method, count=number)


def _compare(
    judged: Judged, slices: Sequence[Slice], configs: Mapping[str, Mapping[str, object] | None]
) -> Iterator[Finding]:
    """Report where modules are not stored as declared."""
    declaration = judged.declaration
    faults: dict[Code | None, list[Slice]] = {}
    for piece in slices:
        faults.setdefault(_fault(piece), []).append(piece)
    yield from _undeclared(faults.get(Code.QUANT_UNDECLARED, []), judged, configs)
    for group in _by_part(faults.get(Code.QUANT_IGNORED, [])):
        yield _ignored(group, declaration)
    for group in _by_part(faults.get(Code.QUANT_SCHEME, [])):
        yield _other_scheme(group, declaration)
    left_out = faults.get(Code.QUANT_UNSTATED, [])
    if declaration.total:
        for group in _by_part(left_out):
            yield _not_named(group, declaration)
    else:
        yield from _undeclared_schemes(left_out, f"{declaration.file}, as far as it is understood, does not declare")
    fitting = [piece for piece in faults.get(None, []) if not piece.plain]
    yield from _activations(fitting, declaration)
    yield from _mean_bits(fitting, declaration)


def _fault(piece: Slice) -> Code | None:
    """Say what is wrong with modules, or ``None`` when they are stored as declared."""
    if piece.plain:
        return Code.QUANT_UNDECLARED if piece.rule and piece.scheme and not piece.rule.optional else None
    if piece.rule is None:
        return Code.QUANT_UNSTATED
    if piece.scheme is None:
        return Code.QUANT_IGNORED
    return None if piece.scheme.fits(piece.module) else Code.QUANT_SCHEME


def _undeclared(
    pieces: Sequence[Slice], judged: Judged, configs: Mapping[str, Mapping[str, object] | None]
) -> Iterator[Finding]:
    """Report modules that a loader would take for quantized, with the entries that leave them out."""
    file, key, style = judged.declaration.file, judged.declaration.ignore, judged.declaration.style
    affected = {piece.module for piece in pieces}
    kept = [piece.module for piece in judged.slices if piece.module not in affected]
    groups = [(group, entries_for([piece.module for piece in group], kept, style)) for group in _by_part(pieces)]
    option = None
    if key and groups:
        config = configs.get(file) or {}
        block, _ = quantization_block(config) or (config, "")
        entries = [entry for _, those in groups for entry in those]
        quantized = [piece.module for piece in judged.slices if not piece.plain]
        option = override(block if file == FILES[0] else config, key, entries, style, quantized)
    for number, (group, those) in enumerate(groups):
        said = group[0].scheme.name if group[0].scheme else ""
        message = f"{group[0].first}: stored plain but declared {said}; no entry leaves out {_extent(group)}"
        if key:
            hint = f"Add to `{key}` of {file}: {some([json.dumps(entry) for entry in those], _MOST_ENTRIES)}."
            if number == 0:
                hint += f" Or leave the checkpoint as it is and start vLLM with: {option}" if option else _NO_OPTION
        else:
            hint = f"Say in {file} that these modules are not quantized."
        yield _finding(Code.QUANT_UNDECLARED, message, group, said, hint)


def _ignored(group: Sequence[Slice], declaration: Declaration) -> Finding:
    piece = group[0]
    key = piece.rule.key if piece.rule else ""
    by = f"`{_short(piece.entry)}` in `{key}`" if piece.entry else f"`{key}`"
    message = f"{piece.first}: stored as {piece.module.reading.name}, but {by} leaves out {_extent(group)}"
    hint = f"Remove the entry from `{key}` of {declaration.file}, or narrow it to what is stored plain."
    return _finding(Code.QUANT_IGNORED, message, group, PLAIN, hint)


def _other_scheme(group: Sequence[Slice], declaration: Declaration) -> Finding:
    piece = group[0]
    said, key = (piece.scheme.name, piece.rule.key) if piece.scheme and piece.rule else ("", "")
    message = f"{piece.first}: stored as {_stored(piece)} but declared {said}, with {_extent(group)}"
    hint = f"Declare what is stored, in `{key}` of {declaration.file} or in a group of its own."
    return _finding(Code.QUANT_SCHEME, message, group, said, hint, actual=_stored(piece))


def _not_named(group: Sequence[Slice], declaration: Declaration) -> Finding:
    """Report quantized modules that a declaration does not name, although it names others."""
    stored = group[0].module.reading.name
    message = f"{group[0].first}: stored as {stored}, but no target of {declaration.file} names {_extent(group)}"
    hint = "A loader takes for plain what no target names: add these modules to a group of their scheme."
    return _finding(Code.QUANT_UNSTATED, message, group, PLAIN, hint, weight=Severity.ERROR)


def _undeclared_schemes(pieces: Sequence[Slice], by: str) -> Iterator[Finding]:
    for group in _grouped(pieces, lambda piece: piece.module.reading.name):
        stored = group[0].module.reading.name
        message = f"{_extent(group)} stored as {stored}, which {by}"
        hint = "Most loaders take a model without a quantization config for plain: add the one it was quantized with."
        yield _finding(Code.QUANT_UNSTATED, message, group, None, hint)


def _unknown(declaration: Declaration, quantized: Sequence[Slice]) -> Finding:
    method = _short(declaration.method)
    number = sum(piece.number for piece in quantized)
    message = (
        f"{declaration.file} declares quantization `{method}`, which is not understood here (or names nothing); "
        f"{counted(number, 'quantized module')} could not be held against it"
    )
    return Finding(Code.QUANT_UNSTATED, message, expected=method, count=max(number, 1))


def _conflicts(disputed: Sequence[tuple[Slice, Slice]], judged: Sequence[Judged]) -> Iterator[Finding]:
    """Report what the files say against each other, once for each pair of statements."""
    pairs: dict[tuple[str, str, str], list[Slice]] = {}
    for one, other in disputed:
        pairs.setdefault((_said(one), _said(other), one.module.reading.name), []).append(one)
    files = [each.declaration.file for each in judged]
    hint = f"Loaders go by {files[0]} where both are there: make the two agree with what is stored."
    for (first, second, stored), group in pairs.items():
        message = f"{group[0].first}: {first} by {files[0]}, {second} by {files[-1]}, stored as {stored}; "
        yield _finding(Code.QUANT_CONFLICT, message + f"so with {_extent(group)}", group, [first, second], hint)
    caches = [each.declaration.kv_cache for each in judged]
    if None not in caches and any(caches) and not all(caches):
        said = [cache or "none" for cache in caches if cache is not None]
        message = f"the KV-cache scheme is {said[0]} by {files[0]}, {said[1]} by {files[1]}"
        yield Finding(Code.QUANT_CONFLICT, message, hint=hint, expected=list(said))


def _activations(pieces: Sequence[Slice], declaration: Declaration) -> Iterator[Finding]:
    """Report scales of activations that are missing, or there although activations are not quantized."""
    by_word: dict[Activations, list[Slice]] = {}
    for piece in pieces:
        scaled = bool(piece.module.suffixes & _INPUT_SCALES)
        if piece.scheme and piece.scheme.activations is (Activations.PLAIN if scaled else Activations.SCALED):
            by_word.setdefault(piece.scheme.activations, []).append(piece)
    for word, group in by_word.items():
        if word is Activations.SCALED:
            expected, actual, stored = "input_scale", None, "no `input_scale` is stored"
            hint = "Some loaders make the scale up, and every output becomes zero: declare `input_activations` null."
        else:
            expected, actual, stored = None, "input_scale", "`input_scale` is stored"
            hint = "Loaders ignore the scales or refuse them: declare `input_activations`, or drop the scales."
        message = f"{declaration.file} declares activations {word.value}, but {stored} for {_extent(group)}"
        yield _finding(Code.QUANT_ACTIVATIONS, message, group, expected, hint, actual=actual)


def _mean_bits(pieces: Sequence[Slice], declaration: Declaration) -> Iterator[Finding]:
    """Report a declared mean width that no mixture of the widths stored could have; the head has one of its own."""
    group = [piece for piece in pieces if piece.module.reading.layout.bits and not piece.module.path.endswith(_HEAD)]
    widths = sorted({piece.module.reading.layout.bits for piece in group})
    if declaration.bits and widths and not widths[0] <= declaration.bits <= widths[-1]:
        said = f"{declaration.bits:g} bits on average"
        stored = f"{ranges(widths)} bits"
        message = f"{declaration.file} declares {said}, but stored are {stored} in {_extent(group)}"
        yield _finding(Code.QUANT_SCHEME, message, group, said, None, actual=stored)


def _kv_cache(declarations: Sequence[Declaration], *, has_kv_scales: bool) -> Iterator[Finding]:
    """Report a KV-cache scheme without scales, or scales that no file announces."""
    declared = next((each for each in declarations if each.kv_cache), None)
    if declared and not has_kv_scales:
        message = (
            f"{declared.file} declares a KV-cache scheme ({declared.kv_cache}), but no k_scale or v_scale is stored"
        )
        hint = "Loaders use a scale of 1 then: right for a cache that was only cast, wrong for a calibrated one."
        yield Finding(Code.KV_SCHEME, message, hint=hint, expected=declared.kv_cache)
    elif has_kv_scales and not declared:
        message = "scales of the KV cache are stored, but no config file declares a KV-cache scheme"
        yield Finding(Code.KV_SCHEME, message, hint="Loaders ignore them unless told.", actual="k_scale, v_scale")


def _finding(
    code: Code,
    message: str,
    group: Sequence[Slice],
    expected: Fact,
    hint: str | None,
    *,
    actual: Fact = "",
    weight: Severity | None = None,
) -> Finding:
    """Make the finding of a group of modules; without another word, the encoding of the first is what is there."""
    layers = {piece.module.layer for piece in group}
    return Finding(
        code,
        message,
        weight,
        hint,
        tensor=group[0].first,
        layer=layers.pop() if len(layers) == 1 else None,
        expected=expected,
        actual=group[0].module.reading.name if actual == "" else actual,
        count=sum(piece.number for piece in group),
    )


def _said(piece: Slice) -> str:
    return f"declared {piece.scheme.name}" if piece.scheme else "left out"


def _stored(piece: Slice) -> str:
    """Say how a module is stored, with the marker where it is the marker that is declared otherwise."""
    name = piece.module.reading.name
    marker = piece.scheme.marker if piece.scheme else ""
    return f"{name} without `{marker}`" if marker and marker not in piece.module.suffixes else name


def _extent(group: Sequence[Slice]) -> str:
    """Say which modules these are: how many, of which layers, of which part, and what their names have in common."""
    number = counted(sum(piece.number for piece in group), "Linear module")
    layers = [piece.module.layer for piece in group if piece.module.layer is not None]
    of = f" of {layers_named(layers)}" if layers else ""
    parts = sorted({piece.module.part for piece in group})
    paths = [piece.module.path for piece in group]
    pattern = paths[0] if len(set(paths)) == 1 else f"{stem}.*" if (stem := stem_of(paths)) else ""
    return f"{number}{of} ({', '.join(parts)}){f': {pattern}' if pattern else ''}"


def _by_part(pieces: Sequence[Slice]) -> list[list[Slice]]:
    return _grouped(pieces, lambda piece: (piece.module.layer, piece.module.part))


def _grouped(pieces: Iterable[Slice], key: Callable[[Slice], Hashable]) -> list[list[Slice]]:
    groups: dict[Hashable, list[Slice]] = {}
    for piece in pieces:
        groups.setdefault(key(piece), []).append(piece)
    return list(groups.values())


def _short(entry: str) -> str:
    return entry if len(entry) <= 80 else f"{entry[:79]}…"  # noqa: PLR2004 - a line
