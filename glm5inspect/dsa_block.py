# SPDX-License-Identifier: AGPL-3.0-only
"""The table of a DSA block: the complete list of what it must have and of what it may have."""

from __future__ import annotations

from glm5inspect.expect import Expected

BLOCK = tuple(
    Expected(f"self_attn.{name}", dimensions, "BF16")
    for name, dimensions in (
        ("q_a_proj.weight", ("q_lora_rank", "hidden_size")),
        ("q_a_layernorm.weight", ("q_lora_rank",)),
        ("q_b_proj.weight", ("q_dim", "q_lora_rank")),
        ("kv_a_proj_with_mqa.weight", ("kv_cache_dim", "hidden_size")),
        ("kv_a_layernorm.weight", ("kv_lora_rank",)),
        ("kv_b_proj.weight", ("kv_dim", "kv_lora_rank")),
        ("o_proj.weight", ("hidden_size", "v_dim")),
        ("indexer.wq_b.weight", ("index_dim", "q_lora_rank")),
        ("indexer.wk.weight", ("index_head_dim", "hidden_size")),
        ("indexer.k_norm.weight", ("index_head_dim",)),
        ("indexer.k_norm.bias", ("index_head_dim",)),
        ("indexer.weights_proj.weight", ("index_n_heads", "hidden_size")),
        ("indexer.index_kpool_compress_gate", ("index_head_dim", "hidden_size")),
        ("indexer.index_kpool_compress_ape", ("index_kpool", "index_head_dim")),
    )
)
"""The 14 tensors of a block, in the order in which they are checked."""
