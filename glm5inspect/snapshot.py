# SPDX-License-Identifier: AGPL-3.0-only
"""The recorded inventory of a published checkpoint: every tensor's name, dtype and shape, without its data.

A snapshot is lossless (the names expand from it), small, readable in a diff, and a source like any other. One row holds
one (pattern, dtype, shape) whose tensors are exactly its layers times its experts. Where tensors lie is not recorded.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glm5inspect.errors import SnapshotError, SourceError
from glm5inspect.header import DTYPE_BITS, TensorRecord, bounded_shape, needed_bits
from glm5inspect.inventory import Inventory
from glm5inspect.report import SourceInfo, ranges
from glm5inspect.roles import is_digits
from glm5inspect.sources.base import CONFIG_NAME, QUANT_CONFIG_NAME
from glm5inspect.strict_json import StrictJSONError, parse_object

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from glm5inspect.inventory import Needs, Progress

FORMAT = "glm5inspect-snapshot/1"
MAX_SNAPSHOT_BYTES = 64 << 20
MAX_SNAPSHOT_TENSORS = 1_000_000
MAX_SNAPSHOT_NAMES = 1 << 28
"""Bounds on what a file may expand to, in tensors and in characters of names; the largest known has 150,226 tensors."""

_INDEX_LIMIT = 1 << 64


@dataclass(frozen=True, slots=True)
class Row:
    """Tensors of one pattern, dtype and shape: every layer with every expert.

    Attributes:
        pattern: The name, with ``N`` for the layer and ``E`` for the expert where `layers` and `experts` say so.
        dtype: As stored.
        shape: In elements.
        layers: Ascending; ``None`` when the pattern has no layer index. The same for `experts`.
    """

    pattern: str
    dtype: str
    shape: tuple[int, ...]
    layers: tuple[int, ...] | None
    experts: tuple[int, ...] | None

    @property
    def count(self) -> int:
        """How many tensors the row stands for."""
        return len(self.layers or (0,)) * len(self.experts or (0,))

    def names(self) -> Iterator[str]:
        """Expand the row into tensor names."""
        head, tail = _split_at(self.pattern, "layers", "N") if self.layers else (self.pattern, "")
        for layer in self.layers or (None,):
            name = self.pattern if layer is None else f"{head}{layer}{tail}"
            if self.experts:
                before, after = _split_at(name, "experts", "E")
                yield from (f"{before}{expert}{after}" for expert in self.experts)
            else:
                yield name


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A recorded inventory, which is a source of its own.

    Attributes:
        info: Where it came from, for the report.
        repo: ``owner/name`` of the checkpoint recorded, or ``None``; so for the next two.
        revision: The commit (or branch) recorded.
        recorded: The day, ``YYYY-MM-DD``.
        provenance: One sentence: how the inventory was obtained, and how verified.
        shards: Number of shard files of the checkpoint, or ``None``.
        configs: The configuration files recorded, whole, by key of the snapshot file.
        rows: Sorted.
    """

    info: SourceInfo
    repo: str | None
    revision: str | None
    recorded: str | None
    provenance: str | None
    shards: int | None
    configs: Mapping[str, Mapping[str, object]]
    rows: tuple[Row, ...]

    def config(self, name: str = CONFIG_NAME) -> Mapping[str, object] | None:
        """Return a recorded configuration file, or ``None`` when there is none."""
        return self.configs.get(CONFIG_KEYS[name])

    def local_path(self, shard: str) -> str | None:  # noqa: ARG002 - no shard is recorded
        """Return ``None``: a snapshot has no shards."""
        return None

    def is_remote(self, shard: str) -> bool:  # noqa: ARG002 - no shard is recorded
        """Refuse: no shard is recorded."""
        raise self._without_data()

    def read_data(self, ranges: Iterable[tuple[str, int, int]]) -> Iterator[bytes | SourceError]:  # noqa: ARG002 - nor data
        """Refuse: what tensors hold is not recorded."""
        raise self._without_data()

    def _without_data(self) -> SourceError:
        return SourceError(f"{self.info.name}: a snapshot has no tensor values; give the checkpoint itself")

    def inventory(self, needs: Needs | None = None, progress: Progress | None = None) -> Inventory:  # noqa: ARG002 - nothing is read
        """Expand the rows into an inventory; nothing is read, so nothing is left out."""
        tensors = {}
        for row in self.rows:
            nbytes = (needed_bits(row.dtype, row.shape) or 0) // 8
            for name in row.names():
                tensors[name] = TensorRecord(name, row.dtype, row.shape, 0, nbytes, None)
        return Inventory(info=self.info, tensors=tensors, shards=self.shards)


