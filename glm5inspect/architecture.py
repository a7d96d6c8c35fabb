# SPDX-License-Identifier: AGPL-3.0-only
"""What the whole model is made of, by its config: the sizes that every module's shape follows from, and its layers.

`glm5inspect.geometry` has those of the DSA blocks. Nothing is defaulted: a field that a part of the model needs and
that is missing or impossible is a finding, and there is no table of modules then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from glm5inspect.geometry import (
    MAX_LAYERS,
    Geometry,
    declared_dsa_layers,
    fault,
    read_geometry,
    read_number,
    text_config,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from glm5inspect.report import Finding

MODEL_TYPES = frozenset({"glm5_next", "glm5_next_text", "glm5_next_mtp"})
"""What ``model_type`` says of this architecture, its text model and its draft model."""

MAX_EXPERTS = 1 << 16
"""More routed experts than this are not believed of a config."""


@dataclass(frozen=True, slots=True)
class Vision:
    """The sizes of the vision tower, from ``vision_config``; ``text_size`` is the text model's ``hidden_size``."""

    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    in_channels: int
    patch_size: int
    temporal_patch_size: int
    spatial_merge_size: int
    out_hidden_size: int
    projection_intermediate_size: int

    @property
    def qkv_dim(self) -> int:
        """Rows of the joint projection of queries, keys and values."""
        return 3 * self.hidden_size

    @property
    def head_dim(self) -> int:
        """Size of the norms of queries and keys."""
        return self.hidden_size // self.num_heads


@dataclass(frozen=True, slots=True)
class Architecture:
    """The sizes of the model, in elements, spelled as in ``config.json`` where they stand there.

    Attributes:
        geometry: Of the DSA blocks.
        dsa_layers: Trunk layers with sparse attention; the others have KDA.
        experts: Routed experts of each MoE layer that differs from ``n_routed_experts`` (``routed_experts_per_layer``).
        tied: Whether the head is the embedding, so that ``lm_head`` may be absent.
        vision: ``None`` without a ``vision_config``.
    """

    geometry: Geometry
    vocab_size: int
    num_hidden_layers: int
    num_nextn_predict_layers: int
    first_k_dense_replace: int
    intermediate_size: int
    moe_intermediate_size: int
    n_routed_experts: int
    n_shared_experts: int
    hc_mult: int
    kda_heads: int
    kda_head_dim: int
    conv_kernel: int
    dsa_layers: frozenset[int]
    experts: Mapping[int, int]
    tied: bool
    vision: Vision | None

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        return self.geometry.hidden_size

    @property
    def kda_width(self) -> int:
        """Width of a KDA layer: all heads."""
        return self.kda_heads * self.kda_head_dim

    @property
    def shared_size(self) -> int:
        """Inner width of the shared experts together."""
        return self.n_shared_experts * self.moe_intermediate_size

    @property
    def hyper_rows(self) -> int:
        """Rows of a hyper-connection: two weights and one row of mixing for each of the ``hc_mult`` streams."""
        return (2 + self.hc_mult) * self.hc_mult

    @property
    def hyper_width(self) -> int:
        """Columns of a hyper-connection: all streams side by side."""
        return self.hc_mult * self.hidden_size

    @property
    def double_hidden(self) -> int:
        """Columns of ``eh_proj``: embedding and hidden state side by side."""
        return 2 * self.hidden_size

    def experts_of(self, layer: int) -> int:
        """Return the number of routed experts that the config gives a layer."""
        return self.experts.get(layer, self.n_routed_experts)

    def mtp_layers(self) -> range:
        """Return the layers where the config puts multi-token prediction."""
        return range(self.num_hidden_layers, self.num_hidden_layers + self.num_nextn_predict_layers)


_TEXT_FIELDS = (
    "vocab_size",
    "num_hidden_layers",
    "first_k_dense_replace",
    "intermediate_size",
    "moe_intermediate_size",
    "n_routed_experts",
    "n_shared_experts",
    "hc_mult",
)
_MAY_BE_ZERO = frozenset({"first_k_dense_replace", "n_shared_experts"})
_KDA_FIELDS = {"num_heads": "kda_heads", "head_dim": "kda_head_dim", "short_conv_kernel_size": "conv_kernel"}
_LIMITS = {"num_hidden_layers": MAX_LAYERS, "n_routed_experts": MAX_EXPERTS, "depth": MAX_LAYERS}


def read_architecture(config: Mapping[str, object]) -> tuple[Architecture | None, list[Finding]]:
    """Read the sizes of the whole model.

    Returns:
        The architecture, or ``None``, with a `config-geometry` finding for each field at fault.
    """
    text = text_config(config)
    geometry, faults = read_geometry(config)
    values: dict[str, int] = {}
    for field in _TEXT_FIELDS:
        faults += read_number(
            text, field, values, field, least=int(field not in _MAY_BE_ZERO), limit=_LIMITS.get(field)
        )
    faults += read_number(text, "num_nextn_predict_layers", values, least=0, limit=MAX_LAYERS, absent=0)
    linear = text.get("linear_attn_config")
    for field, name in _KDA_FIELDS.items():
        faults += read_number(linear if isinstance(linear, dict) else {}, field, values, name)
    dsa, contradictions = declared_dsa_layers(config)
    faults += contradictions
    vision, vision_faults = _read_vision(config)
    faults += vision_faults
    experts, expert_faults = _experts_per_layer(text)
    faults += expert_faults
    if geometry is None or any(finding.code.value == "config-geometry" for finding in faults):
        return None, faults
    tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings")) is True
    return (
        Architecture(
            geometry=geometry, dsa_layers=frozenset(dsa or ()), experts=experts, tied=tied, vision=vision, **values
        ),
        faults,
    )


def _read_vision(config: Mapping[str, object]) -> tuple[Vision | None, list[Finding]]:
    stated = config.get("vision_config")
    if not isinstance(stated, dict):
        return None, []
    values: dict[str, int] = {}
    faults: list[Finding] = []
    for field in Vision.__dataclass_fields__:
        faults += read_number(stated, field, values, limit=_LIMITS.get(field))
    return (None if faults else Vision(**values)), faults


def _experts_per_layer(text: Mapping[str, object]) -> tuple[dict[int, int], list[Finding]]:
    """Read ``routed_experts_per_layer``: a list with one number a layer, or an object from layer to number."""
    stated = text.get("routed_experts_per_layer")
    if stated is None:
        return {}, []
    pairs = enumerate(stated) if isinstance(stated, list) else stated.items() if isinstance(stated, dict) else ()
    counts = {int(layer): count for layer, count in pairs if str(layer).isdecimal() and count is not None}
    if not counts or not all(type(count) is int and 0 <= count <= MAX_EXPERTS for count in counts.values()):
        return {}, [fault(text, "routed_experts_per_layer", "a number of experts for each layer")]
    return {layer: count for layer, count in counts.items() if count}, []
