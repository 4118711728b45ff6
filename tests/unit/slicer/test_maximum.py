from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.slicer.test_expression import by_python, formulas
from wstrace.expr.expression import FormulaError, parse
from wstrace.expr.maximum import Joint, maximise

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
