# SPDX-License-Identifier: AGPL-3.0-only
"""What each layer is made of, as its tensors' names tell: mixer, feed-forward part, MTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from glm5inspect.catalogue import Code
from glm5inspect.report import Finding, ranges
from glm5inspect.roles import TensorRole, is_text_model, mixer_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from glm5inspect.inventory import Group

_MTP_ROLES = (TensorRole.MTP_PROJECTION, TensorRole.MTP_NORM)
_FFN_OF = {
    TensorRole.DENSE_FFN: "dense",
    TensorRole.MOE_ROUTER: "moe",
    TensorRole.MOE_EXPERT: "moe",
    TensorRole.MOE_SHARED: "moe",
}


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One layer.

    Attributes:
        layer: 0-based.
        mixer: ``KDA``, ``DSA``, ``none``, or ``mixed`` when names of both are there.
        ffn: ``dense``, ``moe``, ``none``, or ``mixed``.
        mtp: Whether it carries a name that only an MTP layer has.
        tensors: Number of tensors.
        bytes: Bytes stored.
        dtypes: Dtype to number of tensors.
    """

    layer: int
    mixer: str
    ffn: str
    mtp: bool
    tensors: int
    bytes: int
    dtypes: dict[str, int]


class TextLayers(NamedTuple):
    """Which text layers there are, and which of them are MTP layers, as far as names are known."""

    text: set[int]
    mtp: set[int]

    @property
    def trunk(self) -> set[int]:
        """The text layers that are not MTP layers."""
        return self.text - self.mtp


def text_layers(groups: Iterable[Group]) -> TextLayers:
    """Return the layers of the text model; an MTP layer is one that carries a name only such a layer has."""
    text, mtp = set(), set()
    for group in groups:
        if group.layer is not None and group.role is not None and is_text_model(group.role):
            text.add(group.layer)
            if group.role in _MTP_ROLES:
                mtp.add(group.layer)
    return TextLayers(text, mtp)


def draft_tree(mtp: set[int]) -> Finding:
    """Note that a tree holds MTP layers and no trunk."""
    return Finding(Code.DRAFT_TREE, f"only the MTP layer {ranges(mtp)} is here, no trunk layer")


def groups_by_layer(groups: Iterable[Group]) -> dict[int, list[Group]]:
    """Return the groups of each layer; what is in no layer is left out."""
    layers: dict[int, list[Group]] = {}
    for group in groups:
        if group.layer is not None:
            layers.setdefault(group.layer, []).append(group)
    return layers


def layer_table(groups: Iterable[Group]) -> Iterator[LayerRow]:
    """Describe every layer, ascending."""
    for layer, members in sorted(groups_by_layer(groups).items()):
        dtypes: dict[str, int] = {}
        for group in members:
            dtypes[group.dtype] = dtypes.get(group.dtype, 0) + len(group.tensors)
        yield LayerRow(
            layer=layer,
            mixer=_one_of({mixer_of(group.pattern, group.role) for group in members}),
            ffn=_one_of({_FFN_OF.get(group.role) if group.role else None for group in members}),
            mtp=any(group.role in _MTP_ROLES for group in members),
            tensors=sum(len(group.tensors) for group in members),
            bytes=sum(group.nbytes for group in members),
            dtypes=dict(sorted(dtypes.items())),
        )


def _one_of(kinds: set[str | None]) -> str:
    known = sorted(kind for kind in kinds if kind)
    return known[0] if len(known) == 1 else ("mixed" if known else "none")
