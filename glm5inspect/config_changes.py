# SPDX-License-Identifier: AGPL-3.0-only
"""What two configs say differently about the model; how it is stored is left to the tensors themselves."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from glm5inspect.architecture import MODEL_TYPES, Architecture, Vision
from glm5inspect.errors import ConfigError
from glm5inspect.fingerprint import ESSENTIAL, OWN_BUSINESS
from glm5inspect.geometry import Geometry, text_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

WHOLE = "config.json"
"""The key of a change that is about the file itself: one side has none."""

_BUILDING = ESSENTIAL.union(
    *({field.name for field in fields(sizes)} for sizes in (Architecture, Geometry, Vision)),
    {"layer_types", "full_attn_layers", "kda_layers", "head_dim", "short_conv_kernel_size"},
    {"routed_experts_per_layer", "tie_word_embeddings", "vision_config", "model_type"},
    {"num_experts_per_tok", "n_group", "topk_group", "topk_method", "norm_topk_prob", "hidden_act", "attention_bias"},
    {"mhc", "hc_eps", "hc_sinkhorn_iters", "gate_lower_bound", "mla_use_nope", "indexer_types", "mlp_layer_types"},
    {"index_kpool_compress", "index_kpool_always_select_tail", "index_share_for_mtp_iteration"},
    {"indexer_rope_interleave", "num_key_value_heads", "qk_head_dim", "moe_router_dtype"},
)
"""Keys of which another model would be built: sizes, layers, and what is computed."""

_LEFT_OUT = OWN_BUSINESS | {"quantization_config", "quantization", "text_config", "vision_config"}
_MOST_SHOWN = 60  # characters of a value
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A key that two configs do not agree on.

    Attributes:
        key: Dotted, those of ``text_config`` without it; ``config.json`` when one side has no config at all.
        a: The value in A as JSON, shortened; of two lists, the first entry that differs. ``None`` for an absent key.
        b: The same in B.
    """

    key: str
    a: str | None
    b: str | None

    @property
    def builds(self) -> bool:
        """Whether another model is built of it."""
        return self.key.rpartition(".")[2] in _BUILDING


def config_changes(a: Mapping[str, object] | None, b: Mapping[str, object] | None) -> tuple[ConfigChange, ...]:
    """Return the keys that differ, sorted, without those that only say how weights are stored, or who wrote them.

    Raises:
        ConfigError: A value is nested too deeply.
    """
    if a is None or b is None:
        told = [None if config is None else "present" for config in (a, b)]
        return () if a is b else (ConfigChange(WHOLE, *told),)
    left, right = _keys(a), _keys(b)
    if (a.get("vision_config") is None) != (b.get("vision_config") is None):
        left, right = ({k: v for k, v in side.items() if not k.startswith("vision_config.")} for side in (left, right))
    keys = sorted(left.keys() | right.keys())
    pairs = ((key, left.get(key, _ABSENT), right.get(key, _ABSENT)) for key in keys)
    return tuple(ConfigChange(key, *_told(one, other)) for key, one, other in pairs if _text(one) != _text(other))


def _keys(config: Mapping[str, object]) -> dict[str, object]:
    """Return every key of the whole, of the text model and of the vision tower with its value.

    Where the whole and the text model have the same key, that of the whole counts, as it does for loaders.
    """
    model_type = config.get("model_type")
    keys = {} if model_type in (None, *MODEL_TYPES) else {"model_type": model_type}
    for part in (text_config(config), config):
        keys |= _flatten("", {key: value for key, value in part.items() if key not in _LEFT_OUT})
    tower = config.get("vision_config")
    if isinstance(tower, dict):
        own = {key: value for key, value in tower.items() if key not in OWN_BUSINESS}
        keys |= {"vision_config": "present", **dict(_flatten("vision_config.", own))}
    return keys


def _flatten(where: str, values: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield keys and values, those of objects within objects one level down."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from ((f"{where}{key}.{inner}", content) for inner, content in value.items())
        else:
            yield where + key, value


def _told(one: object, other: object) -> tuple[str | None, str | None]:
    """Return both values as text: of two lists, where they begin to differ."""
    if isinstance(one, list) and isinstance(other, list):
        shared = zip(one, other, strict=False)
        first = next((i for i, (left, right) in enumerate(shared) if _text(left) != _text(right)), None)
        if first is None:
            return f"{len(one)} entries", f"{len(other)} entries"
        return f"[{first}] {_shown(one[first])}", f"[{first}] {_shown(other[first])}"
    return _shown(one), _shown(other)


def _shown(value: object) -> str | None:
    text = _text(value)
    return text if text is None or len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."


def _text(value: object) -> str | None:
    try:
        return None if value is _ABSENT else json.dumps(value, sort_keys=True)
    except RecursionError as error:  # the parser goes just a little deeper
        raise ConfigError(f"{WHOLE}: holds values nested too deeply to be compared") from error
