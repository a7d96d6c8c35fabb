# SPDX-License-Identifier: AGPL-3.0-only
"""How modules may be named: tables from the released names to those that other writers use.

Renames alone do not do: some writers stack all experts, join the three convolutions, split one projection in two or
move an axis. So a dialect is applied to the table of what is expected, and everything is then checked under the names,
and in the shapes, that are stored.
"""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from glm5inspect.encodings import SUFFIXES
from glm5inspect.modules import LAYER, VISION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from glm5inspect.architecture import Architecture
    from glm5inspect.encodings import Shape
    from glm5inspect.inventory import Group
    from glm5inspect.modules import Expected

    Reshape = Callable[[Sequence[Expected], Architecture], Shape]

RELEASED = "released"


class Rule(NamedTuple):
    """What one or several released modules of a layer become.

    Attributes:
        stored: The name in this dialect, relative to the layer or to the vision tower.
        released: The released names, likewise; all of them are replaced together.
        shape: The stored logical shape; ``None`` for the released one.
        stacked: Whether it holds all experts, so that there is one for the layer.
        bare: Whether it has no suffix although the released module has one, and so is always plain.
    """

    stored: str
    released: tuple[str, ...]
    shape: Reshape | None = None
    stacked: bool = False
    bare: bool = False


class Dialect(NamedTuple):
    """A way to name things.

    Attributes:
        name: As reported, and as ``--dialect`` takes it.
        title: What writes it.
        prefixes: Beginnings of released names, and what they become; the first that fits counts.
        rules: What becomes of modules inside the layers.
        vision: What becomes of tensors of the vision tower.
        has_vision: Whether it names the vision tower at all.
        trunk_only: Whether MTP layers keep the released names.
        marker: A tensor outside the layers that only this dialect has, with its dimensions; it is known, and no more.
    """

    name: str
    title: str
    prefixes: tuple[tuple[str, str], ...] = ()
    rules: tuple[Rule, ...] = ()
    vision: tuple[Rule, ...] = ()
    has_vision: bool = True
    trunk_only: bool = False
    marker: tuple[str, tuple[str, ...]] | None = None

    def rename(self, path: str) -> str:
        """Put the beginning of this dialect in the place of the released one."""
        for released, stored in self.prefixes:
            if path.startswith(released):
                return stored + path.removeprefix(released)
        return path


def _stack(parts: Sequence[Expected], _: Architecture) -> Shape:
    """Put the experts in front, and several projections below each other."""
    experts = parts[0].experts or 0
    return (experts, sum(part.shape[0] for part in parts), *parts[0].shape[1:])


def _join(parts: Sequence[Expected], _: Architecture) -> Shape:
    return (sum(part.shape[0] for part in parts), *parts[0].shape[1:])


def _join_channels_last(parts: Sequence[Expected], model: Architecture) -> Shape:
    rows, one, kernel = _join(parts, model)
    return (rows, kernel, one)


def _channels_last(parts: Sequence[Expected], _: Architecture) -> Shape:
    first, channels, *rest = parts[0].shape
    return (first, *rest, channels)


def _key_half(_: Sequence[Expected], model: Architecture) -> Shape:
    g = model.geometry
    return (g.num_attention_heads, g.kv_lora_rank, g.qk_nope_head_dim)


def _value_half(_: Sequence[Expected], model: Architecture) -> Shape:
    g = model.geometry
    return (g.num_attention_heads, g.v_head_dim, g.kv_lora_rank)


_CONVOLUTIONS = tuple(f"self_attn.{letter}_conv1d.weight" for letter in "qkv")
_HYPER = tuple(
    Rule(f"{side}_hc.{leaf}", (f"hc_{side}_{leaf}",)) for side in ("attn", "ffn") for leaf in ("fn", "base", "scale")
)
_FORGET_GATE = tuple(
    Rule(f"self_attn.forget_gate.{leaf}", (f"self_attn.{leaf}",))
    for leaf in ("f_a_proj", "f_b_proj", "A_log", "dt_bias")
)
_INSIDE_LAYERS = (*_HYPER, *_FORGET_GATE, Rule("self_attn.conv1d.weight", _CONVOLUTIONS, _join))
_EXPERT = "mlp.experts.E."

