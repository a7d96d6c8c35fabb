# SPDX-License-Identifier: AGPL-3.0-only
"""Checkpoints to look at: real headers, real index and config, and a hole where the data would be.

A hole takes no disk, so shards may have any size: the full reference of 195 GB is made in seconds. `TINY` follows the
same rules scaled down (hidden 64, 4 experts, layers 0-4 and the MTP layer 5), with the geometry in its config.
"""

from __future__ import annotations

import copy
import json
import math
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from glm5inspect.resolve import open_source
from glm5inspect.sources.local import LocalSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

BITS = {
    "F4": 4,
    "F6_E2M3": 6,
    "U8": 8,
    "I8": 8,
    "BOOL": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "BF16": 16,
    "F16": 16,
    "I16": 16,
    "F32": 32,
    "I32": 32,
    "U32": 32,
    "I64": 64,
    "F64": 64,
}

TEXT = "model.language_model."


REFERENCE_ROLES = {
    "DenseFfn": 9,
    "Embedding": 1,
    "FinalNorm": 1,
    "HyperConnection": 270,
    "Indexer": 60,
    "IndexerNorm": 24,
    "KdaConv": 102,
    "KdaDecay": 68,
    "KdaNorm": 34,
    "KdaProjection": 272,
    "LayerNorm": 92,
    "LmHead": 1,
    "MlaNorm": 24,
    "MlaProjection": 94,
    "MoeExpert": 111_456,
    "MoeRouter": 86,
    "MoeShared": 129,
    "MtpNorm": 3,
    "MtpProjection": 1,
    "Vision": 347,
}
"""How many tensors of each role the reference has, counted elsewhere, sorted by name."""


class Kind(NamedTuple):
    """How a tensor is stored: dtype and shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its data."""
        return math.prod(self.shape) * BITS[self.dtype] // 8


Tensors = dict[str, Kind]

TINY_LAYERS = 5
TINY_MTP = 5
TINY_DSA = (3, 5)
TINY_KDA = (0, 1, 2, 4)
TINY_EXPERTS = 4

TINY_CONFIG: dict[str, Any] = {
    "architectures": ["Glm5NextForConditionalGeneration"],
    "model_type": "glm5_next",
    "text_config": {
        "model_type": "glm5_next_text",
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 128,
        "moe_intermediate_size": 32,
        "num_hidden_layers": TINY_LAYERS,
        "num_nextn_predict_layers": 1,
        "first_k_dense_replace": 3,
        "n_routed_experts": TINY_EXPERTS,
        "n_shared_experts": 1,
        "num_attention_heads": 4,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 0,
        "v_head_dim": 12,
        "index_n_heads": 2,
        "index_head_dim": 8,
        "index_kpool": 4,
        "index_topk": 16,
        "hc_mult": 4,
        "layer_types": [
            "linear_attention",
            "linear_attention",
            "linear_attention",
            "deepseek_sparse_attention",
            "linear_attention",
        ],
        "linear_attn_config": {
            "full_attn_layers": [3],
            "head_dim": 8,
            "num_heads": 4,
            "short_conv_kernel_size": 4,
        },
    },
    "vision_config": {"depth": 1, "hidden_size": 16},
}

BROKEN = b"no header at all, whatever the name says"
"""What a shard may hold that is none."""


def declaring(**fields: object) -> dict[str, Any]:
    """Return the config of `TINY` with other fields; ``None`` removes one."""
    config = copy.deepcopy(TINY_CONFIG)
    config["text_config"] |= fields
    config["text_config"] = {name: value for name, value in config["text_config"].items() if value is not None}
    return config


DSA_SHAPES: dict[str, tuple[int, ...]] = {
    "self_attn.q_a_proj.weight": (24, 64),
    "self_attn.q_a_layernorm.weight": (24,),
    "self_attn.q_b_proj.weight": (32, 24),
    "self_attn.kv_a_proj_with_mqa.weight": (16, 64),
    "self_attn.kv_a_layernorm.weight": (16,),
    "self_attn.kv_b_proj.weight": (80, 16),
    "self_attn.o_proj.weight": (64, 48),
    "self_attn.indexer.wq_b.weight": (16, 24),
    "self_attn.indexer.wk.weight": (8, 64),
    "self_attn.indexer.k_norm.weight": (8,),
    "self_attn.indexer.k_norm.bias": (8,),
    "self_attn.indexer.weights_proj.weight": (2, 64),
    "self_attn.indexer.index_kpool_compress_gate": (8, 64),
    "self_attn.indexer.index_kpool_compress_ape": (4, 8),
}
"""The 14 tensors of a DSA block of `TINY`: literals worked out by hand, not the formula of the product."""

