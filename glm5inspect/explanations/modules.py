# SPDX-License-Identifier: AGPL-3.0-only
"""Findings about modules, encodings, dialects, the config and its quantization."""

from __future__ import annotations

from glm5inspect.catalogue import Code
from glm5inspect.explanations.explanation import Explanation

EXPLANATIONS = {
    Code.MODULE_MISSING: Explanation(
        "By the config the model has this module, and nothing of it is stored: a loader fails, or initialises it anew.",
        "A converter that dropped it, shards lost on the way, or a config of another build of the model.",
        "Restore it from the release, or take the config that belongs to these tensors.",
    ),
    Code.MODULE_SHAPE: Explanation(
        "The tensor is there, with another shape than the config asks for, so a loader refuses it or reads it wrongly.",
        "A transposed export, rows cut off or padded, or a geometry changed in the config alone.",
        "Read the hint; convert again, or take the config that belongs to these tensors.",
    ),
    Code.MODULE_UNCLAIMED: Explanation(
        "The name is one of this model's kind, but no module of this layer has such a tensor: nobody will read it.",
        "Left-overs of a conversion, a bias that this model does not have, or a layer with the mixer of another.",
        "Remove it, or find out which module it should have been.",
    ),
    Code.EXPERT_IDS: Explanation(
        "Routed experts are numbered from 0 without holes; the router picks them by these numbers.",
        "An expert lost by a converter, or pruning that did not number the remaining ones anew.",
        "Restore the experts that the message names, or number them 0 to n-1 in the order of the router's rows.",
    ),
    Code.EXPERT_COUNT: Explanation(
        "Experts stored, rows of the router, length of its bias and `n_routed_experts` must be one number in a layer.",
        "Pruned experts without pruned router rows, or a config left as it was.",
        "Prune router and bias with the experts, and set `n_routed_experts`, or `routed_experts_per_layer`.",
    ),
    Code.FOREIGN_ARCHITECTURE: Explanation(
        "The config, or without one the names, belong to another model; nothing else was checked.",
        "GLM-5.3 without Flash (`glm_moe_dsa`), DeepSeek, Kimi or another relative was given.",
        "Use a tool for that model. If it is this one, give it the `config.json` of its release.",
    ),
    Code.ENCODING_INCOMPLETE: Explanation(
        "A quantized weight is only numbers without its scales, and scales are nothing without their weight.",
        "A companion dropped while shards were merged or renamed, or a scale left behind by a module stored plain.",
        "Restore the tensors that the message names, or convert the module again.",
    ),
    Code.ENCODING_SHAPE: Explanation(
        "A tensor of the encoding has another shape than follows from the module's logical shape.",
        "Packed along the wrong axis, transposed, scales of another group or block size, or a row cut off.",
        "Read the hint; convert the module again.",
    ),
    Code.ENCODING_DTYPE: Explanation(
        "The tensor has a dtype that no loader of this encoding expects, or no float at all where one belongs.",
        "A cast of the whole checkpoint that did not spare scales or packed words.",
        "Convert the module again; a cast of packed words cannot be undone by casting back.",
    ),
    Code.ENCODING_AMBIGUOUS: Explanation(
        "Tensors of two encodings stand for one module, and loaders differ in which they take.",
        "A plain weight kept beside the packed one, or scales written under an old and a new name.",
        "Remove the tensors of the encoding that is not meant.",
    ),
    Code.ENCODING_MIXED: Explanation(
        "Modules of one role are stored in several encodings, which is legal where the loader knows which is where.",
        "A mixed-precision recipe, or an MTP layer that was left as it was.",
        "Nothing, if it is meant; see that the quantization config says so.",
    ),
    Code.SCALE_SUFFIX: Explanation(
        "Some loaders look for scales of block FP8 under `weight_scale_inv` only, and run without the others.",
        "A converter that renamed them after the fashion of compressed-tensors.",
        "Rename them to `weight_scale_inv`, if the loader that is meant needs it.",
    ),
    Code.PRECISION_NARROWED: Explanation(
        "The reference keeps this helper in F32. Loaders that compute in F32 cast it up and lose a little; some read "
        "it as it is and produce token soup.",
        "A cast of all small tensors to the dtype of the model.",
        "Take the F32 tensors of the release; they are a few megabytes.",
    ),
    Code.PRECISION_WIDENED: Explanation(
        "The tensor is stored in F32 where the reference has BF16: nothing is lost.",
        "An exporter that writes convolutions in F32.",
        "Nothing.",
    ),
    Code.FOREIGN_DIALECT: Explanation(
        "The modules are all there, under the names of another writer. A loader written for the released names drops "
        "what it does not know. The checks went on under the names that are stored.",
        "`save_pretrained` of transformers, MLX, a text-only export, or msModelSlim wrote it.",
        "Convert the names back, or accept the dialect with `--dialect` where its own loader will read it.",
    ),
    Code.MIXED_DIALECT: Explanation(
        "Some modules have released names and others those of another writer, so no loader knows all of them.",
        "Tensors of two exports merged, such as an MTP layer copied beside a transformers export.",
        "Convert one of the two to the names of the other.",
    ),
    Code.PARSER_REFUSED: Explanation(
        "The `safetensors` library itself does not open the shard, so nobody can load it.",
        "A file that this tool accepts and that version of the library does not.",
        "Write the shard again with the library, and report the difference to this tool.",
    ),
    Code.CONFIG_DIFFERS: Explanation(
        "A key of the official `config.json` is absent or has another value here. It is a warning where the model "
        "cannot be built, or is built differently, without it.",
        "A config written by another version, or edited, on purpose or not.",
        "Compare the two, and take over what was not meant to change.",
    ),
    Code.PART_REQUIRED: Explanation(
        "`--require` asked for a part of the model, and nothing of it is stored, whatever the config says.",
        "A text-only export, or an exporter that does not know the MTP layer.",
        "Restore the part, or do not require it.",
    ),
    Code.MTP_COPY: Explanation(
        "Embedding or head are stored once more inside the MTP layer, which most builds leave out. They are known.",
        "An exporter that writes every parameter of its MTP module, shared ones included.",
        "Nothing; leave the copies out to save 2.4 GiB.",
    ),
    Code.QUANT_UNDECLARED: Explanation(
        (
            "The quantization config covers the module and no ignore entry leaves it out, but its weight is stored "
            "plain. A loader makes room for packed values and stops at the shape, or fills it with something else."
        ),
        (
            "The list of what to leave out was written from the model class, which has no MTP layer; the layer was "
            "copied in afterwards, in BF16."
        ),
        "Paste the entries of the hint into the list, in both prefixes: drafts are loaded under the shorter one.",
    ),
    Code.QUANT_IGNORED: Explanation(
        "An entry says that the module is not quantized, but it is: a loader makes room for a plain weight.",
        "A glob that covers more than it was meant to, or modules that were quantized later than the config says.",
        "Remove the entry that the message names, or narrow it.",
    ),
    Code.QUANT_SCHEME: Explanation(
        "The module is quantized, but with another scheme, width, group or block than the config declares for it.",
        "A config kept from the source of a conversion, or one scheme declared for parts that were quantized apart.",
        "Declare what is stored: a group of its own for each scheme.",
    ),
    Code.QUANT_CONFLICT: Explanation(
        (
            "`config.json` and `hf_quant_config.json` cannot both be right about the modules of the message, which "
            "also says what is stored. These modules are not compared further."
        ),
        "A `quantization_config` left over from the checkpoint that was quantized again.",
        "Correct the wrong one, or remove it: most loaders read `config.json` first.",
    ),
    Code.QUANT_UNSTATED: Explanation(
        (
            "Weights are quantized and no config file says how, or says it in a format that is not understood here. An "
            "error where a config names modules one by one and leaves these out: loaders take them for plain then."
        ),
        "A sidecar file that was not uploaded, or a layer quantized apart and added without a group in the config.",
        "Add the config that the weights were quantized with, or a group for these modules.",
    ),
    Code.QUANT_ACTIVATIONS: Explanation(
        (
            "Activations are declared quantized but their scales are not stored, so that a loader makes them up (zero "
            "turns every output to zero); or scales are stored although activations are declared plain."
        ),
        "A weight-only export declared as W4A4, or the reverse.",
        "Set `input_activations` to null for weight-only modules, or store the scales.",
    ),
    Code.KV_SCHEME: Explanation(
        "A KV-cache scheme is declared without `k_scale` and `v_scale` being stored, or they are and none is declared.",
        "The cache was declared FP8 by a recipe that casts without calibrating, or the scales were lost on the way.",
        "Check that the loader may use a scale of 1; otherwise drop the scheme, or store the scales.",
    ),
    Code.QUANT_PATTERN_UNUSED: Explanation(
        (
            "Nothing in the checkpoint has the name that the entry spells; the message says how it was read, or why it "
            "could not be. Names that a runtime gives to fused modules (`gate_up_proj`) are normal in published lists."
        ),
        "Lists written for several loaders, a typing error, or the wrong prefix.",
        "Nothing, unless the entry was meant to cover something: compare its prefix with the stored names.",
    ),
}
