# SPDX-License-Identifier: AGPL-3.0-only
"""Findings about names, headers, files, the index, DSA blocks and the MTP layer."""

from __future__ import annotations

from glm5inspect.catalogue import Code
from glm5inspect.explanations.explanation import Explanation

EXPLANATIONS = {
    Code.UNKNOWN_TENSOR: Explanation(
        (
            "The name is not one that GLM-5.3-Flash is released with, so nobody can say what the tensor is for. A "
            "loader either stops at it or, worse, drops it silently."
        ),
        (
            "Another naming convention (MLX, a transformers export, a flat text-only tree), companions of a "
            "quantization that the reference does not use, or a stray tensor left by a script."
        ),
        "Read the hint: it names the family the name looks like. Convert with released names, or remove the tensor.",
    ),
    Code.NORM_ROLE_MISMATCH: Explanation(
        (
            "The name says `norm`, the classifier says something else: one of the two is wrong, and norms must not be "
            "handled (quantized, sharded) like projections."
        ),
        "A stray or misspelt name under one of the prefixes that accept any tail, such as the indexer.",
        "Check the name against the released ones; remove or rename the tensor.",
    ),
    Code.LAYER_GAP: Explanation(
        "The text layers present are not 0 to n-1 without holes, or differ from `num_hidden_layers`.",
        "Shards lost on the way, a conversion that stopped early, or layers removed without changing the config.",
        "Restore the layers that the message names, or correct `num_hidden_layers`.",
    ),
    Code.NO_TENSORS: Explanation(
        "The headers are readable but hold no tensor, so there is nothing that could have been checked.",
        "An empty file written by a failed conversion.",
        "Write the checkpoint again.",
    ),
    Code.DRAFT_TREE: Explanation(
        "The tree holds no trunk layer, only the multi-token-prediction layer: a draft checkpoint, checked as that.",
        "It was extracted on purpose, for speculative decoding.",
        "Nothing, unless a whole checkpoint was meant to be here.",
    ),
    Code.HEADER_EMPTY: Explanation(
        "The file exists but is empty, so it cannot be said what it was meant to hold.",
        "An interrupted download or a full disk.",
        "Download or write the shard again.",
    ),
    Code.HEADER_UNREADABLE: Explanation(
        (
            "The operating system refused to open or read the file, or it is not a regular file (a pipe, a device, a "
            "directory, a link to nothing)."
        ),
        "Missing permission, a broken link, a failing disk.",
        "Mend the permission or the link, or fetch the shard again.",
    ),
    Code.HEADER_FORMAT: Explanation(
        "The first bytes belong to something else: a Git LFS pointer, a pickle or ZIP archive, a web page.",
        "`git clone` without Git LFS, a renamed `.bin` file, or a download that saved an error page.",
        "Fetch the real file (`git lfs pull`, or `hf download`).",
    ),
    Code.HEADER_LENGTH: Explanation(
        "The file is shorter than the 8-byte length, or the length is over 100,000,000 bytes or beyond the file.",
        "A truncated or overwritten file, or one that is not safetensors at all.",
        "Fetch or write the shard again.",
    ),
    Code.HEADER_JSON: Explanation(
        (
            "The header is not UTF-8, not one JSON object that begins with `{`, or uses what safetensors readers refuse"
            " (NaN, `-0`, lone surrogates, absurd nesting or numbers)."
        ),
        "A damaged file, or a writer that composes the header by hand.",
        "Write the shard again with the safetensors library.",
    ),
    Code.HEADER_PADDING: Explanation(
        "After the closing brace only spaces may follow, up to the declared length.",
        "A writer that pads with zero bytes or line ends.",
        "Write the shard again with the safetensors library.",
    ),
    Code.HEADER_DUPLICATE: Explanation(
        "JSON readers keep the last of two equal keys, so a tensor (or a field of it) would vanish silently.",
        "Two headers merged by text, or a crafted file.",
        "Find out which of the two is meant, and write the shard again.",
    ),
    Code.HEADER_ENTRY: Explanation(
        (
            "A tensor lacks `dtype`, `shape` or `data_offsets`, or one of them has the wrong type or an impossible "
            "value."
        ),
        "A writer that composes the header by hand, or a damaged file.",
        "Write the shard again with the safetensors library.",
    ),
    Code.HEADER_OFFSETS: Explanation(
        "`data_offsets` is [begin, end) and begin must not exceed end.",
        "A damaged file, or a writer that swaps the two.",
        "Write the shard again with the safetensors library.",
    ),
    Code.HEADER_METADATA: Explanation(
        "The safetensors library refuses such a file. A `null` is accepted by it and only a warning here.",
        "A writer that stores numbers or nested objects as metadata.",
        "Turn every value into a string, or leave `__metadata__` out.",
    ),
    Code.HEADER_EXTRA_KEY: Explanation(
        "Only `dtype`, `shape` and `data_offsets` belong in an entry; readers ignore or refuse the rest.",
        "A writer with extensions of its own.",
        "Move the information to `__metadata__`.",
    ),
    Code.UNKNOWN_DTYPE: Explanation(
        "The tensor's size cannot be checked, and libraries refuse the whole file because of it.",
        "A newer or misspelt dtype name (`bf16` in lower case).",
        "Write the tensor with a dtype of the safetensors format.",
    ),
    Code.SHAPE_BYTES: Explanation(
        "Elements times width is not end minus begin (or the tensor does not fill whole bytes).",
        "A shape or dtype edited in the header without touching the data.",
        "Write the tensor again; nothing says which of the two is right.",
    ),
    Code.OFFSET_GAP: Explanation(
        "The format asks for contiguous data; the library refuses a hole.",
        "A tensor removed from the header only, or alignment padding.",
        "Write the shard again with the safetensors library.",
    ),
    Code.OFFSET_OVERLAP: Explanation(
        "A tensor begins before the one in front of it ends; at least one of the two is not what it says.",
        "Offsets computed with the wrong width, or a crafted file.",
        "Write the shard again with the safetensors library.",
    ),
    Code.FILE_TRUNCATED: Explanation(
        "The header promises more bytes than the file has. Memory-mapping loaders then read zeros or leftovers.",
        "An interrupted download or copy.",
        "Fetch the shard again and compare its size.",
    ),
    Code.FILE_TRAILING: Explanation(
        "The file is longer than header and tensors; the library refuses it.",
        "Tensors removed from the header only, or something appended to the file.",
        "Write the shard again with the safetensors library.",
    ),
    Code.INDEX_MISSING_SHARD: Explanation(
        "The file is absent, a dangling link, or has 0 bytes. Its tensors count here and nowhere else.",
        "An interrupted download; an index copied from another build.",
        "Fetch the shard, or take the index that belongs to these shards.",
    ),
    Code.INDEX_MISSING_TENSOR: Explanation(
        "Loaders that trust the index fail on it, or leave the parameter uninitialised.",
        "A tensor dropped by a converter that kept the old index.",
        "Restore the tensor, or write the index from the headers.",
    ),
    Code.INDEX_WRONG_SHARD: Explanation(
        "The tensor exists, but not where the index sends a loader.",
        "Shards split or merged again without a new index.",
        "Write the index from the headers.",
    ),
    Code.INDEX_UNLISTED_TENSOR: Explanation(
        "The shard is listed, the tensor is not: loaders that go by the index never see it.",
        "An index written before the last tensors were added.",
        "Write the index from the headers.",
    ),
    Code.INDEX_UNLISTED_SHARD: Explanation(
        (
            "Loaders that go by the index skip the whole file; loaders that read every file may take its tensors "
            "instead of the listed ones."
        ),
        "An MTP side file that never got into the index, or leftovers of an earlier build.",
        "Add its tensors to the index, or remove the file.",
    ),
    Code.INDEX_DUPLICATE_KEY: Explanation(
        "JSON readers keep the last of two equal keys, so the other is lost without a word.",
        "Two indexes merged by text.",
        "Write the index from the headers.",
    ),
    Code.INDEX_TOTAL_SIZE: Explanation(
        (
            "The claim is absent, zero, not a number, or differs. Nothing is lost by it, but sizes read from it are "
            "wrong."
        ),
        "A layer appended after the index was written, or file sizes summed up instead of tensor bytes.",
        "Set `total_size` to the number the message gives.",
    ),
    Code.DUPLICATE_TENSOR: Explanation(
        (
            "Which copy is loaded depends on the loader. Only a warning when the copies have one dtype and shape and "
            "the index says which one counts."
        ),
        "Old shards left beside new ones, or an overlay that supersedes base tensors.",
        "Remove the copy that does not count, or list the one that does.",
    ),
    Code.SHARD_NUMBERING: Explanation(
        "Without an index, the `-of-000NN` in the names is all that tells how many shards there are.",
        "An interrupted download, or a single shard given instead of its folder.",
        "Fetch the missing shards, or name the folder that has them all.",
    ),
    Code.COMPANION_SPLIT: Explanation(
        "Allowed by the format, but some loaders look for both in one file and lose such pairs.",
        "Shards cut by size without regard to pairs.",
        "Keep a weight and its scales together when cutting shards.",
    ),
    Code.CENSUS_MISSING: Explanation(
        "Compared with the source given by `--against`, these are absent.",
        "A lossy conversion, or another kind of build than the one compared with.",
        "Restore them, or compare with the inventory that belongs to this build.",
    ),
    Code.CENSUS_EXTRA: Explanation(
        "Compared with the source given by `--against`, these are too many.",
        "Another quantization, or tensors added on the way.",
        "Remove them, or compare with the inventory that belongs to this build.",
    ),
    Code.CENSUS_DTYPE: Explanation(
        "Name for name, the dtype differs from the source given by `--against`.",
        "A converter that casts helpers such as `A_log`, or another quantization.",
        "Convert again with the dtypes of the other inventory.",
    ),
    Code.CENSUS_SHAPE: Explanation(
        "Name for name, the shape differs from the source given by `--against`.",
        "A transposed, cut or padded tensor, or scales of another group size.",
        "Convert again; shapes do not change between builds of one encoding.",
    ),
    Code.CONFIG_MISSING: Explanation(
        (
            "There is no `config.json` (or it does not declare the attention layers), so the geometry of the reference "
            "or the layers found in the tensors are used instead."
        ),
        "Only the weights were copied.",
        "Put the model's `config.json` beside the shards.",
    ),
    Code.CONFIG_CONTRADICTION: Explanation(
        (
            "Two fields that must agree do not: `layer_types` and `linear_attn_config.full_attn_layers`, or the number "
            "of `layer_types` and `num_hidden_layers`."
        ),
        "A config edited by hand in one place only.",
        "Take the config of the release that the checkpoint was made from.",
    ),
    Code.CONFIG_GEOMETRY: Explanation(
        "Expected shapes follow from the config and are never guessed; with this field wrong, none can be computed.",
        "A config of another model class, or one edited by hand.",
        "Correct the field that the message names.",
    ),
    Code.DSA_MISSING: Explanation(
        "A DSA block (sparse MLA with its indexer) has exactly 14 tensors; without this one the layer is broken.",
        "A converter that does not know the indexer, or drops the bias of its LayerNorm.",
        "Restore the tensor from the release.",
    ),
    Code.DSA_DTYPE: Explanation(
        "The contract of a DSA block is BF16 throughout.",
        "A quantization that covers attention, or a widening export.",
        "Keep the attention block out of quantization.",
    ),
    Code.DSA_SHAPE: Explanation(
        "The shape does not follow from the geometry in the config; the hint names the trap when it is a known one.",
        "A transposed or swapped tensor, a rope part that this model does not have, a config of another size.",
        "Convert again, or correct the geometry.",
    ),
    Code.DSA_BYTES: Explanation(
        "The bytes stored are not what the stored shape and dtype need.",
        "A header edited without the data.",
        "Write the shard again.",
    ),
    Code.DSA_UNCLAIMED: Explanation(
        "The 14 tensors are all that a block may have; one more means that this is not the model we think it is.",
        "Scales of a quantized attention block, or a tensor of the other mixer.",
        "Remove it, or keep the attention block out of quantization.",
    ),
    Code.DSA_UNDECLARED_LAYER: Explanation(
        "The config calls it a KDA layer, the tensors say DSA.",
        "A config of another build, or layers that were renumbered.",
        "Make `layer_types` and the tensors agree.",
    ),
    Code.DSA_NONE: Explanation(
        "Neither the config nor the tensors name one, so nothing was checked, and that never passes.",
        "Another model, or only a part of the checkpoint.",
        "Point the tool at the whole checkpoint.",
    ),
    Code.DSA_NOT_A_LAYER: Explanation(
        "`--layer` names a layer that has no DSA tensor and is not declared as one.",
        "A mistyped index: DSA layers of the reference are 3, 7, ... 43 and the MTP layer 45.",
        "Ask for a DSA layer.",
    ),
    Code.MIXED_MIXER: Explanation(
        "KDA-only and DSA-only names stand in one layer; a layer has one mixer.",
        "Layers merged from two checkpoints, or renumbered.",
        "Find out which mixer is meant, and remove the other's tensors.",
    ),
    Code.MTP_MISSING: Explanation(
        (
            "No layer carries one of the four names that only an MTP layer has, although the config declares one (or "
            "declares nothing). Speculative decoding cannot work."
        ),
        "Exporters build the model class, which stops at the last trunk layer, and save what they built.",
        "Restore the layer from the release, or set `num_nextn_predict_layers` to 0.",
    ),
    Code.MTP_FOREIGN_PREFIX: Explanation(
        (
            "Tensors under `mtp.`, `model.mtp.`, `model.layers.mtp.` or `language_model.mtp.`: loaders of this model "
            "look for `model.language_model.layers.N.` and do not find them."
        ),
        "A converter written for DeepSeek or Qwen.",
        "Rename the tensors to the layer after the last trunk layer.",
    ),
    Code.MTP_ABSENT: Explanation(
        "The config says `num_nextn_predict_layers` 0 and there is none: consistent.",
        "The layer was left out on purpose.",
        "Nothing.",
    ),
    Code.MTP_UNDECLARED: Explanation(
        "The layer is here but `num_nextn_predict_layers` is 0, so most loaders ignore it.",
        "A config edited to make a loader work that could not handle the layer.",
        "Set `num_nextn_predict_layers`, or remove the layer.",
    ),
    Code.MTP_INCOMPLETE: Explanation(
        "One of the four head tensors, the DSA block, the router or an expert that the trunk has is not there.",
        "A copy of the layer that stopped half-way, or one that pruned experts in the trunk only.",
        "Copy the whole layer again.",
    ),
    Code.MTP_COUNT: Explanation(
        "The layers found by name and `num_nextn_predict_layers` differ.",
        "A layer lost, or a config of another build.",
        "Make the two agree.",
    ),
    Code.MTP_POSITION: Explanation(
        "MTP layers follow the trunk directly: `num_hidden_layers` and up. Loaders look there and nowhere else.",
        "Layers renumbered by a converter, or another `num_hidden_layers`.",
        "Rename the layer to the index the message expects.",
    ),
    Code.MTP_ENCODING: Explanation(
        (
            "Its routed experts have another set of dtypes than those of the last trunk MoE layer. Legitimate, but a "
            "loader must know it from the quantization config."
        ),
        "Quantizers often leave the MTP layer in BF16.",
        "Make sure that the quantization config excludes the layer.",
    ),
    Code.NO_MATCH: Explanation(
        "The glob matches no tensor name. Only a warning while another glob of the same call matches something.",
        "A mistyped name; globs match the whole name, with `*`, `?` and `[...]`.",
        "Put `*` in front of a suffix, or run `show` without a glob.",
    ),
    Code.ACCEPT_UNUSED: Explanation(
        "An entry of the list given with `--accept` covers no finding of this run: what it says is no longer true.",
        "The fault was mended, or the code or the glob of the entry is not the one meant.",
        "Remove the entry, or correct it; `tensor` is matched against `tensor` of the finding in the JSON report.",
    ),
}