TRANSFORMERS = Dialect(
    "transformers",
    "save_pretrained of transformers",
    rules=(
        *_INSIDE_LAYERS,
        Rule(
            "mlp.experts.gate_up_proj",
            (f"{_EXPERT}gate_proj", f"{_EXPERT}up_proj"),
            _stack,
            stacked=True,
            bare=True,
        ),
        Rule("mlp.experts.down_proj", (f"{_EXPERT}down_proj",), _stack, stacked=True, bare=True),
    ),
)


def _mlx(vision: str) -> Dialect:
    return Dialect(
        "mlx",
        "MLX converters",
        prefixes=(
            ("model.language_model.", "language_model.model."),
            ("lm_head", "language_model.lm_head"),
            (VISION, vision),
        ),
        rules=(
            *_HYPER,
            *_FORGET_GATE,
            Rule("self_attn.conv1d.weight", _CONVOLUTIONS, _join_channels_last),
            *(
                Rule(f"mlp.switch_mlp.{projection}", (f"{_EXPERT}{projection}",), _stack, stacked=True)
                for projection in ("gate_proj", "up_proj", "down_proj")
            ),
            Rule("self_attn.embed_q", ("self_attn.kv_b_proj",), _key_half),
            Rule("self_attn.unembed_out", ("self_attn.kv_b_proj",), _value_half),
        ),
        vision=(
            Rule("patch_embed.proj.weight", ("patch_embed.proj.weight",), _channels_last),
            Rule("downsample.weight", ("downsample.weight",), _channels_last),
        ),
    )


DIALECTS: tuple[Dialect, ...] = (
    Dialect(RELEASED, "the release"),
    Dialect(
        "flat-text",
        "text-only exports",
        prefixes=(("model.language_model.", "model."),),
        has_vision=False,
    ),
    TRANSFORMERS,
    Dialect(
        "msmodelslim",
        "msModelSlim",
        rules=_INSIDE_LAYERS,
        trunk_only=True,
        marker=("rot.weight", ("hidden_size", "hidden_size")),
    ),
    _mlx("vision_model."),
    _mlx("vision_tower."),
    *(
        Dialect("vision-tower", "exporters that move the vision tower", prefixes=((VISION, prefix),))
        for prefix in ("vision_tower.", "model.vision_tower.")
    ),
)
"""Every dialect; of several that know equally many of the names, the first counts."""

NAMES = tuple(dict.fromkeys(dialect.name for dialect in DIALECTS))
"""What ``--dialect`` takes."""


def speak(
    dialect: Dialect, expected: Iterable[Expected], model: Architecture, mtp: frozenset[int]
) -> Iterator[Expected]:
    """Yield what is expected under the names of a dialect, and in its shapes.

    Args:
        dialect: How names are to be.
        expected: In the released names; everything of a layer together.
        model: What the config says.
        mtp: The layers with multi-token prediction.
    """
    layers: dict[int | None, list[Expected]] = {}
    for row in expected:
        layers.setdefault(row.layer, []).append(row)
    for layer, rows in layers.items():
        rules = dialect.vision if layer is None else () if dialect.trunk_only and layer in mtp else dialect.rules
        for row in _apply(rules, VISION if layer is None else LAYER, rows, model):
            if dialect.has_vision or not row.path.startswith(VISION):
                origins = row.origins or (row.path,)
                yield row._replace(path=dialect.rename(row.path), renamed=row.released, origins=origins)


def _apply(rules: tuple[Rule, ...], prefix: str, rows: list[Expected], model: Architecture) -> Iterator[Expected]:
    by_name = {row.path.removeprefix(prefix): row for row in rows}
    taken: set[str] = set()
    for rule in rules:
        parts = [by_name[name] for name in rule.released if name in by_name]
        if len(parts) == len(rule.released):
            taken.update(rule.released)
            yield _translate(rule, prefix, parts, model)
    yield from (row for name, row in by_name.items() if name not in taken)


