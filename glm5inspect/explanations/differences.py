# SPDX-License-Identifier: AGPL-3.0-only
"""Findings of `diff`: what one checkpoint has otherwise than another."""

from __future__ import annotations

from glm5inspect.catalogue import Code
from glm5inspect.explanations.explanation import Explanation

EXPLANATIONS = {
    Code.DIFF_ONLY_A: Explanation(
        (
            "B has no tensor of this name. A pattern that ends in `*` stands for a whole layer, or the vision tower, "
            "of which B has nothing at all."
        ),
        "A conversion that dropped or renamed tensors: the MTP layer, the vision tower, pruned experts, scales.",
        "Where they were renamed, say so with `--rename OLD=NEW`; where they were lost, convert again.",
    ),
    Code.DIFF_ONLY_B: Explanation(
        "A has no tensor of this name. A pattern that ends in `*` stands for a layer of which A has nothing at all.",
        "A conversion that added scales or layers, or that renamed tensors.",
        "Where they were renamed, say so with `--rename OLD=NEW`.",
    ),
    Code.DIFF_DTYPE: Explanation(
        "Both have the tensor, in another dtype: a helper that was cast, or (without a config) an encoded weight.",
        "A converter that casts every small tensor to the dtype of the model.",
        "Nothing, if it was meant; `verify` says of each side whether a loader can live with it.",
    ),
    Code.DIFF_SHAPE: Explanation(
        "Both have the tensor, in another shape: another geometry, or another way to pack the same values.",
        "A vocabulary padded or cut, pruned router rows, or, without a config, a weight that was packed.",
        "Compare the configs, which are listed as `diff-config` where they differ.",
    ),
    Code.DIFF_ENCODING: Explanation(
        (
            "Both have the modules, whole and of the same size, but stored otherwise. All tensors of such a module, "
            "weights and scales, are told here and nowhere else."
        ),
        "Quantization, or its undoing.",
        "Nothing, if it was meant; `verify` holds the encodings against the quantization config.",
    ),
    Code.DIFF_CONFIG: Explanation(
        (
            "A key of `config.json` is not the same. It is an error where another model is built of it (sizes, layers, "
            "what is computed), a warning where one side has no config, and a note otherwise. Quantization configs are "
            "not compared: how weights are stored is read from the tensors."
        ),
        "A config written by another version, pruned experts, or an MTP layer that was left out.",
        "Take over what was not meant to change.",
    ),
}
