# SPDX-License-Identifier: AGPL-3.0-only
"""Modules as they are stored: what each check of a whole checkpoint looks at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glm5inspect.encodings import Reading


@dataclass(frozen=True, slots=True)
class StoredModule:
    """Modules of one layer that are stored alike: one, or a number of routed experts.

    Attributes:
        path: As stored, with the layer's number, and ``E`` for the expert's where there are several.
        layer: 0-based, ``None`` outside the layers.
        part: What it belongs to, as reported: ``routed experts``, ``DSA``, ``MTP`` …
        linear: Whether quantization of *Linear* modules is about it: a weight matrix, neither embedding nor router.
        experts: The indices of the experts, ascending; ``None`` for a module that is not one of many.
        suffixes: Of the tensors stored.
        reading: The encoding that they fit best.
        bytes: Of all tensors of all experts.
        parameters: Logical elements of all experts.
    """

    path: str
    layer: int | None
    part: str
    linear: bool
    experts: tuple[int, ...] | None
    suffixes: frozenset[str]
    reading: Reading
    bytes: int
    parameters: int

    @property
    def count(self) -> int:
        """How many modules these are."""
        return 1 if self.experts is None else len(self.experts)

    @property
    def first(self) -> str:
        """The full name of the first of them."""
        return self.path if self.experts is None else self.path.replace(".E.", f".{self.experts[0]}.", 1)
