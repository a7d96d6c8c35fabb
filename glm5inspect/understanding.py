# SPDX-License-Identifier: AGPL-3.0-only
"""Whose model a checkpoint is, and how it is named: what every check has to know before it looks.

In the scope of the reference only the released names are known, and each tensor in its one dtype. In the usual scope
weights may be encoded, and other writers' names are recognised, reported once, and looked through.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from glm5inspect.architecture import MODEL_TYPES, read_architecture
from glm5inspect.catalogue import Code, Severity
from glm5inspect.dialects import DIALECTS, RELEASED, Spoken, recognize, translations
from glm5inspect.encodings import SUFFIXES
from glm5inspect.geometry import text_config
from glm5inspect.modules import LAYER, expected_modules
from glm5inspect.report import Fact, Finding, counted, some
from glm5inspect.roles import MTP_ONLY_NAMES, TensorRole, classify, in_layer, is_cache_scale
from glm5inspect.scope import Scope

if TYPE_CHECKING:
    from collections.abc import Mapping

    from glm5inspect.architecture import Architecture
    from glm5inspect.inventory import Inventory, Needs, Progress, Source


_MARKS = ("index_kpool_compress_", "hc_attn_", "attn_hc")
"""Parts of names that no other architecture has; one is enough to know the model without a config."""


class Model(NamedTuple):
    """What a checkpoint is expected to hold, under the names that it uses.

    Attributes:
        architecture: By the config.
        spoken: The module table in the dialect stored.
        mtp: The layers with multi-token prediction.
        draft: Whether only these are here.
    """

    architecture: Architecture
    spoken: Spoken
    mtp: frozenset[int]
    draft: bool


class Understood(NamedTuple):
    """What is known of a checkpoint before a check looks at it.

    Attributes:
        inventory: Under the released names.
        model: What it is expected to hold; ``None`` without a config that tells enough.
        findings: About its names and its architecture.
        foreign: Whether it is another model, of which nothing can be checked.
    """

    inventory: Inventory
    model: Model | None
    findings: list[Finding]
    foreign: bool


def understand(
    inventory: Inventory, config: Mapping[str, object] | None, scope: Scope, dialect: str | None
) -> Understood:
    """Find out whose model it is and how it is named; give every name its role, and look through foreign names.

    Args:
        inventory: What is stored.
        config: ``config.json``, ``None`` when there is none.
        scope: In that of the reference nothing but the released names is known.
        dialect: The dialect that is accepted without a finding.
    """
    if scope is Scope.REFERENCE:
        return Understood(inventory, None, [], foreign=False)
    if foreign := foreign_architecture(inventory, config):
        return Understood(inventory, None, [foreign], foreign=True)
    model = read_model(inventory, config, dialect)[0] if config is not None else None
    assign_roles(inventory, model.spoken if model else None)
    if model is None or config is None:
        return Understood(inventory, None, [], foreign=False)
    findings = check_dialect(inventory, model.spoken, config, dialect)
    return Understood(translate(inventory, model.spoken), model, findings, foreign=False)


def look(
    source: Source,
    needs: Needs | None,
    scope: Scope,
    dialect: str | None,
    progress: Progress | None,
) -> tuple[Inventory, Understood]:
    """Take the inventory that a check needs, and find out what it is; see `understand`.

    What a check needs it knows by the released names, so everything is read where all names begin otherwise.
    """
    config = source.config()
    inventory = source.inventory(needs, progress)
    seen = understand(inventory, config, scope, dialect)
    if inventory.partial and seen.model and seen.model.spoken.dialect.prefixes:
        inventory = source.inventory(progress=progress)
        seen = understand(inventory, config, scope, dialect)
    return inventory, seen


def foreign_architecture(inventory: Inventory, config: Mapping[str, object] | None) -> Finding | None:
    """Report a model that is not this one, by ``model_type``, or by its names where there is no config."""
    if config is not None:
        stated = [config.get("model_type"), text_config(config).get("model_type")]
        foreign = [kind for kind in stated if isinstance(kind, str) and kind not in MODEL_TYPES]
        if not foreign:
            return None
        message = f"config.json: model_type is {foreign[0]}; this tool knows {', '.join(sorted(MODEL_TYPES))}"
        return Finding(Code.FOREIGN_ARCHITECTURE, message, expected=sorted(MODEL_TYPES), actual=foreign[0])  # type: ignore[arg-type]
    patterns = {group.pattern for group in inventory.known_groups}
    ours = any(mark in pattern for pattern in patterns for mark in _MARKS)
    # One shard of many may hold nothing but experts, which are named alike everywhere.
    if ours or not patterns or not inventory.absence_is_known or inventory.info.kind == "file":
        return None
    message = f"no config.json, and none of {counted(len(inventory.tensors), 'name')} is one of this architecture"
    return Finding(Code.FOREIGN_ARCHITECTURE, message)


def stored_role(pattern: str) -> TensorRole | None:
    """Return the role of a name in the released layout, with the companions that any encoding may add."""
    role = classify(pattern)
    if role is None:
        if is_cache_scale(pattern):
            return TensorRole.MLA_PROJECTION
        base, _, suffix = pattern.rpartition(".")
        if suffix in SUFFIXES:
            role = _COPIES.get(base) or classify(f"{base}.weight")
    return role


_COPIES = {f"{LAYER}embed_tokens": TensorRole.EMBEDDING, f"{LAYER}shared_head.head": TensorRole.LM_HEAD}
"""What some builds put into the MTP layer once more."""


def assign_roles(inventory: Inventory, spoken: Spoken | None = None) -> None:
    """Give a role to the groups of an inventory that have none by the rules of the reference, where one is known."""
    for group in inventory.known_groups:
        if group.role is None:
            released = spoken.released.get(group.pattern) if spoken else None
            group.role = stored_role(released or group.pattern)


def read_model(
    inventory: Inventory, config: Mapping[str, object], dialect: str | None
) -> tuple[Model | None, list[Finding]]:
    """Find out what is expected, and under which names.

    Args:
        inventory: What is stored.
        config: ``config.json``.
        dialect: The dialect that the caller says it is; ``None`` to recognise it.

    Returns:
        The model, or ``None`` when the config does not tell enough; and what is wrong with the config.
    """
    architecture, faults = read_architecture(config)
    if architecture is None:
        return None, faults
    mtp, trunk = _stored_layers(inventory)
    declared = {layer for layer in architecture.mtp_layers() if layer in trunk}
    layers = frozenset(mtp | declared)
    draft = bool(layers) and not trunk - layers
    table = tuple(expected_modules(architecture, layers, draft=draft))
    spoken = recognize(inventory.known_groups, translations(table, architecture, layers), dialect)
    return Model(architecture, spoken, layers, draft), faults


def _stored_layers(inventory: Inventory) -> tuple[set[int], set[int]]:
    """Return the layers with a name that only an MTP layer has, and all layers, in whatever dialect."""
    prefixes = tuple({dialect.rename(LAYER) for dialect in DIALECTS})
    only = {prefix + name for prefix in prefixes for name in MTP_ONLY_NAMES}
    mtp, every = set(), set()
    for group in inventory.known_groups:
        if group.layer is not None and group.pattern.startswith(prefixes):
            every.add(group.layer)
            if group.pattern in only:
                mtp.add(group.layer)
    return mtp, every


def check_dialect(
    inventory: Inventory, spoken: Spoken, config: Mapping[str, object], accepted: str | None
) -> list[Finding]:
    """Report names that are not the released ones, as one finding.

    Args:
        inventory: What is stored.
        spoken: The module table in the dialect recognised.
        config: ``config.json``, which may declare the format.
        accepted: The dialect that the caller accepts.
    """
    name = spoken.dialect.name
    kinds: Counter[str] = Counter()
    mixed: Counter[str] = Counter()
    first: str | None = None
    stray: str | None = None
    for group in inventory.known_groups:
        home, number = spoken.released.get(group.pattern), len(group.tensors)
        if group.pattern in spoken.mixed:
            mixed[spoken.mixed[group.pattern]] += number
            stray = stray or group.tensors[0].name
        elif home is not None and home != group.pattern:
            role = stored_role(home)
            kinds[role.value if role else home] += number
            first = first or group.tensors[0].name
    findings = []
    if name not in (RELEASED, accepted):
        total = len(inventory.tensors) + len(inventory.unseen)
        share = f"{kinds.total():,} of {total:,} names are not in the released layout"
        told = some([f"{kind} {number:,}" for kind, number in kinds.most_common()], 6)
        declares = name == "mlx" and isinstance(config.get("quantization"), dict)
        findings.append(
            Finding(
                Code.FOREIGN_DIALECT,
                f"named as {spoken.dialect.title} names them ({name}): {share} ({told})",
                weight=Severity.NOTE if declares else None,
                hint=f"A loader written for the released names skips them silently; --dialect {name} accepts them.",
                tensor=first,
                actual=name,
                count=kinds.total(),
            )
        )
    if mixed:
        others = ", ".join(f"{number:,} of {other}" for other, number in sorted(mixed.items()))
        message = f"names of two dialects: {others} beside those of {name}"
        actual: Fact = [name, *sorted(mixed)]
        findings.append(
            Finding(Code.MIXED_DIALECT, message, tensor=stray, expected=name, actual=actual, count=mixed.total())
        )
    return findings


def translate(inventory: Inventory, spoken: Spoken) -> Inventory:
    """Return an inventory under the released names, as far as one name stands for one; shapes stay as they are."""
    if spoken.dialect.name == RELEASED and not spoken.mixed:
        return inventory
    names: dict[str, str] = {}
    taken: set[str] = set()
    for group in inventory.known_groups:
        home = spoken.released.get(group.pattern, group.pattern)
        for tensor in group.tensors:
            name = _translate_name(tensor.name, home, group.layer)
            names[tensor.name] = tensor.name if name in taken else name  # the second half of a split keeps its own
            taken.add(name)
    index = inventory.index
    if index:
        index = replace(index, weight_map={names.get(name, name): shard for name, shard in index.weight_map.items()})
    tensors = {names[name]: tensor._replace(name=names[name]) for name, tensor in inventory.tensors.items()}
    translated = replace(inventory, tensors=tensors, index=index, copies={})
    assign_roles(translated, spoken)
    return translated


def _translate_name(name: str, pattern: str, layer: int | None) -> str:
    pattern = in_layer(pattern, layer)
    if ".experts.E." in pattern:
        expert = name.partition(".experts.")[2].partition(".")[0]
        pattern = pattern.replace(".E.", f".{expert if expert.isdecimal() else 'E'}.", 1)
    return pattern
