# SPDX-License-Identifier: AGPL-3.0-only
"""The answer of `verify`: what was looked at, and what there is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glm5inspect.fingerprint import Fingerprint
    from glm5inspect.summary import EncodingRow
    from glm5inspect.values.statistics import KindRow, PairRow


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One check: how many subjects it looked at, how many findings it has, and how it ended.

    A check that had no subject is ``not-applicable``, one that could not look ``not-read``; neither has passed.
    """

    name: str
    subjects: int
    findings: int
    status: str


@dataclass(frozen=True, slots=True)
class MtpState:
    """What there is of multi-token prediction.

    Attributes:
        state: ``complete``, ``incomplete``, ``missing``, ``none``, or ``unknown`` where no config tells.
        layer: Where; several as ranges.
        encoding: How most of it is stored; ``None`` when nothing of it is here.
        as_declared: Whether the quantization config agrees with how it is stored.
    """

    state: str
    layer: int | str | None
    encoding: str | None = None
    as_declared: bool = True


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many routed experts are left of how many, where all layers agree."""

    experts: int
    of: int


@dataclass(frozen=True, slots=True)
class LargestShard:
    """The largest file, in bytes."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class ValuesRead:
    """How much was read of the values of small tensors.

    Attributes:
        tensors: How many were read, block scales apart.
        of: How many there are to read; more than were read where remote ones were sampled, or could not be had.
        block_scales: How many block scales were read, a sample.
        block_scales_of: How many there are.
        bytes: Bytes read, of them and of what lies between.
        requests: Ranges of remote shards asked for.
    """

    tensors: int
    of: int
    block_scales: int
    block_scales_of: int
    bytes: int
    requests: int


@dataclass(frozen=True, slots=True)
class Verification:
    """The answer of `verify`.

    Attributes:
        checks: In the fixed order.
        encodings: How each part is stored.
        dialect: How modules are named; ``None`` when nobody can say.
        tensors: Number of tensors.
        bytes: Bytes stored.
        shards: Shard files; ``None`` for a snapshot that does not tell.
        parameters: Logical elements, whatever the encoding; ``None`` when the config does not tell enough.
        bits_per_parameter: Bits stored for each of them.
        largest_shard: ``None`` for a snapshot.
        mtp: The state of multi-token prediction.
        pruned: ``None`` for all experts.
        draft: Whether only the MTP layer is here.
        fingerprint: Which recorded inventory this is, or is nearest to.
        not_read: What was not looked at.
        values: How much was read of the values of small tensors; ``None`` when nobody asked.
        scale_pairs: How the global scales of gate and up differ.
        statistics: What each kind of small tensor holds.
    """

    checks: tuple[CheckRow, ...]
    encodings: tuple[EncodingRow, ...]
    dialect: str | None
    tensors: int
    bytes: int
    shards: int | None
    parameters: int | None
    bits_per_parameter: float | None
    largest_shard: LargestShard | None
    mtp: MtpState
    pruned: Pruned | None
    draft: bool
    fingerprint: Fingerprint
    not_read: tuple[str, ...]
    values: ValuesRead | None = None
    scale_pairs: tuple[PairRow, ...] = ()
    statistics: tuple[KindRow, ...] = ()
