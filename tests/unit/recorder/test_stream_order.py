"""The happens-before relation over streams, with stand-ins for events (any object will do)."""

from __future__ import annotations

import random

import pytest

from wstrace.recorder.state.stream_order import StreamOrder
from wstrace.trace.records import Slot

MAIN, SIDE, THIRD = 7, 8, 9
SLOT, OTHER = Slot(0, 0), Slot(0, 1)


class Event:
    """What an event is to the relation: something with an identity."""


def verdicts(order: StreamOrder, stream: int, slot: Slot = SLOT) -> list[bool]:
    return [pair.ordered for pair in order.asked(slot, stream, site=1)]


def test_one_stream_alone_has_no_pair() -> None:
    order = StreamOrder()
    assert verdicts(order, MAIN) == []
    assert verdicts(order, MAIN) == []


def test_two_streams_without_an_event_have_no_order() -> None:
    order = StreamOrder()
    verdicts(order, MAIN)
    assert verdicts(order, SIDE) == [False]


def test_fork_after_the_request_and_join_before_the_next_are_ordered() -> None:
    order, fork, join = StreamOrder(), Event(), Event()
    verdicts(order, MAIN)
    order.recorded(fork, MAIN)
    order.waited(fork, SIDE)
    assert verdicts(order, SIDE) == [True]
    order.recorded(join, SIDE)
    order.waited(join, MAIN)
    assert verdicts(order, MAIN) == [True]


def test_a_fork_before_the_request_does_not_order_it() -> None:
    """vLLM's maybe_execute_in_parallel: event0 is recorded before the first function runs."""
    order, fork = StreamOrder(), Event()
    order.recorded(fork, MAIN)
    verdicts(order, MAIN)
    order.waited(fork, SIDE)
    assert verdicts(order, SIDE) == [False]


def test_a_join_that_comes_too_late_does_not_order() -> None:
    order, fork, join = StreamOrder(), Event(), Event()
    order.recorded(fork, MAIN)
    order.waited(fork, SIDE)
    verdicts(order, SIDE)
    order.recorded(join, SIDE)
    assert verdicts(order, MAIN) == [False]
    order.waited(join, MAIN)
    assert verdicts(order, MAIN) == [True]


def test_order_passes_through_a_third_stream() -> None:
    order, one, two = StreamOrder(), Event(), Event()
    verdicts(order, MAIN)
    order.recorded(one, MAIN)
    order.waited(one, THIRD)
    order.recorded(two, THIRD)
    order.waited(two, SIDE)
    assert verdicts(order, SIDE) == [True]


def test_waiting_for_an_event_that_was_recorded_again_waits_for_the_newer_mark() -> None:
    order, event = StreamOrder(), Event()
    order.recorded(event, MAIN)
    verdicts(order, MAIN)
    order.recorded(event, MAIN)
    order.waited(event, SIDE)
    assert verdicts(order, SIDE) == [True]


def test_an_event_that_was_never_recorded_orders_nothing() -> None:
    order = StreamOrder()
    verdicts(order, MAIN)
    order.waited(Event(), SIDE)
    assert verdicts(order, SIDE) == [False]


@pytest.mark.parametrize("stream", [MAIN, None])
def test_what_the_host_waited_for_every_stream_knows(stream: int | None) -> None:
    order = StreamOrder()
    verdicts(order, MAIN)
    order.host_joined(stream)
    assert verdicts(order, SIDE) == [True]


def test_the_host_waited_for_another_stream() -> None:
    order = StreamOrder()
    verdicts(order, MAIN)
    order.host_joined(THIRD)
    assert verdicts(order, SIDE) == [False]


def test_the_host_waited_for_an_event() -> None:
    order, event = StreamOrder(), Event()
    verdicts(order, MAIN)
    order.recorded(event, MAIN)
    order.host_waited(event)
    assert verdicts(order, SIDE) == [True]


def test_slots_do_not_meet() -> None:
    order = StreamOrder()
    verdicts(order, MAIN)
    assert verdicts(order, SIDE, OTHER) == []


def test_a_captured_request_meets_only_its_own_capture() -> None:
    """vLLM captures graphs on streams of their own and serves on another (an H200)."""
    order = StreamOrder()
    verdicts(order, MAIN)
    assert order.asked(SLOT, SIDE, site=1, graph=1) == []
    assert [p.ordered for p in order.asked(SLOT, THIRD, site=1, graph=1)] == [False]
    assert order.asked(SLOT, THIRD, site=1, graph=2) == []
    assert verdicts(order, MAIN) == []


def test_an_event_that_takes_no_attribute_orders_nothing() -> None:
    order, event = StreamOrder(), object()
    verdicts(order, MAIN)
    order.recorded(event, MAIN)
    order.waited(event, SIDE)
    assert verdicts(order, SIDE) == [False]


def test_random_histories_agree_with_reachability_in_their_graph() -> None:
    """The relation from outside: nodes are operations, edges are stream order and waits."""
    for seed in range(300):
        _compare(random.Random(seed))


def _compare(rng: random.Random) -> None:
    order, events = StreamOrder(), [Event() for _ in range(3)]
    edges: dict[int, set[int]] = {}
    tip: dict[int, int] = {}
    source: dict[int, int] = {}
    asked: dict[int, int] = {}
    for node in range(40):
        stream, which = rng.choice([MAIN, SIDE, THIRD]), rng.randrange(3)
        edges[node] = {tip[stream]} if stream in tip else set()
        tip[stream] = node
        match rng.choice(["ask", "record", "wait"]):
            case "ask":
                pairs = order.asked(SLOT, stream, site=1)
                reached = _reached(edges, node)
                assert {p.first.stream: p.ordered for p in pairs} == {
                    other: place in reached for other, place in asked.items() if other != stream
                }
                asked[stream] = node
            case "record":
                order.recorded(events[which], stream)
                source[which] = node
            case "wait":
                order.waited(events[which], stream)
                if which in source:
                    edges[node].add(source[which])


def _reached(edges: dict[int, set[int]], node: int) -> set[int]:
    found, left = set(), [node]
    while left:
        for before in edges[left.pop()]:
            if before not in found:
                found.add(before)
                left.append(before)
    return found


def test_what_an_event_knew_in_an_earlier_watch_orders_nothing() -> None:
    """Marks begin anew in each watch: mark 5 of the one before says nothing of mark 1."""
    event, earlier, now = Event(), StreamOrder(), StreamOrder()
    for _ in range(5):
        earlier.asked(SLOT, MAIN, site=1)
    earlier.recorded(event, MAIN)
    now.asked(SLOT, MAIN, site=1)
    now.waited(event, SIDE)
    assert verdicts(now, SIDE) == [False]
    now.host_waited(event)
    assert verdicts(now, SIDE) == [False]
    now.recorded(event, MAIN)
    now.waited(event, SIDE)
    assert verdicts(now, SIDE) == [True]