CONFIG_KEYS = {CONFIG_NAME: "config", QUANT_CONFIG_NAME: "hf_quant_config"}
_ROW_KEYS = {"pattern", "dtype", "shape", "layers", "experts"}
_KEYS = ("format", "repo", "revision", "recorded", "provenance", "shards", "tensors", "bytes", *CONFIG_KEYS.values())


def snapshot_folder() -> Path:
    """Return the folder of the bundled snapshots: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).parent
    inside = package / "snapshots"
    return inside if inside.is_dir() else package.parent / "snapshots"


def bundled_names() -> list[str]:
    """List the names that ``snapshot:NAME`` knows, sorted."""
    return sorted(path.stem for path in snapshot_folder().glob("*.json"))


def load_snapshot(path: Path, *, typed: str, resolved: str | None = None) -> Snapshot:
    """Read a snapshot file and check that it adds up.

    Args:
        path: The file.
        typed: The SOURCE argument, for the report.
        resolved: What to call the source for people; ``None`` for the path.

    Raises:
        SnapshotError: It cannot be read, has another format, or its rows overlap or do not add up to its totals.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_SNAPSHOT_BYTES + 1)
    except OSError as error:
        raise SnapshotError(f"{path}: cannot be read: {error.strerror}") from error
    if len(raw) > MAX_SNAPSHOT_BYTES:
        raise SnapshotError(f"{path}: over {MAX_SNAPSHOT_BYTES:,} bytes; this is not a snapshot")
    try:
        return parse_snapshot(raw, SourceInfo("snapshot", typed, resolved or str(path)))
    except SnapshotError as error:
        raise SnapshotError(f"{path}: {error}") from error


def parse_snapshot(raw: bytes, info: SourceInfo) -> Snapshot:
    """Parse the bytes of a snapshot file.

    Args:
        raw: The whole file.
        info: What the source is; repository and commit are filled in from the file.

    Raises:
        SnapshotError: As for `load_snapshot`.
    """
    try:
        parsed = parse_object(raw)
    except StrictJSONError as error:
        raise SnapshotError(f"{error}; this is not a snapshot") from error
    fields = parsed.value
    if fields.get("format") != FORMAT:
        if "format" not in fields:
            raise SnapshotError("not a snapshot; give the folder of a checkpoint, or a snapshot file")
        raise SnapshotError(f"the format is {repr(fields.get('format'))[:80]}, this version reads {FORMAT} only")
    if parsed.duplicates:
        raise SnapshotError(f"the key {parsed.duplicates[0]} stands twice")
    if stray := sorted(fields.keys() - {*_KEYS, "rows"}):
        raise SnapshotError(f"the key {stray[0]} is not one of this format")
    texts = {key: _optional(fields, key, str) for key in ("repo", "revision", "recorded", "provenance")}
    configs = {key: value for key in CONFIG_KEYS.values() if (value := _optional(fields, key, dict)) is not None}
    shards = _optional(fields, "shards", int)
    if shards is not None and shards < 0:
        raise SnapshotError(f"shards is {shards}, not a number of files")
    rows = _parse_rows(fields)
    is_commit = re.fullmatch("[0-9a-f]{40}", texts["revision"] or "")
    branch, commit = (None, texts["revision"]) if is_commit else (texts["revision"], None)
    return Snapshot(
        info=replace(info, repo=texts["repo"], revision=branch, commit=commit),
        **texts,
        shards=shards,
        configs=configs,
        rows=rows,
    )


def _optional(fields: Mapping[str, Any], key: str, kind: type) -> Any:  # noqa: ANN401 - of the kind asked for
    """Return a field that may be null or absent, after a look at its type."""
    value = fields.get(key)
    if value is not None and type(value) is not kind:
        raise SnapshotError(f"{key} is not of type {kind.__name__}")
    return value


