"""A finding of several ranks has the numbers of the rank that is worst off."""

from __future__ import annotations

from itertools import permutations

from wstrace.bounds.bound import Bound
from wstrace.findings.finding import Finding, merge
from wstrace.trace.records import Ranks

MIB = 1 << 20


def _of_rank(tp: int, serving: int, bound: int, arena: int) -> Finding:
    return Finding(
        "WS101",
        "error",
        "asked more than was locked",
        file="layer.py",
        function="forward",
        ranks=(Ranks(tp=tp),),
        serving_bytes=serving,
        arena_bytes=arena,
        bound=Bound(bytes=bound, grade="proved"),
    )


def test_of_equal_requests_the_larger_bound_is_told_in_any_order() -> None:
    found = [
        _of_rank(0, 28 * MIB, 32 * MIB, 16 * MIB),
        _of_rank(1, 28 * MIB, 64 * MIB, 16 * MIB),
    ]
    for order in permutations(found):
        (one,) = merge(list(order))
        assert one.bound is not None
        assert one.bound.bytes == 64 * MIB
        assert {r.tp for r in one.ranks} == {0, 1}


def test_of_equal_bounds_the_smaller_arena_is_told_in_any_order() -> None:
    found = [
        _of_rank(tp, 28 * MIB, 32 * MIB, arena * MIB) for tp, arena in enumerate((4, 2, 3))
    ]
    for order in permutations(found):
        (one,) = merge(list(order))
        assert one.arena_bytes == 2 * MIB


def test_a_larger_request_comes_before_a_larger_bound() -> None:
    small, large = _of_rank(0, MIB, 64 * MIB, MIB), _of_rank(1, 2 * MIB, 32 * MIB, MIB)
    for order in permutations((small, large)):
        (one,) = merge(list(order))
        assert one.serving_bytes == 2 * MIB
