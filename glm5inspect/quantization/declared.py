# SPDX-License-Identifier: AGPL-3.0-only
"""What the config files of a checkpoint declare about quantization, each format by a reader of its own.

A reader is one entry of a table. It turns its format into rules: the first rule that names a module says how it is
stored. Wrong types never raise: what makes no sense is not there, and what is not understood is said.
"""

from __future__ import annotations

from collections import ChainMap
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from glm5inspect.quantization.patterns import PatternList, Style
from glm5inspect.quantization.schemes import (
    PLAIN_ALGORITHMS,
    Activations,
    Block,
    Scheme,
    block_of,
    by_algorithm,
    by_arguments,
    fp8,
    integer,
    integers,
    word,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_PLAIN_BITS = 16
"""From this width on a value is not quantized."""


_MAX_RULES = 256
"""A config with more than this is not understood: every module is held against every rule."""


class Rule(NamedTuple):
    """Says how the modules that its entries name are stored.

    Attributes:
        key: Where the entries stand in the config.
        patterns: The entries.
        scheme: ``None`` when these modules are not quantized.
        optional: Whether a module that is stored plain is as good: such loaders go by the tensors they find.
    """

    key: str
    patterns: PatternList
    scheme: Scheme | None
    optional: bool = False


class Declaration(NamedTuple):
    """What one file declares.

    Attributes:
        file: Its name.
        method: How the format calls itself.
        rules: The first that names a module counts.
        known: Whether the format is understood; there are no rules when it is not.
        total: Whether the rules tell of every module, so that what none of them names is not quantized.
        ignore: The key whose list leaves modules out, for advice; empty when the format has none.
        style: How that list is read.
        kv_cache: What it declares about the KV cache: a scheme, ``""`` for none, ``None`` when it says nothing.
        bits: The mean width of a value, for formats that choose it module by module; 0 for others.
    """

    file: str
    method: str
    rules: tuple[Rule, ...] = ()
    known: bool = True
    total: bool = True
    ignore: str = ""
    style: Style = Style.GLOB
    kv_cache: str | None = None
    bits: float = 0


def read_declaration(file: str, config: Mapping[str, object] | None) -> Declaration | None:
    """Return what a config file declares about quantization, or ``None`` when it declares nothing."""
    found = quantization_block(config)
    if found is None:
        return None
    block, method = found
    reader = _READERS.get(method)
    if reader is None:
        return Declaration(file, method, known=False)
    return reader(block)._replace(file=file, method=method)


def quantization_block(config: Mapping[str, object] | None) -> tuple[Mapping[str, object], str] | None:
    """Return the part of a config that is about quantization, and the method that it names or shows."""
    for place in (config, _mapping(_mapping(config).get("text_config"))):
        for key in ("quantization", "quantization_config", "compression_config"):
            block = _mapping(_mapping(place).get(key))
            if block:
                return block, _method(block, mlx=key == "quantization")
    # hf_quant_config.json may spell what config.json has, without a key around it.
    block = _mapping(config)
    return (block, _method(block, mlx=False)) if "quant_algo" in block else None


def _method(block: Mapping[str, object], *, mlx: bool) -> str:
    named = block.get("quant_method")
    if isinstance(named, str) and named:
        lower = named.lower().replace("_", "-")
        return "modelopt" if lower.startswith("modelopt") else lower.rpartition("/")[2][:80]
    if "quant_algo" in block:
        return "modelopt"
    if "config_groups" in block:
        return "compressed-tensors"
    if mlx or "mode" in block:
        return "mlx"
    return "without a name"


def declared_tile(config: Mapping[str, object] | None) -> Block | None:
    """Return the block size (rows, columns) that a config declares for block FP8, or ``None``."""
    found = quantization_block(config)
    return block_of(found[0].get("weight_block_size")) if found else None


def _modelopt(block: Mapping[str, object]) -> Declaration:
    block = _mapping(block.get("quantization")) or block  # a whole sidecar, given as the config
    keys = ("ignore", "exclude_modules") if "quant_method" in block else ("exclude_modules", "ignore")
    ignore = next((key for key in keys if key in block), keys[0])
    rules = [_ignored(key, block, Style.GLOB) for key in keys]
    algorithm = word(block.get("quant_algo")).upper()
    if layers := _mapping(block.get("quantized_layers")):
        rules += _by_scheme("quantized_layers", layers, _layer_scheme)
    elif groups := _mapping(block.get("config_groups")):
        rules += _groups(groups, Style.TREE, packed=False)
    elif algorithm in PLAIN_ALGORITHMS or block.get("quant_algo", "") is None:
        rules.append(_everything("quant_algo", None))
    elif algorithm:
        rules.append(_everything("quant_algo", by_algorithm(algorithm, integer(block.get("group_size")))))
    kv_cache = word(block["kv_cache_quant_algo"]) if "kv_cache_quant_algo" in block else None
    if "kv_cache_scheme" in block:
        kv_cache = _kv_scheme(block["kv_cache_scheme"])
    return _declaration(rules, ignore=ignore, kv_cache=kv_cache)


def _layer_scheme(value: object) -> Scheme | None:
    algorithm = word(_mapping(value).get("quant_algo")).upper()
    if algorithm in PLAIN_ALGORITHMS:
        return None
    return by_algorithm(algorithm, integer(_mapping(value).get("group_size")))


def _compressed_tensors(block: Mapping[str, object]) -> Declaration:
    rules = [_ignored("ignore", block, Style.REGEX), *_groups(_mapping(block.get("config_groups")), Style.REGEX)]
    kv_cache = _kv_scheme(block["kv_cache_scheme"]) if "kv_cache_scheme" in block else None
    return _declaration(rules, ignore="ignore", style=Style.REGEX, kv_cache=kv_cache)


def _groups(groups: Mapping[str, object], style: Style, *, packed: bool = True) -> Iterable[Rule]:
    for name, value in islice(groups.items(), _MAX_RULES + 1):
        group = _mapping(value)
        weights = _mapping(group.get("weights"))
        targets = _list(group.get("targets"))
        key = f"config_groups.{name[:80]}"
        scheme = by_arguments(weights, group.get("input_activations"), packed=packed) if weights else None
        if "Linear" in targets:
            yield _everything(key, scheme)
        elif targets:
            yield Rule(f"{key}.targets", PatternList(targets, style), scheme)


def _fp8(block: Mapping[str, object]) -> Declaration:
    activations = Activations.SCALED if block.get("activation_scheme") == "static" else Activations.UNTOLD
    scheme = fp8(block_of(block.get("weight_block_size")), activations)
    return _all_but(block, scheme, "modules_to_not_convert", "ignored_layers")


def _mxfp4(block: Mapping[str, object]) -> Declaration:
    return _all_but(block, Scheme("MXFP4", frozenset({"mxfp4"})), "modules_to_not_convert")


def _all_but(block: Mapping[str, object], scheme: Scheme, *keys: str) -> Declaration:
    rules = [_ignored(key, block, Style.PART) for key in keys if key in block]
    key = next((key for key in keys if key in block), keys[0])
    return _declaration([*rules, _everything("quant_method", scheme)], ignore=key, style=Style.PART)


def _quark(block: Mapping[str, object]) -> Declaration:
    rules = [_ignored("exclude", block, Style.GLOB)]
    rules += _by_scheme("layer_quant_config", _mapping(block.get("layer_quant_config")), _quark_scheme)
    if usual := _mapping(block.get("global_quant_config")):
        rules.append(_everything("global_quant_config", _quark_scheme(usual)))
    kv_cache = "a KV-cache group" if _list(_mapping(block.get("export")).get("kv_cache_group")) else None
    return _declaration(rules, ignore="exclude", kv_cache=kv_cache)


def _quark_scheme(value: object) -> Scheme | None:
    weight = _mapping(_mapping(value).get("weight"))
    dtype, kind, group = word(weight.get("dtype")), word(weight.get("qscheme")), integer(weight.get("group_size"))
    if not weight:
        return None
    if dtype.startswith("fp4"):
        return Scheme("MXFP4", frozenset({"mxfp4"}), group=group)
    if not dtype.startswith("fp8"):
        return Scheme(dtype)
    if kind in ("per_tensor", "per_channel"):
        return Scheme(f"FP8 {kind}", frozenset({"fp8-tensor" if kind == "per_tensor" else "fp8-channel"}))
    return fp8(block_of(weight.get("group_size")) or ((1, group) if group > 0 else None))


def _mlx(block: Mapping[str, object]) -> Declaration:
    # MLX quantizes by default what it finds scales of, and what is named one by one whatever it finds.
    single = {path: value for path, value in block.items() if isinstance(value, dict | bool)}
    rules = list(_by_scheme("quantization", single, lambda value: _mlx_scheme(value, block), Style.EXACT))
    rules.append(_everything("quantization", _mlx_scheme(block, block), optional=True))
    return _declaration(rules)


def _mlx_scheme(value: object, usual: Mapping[str, object]) -> Scheme | None:
    if value is False:
        return None
    own = ChainMap(_own(value), _own(usual))
    mode = word(own.get("mode")) or "affine"
    encodings = ("mlx-affine",) if mode == "affine" else ()
    return integers(encodings, integer(own.get("bits")), integer(own.get("group_size")), mode)


def _exl3(block: Mapping[str, object]) -> Declaration:
    bits = block.get("bits")
    mean = (
        float(bits) if isinstance(bits, int | float) and not isinstance(bits, bool) and 0 < bits <= _PLAIN_BITS else 0
    )
    marker = codebook if (codebook := word(block.get("codebook"))) in ("mcg", "mul1") else ""
    scheme = Scheme(f"EXL3 {marker}".rstrip(), frozenset({"exl3"}), marker=marker)
    return _declaration([_everything("quant_method", scheme, optional=True)], bits=mean)


def _gptq(block: Mapping[str, object]) -> Declaration:
    def scheme(value: object) -> Scheme | None:
        own = ChainMap(_own(value), _own(block))
        return integers(("gptq",), integer(own.get("bits")), integer(own.get("group_size")), "GPTQ")

    # GPTQModel: regular expressions for the beginning of a path, `-:` in front of those that are left out.
    rules = [
        Rule(
            "dynamic", PatternList([f"re:{name[2:]}.*"], Style.REGEX), None if name.startswith("-:") else scheme(value)
        )
        for name, value in islice(_mapping(block.get("dynamic")).items(), _MAX_RULES + 1)
        if name.startswith(("-:", "+:"))
    ]
    return _declaration([*rules, _everything("quant_method", scheme({}), optional=True)])


def _awq(block: Mapping[str, object]) -> Declaration:
    bits = integer(block.get("bits")) or integer(block.get("w_bit"))
    group = integer(block.get("group_size")) or integer(block.get("q_group_size"))
    key = "modules_to_not_convert"
    listed = isinstance(block.get(key), list)
    everything = _everything("quant_method", integers(("awq",), bits, group, "AWQ"), optional=not listed)
    return _declaration([_ignored(key, block, Style.PART), everything], ignore=key, style=Style.PART)


def _auto_round(block: Mapping[str, object]) -> Declaration:
    packing = word(block.get("packing_format"))
    encodings = tuple(name for name in ("gptq", "awq") if name in packing) or ("gptq", "awq")

    def scheme(value: object) -> Scheme | None:
        own = ChainMap(_own(value), _own(block))
        bits = integer(own.get("bits"))
        return None if bits >= _PLAIN_BITS else integers(encodings, bits, integer(own.get("group_size")), "AutoRound")

    rules = list(_by_scheme("extra_config", _mapping(block.get("extra_config")), scheme))
    blocks = block.get("block_name_to_quantize")
    names = [name.strip() for name in blocks.split(",")] if isinstance(blocks, str) else _list(blocks)
    if names:
        rules.append(Rule("block_name_to_quantize", PatternList(names, Style.TREE), scheme({})))
    else:
        rules.append(_everything("quant_method", scheme({}), optional=True))
    return _declaration(rules)


_READERS: dict[str, Callable[[Mapping[str, object]], Declaration]] = {
    "modelopt": _modelopt,
    "compressed-tensors": _compressed_tensors,
    "fp8": _fp8,
    "fbgemm-fp8": _fp8,
    "mxfp8": lambda block: _fp8({"weight_block_size": [1, 32], **block}),
    "mxfp4": _mxfp4,
    "quark": _quark,
    "mlx": _mlx,
    "exl3": _exl3,
    "gptq": _gptq,
    "awq": _awq,
    "auto-round": _auto_round,
}
"""Every format that is understood, by its ``quant_method``."""


def _declaration(
    rules: Sequence[Rule],
    *,
    ignore: str = "",
    style: Style = Style.GLOB,
    kv_cache: str | None = None,
    bits: float = 0,
) -> Declaration:
    """Make the declaration of a reader; it is total unless a target could not be read, or is a class of modules."""
    kept = tuple(rule for rule in rules if rule.patterns.entries or rule.patterns.style is Style.ALL)
    for rule in kept:
        rule.patterns.budget = kept[0].patterns.budget
    named = [rule.patterns for rule in kept if rule.scheme]
    total = not any(patterns.unread or any(e[:1].isupper() for e in patterns.entries) for patterns in named)
    tells = any(rule.scheme or rule.patterns.style is Style.ALL for rule in kept)
    known = tells and len(kept) <= _MAX_RULES
    return Declaration("", "", kept if known else (), known, total, ignore, style, kv_cache, bits)


def _everything(key: str, scheme: Scheme | None, *, optional: bool = False) -> Rule:
    return Rule(key, PatternList((), Style.ALL), scheme, optional)


def _ignored(key: str, block: Mapping[str, object], style: Style) -> Rule:
    return Rule(key, PatternList(_list(block.get(key)), style), None)


def _by_scheme(
    key: str, values: Mapping[str, object], scheme: Callable[[object], Scheme | None], style: Style = Style.TREE
) -> Iterable[Rule]:
    """Make one rule for all paths that are said to be stored alike."""
    paths: dict[Scheme | None, list[str]] = {}
    for path, value in values.items():
        paths.setdefault(scheme(value), []).append(path)
        if len(paths) > _MAX_RULES:
            break
    return [Rule(key, PatternList(names, style), common) for common, names in paths.items()]


def _kv_scheme(value: object) -> str:
    """Say what a ``kv_cache_scheme`` declares; nothing when it needs no tensor."""
    scheme = _mapping(value)
    if not scheme or scheme.get("dynamic") is True:
        return ""
    return f"{word(scheme.get('type'))} {integer(scheme.get('num_bits'))}-bit"


def _own(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    """Return a list of a config; what is none is one entry, which is read or said to be none."""
    return value if isinstance(value, list) else [] if value is None else [value]
