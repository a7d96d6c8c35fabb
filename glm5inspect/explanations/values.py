# SPDX-License-Identifier: AGPL-3.0-only
"""Findings of `verify --values`: what small tensors hold."""

from __future__ import annotations

from glm5inspect.catalogue import Code
from glm5inspect.explanations.explanation import Explanation

EXPLANATIONS = {
    Code.SCALE_PAIR_UNEQUAL: Explanation(
        (
            "Loaders that fuse gate and up into one matrix keep one global scale for both, so one half of every "
            "such expert is multiplied by a wrong number, by the ratio told. An error above `--max-scale-ratio`. "
            "Loaders that rescale the blocks, or do not fuse, are not affected."
        ),
        "A quantizer that calibrated gate and up apart, instead of giving both the larger of the two scales.",
        "Quantize again with shared scales, or rescale the block scales of one half and give both one global scale.",
    ),
    Code.SCALE_INVALID: Explanation(
        "Whatever is multiplied by it becomes zero, changes its sign, or is NaN from there on.",
        "Weights that were all zero when the scale was computed, a division by zero, or one that was never written.",
        "Quantize the module again; a scale that belongs to zeros can be any positive number, such as 1.",
    ),
    Code.NORM_INVALID: Explanation(
        "The norm turns everything into zeros or NaN.",
        "A tensor that was allocated and never written, or an overflow on the way to another dtype.",
        "Take the tensor from the original checkpoint.",
    ),
    Code.NORM_OFFSET: Explanation(
        (
            "At least a quarter of the values are negative. This model multiplies by the weight as it is, and trained "
            "weights are positive; values around 0 are the mark of a convention that adds 1 to them."
        ),
        "A converter written for a model with the (1 + w) convention, which subtracted 1.",
        "Compare with the original checkpoint; where it is so, add 1.",
    ),
    Code.NORM_CONSTANT: Explanation(
        "A trained norm does not have one value throughout.",
        "A norm that was never trained, or that a converter put back to its initial value because it did not find it.",
        "Compare with the original checkpoint.",
    ),
    Code.BIAS_ZERO: Explanation(
        "The bias of the norm of the indexer's keys is there and all zero: harmless only if it was trained to be.",
        "A converter that knows norms without bias, and added an empty one to satisfy a loader.",
        "Compare with the original checkpoint.",
    ),
    Code.HELPER_INVALID: Explanation(
        "Decay, gates, hyper-connections or the choice of experts are NaN for every token.",
        "An overflow on the way to another dtype, or a tensor that was never written.",
        "Take the tensor from the original checkpoint.",
    ),
    Code.HELPER_ROUNDED: Explanation(
        (
            "Every value survives a way through BF16 unchanged, which F32 values do not do by chance: precision was "
            "lost before the tensor was written as F32. For the router's bias that changes which experts are chosen."
        ),
        "A conversion that loaded the whole model as BF16, and cast the helpers back afterwards.",
        "Take the tensor from the original checkpoint.",
    ),
    Code.MARKER_MISMATCH: Explanation(
        "The marker is the multiplier of the codebook that weights were encoded with; another decodes them to noise.",
        "Modules of two quantizations put together, or a codebook declared by hand.",
        "Declare the codebook that was used; take modules of another one from a build of the same.",
    ),
    Code.WEIGHT_SHAPE_MISMATCH: Explanation(
        "Loaders unpack the integers into a matrix of this shape, which is not that of the module.",
        "A converter that cut or padded the packed weight, or swapped rows and columns.",
        "Write the shape (rows, columns) of the unpacked weight.",
    ),
    Code.VALUES_UNREAD: Explanation(
        "`--values` asked for them and they could not be had, so the answer is neither yes nor no.",
        "A file that ends too early or cannot be read, or a server that does not answer.",
        "Mend the file, or try again; what was fetched is kept.",
    ),
}
