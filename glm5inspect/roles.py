# SPDX-License-Identifier: AGPL-3.0-only
"""What a tensor is for, decided from its name alone; no file is opened here.

Coarse on purpose: this is about coverage, not about placement. A name that no rule teaches has no role: it is never
skipped and never guessed. The names are those that GLM-5.3-Flash (`Glm5NextForConditionalGeneration`) is released with.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

_LAYER_LIMIT = 1 << 64
_LAYER_DIGITS = len(str(_LAYER_LIMIT - 1))


class TensorRole(StrEnum):
    """The published vocabulary of roles; the strings appear in every output as they are."""

    EMBEDDING = "Embedding"
    LM_HEAD = "LmHead"
    FINAL_NORM = "FinalNorm"
    KDA_PROJECTION = "KdaProjection"
    KDA_CONV = "KdaConv"
    KDA_DECAY = "KdaDecay"
    KDA_GATE = "KdaGate"  # part of the vocabulary; no rule yields it today
    KDA_NORM = "KdaNorm"
    MLA_PROJECTION = "MlaProjection"
    MLA_NORM = "MlaNorm"
    INDEXER = "Indexer"
    INDEXER_NORM = "IndexerNorm"
    MOE_ROUTER = "MoeRouter"
    MOE_EXPERT = "MoeExpert"
    MOE_SHARED = "MoeShared"
    DENSE_FFN = "DenseFfn"
    LAYER_NORM = "LayerNorm"
    HYPER_CONNECTION = "HyperConnection"
    MTP_PROJECTION = "MtpProjection"
    MTP_NORM = "MtpNorm"
    VISION = "Vision"


_NORM_ROLES = frozenset(
    {
        TensorRole.FINAL_NORM,
        TensorRole.KDA_NORM,
        TensorRole.MLA_NORM,
        TensorRole.INDEXER_NORM,
        TensorRole.LAYER_NORM,
        TensorRole.MTP_NORM,
    }
)

LAYER_PREFIX = "model.language_model.layers.#."
"""What the normalised name of every tensor of a text layer begins with."""

MTP_ONLY_NAMES = ("eh_proj.weight", "enorm.weight", "hnorm.weight", "shared_head.norm.weight")
"""The layer-relative names that only a multi-token-prediction layer carries."""

_WHOLE_NAMES = {
    "lm_head.weight": TensorRole.LM_HEAD,
    "model.language_model.embed_tokens.weight": TensorRole.EMBEDDING,
    "model.language_model.norm.weight": TensorRole.FINAL_NORM,
}
_WHOLE_PREFIXES = (("model.visual.", TensorRole.VISION), ("model.vision", TensorRole.VISION))


def _attention(role: TensorRole, *names: str) -> dict[str, TensorRole]:
    return {f"self_attn.{name}": role for name in names}


_LAYER_NAMES = {
    "eh_proj.weight": TensorRole.MTP_PROJECTION,
    "enorm.weight": TensorRole.MTP_NORM,
    "hnorm.weight": TensorRole.MTP_NORM,
    "shared_head.norm.weight": TensorRole.MTP_NORM,
    "input_layernorm.weight": TensorRole.LAYER_NORM,
    "post_attention_layernorm.weight": TensorRole.LAYER_NORM,
    **_attention(TensorRole.KDA_PROJECTION, "q_proj.weight", "k_proj.weight", "v_proj.weight", "b_proj.weight"),
    **_attention(TensorRole.KDA_PROJECTION, "f_a_proj.weight", "f_b_proj.weight", "g_a_proj.weight", "g_b_proj.weight"),
    **_attention(TensorRole.KDA_CONV, "q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"),
    **_attention(TensorRole.KDA_DECAY, "A_log", "dt_bias"),
    **_attention(TensorRole.KDA_NORM, "o_norm.weight"),
    **_attention(TensorRole.MLA_PROJECTION, "q_a_proj.weight", "q_b_proj.weight", "kv_a_proj_with_mqa.weight"),
    # Both mixers have an o_proj; the name cannot tell them apart.
    **_attention(TensorRole.MLA_PROJECTION, "kv_b_proj.weight", "o_proj.weight"),
    **_attention(TensorRole.MLA_NORM, "q_a_layernorm.weight", "kv_a_layernorm.weight"),
    **_attention(TensorRole.INDEXER_NORM, "indexer.k_norm.weight", "indexer.k_norm.bias"),
}
_LAYER_PREFIXES = (
    ("self_attn.indexer.", TensorRole.INDEXER),
    ("hc_", TensorRole.HYPER_CONNECTION),
    ("mlp.gate.", TensorRole.MOE_ROUTER),
    ("mlp.experts.#.", TensorRole.MOE_EXPERT),
    ("mlp.shared_experts.", TensorRole.MOE_SHARED),
    ("mlp.gate_proj.", TensorRole.DENSE_FFN),
    ("mlp.up_proj.", TensorRole.DENSE_FFN),
    ("mlp.down_proj.", TensorRole.DENSE_FFN),
)
_DSA_ROLES = frozenset({TensorRole.MLA_PROJECTION, TensorRole.MLA_NORM, TensorRole.INDEXER, TensorRole.INDEXER_NORM})
_KDA_ROLES = frozenset(
    {TensorRole.KDA_PROJECTION, TensorRole.KDA_CONV, TensorRole.KDA_DECAY, TensorRole.KDA_GATE, TensorRole.KDA_NORM}
)


def is_norm(role: TensorRole) -> bool:
    """Tell whether a role belongs to the norm family."""
    return role in _NORM_ROLES


def is_text_model(role: TensorRole) -> bool:
    """Tell whether a role belongs to the text model; only the vision tower does not."""
    return role is not TensorRole.VISION


def is_digits(segment: str) -> bool:
    """Tell whether a segment is non-empty and made of the ASCII digits ``0`` to ``9`` only."""
    return segment.isascii() and segment.isdigit()


def normalize(name: str) -> str:
    """Replace every index segment of a dotted name by ``#``.

    An index is a segment of ASCII digits, or exactly ``N`` or ``E`` (how a census writes layers and experts). Other
    segments, empty ones included, stay as they are.
    """
    return ".".join("#" if is_digits(s) or s in ("N", "E") else s for s in name.split("."))


def classify(name: str) -> TensorRole | None:
    """Return the role of a tensor, or ``None`` for a name that has not been taught.

    Five rules accept any tail (hyper-connections, indexer, router, routed and shared experts): what a complete
    checkpoint may contain is for the checks to say, not for the classifier.
    """
    key = normalize(name)
    if role := _WHOLE_NAMES.get(key):
        return role
    for prefix, role in _WHOLE_PREFIXES:
        if key.startswith(prefix):
            return role
    if not key.startswith(LAYER_PREFIX):
        return None
    rest = key.removeprefix(LAYER_PREFIX)
    if role := _LAYER_NAMES.get(rest):
        return role
    return next((role for prefix, role in _LAYER_PREFIXES if rest.startswith(prefix)), None)


def is_mtp_only_name(name: str) -> bool:
    """Tell whether only a multi-token-prediction layer carries this name.

    These four names locate the layer from the checkpoint itself. The ``mtp.0.*`` convention of other models is not
    what GLM uses.
    """
    key = normalize(name)
    return key.startswith(LAYER_PREFIX) and key.removeprefix(LAYER_PREFIX) in MTP_ONLY_NAMES


def layer_prefix(layer: int | str) -> str:
    """Return what the names of one text layer begin with; ``N`` gives what their patterns begin with."""
    return LAYER_PREFIX.replace("#", str(layer))


def is_cache_scale(pattern: str) -> bool:
    """Tell whether a name is that of a scale of the KV cache: beside an attention module, or inside it."""
    return ".self_attn." in pattern and pattern.endswith((".k_scale", ".v_scale"))


def in_layer(pattern: str, layer: int | None) -> str:
    """Put the number of a layer into a census pattern; one outside the layers stays as it is."""
    return pattern if layer is None else pattern.replace(".N.", f".{layer}.", 1)


def mixer_of(pattern: str, role: TensorRole | None) -> str | None:
    """Return ``"KDA"`` or ``"DSA"`` when a tensor of this name and role occurs in that mixer only, else ``None``."""
    if role in _KDA_ROLES:
        return "KDA"
    if role in _DSA_ROLES and ".self_attn.o_proj." not in pattern and not is_cache_scale(pattern):
        return "DSA"
    return None


def layer_index(name: str) -> int | None:
    """Return the layer a tensor belongs to, 0-based, or ``None``.

    The segment after the *first* segment ``layers`` counts, when it is made of ASCII digits and below 2^64; a longer
    run of digits is ``None`` without being converted.
    """
    return parse_name(name).layer


class NameParts(NamedTuple):
    """A tensor name, taken apart.

    Attributes:
        pattern: The census pattern: the name with the index after the first ``layers`` written ``N`` and the one after
            the first ``experts`` written ``E``. Other indices stay.
        layer: See `layer_index`.
        expert: The same for the segment after the first ``experts``.
    """

    pattern: str
    layer: int | None
    expert: int | None


def parse_name(name: str) -> NameParts:
    """Take a tensor name apart into its census pattern, layer and expert."""
    segments = name.split(".")
    layer = _take_index(segments, "layers", "N")
    expert = _take_index(segments, "experts", "E")
    return NameParts(".".join(segments), layer, expert)


def _take_index(segments: list[str], after: str, letter: str) -> int | None:
    """Replace the index after a segment by a letter and return its value; ``None`` when there is none below 2^64."""
    if after not in segments:
        return None
    place = segments.index(after) + 1
    if place == len(segments) or not is_digits(segments[place]):
        return None
    digits, segments[place] = segments[place], letter
    if len(digits) > _LAYER_DIGITS:
        return None
    value = int(digits)
    return value if value < _LAYER_LIMIT else None


@dataclass(frozen=True, slots=True)
class Accounting:
    """What a list of names amounts to.

    Attributes:
        total: Sum of the counts.
        by_role: Role name to count, sorted by name; a role without a tensor is not listed.
        unknown: Each refused name once, in the order of the input.
        mtp_layers: Layers that carry a name only a multi-token-prediction layer has, ascending.
    """

    total: int
    by_role: dict[str, int]
    unknown: tuple[str, ...]
    mtp_layers: tuple[int, ...]


def account(pairs: Iterable[tuple[str, int]]) -> Accounting:
    """Account for ``(name, count)`` pairs; a plain listing has count 1 everywhere."""
    total = 0
    roles: Counter[str] = Counter()
    unknown: dict[str, None] = {}
    mtp_layers: set[int] = set()
    for name, count in pairs:
        total += count
        role = classify(name)
        if role is None:
            unknown[name] = None
        else:
            roles[role.value] += count
        if is_mtp_only_name(name) and (layer := layer_index(name)) is not None:
            mtp_layers.add(layer)
    return Accounting(total, dict(sorted(roles.items())), tuple(unknown), tuple(sorted(mtp_layers)))
