# SPDX-License-Identifier: AGPL-3.0-only
"""The form of an explanation."""

from __future__ import annotations

from typing import NamedTuple


class Explanation(NamedTuple):
    """Three texts about one code.

    Attributes:
        meaning: What the finding says about the checkpoint.
        cause: How checkpoints usually come to have it.
        remedy: What to do about it.
    """

    meaning: str
    cause: str
    remedy: str
