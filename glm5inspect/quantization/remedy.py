# SPDX-License-Identifier: AGPL-3.0-only
"""What to write into a quantization config so that it leaves modules out, ready to be pasted."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING

from glm5inspect.quantization.patterns import PatternList, Style, Target

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from glm5inspect.stored import StoredModule

_PREFIXES = ("model.language_model.layers.", "model.layers.")
_LAYER = re.compile(r"(?<=\.layers\.)[0-9]+(?=\.)")
_LONG_LIST = 12
_HOPELESS_LIST = 2000
_MAX_JSON = 2000


def entries_for(modules: Sequence[StoredModule], others: Iterable[StoredModule], style: Style) -> list[str]:
    """Return the entries that cover some modules and none of the others, in both prefixes that loaders go by.

    Args:
        modules: Those to cover, at least one, all of one layer or of none.
        others: Linear modules that must not be covered.
        style: How the list is read that the entries go into.
    """
    paths = list(dict.fromkeys(module.path for module in modules))
    kept = {module.path for module in others}
    stem = stem_of(paths)
    if len(paths) == 1 and ".E." not in paths[0]:
        globs = paths
    elif stem and not any(path.startswith(stem) for path in kept):
        globs = [f"{stem}*"]
    elif stem and not any(path.startswith(f"{stem}.") for path in kept):
        globs = [f"{stem}.*"]
    else:
        globs = [spelled for module in modules for spelled in _paths(module, shared=module.path in kept)]
    both = [spelling for pattern in globs for spelling in _spellings(pattern)]
    return list(dict.fromkeys(_written(pattern, style) for pattern in both))


def _paths(module: StoredModule, *, shared: bool) -> list[str]:
    """Spell the path of a module for a glob: every expert, unless other experts of the path must not be covered."""
    if not shared:
        return [module.path.replace(".E.", ".*.")]
    return [module.path.replace(".E.", f".{expert}.", 1) for expert in module.experts or ()]


def stem_of(paths: Sequence[str]) -> str:
    """Return the dotted parts that all paths begin with; nothing when these name no layer or part of the model."""
    shared = []
    for parts in zip(*(path.split(".") for path in paths), strict=False):
        if len(set(parts)) > 1 or parts[0] == "E":
            break
        shared.append(parts[0])
    return "" if not shared or shared[-1] in ("model", "language_model", "layers") else ".".join(shared)


def _spellings(pattern: str) -> list[str]:
    for prefix in _PREFIXES:
        if pattern.startswith(prefix):
            return [other + pattern.removeprefix(prefix) for other in _PREFIXES]
    return [pattern]


def _written(pattern: str, style: Style) -> str:
    if style is Style.REGEX and "*" in pattern:
        return "re:" + re.escape(pattern.replace(".*", "*") if pattern.endswith(".*") else pattern).replace(r"\*", ".*")
    if style is Style.PART:
        return pattern.partition("*")[0].rstrip(".")
    return pattern


def override(
    block: Mapping[str, object], key: str, entries: Sequence[str], style: Style, quantized: Sequence[StoredModule]
) -> str | None:
    """Return vLLM's option that adds entries to a list, for a checkpoint that cannot be edited.

    What is given there takes the place of the whole quantization config, so all of it must be said again. Entries that
    differ in the layer only become one, where that covers no module that is quantized.

    Args:
        block: The quantization config of the checkpoint.
        key: The list to add to, in the block itself or under ``quantization``.
        entries: What to add.
        style: How the list is read.
        quantized: The modules that must not be covered.

    Returns:
        ``None`` when it would be too long to be of use.
    """
    inner = block.get("quantization")
    home = inner if isinstance(inner, dict) else block
    listed = home.get(key)
    old = [entry for entry in listed if isinstance(entry, str)] if isinstance(listed, list) else []
    if len(old) > _HOPELESS_LIST:
        return None
    if style is Style.GLOB and len(old) > _LONG_LIST:
        old = _merged(old, quantized)
    changed: dict[str, object] = {**home, key: [*old, *(entry for entry in entries if entry not in old)]}
    if home is not block:
        changed = {**block, "quantization": changed}
    config = {"quantization_config": {"quant_method": "modelopt", **changed}}
    try:
        text = json.dumps(config, separators=(", ", ": "))
    except (RecursionError, TypeError, ValueError):
        return None
    return f"--hf-overrides {shlex.quote(text)}" if len(text) <= _MAX_JSON else None


def _merged(entries: Sequence[str], quantized: Sequence[StoredModule]) -> list[str]:
    """Merge globs that differ in the layer only."""
    families: dict[str, list[str]] = {}
    for entry in entries:
        families.setdefault(_LAYER.sub("*", entry, count=1), []).append(entry)
    targets = [Target(module.path, module.experts) for module in quantized]
    wide = PatternList(list(families), Style.GLOB)
    taken = {hit.entry for target in targets for hit in wide.hits(target)}
    merged: list[str] = []
    for index, (family, members) in enumerate(families.items()):
        merged += members if len(members) == 1 or index in taken else [family]
    return merged
