# SPDX-License-Identifier: AGPL-3.0-only
"""Entries of quantization configs name the modules that they name, however they are spelled, in bounded time."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm5inspect.quantization.expressions import Budget, ExpressionError, Text, glob
from glm5inspect.quantization.patterns import MAX_CHARACTERS, MAX_ENTRIES, PatternList, Style, Target
from glm5inspect.quantization.regexes import regex

ATTENTION = Target("model.language_model.layers.3.self_attn.q_a_proj")
TREE = Target("model.language_model.layers.45.eh_proj")
EXPERTS = Target("model.language_model.layers.3.mlp.experts.E.down_proj", (0, 7, 12, 17))
EXPERT_LISTS = r".*layers\.(?!45\.)\d+\.mlp\.experts\.\d+\.(gate|up|down)_proj$"

NAMED = {
    "exact": (Style.EXACT, ATTENTION.path, ATTENTION),
    "glob without wildcards": (Style.GLOB, ATTENTION.path, ATTENTION),
    "glob": (Style.GLOB, "model.language_model.layers.3.self_attn*", ATTENTION),
    "glob in front": (Style.GLOB, "*.self_attn.q_a_proj", ATTENTION),
    "question mark": (Style.GLOB, "*.layers.?.self_attn.*", ATTENTION),
    "set": (Style.GLOB, "*.layers.[0-3].self_attn.*", ATTENTION),
    "opposite set": (Style.GLOB, "*.layers.[!4].self_attn.*", ATTENTION),
    "glob over experts": (Style.GLOB, "*.mlp.experts.*", EXPERTS),
    "glob over numbers": (Style.GLOB, "*.mlp.experts.[0-9]*.down_proj", EXPERTS),
    "re": (Style.REGEX, "re:.*self_attn.*", ATTENTION),
    "re without prefix": (Style.REGEX, ATTENTION.path, ATTENTION),
    "re look-ahead": (Style.REGEX, f"re:{EXPERT_LISTS}", EXPERTS),
    "re for every number": (Style.REGEX, r"re:.*\.experts\.(\d|1\d)\.down_proj", EXPERTS),
    "tree": (Style.TREE, "model.language_model.layers.3.mlp.experts", EXPERTS),
    "tree itself": (Style.TREE, ATTENTION.path, ATTENTION),
    "part": (Style.PART, "self_attn", ATTENTION),
    "parts in a row": (Style.PART, "self_attn.q_a_proj", ATTENTION),
    "part under the short prefix": (Style.PART, "model.layers.45.eh_proj", TREE),
    "part of a flat tree": (Style.PART, "model.language_model.layers.1.x", Target("model.layers.1.x")),
    "part with a wildcard": (Style.PART, "model.layers.*.self_attn", ATTENTION),
}
UNNAMED = {
    "exact is whole": (Style.EXACT, "model.language_model.layers.3.self_attn", ATTENTION),
    "exact knows no wildcards": (Style.EXACT, "*", ATTENTION),
    "glob is whole": (Style.GLOB, "model.language_model.layers.3.self_attn", ATTENTION),
    "glob under the short prefix": (Style.GLOB, "model.layers.3.self_attn*", ATTENTION),
    "glob of another end": (Style.GLOB, "*.self_attn.q_b_proj", ATTENTION),
    "glob of another number": (Style.GLOB, "*.mlp.experts.2*.down_proj", EXPERTS),
    "re is whole": (Style.REGEX, "re:model", ATTENTION),
    "re of the layer left out": (Style.REGEX, f"re:{EXPERT_LISTS}", Target(EXPERTS.path.replace(".3.", ".45."), (0,))),
    "tree is of whole parts": (Style.TREE, "model.language_model.layers.3.mlp.expert", EXPERTS),
    "part is whole": (Style.PART, "attn", ATTENTION),
    "parts with a gap": (Style.PART, "layers.self_attn", ATTENTION),
    "part of another layer": (Style.PART, "model.layers.4.eh_proj", TREE),
    "expert that is not there": (Style.EXACT, EXPERTS.path.replace("E", "3"), EXPERTS),
    "number with a zero in front": (Style.EXACT, EXPERTS.path.replace("E", "07"), EXPERTS),
    "placeholder": (Style.EXACT, EXPERTS.path, EXPERTS),
    "placeholder as a part": (Style.PART, "E.down_proj", EXPERTS),
}
SOME = {
    "exact": (Style.EXACT, EXPERTS.path.replace("E", "7"), {7}),
    "part": (Style.PART, "mlp.experts.7.down_proj", {7}),
    "part of its own": (Style.PART, "experts.7", {7}),
    "tree": (Style.TREE, "model.language_model.layers.3.mlp.experts.7", {7}),
    "glob": (Style.GLOB, "*.experts.17.*", {17}),
    "glob by digit": (Style.GLOB, "*.experts.1*.down_proj", {12, 17}),
    "glob by length": (Style.GLOB, "*.experts.?.down_proj", {0, 7}),
    "glob by end": (Style.GLOB, "*7.down_proj", {7, 17}),
    "glob by digit and number": (Style.GLOB, "*1*.experts.17.*", set()),
    "part with a wildcard": (Style.PART, "experts.1*.down_proj", {12, 17}),
    "re by alternatives": (Style.REGEX, r"re:.*experts\.(0|17)\.down_proj", {0, 17}),
    "re by class": (Style.REGEX, r"re:.*experts\.[0-2]+\.down_proj", {0, 12}),
    "re by count": (Style.REGEX, r"re:.*experts\.\d{2}\.down_proj", {12, 17}),
    "re by what is not ahead": (Style.REGEX, r"re:.*experts\.(?!1)\d+\.down_proj", {0, 7}),
    "re by what comes after a digit": (Style.REGEX, r"re:.*experts\.\d+7\.down_proj", {17}),
    "re by the last digit": (Style.REGEX, r"re:.*experts\.\d+(?!\.).*", {12, 17}),
}


def named(style: Style, entry: str, target: Target) -> frozenset[int] | bool | None:
    """Return what an entry names of a target: all (True), nothing (False), or these experts."""
    hits = list(PatternList([entry], style).hits(target))
    assert len(hits) <= 1
    return False if not hits else True if hits[0].experts is None else hits[0].experts


@pytest.mark.parametrize(("style", "entry", "target"), NAMED.values(), ids=NAMED)
def test_an_entry_names_a_whole_target(style: Style, entry: str, target: Target) -> None:
    """Each style finds what its entries spell, with all experts at once."""
    assert named(style, entry, target) is True


@pytest.mark.parametrize(("style", "entry", "target"), UNNAMED.values(), ids=UNNAMED)
def test_an_entry_does_not_name_more_than_it_spells(style: Style, entry: str, target: Target) -> None:
    """What is only nearly spelled is not named."""
    assert named(style, entry, target) is False


@pytest.mark.parametrize(("style", "entry", "experts"), SOME.values(), ids=SOME)
def test_an_entry_names_some_experts(style: Style, entry: str, experts: set[int]) -> None:
    """Entries that tell experts apart by their number find exactly these."""
    assert named(style, entry, EXPERTS) == (frozenset(experts) or False)


@given(
    st.text("ab*?.", max_size=8) | st.text("ab*?[]!-", max_size=8),
    st.text("ab.-]", max_size=10),
)
def test_globs_are_those_of_python(pattern: str, text: str) -> None:
    """They match what `fnmatch` matches; ranges backwards are nothing to both."""
    expected = fnmatchcase(text, pattern)
    assert glob(pattern).matches(Text(text), Budget(1000)) is expected


ATOMS = st.sampled_from(
    ["a", "b", "ab", ".", r"\.", "[ab]", "[^a]", r"\w", "(a|b)", "(?:ab|a)", "(?!b)", "(?=a)", "(|a)"]
)
TIMES = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,2}", "{1,}", "{,2}", "*?"])
PIECES = st.tuples(ATOMS, TIMES).map(
    lambda p: p[0] + ("" if p[0].startswith("(?!") or p[0].startswith("(?=") else p[1])
)
EXPRESSIONS = st.lists(PIECES, max_size=5).map("".join)


@given(
    st.tuples(EXPRESSIONS, EXPRESSIONS).map(lambda p: f"^({p[0]})*{p[1]}$") | EXPRESSIONS, st.text("ab.", max_size=7)
)
def test_regular_expressions_are_those_of_python(pattern: str, text: str) -> None:
    """They match in full what `re` matches in full, where that is quick."""
    expected = re.fullmatch(pattern, text) is not None
    assert regex(pattern).matches(Text(text), Budget(100_000)) is expected


@given(EXPRESSIONS, EXPRESSIONS, st.sets(st.sampled_from([0, 1, 7, 10, 17, 77]), min_size=1))
def test_open_numbers_give_the_answer_of_each(front: str, back: str, experts: set[int]) -> None:
    """An expert is named together with the others exactly when it would be named alone."""
    front, back = (part.replace("a", r"\d").replace("b", "1") for part in (front, back))
    pattern = rf"a\.experts\.{front}.?{back}"
    target = Target("a.experts.E.7", experts)
    hits = list(PatternList([f"re:{pattern}"], Style.REGEX).hits(target))
    found = set() if not hits else experts if hits[0].experts is None else set(hits[0].experts)
    assert found == {expert for expert in experts if re.fullmatch(pattern, f"a.experts.{expert}.7")}


REFUSED = {
    r"(a)\1": r"uses `\1`",
    "(?<=a)b": "uses `(?<`",
    "(?i)a": "uses `(?i`",
    "(a": "never closed",
    "a)": "`)` too many",
    "[a": "ends too early",
    "a\\": "ends too early",
    "*a": "repeats nothing",
    "a**": "repeats a repetition",
    "a{x}": "`{` that is not understood",
    "a{3,2}": "counts backwards",
    "(" * 40 + ")" * 40: "nested too deeply",
    "a" * 1001: "1,001 characters",
}


@pytest.mark.parametrize(("pattern", "reason"), REFUSED.items(), ids=[p[:8] for p in REFUSED])
def test_what_is_not_understood_is_refused_by_name(pattern: str, reason: str) -> None:
    """The entry is kept as one that is not read, with the reason."""
    with pytest.raises(ExpressionError, match=re.escape(reason)):
        regex(pattern)
    (unread,) = PatternList([f"re:{pattern}"], Style.REGEX).unread.values()
    assert reason in unread.reason


COSTLY = {
    "nested": "re:(a+)+$",
    "alternatives": "re:(a|a)*b",
    "many stars": "re:" + ".*" * 400 + "x",
    "optional": "re:" + "a?" * 300 + "a" * 100,
    "nested groups": "re:((((.*)*)*)*)*x",
    "look-ahead": "re:(?!(?!(?!.*x).*x).*x).*y",
    "counted": "re:((.?){999}){999}x",
    "globs": "*a" * 400,
}


@pytest.mark.parametrize("entry", COSTLY.values(), ids=COSTLY)
def test_costly_expressions_are_bounded(entry: str) -> None:
    """They answer, or say that they would take too long; nobody waits for years."""
    patterns = PatternList([entry] * 3, Style.REGEX if entry.startswith("re:") else Style.GLOB)
    patterns.budget = Budget(20_000)
    for length in range(1, 60):
        assert not list(patterns.hits(Target("a" * length + "!")))


def test_a_spent_budget_is_said() -> None:
    """Entries that could not be matched any more are not taken for entries that name nothing."""
    patterns = PatternList(["*a*", "*b*", "exact"], Style.GLOB)
    patterns.budget = Budget(1)
    assert [hit.entry for hit in patterns.hits(Target("exact"))] == [2]
    assert {index: unread.reason for index, unread in patterns.unread.items()} == dict.fromkeys(
        (0, 1), "takes too long to match"
    )


def test_long_lists_and_entries_are_bounded() -> None:
    """What lies beyond a bound is not read, and said to be so; what is no string neither."""
    patterns = PatternList(["a"] * (MAX_ENTRIES + 2), Style.EXACT)
    assert (len(patterns.entries), patterns.unread[MAX_ENTRIES].reason) == (
        100_000,
        "is one of 2 beyond the first 100,000",
    )
    wild = PatternList(["*" + "a" * 999] * 120, Style.GLOB)
    assert len(wild.unread) == 120 - MAX_CHARACTERS // 1000
    odd = PatternList([None, 3, ["a"], "a" * 1001, "a"], Style.EXACT)
    assert odd.entries[:3] == ("(NoneType)", "(int)", "(list)")
    assert sorted(odd.unread) == [0, 1, 2, 3]
    assert [hit.entry for hit in odd.hits(Target("a"))] == [4]


def test_very_long_paths_are_only_looked_up() -> None:
    """A path of a hostile header does not buy more steps."""
    path = "a" * 500
    assert [hit.entry for hit in PatternList(["*", path], Style.GLOB).hits(Target(path))] == [1]