def _parse_rows(fields: Mapping[str, Any]) -> tuple[Row, ...]:
    """Read the rows and hold them to the totals, before a single name is expanded."""
    raw_rows = _optional(fields, "rows", list)
    if raw_rows is None:
        raise SnapshotError("there are no rows")
    rows, tensors, nbytes, characters = [], 0, 0, 0
    for number, raw in enumerate(raw_rows, 1):
        try:
            row = _parse_row(raw)
        except (TypeError, ValueError) as error:
            raise SnapshotError(f"row {number} is malformed ({error!s})") from error
        rows.append(row)
        tensors += row.count
        nbytes += row.count * ((needed_bits(row.dtype, row.shape) or 0) // 8)
        characters += row.count * len(row.pattern)
        if tensors > MAX_SNAPSHOT_TENSORS or characters > MAX_SNAPSHOT_NAMES:
            raise SnapshotError(f"the rows stand for more than {MAX_SNAPSHOT_TENSORS:,} tensors")
    for key, total in (("tensors", tensors), ("bytes", nbytes)):
        stated = fields.get(key)
        if type(stated) is not int or stated != total:
            raise SnapshotError(f"the rows add up to {total:,} {key}, but the file says {repr(stated)[:80]}")
    if rows != sorted(rows, key=row_order):
        raise SnapshotError("the rows are not sorted by pattern, dtype, shape and layers")
    if len({name for row in rows for name in row.names()}) != tensors:
        raise SnapshotError("rows overlap: a tensor is recorded twice")
    return tuple(rows)


def _parse_row(raw: Mapping[str, Any]) -> Row:
    if not isinstance(raw, dict) or not {"pattern", "dtype", "shape"} <= raw.keys() <= _ROW_KEYS:
        raise TypeError("not an object of pattern, dtype, shape and, where the pattern has them, layers and experts")
    pattern, dtype, shape = raw["pattern"], raw["dtype"], raw["shape"]
    if type(pattern) is not str or dtype not in DTYPE_BITS or type(shape) is not list:
        raise TypeError("pattern, dtype or shape")
    if (needed_bits(dtype, bounded_shape(tuple(shape))) or 0) % 8:
        raise ValueError("the tensor ends inside a byte")
    indices = {key: _parse_ranges(raw[key]) if key in raw else None for key in ("layers", "experts")}
    for key, letter in (("layers", "N"), ("experts", "E")):
        if (indices[key] is None) == bool(_split_at(pattern, key, letter)[1:]):
            raise ValueError(f"{pattern} and its {key} do not fit")
    return Row(pattern, dtype, tuple(shape), indices["layers"], indices["experts"])


def _parse_ranges(text: object) -> tuple[int, ...]:
    """Read ``a-b`` ranges; only the form that `glm5inspect.report.ranges` writes is accepted."""
    if type(text) is not str:
        raise TypeError("ranges")
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        start, stop = int(first), int(last or first) + 1
        if stop - start + len(numbers) > MAX_SNAPSHOT_TENSORS:
            raise ValueError("too many indices")
        if stop > _INDEX_LIMIT:
            raise ValueError("an index of 2^64 or more")
        numbers.extend(range(start, stop))
    if ranges(numbers) != text:
        raise ValueError(f"{text!r} is not in canonical form")
    return tuple(numbers)


def _split_at(name: str, after: str, letter: str) -> tuple[str, ...]:
    """Split a name around the segment after the first segment ``after``, if that is the letter; else only the name."""
    segments = name.split(".")
    if after in segments and segments[(place := segments.index(after) + 1) : place + 1] == [letter]:
        head, tail = ".".join(segments[:place]), ".".join(segments[place + 1 :])
        return f"{head}.", f".{tail}" if place + 1 < len(segments) else ""
    return (name,)


def take_snapshot(
    inventory: Inventory,
    configs: Mapping[str, Mapping[str, object]],
    *,
    repo: str | None,
    revision: str | None,
    recorded: str | None,
    provenance: str | None,
) -> Snapshot:
    """Fold an inventory into rows.

    Args:
        inventory: A complete one.
        configs: The configuration files, by key of the snapshot file.
        repo: See `Snapshot`, as the rest.
        revision: See `Snapshot`.
        recorded: See `Snapshot`.
        provenance: See `Snapshot`.

    Raises:
        SnapshotError: A tensor cannot be written as a row: its dtype is unknown, its bytes do not fit its shape, or its
            name has a literal ``N`` or ``E`` where an index belongs.
    """
    return Snapshot(
        info=inventory.info,
        repo=repo,
        revision=revision,
        recorded=recorded,
        provenance=provenance,
        shards=inventory.shards,
        configs=configs,
        rows=tuple(_fold(inventory.tensors.values())),
    )


def _fold(tensors: Iterable[TensorRecord]) -> list[Row]:
    """Fold tensors into rows: layers with the same set of experts form one row."""
    experts_of: dict[tuple[str, str, tuple[int, ...]], dict[int | None, list[int | None]]] = {}
    for tensor in tensors:
        if needed_bits(tensor.dtype, tensor.shape) != 8 * tensor.nbytes:
            raise SnapshotError(f"{tensor.name}: dtype, shape and bytes do not fit, so it cannot be recorded")
        pattern, layer = _fold_index(tensor.name, "layers", "N")
        pattern, expert = _fold_index(pattern, "experts", "E")
        layers = experts_of.setdefault((pattern, tensor.dtype, tensor.shape), {})
        layers.setdefault(layer, []).append(expert)
    rows = []
    for (pattern, dtype, shape), layers in experts_of.items():
        layers_of: dict[tuple[int | None, ...], list[int | None]] = {}
        for layer, experts in layers.items():
            layers_of.setdefault(tuple(sorted(experts, key=_none_first)), []).append(layer)
        rows += [Row(pattern, dtype, shape, _indices(group), _indices(experts)) for experts, group in layers_of.items()]
    return sorted(rows, key=row_order)


def row_order(row: Row) -> tuple[object, ...]:
    """Return the place of a row in a file."""
    return (row.pattern, row.dtype, row.shape, row.layers or (), row.experts or ())


def _fold_index(name: str, after: str, letter: str) -> tuple[str, int | None]:
    """Replace a canonical decimal after the first segment ``after`` by its letter; other indices stay in the name."""
    segments = name.split(".")
    place = segments.index(after) + 1 if after in segments else len(segments)
    digits = segments[place] if place < len(segments) else ""
    if digits == letter:
        raise SnapshotError(f"{name}: has a literal {after}.{letter}, which a pattern could not tell from an index")
    value = int(digits) if is_digits(digits) and len(digits) <= len(str(_INDEX_LIMIT)) else _INDEX_LIMIT
    if value >= _INDEX_LIMIT or str(value) != digits:
        return name, None
    segments[place] = letter
    return ".".join(segments), value


def _none_first(number: int | None) -> int:
    return -1 if number is None else number


def _indices(numbers: Iterable[int | None]) -> tuple[int, ...] | None:
    return tuple(sorted(number for number in numbers if number is not None)) or None


def dump_snapshot(snapshot: Snapshot) -> str:
    """Write a snapshot as the text of its file: one row a line, the same text for the same inventory.

    Raises:
        SnapshotError: A configuration file holds a number that is not JSON.
    """
    values: dict[str, object] = {
        "format": FORMAT,
        "repo": snapshot.repo,
        "revision": snapshot.revision,
        "recorded": snapshot.recorded,
        "provenance": snapshot.provenance,
        "shards": snapshot.shards,
        "tensors": sum(row.count for row in snapshot.rows),
        "bytes": sum(row.count * ((needed_bits(row.dtype, row.shape) or 0) // 8) for row in snapshot.rows),
        **snapshot.configs,
    }
    try:
        lines = [f'"{key}": {_strict(values[key])}' for key in _KEYS if key in values]
    except ValueError as error:
        raise SnapshotError(f"a configuration file cannot be recorded: {error}") from error
    rows = ",\n".join(f" {json.dumps(_row_fields(row))}" for row in snapshot.rows)
    return "{" + ",\n".join([*lines, f'"rows": [\n{rows}\n]']) + "}\n"


def _strict(value: object) -> str:
    """Write JSON that strict readers take: no NaN, no Infinity, no lone surrogate."""
    json.dumps(value, ensure_ascii=False).encode()
    return json.dumps(value, indent=1, allow_nan=False)


def _row_fields(row: Row) -> dict[str, object]:
    fields: dict[str, object] = {"pattern": row.pattern, "dtype": row.dtype, "shape": list(row.shape)}
    if row.layers is not None:
        fields["layers"] = ranges(row.layers)
    if row.experts is not None:
        fields["experts"] = ranges(row.experts)
    return fields
