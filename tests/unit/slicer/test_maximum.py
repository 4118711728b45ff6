from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.slicer.test_expression import by_python, formulas
from wstrace.expr import maximum
from wstrace.expr.expression import MAX_LENGTH, FormulaError, parse
from wstrace.expr.maximum import Joint, maximise

ROUNDING = {
    "min": min,
    "max": max,
    "ceil_div": lambda a, b: -(-a // b),
    "round_up": lambda a, b: -(-a // b) * b,
    "round256": lambda a: -(-a // 256) * 256,
    "next_pow2": lambda a: next(1 << i for i in range(99) if 1 << i >= a),
}
rounded = st.recursive(
    st.sampled_from(["a", "b", "c", "3", "40"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        st.tuples(st.sampled_from(["ceil_div", "round_up", "min", "max"]), inner, inner).map(
            lambda t: f"{t[0]}({t[1]}, {t[2]})"
        ),
        st.tuples(st.sampled_from(["round256", "next_pow2", "-"]), inner).map(
            lambda t: f"{t[0]}({t[1]})"
        ),
    ),
    max_leaves=9,
)

spans = st.tuples(st.integers(-20, 60), st.integers(0, 12)).map(lambda t: (t[0], t[0] + t[1]))


@settings(deadline=None, max_examples=150)
@given(formulas, spans, spans, st.integers(-5, 60))
def test_exact_against_enumeration(
    text: str, a: tuple[int, int], b: tuple[int, int], c: int
) -> None:
    box = itertools.product(range(a[0], a[1] + 1), range(b[0], b[1] + 1))
    points = [by_python(text, {"a": x, "b": y, "c": c}) for x, y in box]
    try:
        found = maximise(parse(text), {"c": c}, {"a": a, "b": b})
    except FormulaError:
        return
    assert found.exact
    assert found.value == max(p for p in points if p is not None)
    at = {"a": a[0], "b": b[0], "c": c, **found.at}
    assert by_python(text, at) == found.value


@settings(deadline=None, max_examples=60)
@given(formulas, spans, spans, st.sampled_from(["a * b", "a + b"]), st.integers(-50, 900))
def test_joint_limits_against_enumeration(
    text: str, a: tuple[int, int], b: tuple[int, int], left: str, limit: int
) -> None:
    box = itertools.product(range(a[0], a[1] + 1), range(b[0], b[1] + 1))
    inside = [
        {"a": x, "b": y, "c": 7} for x, y in box if eval(left, {}, {"a": x, "b": y}) <= limit
    ]
    try:
        found = maximise(parse(text), {"c": 7}, {"a": a, "b": b}, [Joint.of(left, limit)])
    except FormulaError as error:
        said = error.message
    else:
        said = ""
        assert found.value == max(v for p in inside if (v := by_python(text, p)) is not None)
    assert ("joint" in said) == (not inside and "divides" not in said and "2^63" not in said)


@settings(deadline=None, max_examples=150)
@given(rounded, spans, spans, spans, st.sampled_from([1, 5, 40, 400_000]))
def test_a_bound_is_never_below_the_truth_however_early_it_is_cut(
    text: str, a: tuple[int, int], b: tuple[int, int], c: tuple[int, int], budget: int
) -> None:
    """Every function of the language, counted out by Python over three names."""
    ranges = {"a": a, "b": b, "c": c}
    try:
        found = maximise(parse(text), {}, ranges, budget=budget)
    except FormulaError:
        return
    axes = {n: range(r[0], r[1] + 1) if n in text else [0] for n, r in ranges.items()}
    points = (dict(zip(axes, p, strict=True)) for p in itertools.product(*axes.values()))
    rule = compile(text, "rule", "eval")
    most = max(eval(rule, ROUNDING, point) for point in points)
    assert found.value == most if found.exact else found.value >= most
    if found.exact:
        assert eval(rule, ROUNDING, {"a": 0, "b": 0, "c": 0} | found.at) == most


def balanced(parts: list[str], op: str) -> str:
    """One formula of many parts that is not deep."""
    while len(parts) > 1:
        odd = parts[-1:] if len(parts) % 2 else []
        parts = [f"({a}{op}{b})" for a, b in zip(parts[::2], parts[1::2], strict=False)] + odd
    return parts[0]


LONG = {
    "minuses": f"2 * round256(n{'-' * 111}h * round_up(m - 1, s) * d * 2)",
    "nested rounding": "next_pow2(" * 70 + "a * b % 7" + ")" * 70,
    "nested remainders": "(" * 70 + "a" + " % b * a)" * 70,
    "a sum of remainders": balanced([f"a%{i + 7}" for i in range(1600)], "+"),
    "many names": balanced([f"a{i}" for i in range(1300)], "+"),
    "many names, no order": balanced([f"a{i}%7" for i in range(1000)], "+"),
    "many arguments": f"max({','.join(f'a{i}' for i in range(2500))})",
    "many arguments, no order": f"min({','.join(f'a{i}-b*a{i}%9' for i in range(800))})",
    "a product of names": balanced([f"a{i}" for i in range(1300)], "*"),
    "a product of differences": balanced(["(a-b)", "(b-a)"] * 900, "*"),
    "a power": "*".join(["a"] * 140),
    "quotients": "//".join(["a"] * 140),
    "large numbers": "(a*9223372036854775807%9223372036854775783)*(b*104729%997)",
    "remainders of two names": "a*a*a%(b*b+1)*(c*a%(b+3))-c*b%11",
}


@pytest.mark.parametrize("top", [3, 10**6, 2**62])
@pytest.mark.parametrize("name", LONG)
def test_a_long_formula_costs_no_more_than_a_short_one(
    name: str, top: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a hundredth of the work that is allowed, a hundredth of a second or two."""
    monkeypatch.setattr(maximum, "WORK", maximum.WORK // 100)
    text = LONG[name]
    assert len(text) <= MAX_LENGTH
    formula = parse(text)
    began = time.process_time()
    with suppress_too_large():
        found = maximise(formula, {}, dict.fromkeys(formula.names, (1, top)))
        ones = dict.fromkeys(formula.names, 1)
        assert found.value >= eval(text, ROUNDING, ones | found.at)
    assert time.process_time() - began < 1


@contextmanager
def suppress_too_large() -> Iterator[None]:
    """A bound that is not known is fine where the reason is stated."""
    try:
        yield
    except FormulaError as error:
        if "2^63" not in error.message:
            raise


def test_what_was_not_searched_to_the_end_is_said_to_be_possible() -> None:
    with pytest.raises(FormulaError, match=r"may be larger than 2\^63"):
        maximise(parse(LONG["large numbers"]), {}, {"a": (1, 2**40), "b": (1, 2**40)}, budget=9)


def test_a_formula_that_peaks_inside_the_range() -> None:
    """Rows times a number of splits that falls as rows rise: the upper end is not the top."""
    text = "rows * min(16, 2428 // rows) + rows // 4096"
    found = maximise(parse(text), {}, {"rows": (1, 100_000)})
    want = max(r * min(16, 2428 // r) + r // 4096 for r in range(1, 100_001))
    assert (found.value, found.exact) == (want, True)


def test_a_million_wide_range_with_rounding_is_exact() -> None:
    text = "2 * round256(heads * round_up(tokens, block) * 128 * 2)"
    found = maximise(parse(text), {"heads": 4, "block": 16}, {"tokens": (0, 1_048_575)})
    assert found.value == 2 * 4 * 1_048_576 * 256
    assert found.exact
    found = maximise(parse("x * 8 - x % 977 * 9"), {}, {"x": (0, 1_000_000)})
    assert found.exact
    assert found.value == max(x * 8 - x % 977 * 9 for x in range(1_000_001))


def test_three_drivers_with_a_product_limit() -> None:
    joint = [Joint.of("batch * draft", 1024)]
    ranges = {"batch": (1, 1_000_000), "draft": (1, 64), "len": (0, 131_072)}
    found = maximise(parse("batch * draft * 4 + ceil_div(len, 64)"), {}, ranges, joint)
    assert (found.value, found.exact) == (4096 + 2048, True)


def test_when_the_budget_is_spent_the_bound_is_above_the_truth() -> None:
    text = "(a * 7919 % 1009) * (b * 104729 % 997) + (a * b % 883)"
    found = maximise(parse(text), {}, {"a": (1, 10**6), "b": (1, 10**6)}, budget=300)
    assert not found.exact
    assert found.value >= 1008 * 996


def test_what_cannot_be_maximised_is_said() -> None:
    with pytest.raises(FormulaError, match="needs b"):
        maximise(parse("a + b"), {}, {"a": (0, 1)})
    with pytest.raises(FormulaError, match="range of a is empty"):
        maximise(parse("a"), {}, {"a": (2, 1)})
    with pytest.raises(FormulaError, match="can be 0"):
        maximise(parse("8 // a"), {}, {"a": (0, 9)})
    with pytest.raises(FormulaError, match="joint limits"):
        maximise(parse("a"), {}, {"a": (5, 9)}, [Joint.of("a", 4)])
    with pytest.raises(FormulaError, match=r"2\^63"):
        maximise(parse("a * a"), {}, {"a": (0, 2**40)})
    assert maximise(parse("7"), {}, {"a": (0, 9)}).value == 7
