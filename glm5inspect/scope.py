# SPDX-License-Identifier: AGPL-3.0-only
"""How much is looked at and accepted, and the names that the command line has for it."""

from __future__ import annotations

from dataclasses import dataclass
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

VALUE_CHECKS = ("scale-pairs", "scale-range", "norm-values", "helper-values", "markers")
"""The checks of a verification that read tensor data, of small tensors."""

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
    *VALUE_CHECKS,
)
"""Every check of a verification, in the order of its report."""

REQUIRED_PARTS = ("mtp", "vision")
"""What ``--require`` may ask for."""

DEFAULT_MAX_REQUESTS = 500


@dataclass(frozen=True, slots=True)
class ValueOptions:
    """How values of small tensors are looked at.

    Attributes:
        max_scale_ratio: The largest ratio of two scales that are to be equal which is no error; ``None`` leaves every
            one a warning.
        max_requests: The most ranges to ask a server for; where more are needed, tensors are sampled.
    """

    max_scale_ratio: float | None = None
    max_requests: int = DEFAULT_MAX_REQUESTS