def _translate(rule: Rule, prefix: str, parts: list[Expected], model: Architecture) -> Expected:
    first = parts[0]
    return first._replace(
        path=prefix + rule.stored,
        shape=rule.shape(parts, model) if rule.shape else first.shape,
        experts=None if rule.stacked else first.experts,
        row=first.row._replace(kind="tensor") if rule.bare else first.row,
        renamed=f"{first.path}.weight" if rule.bare else first.path,
        origins=tuple(part.path for part in parts),
    )


class Spoken(NamedTuple):
    """What is expected, as one dialect names it.

    Attributes:
        dialect: Which.
        expected: The module table in its names and shapes.
        released: Census pattern in the dialect to the released one; of several that were joined, the first.
        mixed: Census patterns stored that another dialect knows and this one does not, with the name of that one.
    """

    dialect: Dialect
    expected: tuple[Expected, ...]
    released: Mapping[str, str]
    mixed: Mapping[str, str] = MappingProxyType({})


def translations(expected: Sequence[Expected], model: Architecture, mtp: frozenset[int]) -> Iterator[Spoken]:
    """Yield the module table in every dialect, the released one first."""
    for dialect in DIALECTS:
        spoken = tuple(speak(dialect, expected, model, mtp))
        yield Spoken(dialect, spoken, {name: home for row in spoken for name, home in _names(row)})


def _names(row: Expected) -> Iterator[tuple[str, str]]:
    """Yield the patterns under which a row may be stored, and the released pattern of each."""
    if row.row.kind == "tensor":
        yield row.path, row.released
    else:
        yield from ((f"{row.path}.{suffix}", f"{row.released}.{suffix}") for suffix in SUFFIXES)


def recognize(groups: Iterable[Group], spoken: Iterable[Spoken], accepted: str | None) -> Spoken:
    """Return the dialect that knows most of the tensors stored; of several, the first.

    Rows whose names are not stored in that dialect, but in another one, are those of the other one.

    Args:
        groups: What is stored.
        spoken: The module table in every dialect, made as it is asked for.
        accepted: The dialect that the caller says it is; ``None`` when nobody says.
    """
    patterns: Counter[str] = Counter()
    stored = set()
    for group in groups:
        patterns[group.pattern] += len(group.tensors)
        stored.add((group.layer, group.pattern))
    every: list[Spoken] = []
    best, most = None, -1
    for one in spoken:
        every.append(one)
        marker = one.dialect.marker
        if accepted != one.dialect.name if accepted else marker and marker[0] not in patterns:
            continue
        known = sum(count for pattern, count in patterns.items() if pattern in one.released)
        if known > most:
            best, most = one, known
        if known == patterns.total():
            return one
    assert best is not None  # noqa: S101 - there is at least the one asked for
    return _mix(best, [one for one in every if one is not best], stored)


def _mix(best: Spoken, others: Iterable[Spoken], stored: set[tuple[int | None, str]]) -> Spoken:
    """Let rows of other dialects stand in for those that are not stored as the best one names them."""
    rows, released, mixed = list(best.expected), dict(best.released), dict[str, str]()
    unknown = {pattern for _, pattern in stored if pattern not in released}
    for other in others:
        if known := unknown.intersection(other.released):
            unknown -= known
            mixed.update(dict.fromkeys(known, other.dialect.name))
            released.update((pattern, other.released[pattern]) for pattern in known)
            rows = list(_stand_in(rows, other.expected, stored))
    return Spoken(best.dialect, tuple(rows), released, mixed)


def _stand_in(
    rows: Iterable[Expected], others: Iterable[Expected], stored: set[tuple[int | None, str]]
) -> Iterator[Expected]:
    """Yield each row, or those that stand for the same modules in another dialect, when only these are stored."""
    by_origin: dict[tuple[int | None, str], list[Expected]] = {}
    for row in others:
        for origin in row.origins:
            by_origin.setdefault((row.layer, origin), []).append(row)
    seen = set()
    for row in rows:
        instead = [other for origin in row.origins for other in by_origin.get((row.layer, origin), ())]
        there = _is_stored(row, stored) or not any(_is_stored(other, stored) for other in instead)
        for one in [row] if there else instead:
            if (one.layer, one.path) not in seen:
                seen.add((one.layer, one.path))
                yield one


def _is_stored(row: Expected, stored: set[tuple[int | None, str]]) -> bool:
    return any((row.layer, name) in stored for name, _ in _names(row))
