# SPDX-License-Identifier: AGPL-3.0-only
"""Every finding this tool can report: one line a code.

`glm5inspect.report.Finding` refers to one, `glm5inspect.explanations` says what it means. A code is never reused for
something else.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Self


class Severity(IntEnum):
    """How much a finding weighs, in ascending order."""

    NOTE = 1
    WARNING = 2
    ERROR = 3


_NOTE, _WARNING, _ERROR = Severity.NOTE, Severity.WARNING, Severity.ERROR


class Code(Enum):
    """One kind of finding.

    Attributes:
        value: The kebab-case name, as printed and as given to ``--select`` and ``--ignore``.
        severity: The usual severity; a single finding may carry another one where its meaning says so.
        title: What is wrong, in a few words.
    """

    severity: Severity
    title: str

    def __new__(cls, slug: str, severity: Severity, title: str) -> Self:
        """Make the slug the value and keep the rest as attributes."""
        code = object.__new__(cls)
        code._value_ = slug
        code.severity, code.title = severity, title
        return code

    # Names and roles
    UNKNOWN_TENSOR = ("unknown-tensor", _ERROR, "a tensor name that no rule teaches")
    NORM_ROLE_MISMATCH = ("norm-role-mismatch", _ERROR, "a norm that landed in a role that is not a norm")
    LAYER_GAP = ("layer-gap", _ERROR, "text layers are not contiguous, or not as many as declared")
    NO_TENSORS = ("no-tensors", _ERROR, "no tensor at all")
    DRAFT_TREE = ("draft-tree", _NOTE, "only the MTP layer is here")

    # A shard whose header is refused: the answer is incomplete, exit code 3
    HEADER_EMPTY = ("header-empty", _ERROR, "a shard of 0 bytes")
    HEADER_UNREADABLE = ("header-unreadable", _ERROR, "a shard that cannot be opened or read")
    HEADER_FORMAT = ("header-format", _ERROR, "not a safetensors file")
    HEADER_LENGTH = ("header-length", _ERROR, "the declared header length is impossible")
    HEADER_JSON = ("header-json", _ERROR, "the header is not strict JSON")
    HEADER_PADDING = ("header-padding", _ERROR, "the header is padded with something other than spaces")
    HEADER_DUPLICATE = ("header-duplicate", _ERROR, "a key stands twice in the header")
    HEADER_ENTRY = ("header-entry", _ERROR, "an entry of the header is malformed")
    HEADER_OFFSETS = ("header-offsets", _ERROR, "a tensor begins after it ends")

    # A readable header with something wrong in it
    HEADER_METADATA = ("header-metadata", _ERROR, "`__metadata__` is not an object of strings")
    HEADER_EXTRA_KEY = ("header-extra-key", _WARNING, "an entry has a key that the format does not know")
    UNKNOWN_DTYPE = ("unknown-dtype", _ERROR, "a dtype that the format does not know")
    SHAPE_BYTES = ("shape-bytes", _ERROR, "shape and dtype do not fit the bytes stored")
    OFFSET_GAP = ("offset-gap", _ERROR, "bytes between two tensors belong to nobody")
    OFFSET_OVERLAP = ("offset-overlap", _ERROR, "two tensors share bytes")
    FILE_TRUNCATED = ("file-truncated", _ERROR, "the file ends before its tensors do")
    FILE_TRAILING = ("file-trailing", _ERROR, "bytes after the last tensor")

    # The index against the headers
    INDEX_MISSING_SHARD = ("index-missing-shard", _ERROR, "a shard that the index names is not there")
    INDEX_MISSING_TENSOR = ("index-missing-tensor", _ERROR, "the index names a tensor that no header has")
    INDEX_WRONG_SHARD = (
        "index-wrong-shard",
        _ERROR,
        "the index names another shard than the one that holds the tensor",
    )
    INDEX_UNLISTED_TENSOR = ("index-unlisted-tensor", _ERROR, "a tensor that the index does not name")
    INDEX_UNLISTED_SHARD = ("index-unlisted-shard", _ERROR, "a shard that the index does not name")
    INDEX_DUPLICATE_KEY = ("index-duplicate-key", _ERROR, "a key stands twice in the index")
    INDEX_TOTAL_SIZE = ("index-total-size", _WARNING, "`metadata.total_size` is not the sum of the tensors' bytes")
    DUPLICATE_TENSOR = ("duplicate-tensor", _ERROR, "the same tensor in two shards")
    SHARD_NUMBERING = ("shard-numbering", _ERROR, "the shards' numbers say that some are missing")
    COMPANION_SPLIT = ("companion-split", _WARNING, "a weight and its own scale are in different shards")

    # Against another inventory
    CENSUS_MISSING = ("census-missing", _ERROR, "tensors that the other inventory has are not here")
    CENSUS_EXTRA = ("census-extra", _ERROR, "tensors that the other inventory does not have")
    CENSUS_DTYPE = ("census-dtype", _ERROR, "another dtype than in the other inventory")
    CENSUS_SHAPE = ("census-shape", _ERROR, "another shape than in the other inventory")

    # What differs between two checkpoints
    DIFF_ONLY_A = ("diff-only-a", _ERROR, "tensors that only A has")
    DIFF_ONLY_B = ("diff-only-b", _ERROR, "tensors that only B has")
    DIFF_DTYPE = ("diff-dtype", _ERROR, "tensors have another dtype in B")
    DIFF_SHAPE = ("diff-shape", _ERROR, "tensors have another shape in B")
    DIFF_ENCODING = ("diff-encoding", _ERROR, "modules are encoded otherwise in B")
    DIFF_CONFIG = ("diff-config", _ERROR, "the two configs do not agree")

    # The configuration
    CONFIG_MISSING = ("config-missing", _WARNING, "config.json does not say what the check needs")
    CONFIG_CONTRADICTION = ("config-contradiction", _ERROR, "config.json contradicts itself")
    CONFIG_GEOMETRY = ("config-geometry", _ERROR, "a field of config.json is missing or impossible")

    # DSA blocks
    DSA_MISSING = ("dsa-missing", _ERROR, "a tensor of a DSA block is missing")
    DSA_DTYPE = ("dsa-dtype", _ERROR, "a tensor of a DSA block has another dtype")
    DSA_SHAPE = ("dsa-shape", _ERROR, "a tensor of a DSA block has another shape")
    DSA_BYTES = ("dsa-bytes", _ERROR, "a tensor of a DSA block has the wrong number of bytes")
    DSA_UNCLAIMED = ("dsa-unclaimed", _ERROR, "an attention tensor that no row of the block claims")
    DSA_UNDECLARED_LAYER = ("dsa-undeclared-layer", _ERROR, "a layer has DSA tensors but is not declared as one")
    DSA_NONE = ("dsa-none", _ERROR, "no DSA block found")
    DSA_NOT_A_LAYER = ("dsa-not-a-layer", _ERROR, "the layer asked for is not a DSA layer")
    MIXED_MIXER = ("mixed-mixer", _ERROR, "a layer has tensors of both mixers")

    # The MTP layer
    MTP_MISSING = ("mtp-missing", _ERROR, "the MTP layer is not here")
    MTP_FOREIGN_PREFIX = ("mtp-foreign-prefix", _ERROR, "an MTP layer named by another convention")
    MTP_ABSENT = ("mtp-absent", _NOTE, "no MTP layer, and none declared")
    MTP_UNDECLARED = ("mtp-undeclared", _WARNING, "an MTP layer that the config does not declare")
    MTP_INCOMPLETE = ("mtp-incomplete", _ERROR, "a part of the MTP layer is missing")
    MTP_COUNT = ("mtp-count", _ERROR, "another number of MTP layers than declared")
    MTP_POSITION = ("mtp-position", _ERROR, "the MTP layer has the wrong index")
    MTP_COPY = ("mtp-copy", _NOTE, "the MTP layer has a copy of the embedding or the head")
    MTP_ENCODING = ("mtp-encoding", _NOTE, "the MTP layer is stored in other dtypes than the trunk")

    # The module table
    MODULE_MISSING = ("module-missing", _ERROR, "a module that the config asks for is not stored")
    MODULE_SHAPE = ("module-shape", _ERROR, "a tensor has another shape than the config asks for")
    MODULE_UNCLAIMED = ("module-unclaimed", _ERROR, "a tensor that no row of the module table claims")
    EXPERT_IDS = ("expert-ids", _ERROR, "the routed experts of a layer are not numbered without holes")
    EXPERT_COUNT = ("expert-count", _ERROR, "experts, router and config disagree about a number of experts")
    FOREIGN_ARCHITECTURE = ("foreign-architecture", _ERROR, "the model is not GLM-5.3-Flash")

    # How modules are stored, and how they are named
    ENCODING_INCOMPLETE = ("encoding-incomplete", _ERROR, "a tensor of an encoded module is missing")
    ENCODING_SHAPE = ("encoding-shape", _ERROR, "a tensor of an encoded module has another shape")
    ENCODING_DTYPE = ("encoding-dtype", _ERROR, "a tensor has a dtype that its encoding does not know")
    ENCODING_AMBIGUOUS = ("encoding-ambiguous", _ERROR, "one module is stored in two encodings")
    ENCODING_MIXED = ("encoding-mixed", _NOTE, "modules of one role are stored in several encodings")
    SCALE_SUFFIX = ("scale-suffix", _WARNING, "scales of block FP8 are called `weight_scale`")
    PRECISION_NARROWED = ("precision-narrowed", _WARNING, "a tensor that belongs in F32 is stored in 16 bits")
    PRECISION_WIDENED = ("precision-widened", _NOTE, "a tensor is stored in F32 where the reference has BF16")
    FOREIGN_DIALECT = ("foreign-dialect", _ERROR, "modules are named as another writer names them")
    MIXED_DIALECT = ("mixed-dialect", _ERROR, "modules are named in two ways")

    # Other opinions, and what a release asks for
    PARSER_REFUSED = ("parser-refused", _ERROR, "the safetensors library refuses a shard")
    CONFIG_DIFFERS = ("config-differs", _NOTE, "a key of config.json is not as in the official release")
    PART_REQUIRED = ("part-required", _ERROR, "a part that was required is not here")

    # The quantization config against the tensors
    QUANT_UNDECLARED = ("quant-undeclared", _ERROR, "declared quantized but stored plain")
    QUANT_IGNORED = ("quant-ignored", _ERROR, "declared not to be quantized but stored quantized")
    QUANT_SCHEME = ("quant-scheme", _ERROR, "quantized in another way than declared")
    QUANT_CONFLICT = ("quant-conflict", _ERROR, "the two config files declare different things")
    QUANT_UNSTATED = ("quant-unstated", _WARNING, "a quantization is stored that no config file declares")
    QUANT_ACTIVATIONS = ("quant-activations", _WARNING, "the scales of activations are not those declared")
    KV_SCHEME = ("kv-scheme", _WARNING, "the scales of the KV cache are not those declared")
    QUANT_PATTERN_UNUSED = ("quant-pattern-unused", _NOTE, "an entry of a quantization config that names nothing")

    # Values of small tensors
    SCALE_PAIR_UNEQUAL = ("scale-pair-unequal", _WARNING, "global scales of gate and up differ")
    SCALE_INVALID = ("scale-invalid", _ERROR, "a scale is zero, negative, NaN or infinite")
    NORM_INVALID = ("norm-invalid", _ERROR, "a norm is all zero, or has values that are NaN or infinite")
    NORM_OFFSET = ("norm-offset", _WARNING, "the values of an RMSNorm centre on or below 0")
    NORM_CONSTANT = ("norm-constant", _WARNING, "all values of a norm are equal")
    BIAS_ZERO = ("bias-zero", _WARNING, "the bias of the indexer's norm is all zero")
    HELPER_INVALID = ("helper-invalid", _ERROR, "a helper has values that are NaN or infinite")
    HELPER_ROUNDED = ("helper-rounded", _WARNING, "a helper in F32 has only values that fit BF16")
    MARKER_MISMATCH = ("marker-mismatch", _ERROR, "a marker of EXL3 is not that of its codebook")
    WEIGHT_SHAPE_MISMATCH = ("weight-shape-mismatch", _ERROR, "`weight_shape` is not the shape of the module")
    VALUES_UNREAD = ("values-unread", _ERROR, "values that were asked for could not be read")

    # What the caller asked for
    NO_MATCH = ("no-match", _ERROR, "no tensor matches")
    ACCEPT_UNUSED = ("accept-unused", _NOTE, "an entry of the accepted list that covers nothing")


def hint_for(slug: str) -> str:
    """Say of what is no code which one was probably meant, or where they are listed."""
    from difflib import get_close_matches  # noqa: PLC0415 - for mistakes only

    close = get_close_matches(slug[:_LONGEST].lower().replace("_", "-"), BY_SLUG, n=1)
    return f"did you mean {close[0]}?" if close else "glm5inspect explain lists them"


_LONGEST = 100  # characters of something like a code

BY_SLUG = {code.value: code for code in Code}
"""Every code by its kebab-case name."""
