# SPDX-License-Identifier: AGPL-3.0-only
"""How much is accepted beside the reference checkpoint, and the names that the command line has for it."""

from __future__ import annotations

from enum import StrEnum


class Scope(StrEnum):
    """What is accepted.

    In the usual scope weights may be stored in any known encoding. In the scope of the reference only the names and
    dtypes of the reference checkpoint are known.
    """

    AUTO = "auto"
    REFERENCE = "reference"


DIALECT_NAMES = ("released", "flat-text", "transformers", "msmodelslim", "mlx", "vision-tower")
"""The ways to name modules that `glm5inspect.dialects` knows."""

CHECKS = (
    "integrity",
    "index",
    "classify",
    "norms",
    "embed",
    "kda",
    "dsa",
    "hyper",
    "ffn",
    "moe",
    "mtp",
    "vision",
    "encodings",
    "quant-config",
    "reference-parser",
    "fingerprint",
)
"""Every check of a verification, in the order of its report."""

REQUIRED_PARTS = ("mtp", "vision")
"""What ``--require`` may ask for."""