_KDA: dict[str, Kind] = {
    **{f"self_attn.{p}_proj.weight": Kind("BF16", (32, 64)) for p in "qkv"},
    "self_attn.b_proj.weight": Kind("BF16", (4, 64)),
    **{f"self_attn.{p}_a_proj.weight": Kind("BF16", (8, 64)) for p in "fg"},
    **{f"self_attn.{p}_b_proj.weight": Kind("BF16", (32, 8)) for p in "fg"},
    **{f"self_attn.{p}_conv1d.weight": Kind("BF16", (32, 1, 4)) for p in "qkv"},
    "self_attn.A_log": Kind("F32", (4,)),
    "self_attn.dt_bias": Kind("F32", (32,)),
    "self_attn.o_norm.weight": Kind("BF16", (8,)),
    "self_attn.o_proj.weight": Kind("BF16", (64, 32)),
}
_NORMS: dict[str, Kind] = {f"{n}_layernorm.weight": Kind("BF16", (64,)) for n in ("input", "post_attention")}
_HYPER: dict[str, Kind] = {
    f"hc_{part}_{name}": Kind("BF16" if name == "fn" else "F32", shape)
    for part in ("attn", "ffn")
    for name, shape in (("fn", (24, 256)), ("base", (24,)), ("scale", (3,)))
}
_HEAD: dict[str, Kind] = {
    "eh_proj.weight": Kind("BF16", (64, 128)),
    "enorm.weight": Kind("BF16", (64,)),
    "hnorm.weight": Kind("BF16", (64,)),
    "shared_head.norm.weight": Kind("BF16", (64,)),
}
_PROJECTIONS = {"gate_proj": (32, 64), "up_proj": (32, 64), "down_proj": (64, 32)}


