"""What a formula read from the source proves: constants that are assumed, and several ways."""

from __future__ import annotations

import pytest

from wstrace.bounds.bound import Bound
from wstrace.bounds.ways import bound_site
from wstrace.trace.records import Leaf, Provenance, Request, Slot, Step

LIMITS: dict[str, int] = {
    "max_num_seqs": 8,
    "max_num_batched_tokens": 256,
    "max_model_len": 4096,
}
WHY = "assumed constant: dimension 1 of query; compare across requests"


def request(
    rows: int, width: int, why: str = WHY, caller: str = "layer.py:9:forward"
) -> Request:
    """`rows * width` bytes, `width` a dimension of an activation."""
    leaves = [
        Leaf(name="num_reqs", kind="driver", value=rows, role="num_reqs"),
        Leaf(name="query_1", kind="constant", value=width, why=why),
    ]
    return Request(
        site=1,
        slot=Slot(),
        bytes=-(-rows * width // 256) * 256,
        arena=1 << 20,
        phase="serving",
        step=Step(index=rows, kind="real", total_tokens=rows, num_reqs=rows),
        provenance=Provenance(
            formula="round256(num_reqs * query_1)", leaves=leaves, callers=[caller]
        ),
    )


def bound(*requests: Request) -> Bound:
    return bound_site(requests, LIMITS, file="layer.py", function="Layer.ask")


def test_a_dimension_that_one_request_shows_is_not_proved() -> None:
    found = bound(request(2, 512), request(2, 512))
    assert (found.bytes, found.grade) == (8 * 512, "fitted")
    assert found.assumed == ("query_1",)
    assert "only one kind of request shows query_1" in found.why


def test_a_second_kind_of_request_holds_it() -> None:
    found = bound(request(2, 512), request(3, 512))
    assert (found.bytes, found.grade, found.assumed) == (8 * 512, "proved", ())


def test_a_constant_of_the_source_needs_no_second_request() -> None:
    assert bound(request(2, 512, why="")).grade == "proved"


def test_one_that_changes_on_one_way_is_no_constant() -> None:
    found = bound(request(2, 512), request(3, 1024))
    assert found.grade == "observed"
    assert "query_1 was 512 and 1024: it is no constant" in found.why


@pytest.mark.parametrize("order", [1, -1])
def test_two_ways_may_have_two_values_and_the_larger_counts(order: int) -> None:
    near = [request(rows, 512) for rows in (2, 4)]
    far = [request(rows, 1024, caller="other.py:3:run") for rows in (1, 2)]
    found = bound(*(near + far)[::order])
    assert (found.bytes, found.grade) == (8 * 1024, "proved")
    assert [(way.callers, way.bytes, way.observed) for way in found.ways] == [
        (("other.py:3:run",), 8 * 1024, 2048),
        (("layer.py:9:forward",), 8 * 512, 2048),
    ]
