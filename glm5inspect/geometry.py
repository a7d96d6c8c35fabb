# SPDX-License-Identifier: AGPL-3.0-only
"""What ``config.json`` says about shapes and layers: named as there, validated, and nothing defaulted silently.

The fields are those of ``text_config``, or of the top level in flat text-only and draft configs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import TYPE_CHECKING

from glm5inspect.catalogue import Code
from glm5inspect.report import Finding, ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_LAYERS = 10_000
"""More layers than this are not believed of a config; each declared one may cost a finding per tensor."""

_FIELD_LIMIT = 1 << 64
"""No size or number of a config is believed to be this large, so that no product of a few grows beyond printing."""

_DSA_LAYER_TYPES = frozenset({"deepseek_sparse_attention", "indexed_attention", "full_attention"})


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes that the shapes of a DSA block follow from, in elements, spelled as in ``config.json``.

    Heads are the full count: a checkpoint is never split by tensor parallelism on disk.
    """

    hidden_size: int
    num_attention_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    index_n_heads: int
    index_head_dim: int
    index_kpool: int
    index_topk: int

    @property
    def q_dim(self) -> int:
        """Rows of ``q_b_proj``: the position-free and the rope part of every head."""
        return self.num_attention_heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)

    @property
    def kv_dim(self) -> int:
        """Rows of ``kv_b_proj``: key and value of every head."""
        return self.num_attention_heads * (self.qk_nope_head_dim + self.v_head_dim)

    @property
    def v_dim(self) -> int:
        """Columns of ``o_proj``: the values of every head."""
        return self.num_attention_heads * self.v_head_dim

    @property
    def kv_cache_dim(self) -> int:
        """Rows of ``kv_a_proj_with_mqa``: what the cache keeps of a token."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def index_dim(self) -> int:
        """Rows of the indexer's ``wq_b``."""
        return self.index_n_heads * self.index_head_dim


REFERENCE = Geometry(
    hidden_size=4096,
    num_attention_heads=64,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=256,
    qk_rope_head_dim=0,
    v_head_dim=256,
    index_n_heads=32,
    index_head_dim=128,
    index_kpool=4,
    index_topk=2048,
)
"""GLM-5.3-Flash as released; used only where there is no config, and then with a warning."""


def text_config(config: Mapping[str, object]) -> Mapping[str, object]:
    """Return the part of ``config.json`` that describes the text model: ``text_config``, else the top level."""
    nested = config.get("text_config")
    return nested if isinstance(nested, dict) else config


def read_geometry(config: Mapping[str, object]) -> tuple[Geometry | None, list[Finding]]:
    """Validate the geometry of a config.

    Returns:
        The geometry and no finding, or ``None`` and a `config-geometry` finding for each field at fault.
    """
    text = text_config(config)
    values, faults = {}, []
    for field in fields(Geometry):
        may_be_zero = field.name == "qk_rope_head_dim"
        value = text.get(field.name)
        if type(value) is int and (0 < value < _FIELD_LIMIT or (may_be_zero and value == 0)):
            values[field.name] = value
        else:
            faults.append(fault(text, field.name, "0" if may_be_zero else "a positive integer"))
    if values.get("qk_rope_head_dim"):
        faults.append(fault(text, "qk_rope_head_dim", "0", "This model has no rope section (NoPE) anywhere."))
    if values.get("index_topk", 0) % values.get("index_kpool", 1):
        faults.append(fault(text, "index_topk", f"a multiple of index_kpool ({values['index_kpool']})"))
    return (None if faults else Geometry(**values)), faults


def read_count(config: Mapping[str, object] | None, field: str) -> tuple[int | None, list[Finding]]:
    """Read a number of layers that may be absent.

    Returns:
        The number and no finding; ``None`` when nothing is declared; ``None`` and a `config-geometry` finding when it
        is not a natural number.
    """
    text = text_config(config) if config else {}
    value = text.get(field)
    if value is None or (type(value) is int and 0 <= value < _FIELD_LIMIT):
        return value, []
    return None, [fault(text, field, "a number of layers")]


def read_number(
    stated: Mapping[str, object],
    field: str,
    values: dict[str, int],
    name: str | None = None,
    *,
    least: int = 1,
    limit: int | None = None,
    absent: int | None = None,
) -> list[Finding]:
    """Read one size or number into ``values``.

    Args:
        stated: The part of the config that has the field.
        field: As spelled there.
        values: Where the number goes, when it is one.
        name: What it is called there, ``None`` for the same.
        least: The least value that is possible.
        limit: The value that is not believed any more; ``None`` for 2^64.
        absent: What a missing field means; ``None`` when it must not be missing.

    Returns:
        A `config-geometry` finding when it is missing or impossible.
    """
    value = stated.get(field, absent) if stated.get(field) is not None else absent
    if type(value) is int and least <= value < (limit or _FIELD_LIMIT):
        values[name or field] = value
        return []
    return [fault(stated, field, f"an integer from {least}" + (f" to {limit - 1:,}" if limit else ""))]


def fault(text: Mapping[str, object], field: str, expected: str, hint: str | None = None) -> Finding:
    """Report a field of the config that is missing or impossible."""
    actual = json.dumps(text[field])[:60] if field in text else None
    message = f"config.json: {field} is {'missing' if actual is None else actual}, not {expected}"
    return Finding(Code.CONFIG_GEOMETRY, message, hint=hint, expected=expected, actual=actual)


def declared_dsa_layers(config: Mapping[str, object]) -> tuple[set[int] | None, list[Finding]]:
    """Read which trunk layers are declared to have sparse attention.

    Returns:
        The layers that any of the two fields names, ``None`` when neither is there; and what they contradict.
    """
    text = text_config(config)
    faults: list[Finding] = []
    stated: dict[str, set[int]] = {}
    types = text.get("layer_types")
    if types is not None:
        if isinstance(types, list) and len(types) <= MAX_LAYERS:
            stated["layer_types"] = {
                i for i, kind in enumerate(types) if isinstance(kind, str) and kind in _DSA_LAYER_TYPES
            }
            faults += _check_length(types, text)
        else:
            faults.append(fault(text, "layer_types", f"a list of at most {MAX_LAYERS:,} layers"))
    linear = text.get("linear_attn_config")
    full = linear.get("full_attn_layers") if isinstance(linear, dict) else None
    if full is not None:
        if isinstance(full, list) and all(type(layer) is int and 0 <= layer < MAX_LAYERS for layer in full):
            stated["linear_attn_config.full_attn_layers"] = set(full)
        else:
            faults.append(
                fault({"full_attn_layers": full}, "full_attn_layers", f"a list of layers below {MAX_LAYERS:,}")
            )
    faults += _compare(stated)
    return (set().union(*stated.values()) if stated else None), faults


def _check_length(types: list[object], text: Mapping[str, object]) -> Iterator[Finding]:
    layers = text.get("num_hidden_layers")
    if type(layers) is int and layers != len(types):
        message = f"config.json: layer_types has {len(types)} entries, num_hidden_layers is {layers}"
        yield Finding(Code.CONFIG_CONTRADICTION, message, expected=layers, actual=len(types))


def _compare(stated: Mapping[str, set[int]]) -> Iterator[Finding]:
    sets = list(stated.items())
    for (first, one), (second, other) in pairwise(sets):
        if one != other:
            message = f"config.json: {first} and {second} disagree about layers {ranges(one ^ other)}"
            yield Finding(
                Code.CONFIG_CONTRADICTION, message, expected=ranges(one), actual=ranges(other), count=len(one ^ other)
            )