def _moe(*, experts: int = TINY_EXPERTS) -> dict[str, Kind]:
    tensors = {
        "mlp.gate.weight": Kind("BF16", (experts, 64)),
        "mlp.gate.e_score_correction_bias": Kind("F32", (experts,)),
    }
    for projection, (rows, columns) in _PROJECTIONS.items():
        tensors[f"mlp.shared_experts.{projection}.weight"] = Kind("BF16", (rows, columns))
        for expert in range(experts):
            module = f"mlp.experts.{expert}.{projection}"
            tensors[f"{module}.weight"] = Kind("U8", (rows, columns // 2))
            tensors[f"{module}.weight_scale"] = Kind("F8_E4M3", (rows, columns // 16))
            tensors[f"{module}.weight_scale_2"] = Kind("F32", ())
    return tensors


def tiny_layer(layer: int) -> dict[str, Kind]:
    """Return the tensors of one layer of `TINY`, by name relative to the layer."""
    mixer = {n: Kind("BF16", s) for n, s in DSA_SHAPES.items()} if layer in TINY_DSA else _KDA
    dense = {
        f"mlp.{p}.weight": Kind("BF16", (s[0] * 4, s[1]) if s[0] == 32 else (64, 128)) for p, s in _PROJECTIONS.items()
    }
    ffn = dense if layer < 3 else _moe()
    return {**mixer, **_NORMS, **ffn, **(_HEAD if layer == TINY_MTP else _HYPER)}


def tiny() -> Tensors:
    """Return every tensor of `TINY`, in a dict of its own."""
    tensors = {
        "lm_head.weight": Kind("BF16", (96, 64)),
        f"{TEXT}embed_tokens.weight": Kind("BF16", (96, 64)),
        f"{TEXT}norm.weight": Kind("BF16", (64,)),
        "model.visual.blocks.0.attn.qkv.weight": Kind("BF16", (48, 16)),
        "model.visual.blocks.0.norm1.weight": Kind("BF16", (16,)),
    }
    for layer in range(TINY_MTP + 1):
        tensors.update({f"{TEXT}layers.{layer}.{name}": kind for name, kind in tiny_layer(layer).items()})
    return tensors


def header_of(tensors: Mapping[str, Kind]) -> dict[str, Any]:
    """Return a header's JSON object with contiguous offsets."""
    header: dict[str, Any] = {}
    offset = 0
    for name, kind in tensors.items():
        header[name] = {"dtype": kind.dtype, "shape": list(kind.shape), "data_offsets": [offset, offset + kind.nbytes]}
        offset += kind.nbytes
    return header


def write_raw(path: Path, raw: bytes, data_bytes: int = 0, *, length: int | None = None) -> Path:
    """Write a shard from the bytes of its header; ``length`` lies about how many they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw) if length is None else length) + raw)
        file.truncate(8 + len(raw) + data_bytes)
    return path


def write_header(path: Path, header: Mapping[str, Any], data_bytes: int | None = None) -> Path:
    """Write a shard from its header object; the data is as long as the last offset says unless told otherwise."""
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    raw = json.dumps(header, separators=(",", ":")).encode()
    return write_raw(path, raw + b" " * (-len(raw) % 8), max(ends, default=0) if data_bytes is None else data_bytes)


def write_shard(path: Path, tensors: Mapping[str, Kind]) -> Path:
    """Write a valid shard."""
    return write_header(path, {"__metadata__": {"format": "pt"}, **header_of(tensors)})


def edit_header(path: Path, edit: Callable[[dict[str, Any]], object], data_bytes: int | None = None) -> None:
    """Change the header of a shard in place; the data keeps its size unless told otherwise."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    edit(header)
    write_header(path, header, len(raw) - 8 - length if data_bytes is None else data_bytes)


def shard_name(number: int, total: int) -> str:
    """Return the usual name of a shard, numbered from 1."""
    return f"model-{number:05d}-of-{total:05d}.safetensors"


def split(tensors: Tensors, shards: int) -> list[Tensors]:
    """Cut tensors into shards of about equal bytes; what belongs to one module stays together."""
    limit = sum(kind.nbytes for kind in tensors.values()) / shards
    parts: list[Tensors] = [{}]
    filled, module = 0.0, ""
    for name in sorted(tensors):
        if filled >= limit and len(parts) < shards and name.rpartition(".")[0] != module:
            parts.append({})
            filled -= limit
        module = name.rpartition(".")[0]
        parts[-1][name] = tensors[name]
        filled += tensors[name].nbytes
    return parts


def parts_by_layer(tensors: Tensors) -> list[Tensors]:
    """Cut tensors into one shard a layer, ascending, and a last one for what is in no layer."""
    parts: dict[float, Tensors] = {}
    for name, kind in tensors.items():
        index = name.removeprefix(f"{TEXT}layers.").partition(".")[0]
        parts.setdefault(int(index) if index.isdigit() else math.inf, {})[name] = kind
    return [part for _, part in sorted(parts.items())]


def write_index(folder: Path, weight_map: Mapping[str, Any], total_size: object) -> Path:
    """Write a shard index."""
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": total_size}, "weight_map": weight_map}, indent=2) + "\n")
    return path


def edit_json(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON file (an index, a config) in place."""
    value = json.loads(path.read_text())
    edit(value)
    path.write_text(json.dumps(value))


def write_checkpoint(
    folder: Path,
    tensors: Tensors,
    *,
    shards: int = 3,
    parts: Iterable[Tensors] | None = None,
    index: bool = True,
    config: Mapping[str, Any] | None = TINY_CONFIG,
) -> Path:
    """Write a whole checkpoint.

    Args:
        folder: Where to; made when it is not there.
        tensors: What it holds.
        shards: Into how many shards to cut.
        parts: The shards themselves, when it matters what lies where.
        index: Whether to write an index.
        config: ``config.json``; ``None`` for none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    cut = list(parts) if parts is not None else split(tensors, shards)
    weight_map = {}
    for number, part in enumerate(cut, 1):
        name = shard_name(number, len(cut))
        write_shard(folder / name, part)
        weight_map.update(dict.fromkeys(part, name))
    if index:
        write_index(folder, weight_map, sum(kind.nbytes for part in cut for kind in part.values()))
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def snapshot_tensors(name: str) -> Tensors:
    """Return every tensor of a bundled snapshot."""
    inventory = open_source(f"snapshot:{name}").inventory()
    return {tensor.name: Kind(tensor.dtype, tensor.shape) for tensor in inventory.tensors.values()}


def write_stand_in(folder: Path, name: str, *, shards: int) -> Path:
    """Write a full-size stand-in of a bundled snapshot."""
    config = open_source(f"snapshot:{name}").config()
    return write_checkpoint(folder, snapshot_tensors(name), shards=shards, config=config)


class WatchedSource(LocalSource):
    """A folder that notes what is read of it."""

    def __init__(self, folder: Path) -> None:
        """Look at a folder, from now on."""
        super().__init__(folder, typed=str(folder))
        self.reads: list[tuple[str, int, int]] = []

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Read, and note the span."""
        self.reads.append((name, start, stop))
        return super().read(name, start, stop)

    def opened(self) -> list[int]:
        """Return the numbers of the shards opened, 0 for an odd name, and hold every read to two reads a header."""
        shards = sorted({name for name, _, _ in self.reads if name.endswith(".safetensors")})
        reads = [(name, stop) for name, _, stop in self.reads if name in shards]
        assert len(reads) == 2 * len(shards)
        for name, stop in reads:
            with (self._folder / name).open("rb") as file:
                assert stop <= 8 + struct.unpack("<Q", file.read(8))[0]
        return sorted(int(name[6:11]) if name[6:11].isdigit() else 0 for name in shards)
