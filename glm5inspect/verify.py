# SPDX-License-Identifier: AGPL-3.0-only
"""The whole checkpoint, one gate: every check that the source allows, and what each of them looked at."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from glm5inspect import dsa, mtp
from glm5inspect.binding import Binding, bind, check_habits
from glm5inspect.catalogue import Code, Severity
from glm5inspect.census import check_layers, check_names
from glm5inspect.dialects import RELEASED
from glm5inspect.families import family_hint, unknown_tensor
from glm5inspect.fingerprint import differing_keys, fingerprint, official_config
from glm5inspect.geometry import text_config
from glm5inspect.integrity import integrity, refusals
from glm5inspect.modules import MTP_COPIES
from glm5inspect.quantization.check import check_quantization
from glm5inspect.quantization.declared import declared_tile
from glm5inspect.report import Finding, Report, counted, in_order, ranges
from glm5inspect.roles import TensorRole, in_layer
from glm5inspect.scope import CHECKS, VALUE_CHECKS, Scope
from glm5inspect.second_opinion import ask_library
from glm5inspect.sources.base import CONFIG_NAME, QUANT_CONFIG_NAME
from glm5inspect.summary import bits_per_parameter, encodings_by_part, mixed_encodings
from glm5inspect.understanding import (
    Model,
    assign_roles,
    check_dialect,
    foreign_architecture,
    read_model,
    translate,
)
from glm5inspect.verification import CheckRow, LargestShard, MtpState, Pruned, Verification

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from glm5inspect.inventory import Inventory, Progress, Source
    from glm5inspect.scope import ValueOptions
    from glm5inspect.summary import EncodingRow
    from glm5inspect.values.look import Looked

MODULE_CHECKS = CHECKS[3:12]
"""The checks of the module table."""

NOT_READ = "tensor values"
"""What no check of headers can decide."""


class _Outcome(NamedTuple):
    """What one check found; ``subjects`` is ``None`` when it could not look."""

    subjects: int | None
    findings: list[Finding]


def verify(
    source: Source,
    *,
    dialect: str | None = None,
    require: Collection[str] = (),
    scope: Scope = Scope.AUTO,
    values: ValueOptions | None = None,
    progress: Progress | None = None,
) -> Report:
    """Run every check.

    Args:
        source: What to look at.
        dialect: The dialect that is accepted without a finding; ``None`` accepts the released names only.
        require: Of `glm5inspect.scope.REQUIRED_PARTS`, those that must be there whatever the config says.
        scope: What is accepted beside the reference.
        values: How to look at the values of small tensors; ``None`` not to.
        progress: Called after each header, and each range of values.

    Raises:
        SourceError: The source cannot be read, or values are asked of one that has none.
    """
    configs = {name: source.config(name) for name in (CONFIG_NAME, QUANT_CONFIG_NAME)}
    inventory = source.inventory(progress=progress)
    config = configs[CONFIG_NAME]
    if foreign := foreign_architecture(inventory, config):
        told = {
            "integrity": _Outcome(0, list(refusals(inventory))),
            "classify": _Outcome(len(inventory.tensors), [foreign]),
        }
        return _report(inventory, told, None, Binding())
    model, faults = read_model(inventory, official_config() if config is None else config, dialect)
    if scope is Scope.AUTO:
        assign_roles(inventory, model.spoken if model else None)
    binding = bind(inventory, model.spoken.expected, declared_tile(config or {})) if model else Binding()
    if config is None:
        message = "config.json is not there: sizes and layers are those of the official release"
        faults = [Finding(Code.CONFIG_MISSING, message), *faults]
    outcomes = _check_files(inventory)
    outcomes["classify"] = _check_classes(inventory, model, config, [*faults], dialect)
    if model:
        outcomes |= _check_modules(inventory, model, binding, config)
        # What is damaged says nothing about how it was meant to be stored.
        modules = [bound.module for bound in binding.modules if not bound.module.reading.flaws]
        names = [in_layer(group.pattern, group.layer) for group in inventory.groups]
        found, subjects = check_quantization(
            configs,
            modules,
            has_kv_scales=binding.cache_scales > 0,
            names=names,
            whole=len(modules) == len(binding.modules),
        )
        outcomes["quant-config"] = _Outcome(subjects, found)
    if scope is Scope.REFERENCE:
        outcomes["dsa"] = _Outcome(binding.subjects["dsa"], list(dsa.check(inventory, config, set()).findings))
    refused = {f.shard for f in outcomes["integrity"].findings if f.severity is Severity.ERROR}
    outcomes["reference-parser"] = _Outcome(*ask_library(source, inventory, refused))
    differing = (
        differing_keys(config, has_vision=_has(inventory, binding, "vision")) if config is not None and model else []
    )
    outcomes["fingerprint"] = _Outcome(1, differing)
    for part in require:
        if any(finding.code is Code.MTP_MISSING for finding in outcomes.get(part, _Outcome(0, [])).findings):
            continue
        if not _has(inventory, binding, part):
            finding = Finding(Code.PART_REQUIRED, f"{part} is required, and nothing of it is here")
            outcomes.setdefault(part, _Outcome(0, [])).findings.append(finding)
    looked = None
    if values and model:
        from glm5inspect.values.look import look_at_values  # noqa: PLC0415 - imports numpy

        looked = look_at_values(source, inventory, model.spoken.expected, binding, config or {}, values, progress)
        outcomes |= {check: _Outcome(*outcome) for check, outcome in looked.outcomes.items()}
        outcomes["integrity"].findings.extend(looked.unread)
    return _report(inventory, outcomes, model, binding, looked)


def _check_files(inventory: Inventory) -> dict[str, _Outcome]:
    """Hold headers, files and index against each other."""
    found = list(integrity(inventory))
    index = [finding for finding in found if finding.code.value.startswith("index-")]
    others = [finding for finding in found if not finding.code.value.startswith("index-")]
    entries = len(inventory.index.weight_map) if inventory.index else 0
    return {"integrity": _Outcome(len(inventory.tensors), others), "index": _Outcome(entries, index)}


def _check_classes(
    inventory: Inventory,
    model: Model | None,
    config: Mapping[str, object] | None,
    findings: list[Finding],
    dialect: str | None,
) -> _Outcome:
    """Check that every name has a role, that the names are the released ones, and that no layer is missing."""
    marker = model.spoken.dialect.marker if model else None
    for group in inventory.groups:
        if group.role is None and not (marker and group.pattern == marker[0]):
            findings += [unknown_tensor(tensor.name, group.layer, tensor.shard) for tensor in group.tensors]
    if model:
        findings += check_dialect(inventory, model.spoken, config or {}, dialect)
    # What is wrong with numbers of layers in the config is among the findings already.
    findings += [f for f in check_layers(inventory, config) if f.code is not Code.CONFIG_GEOMETRY]
    return _Outcome(len(inventory.tensors), findings)


def _check_modules(
    inventory: Inventory, model: Model, binding: Binding, config: Mapping[str, object] | None
) -> dict[str, _Outcome]:
    """Run every check of the module table, and what follows from how its modules are stored."""
    found: dict[str, list[Finding]] = {check: list(binding.findings.get(check, ())) for check in CHECKS}
    found["norms"] += [f for f in check_names(inventory) if f.code is Code.NORM_ROLE_MISMATCH]
    for check, finding in _unclaimed(model, binding):
        found[check].append(finding)
    found["vision"] = _whole_tower(found["vision"], binding.subjects["vision"])
    if model.spoken.dialect.name == RELEASED:  # the names that its own check knows every trap of
        blocks = dsa.check(inventory, config, set(), Scope.AUTO).findings
        found["dsa"] = [f for f in found["dsa"] if not f.code.value.startswith("dsa-")]
        found["dsa"] += [f for f in blocks if f.code.value.startswith("dsa-") or f.code is Code.MIXED_MIXER]
    found["moe"] += _check_expert_counts(model, binding)
    for bound in binding.modules:
        if bound.expected.row in MTP_COPIES:
            name = bound.module.path
            message = f"{name}: a copy, which most builds leave out"
            found["mtp"].append(Finding(Code.MTP_COPY, message, tensor=f"{name}.weight", layer=bound.module.layer))
    found["mtp"] += mtp.check_place(translate(inventory, model.spoken), config)
    found["encodings"] += [*check_habits(binding), *mixed_encodings(binding.modules)]
    subjects = {**binding.subjects, "encodings": sum(bound.module.count for bound in binding.modules)}
    return {check: _Outcome(subjects.get(check, 0), found[check]) for check in (*MODULE_CHECKS, "encodings")}


def _whole_tower(findings: list[Finding], subjects: int) -> list[Finding]:
    """Say once that the tower is not here, or that what is here belongs to none, instead of tensor by tensor."""
    folded = []
    for code, what in ((Code.MODULE_MISSING, "nothing of the vision tower is here"), (Code.MODULE_UNCLAIMED, "")):
        alike = [finding for finding in findings if finding.code is code]
        if code is Code.MODULE_MISSING and len(alike) < subjects:
            continue
        if len(alike) > 1:
            findings = [finding for finding in findings if finding.code is not code]
            number = sum(finding.count for finding in alike)
            message = f"{alike[0].tensor}: {what or 'no vision tower is expected'}, {counted(number, 'tensor')}"
            folded.append(replace(alike[0], message=message, count=number))
    return findings + folded


def _unclaimed(model: Model, binding: Binding) -> Iterator[tuple[str, Finding]]:
    """Yield what no row of the module table claims, with the check it belongs to; unknown names are told elsewhere."""
    layers = {row.layer for row in model.spoken.expected}
    sparse = {row.layer for row in model.spoken.expected if row.check == "dsa"}
    for group in binding.unclaimed:
        if group.role is None or group.layer not in layers:
            continue  # a layer that should not be there is reported as one
        if group.role is TensorRole.VISION and not model.architecture.vision:
            continue  # the config does not tell what belongs to the tower, and is warned about
        attention = ".self_attn." in group.pattern
        check = ("dsa" if group.layer in sparse else "kda") if attention else _CHECK_OF.get(group.role, "moe")
        code = Code.DSA_UNCLAIMED if check == "dsa" else Code.MODULE_UNCLAIMED
        first, number = group.tensors[0], len(group.tensors)
        more = f", nor {number - 1:,} more like it" if number > 1 else ""
        yield (
            check,
            Finding(
                code,
                f"{first.name}: no row of the module table claims it{more}",
                hint=family_hint(first.name),
                tensor=first.name,
                layer=group.layer,
                shard=first.shard,
                actual=f"{group.dtype} {list(group.shape)}",
                count=number,
            ),
        )


_CHECK_OF = {
    TensorRole.VISION: "vision",
    TensorRole.EMBEDDING: "embed",
    TensorRole.LM_HEAD: "embed",
    TensorRole.FINAL_NORM: "norms",
    TensorRole.LAYER_NORM: "norms",
    TensorRole.HYPER_CONNECTION: "hyper",
    TensorRole.DENSE_FFN: "ffn",
    TensorRole.MTP_PROJECTION: "mtp",
    TensorRole.MTP_NORM: "mtp",
}
"""Which check a tensor outside the mixers belongs to; the others are part of a mixture of experts."""


def _check_expert_counts(model: Model, binding: Binding) -> Iterator[Finding]:
    """Report MoE layers in which experts, router, bias and config do not agree on a number of experts."""
    for layer, counts in sorted(binding.experts.items()):
        declared = model.architecture.experts_of(layer)
        if set(counts.values()) != {declared}:
            told = ", ".join(f"{what} {number:,}" for what, number in sorted(counts.items()))
            message = f"layer {layer}: {told}, and config.json says {declared:,}"
            actual = dict(sorted(counts.items()))
            yield Finding(Code.EXPERT_COUNT, message, layer=layer, expected=declared, actual=actual)  # type: ignore[arg-type]


def _has(inventory: Inventory, binding: Binding, part: str) -> bool:
    """Tell whether anything of a part is stored, whether or not the config asks for it."""
    bound = any(bound.module.part.lower() == part for bound in binding.modules)
    return bound or any(group.role in _ROLES_OF[part] for group in inventory.known_groups)


_ROLES_OF = {"mtp": {TensorRole.MTP_PROJECTION, TensorRole.MTP_NORM}, "vision": {TensorRole.VISION}}
"""The roles that only a part which may be required has."""


def _report(
    inventory: Inventory,
    outcomes: Mapping[str, _Outcome],
    model: Model | None,
    binding: Binding,
    looked: Looked | None = None,
) -> Report:
    """Put the answer together."""
    findings = [replace(finding, check=check) for check, outcome in outcomes.items() for finding in outcome.findings]
    parts = tuple(encodings_by_part(binding))
    nbytes = sum(group.nbytes for group in inventory.groups)
    parameters = sum(row.parameters for row in parts) or None
    sizes = {shard: header.file_bytes for shard, header in inventory.headers.items()}
    largest = max(sizes.items(), key=lambda entry: entry[1], default=None)
    answer = Verification(
        checks=tuple(_row(check, outcomes.get(check)) for check in CHECKS),
        encodings=parts,
        dialect=model.spoken.dialect.name if model else None,
        tensors=len(inventory.tensors),
        bytes=nbytes,
        shards=inventory.shards,
        parameters=parameters,
        bits_per_parameter=bits_per_parameter(nbytes, parameters or 0),
        largest_shard=LargestShard(*largest) if largest else None,
        mtp=_mtp_state(model, outcomes, parts),
        pruned=_pruned(binding),
        draft=bool(model and model.draft),
        fingerprint=fingerprint(inventory.groups),
        not_read=(NOT_READ,),
    )
    if looked:
        answer = replace(
            answer,
            not_read=_left_out(looked, inventory),
            values=looked.read,
            scale_pairs=looked.pairs,
            statistics=looked.statistics,
        )
    return Report(
        command="verify",
        source=inventory.info,
        answer=answer,
        findings=in_order(findings),
        complete=inventory.complete and not (looked and looked.unread),
    )


def _left_out(looked: Looked, inventory: Inventory) -> tuple[str, ...]:
    """Name what nobody looked at although values were asked for."""
    read = looked.read
    counts = (
        (read.block_scales_of - read.block_scales, f"of {counted(read.block_scales_of, 'block scale')}"),
        (read.of - read.tensors, f"of {counted(read.of, 'other small tensor')}"),
    )
    left = [f"{number:,} {what}" for number, what in counts if number]
    unseen = len(inventory.refused) + len(inventory.missing)
    return ("values of weights", *left, *([f"whatever is in {counted(unseen, 'shard')}"] if unseen else []))


_MAY_BE_UNREAD = frozenset({"reference-parser", *VALUE_CHECKS})
"""The checks that look at more than headers, and so cannot always."""


def _row(check: str, outcome: _Outcome | None) -> CheckRow:
    if outcome is None or outcome.subjects is None:
        return CheckRow(check, 0, 0, "not-read" if check in _MAY_BE_UNREAD else "not-applicable")
    failed = any(finding.severity is Severity.ERROR for finding in outcome.findings)
    status = "failed" if failed else "passed" if outcome.subjects else "not-applicable"
    return CheckRow(check, outcome.subjects, len(outcome.findings), status)


def _mtp_state(model: Model | None, outcomes: Mapping[str, _Outcome], parts: tuple[EncodingRow, ...]) -> MtpState:
    if model is None:
        return MtpState("unknown", None)
    if not model.mtp:
        return MtpState("missing" if model.architecture.num_nextn_predict_layers else "none", None)
    wrong = {
        check
        for check in (*MODULE_CHECKS, "encodings", "quant-config")
        for finding in outcomes[check].findings
        if finding.layer in model.mtp and finding.severity is Severity.ERROR
    }
    state = "incomplete" if wrong - {"quant-config"} else "complete"
    encoding = next((row.encoding for row in parts if row.part == "MTP"), None)
    where = min(model.mtp) if len(model.mtp) == 1 else ranges(model.mtp)
    return MtpState(state, where, encoding, "quant-config" not in wrong)


def _pruned(binding: Binding) -> Pruned | None:
    """Tell how many experts are left, when all layers agree and the release has more."""
    released = text_config(official_config()).get("n_routed_experts")
    counts = {number for numbers in binding.experts.values() for number in numbers.values()}
    if len(counts) != 1 or not isinstance(released, int) or min(counts) >= released:
        return None
    return Pruned(counts.pop(), released)
