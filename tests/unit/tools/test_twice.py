"""Whether two runs of a bench agree within their own spread."""

from __future__ import annotations

from tools.bench.twice import Spread, both, disagreeing, facts, told

FIRST = {"a": [1.0, 2.0, 3.0, 4.0, 5.0], "b": [10.0, 10.0, 10.0, 10.0]}


def test_the_spread_is_the_middle_half_or_all_of_few() -> None:
    assert Spread.of([1.0, 2.0, 3.0, 4.0, 5.0]) == Spread(2.0, 3.0, 4.0)
    assert Spread.of([7.0, 5.0]) == Spread(5.0, 6.0, 7.0)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0)


def test_a_median_inside_of_the_others_spread_agrees_and_none_does_not() -> None:
    near = {"a": [3.5, 3.6, 3.9, 4.0], "b": [10.0, 10.0, 10.0]}
    assert disagreeing(FIRST, near) == []
    assert told(FIRST, near).endswith("agree within their spread.")
    # 4.2 to 6 has its median, 5, above 4, and 3 below 4.2
    far = {"a": [4.2, 5.0, 6.0], "b": [10.5]}
    assert disagreeing(FIRST, far) == ["a", "b"]
    assert "a 3 and 5, b 10 and 10.5" in told(FIRST, far)


def test_the_line_has_both_runs() -> None:
    again = {"a": [3.0], "b": [11.0]}
    assert both(FIRST, again)["a"] == [1.0, 2.0, 3.0, 4.0, 5.0, 3.0]
    found = facts(FIRST, again)
    assert found["medians"] == {"a": 3.0, "b": 10.0}
    assert found["runs"] == [{"a": 3.0, "b": 10.0}, {"a": 3.0, "b": 11.0}]
    assert found["same_twice"] is False
