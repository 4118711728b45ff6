"""Two callers of one function: told apart by the hot path, and the bound knows both.

The kind of fault that this holds: a second caller whose bytes equal the first one's was never
sliced, so the bound (8 KiB, "proved") depended on which traffic came first.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wstrace.bounds.bound import Bound
from wstrace.bounds.ways import bound_site
from wstrace.recorder.hooks.native import wrap_seen
from wstrace.recorder.settings import Settings
from wstrace.recorder.state.process import Live
from wstrace.trace.records import Request

torch = pytest.importorskip("torch")
SOURCE = """
import torch

class Metadata:
    def __init__(self, num_decode_tokens, num_prefill_tokens):
        self.num_decode_tokens = num_decode_tokens
        self.num_prefill_tokens = num_prefill_tokens

class DecodeMetadata:
    def __init__(self, num_reqs):
        self.num_reqs = num_reqs

class PrefillMetadata:
    def __init__(self, num_prefill_tokens):
        self.num_reqs = num_prefill_tokens

class Impl:
    num_heads = 8
    head_size = 64

    def __init__(self, manager):
        self.manager = manager

    def decode(self, attn_metadata):
        return self.middle(attn_metadata.num_decode_tokens)

    def prefill(self, attn_metadata):
        return self.middle(attn_metadata.num_prefill_tokens)

    def middle(self, num_rows):
        return self.rows(num_rows)

    def rows(self, num_rows):
        return self.manager.get_simultaneous(
            ((num_rows, self.num_heads, self.head_size), torch.bfloat16),
        )

    def of_metadata(self, metadata):
        return self.manager.get_simultaneous(((metadata.num_reqs, 512), torch.bfloat16))

    def per_class(self, attn_metadata):
        return self.manager.get_simultaneous(
            ((self.scaled(attn_metadata.num_decode_tokens), 512), torch.bfloat16),
        )

    def scaled(self, rows):
        return rows

class Doubled(Impl):
    def scaled(self, rows):
        return 2 * rows
"""
HEADS_AND_SIZE = 8 * 64 * 2
LIMITS: dict[str, int] = {
    "max_num_seqs": 8,
    "max_num_batched_tokens": 256,
    "max_model_len": 4096,
}


class WorkspaceManager:
    """vLLM's manager, as far as the hot path looks at it."""

    def __init__(self, live: Live) -> None:
        self._current_workspaces = [torch.empty(1 << 20, dtype=torch.uint8)]
        self._locked = True
        self.ensure = wrap_seen(live)(lambda manager, size: manager._current_workspaces[0])

    def get_simultaneous(self, *shapes_and_dtypes: Any) -> None:
        sizes = [torch.Size(s).numel() * d.itemsize for s, d in shapes_and_dtypes]
        self.ensure(self, sum(-(-size // 256) * 256 for size in sizes))


class Recorded:
    """The recorder's hot wrapper around a manager, and a module that asks it."""

    def __init__(self, folder: Path, **given: Any) -> None:
        self.live = Live(Settings(directory=str(folder), run="r", **given))
        self.records: list[Any] = []
        self.live.output.write = self.records.append  # type: ignore[assignment, method-assign]
        self.manager = WorkspaceManager(self.live)
        self.module = _module(folder)
        self.impl = self.module.Impl(self.manager)

    def requests(self) -> list[Request]:
        return [record for record in self.records if isinstance(record, Request)]

    def bound(self, function: str = "Impl.rows") -> Bound:
        return bound_site(self.requests(), LIMITS, file="two_callers.py", function=function)

    def traffic(self, words: tuple[str, ...]) -> None:
        """`d4` is a decode of 4 requests, `p4` a prefill of 4 tokens."""
        for word in words:
            count = int(word[1:])
            decodes = word[0] == "d"
            made = (count, 0) if decodes else (0, count)
            ask = self.impl.decode if decodes else self.impl.prefill
            ask(self.module.Metadata(*made))


_numbers = itertools.count()


def _module(folder: Path) -> Any:
    name = f"vllm.v1.attention.backends.two_callers_{next(_numbers)}"
    file = folder / f"{name}.py"
    file.write_text(SOURCE)
    module = ModuleType(name)
    module.__file__ = str(file)
    sys.modules[name] = module
    exec(compile(SOURCE, str(file), "exec"), vars(module))
    return module


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[[], Recorded]]:
    before = set(sys.modules)
    yield lambda: Recorded(tmp_path)
    for name in set(sys.modules) - before:
        if "two_callers" in name:
            del sys.modules[name]


@pytest.mark.parametrize("order", ["d4 d8 p4 p8", "p4 d4 d8 p8"])
def test_equal_bytes_of_a_second_caller_are_sliced_too(
    made: Callable[[], Recorded], order: str
) -> None:
    run = made()
    run.traffic(tuple(order.split()))
    bound = run.bound()
    assert (bound.bytes, bound.grade) == (256 * HEADS_AND_SIZE, "proved")  # 256 KiB
    assert [(way.bytes, way.observed) for way in bound.ways] == [
        (256 * HEADS_AND_SIZE, 8 * HEADS_AND_SIZE),
        (8 * HEADS_AND_SIZE, 8 * HEADS_AND_SIZE),
    ]
    assert ".middle" in bound.ways[0].callers[0]
    assert ".prefill" in bound.ways[0].callers[1]


WORDS = ("d2", "d4", "d8", "p2", "p4", "p8", "p64")


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_the_bound_does_not_depend_on_the_order_of_traffic(
    made: Callable[[], Recorded], data: st.DataObject
) -> None:
    words = data.draw(st.lists(st.sampled_from(WORDS), min_size=2, max_size=7))
    both = {word[0] for word in words} == {"d", "p"}
    bounds = []
    for order in (words, data.draw(st.permutations(words)), sorted(words)):
        run = made()
        run.traffic(tuple(order))
        bounds.append(run.bound())
    assert len({bound.bytes for bound in bounds}) == 1
    assert len({bound.formula for bound in bounds}) == 1
    if both:
        assert bounds[0].bytes == 256 * HEADS_AND_SIZE


def test_a_known_way_is_counted_and_not_written_again(made: Callable[[], Recorded]) -> None:
    run = made()
    run.traffic(("d4", "p4", "d4", "p4", "d4"))
    assert len(run.requests()) == 2
    assert [entry.calls for entry in run.live.counters.entries()] == [2, 3]


def test_another_class_of_self_is_another_way(made: Callable[[], Recorded]) -> None:
    run = made()
    plain, doubled = run.impl, run.module.Doubled(run.manager)
    for owner, rows in ((plain, 4), (doubled, 2), (plain, 4), (doubled, 2)):
        owner.per_class(run.module.Metadata(rows, 0))
    assert [request.bytes for request in run.requests()] == [4096, 4096]
    # 2 * max_num_seqs rows of 512 elements of 2 bytes; the plain class alone needs half.
    assert run.bound("Impl.per_class").bytes == 2 * 8 * 1024
    kinds = [way.types[0].rpartition(".")[2] for way in run.bound("Impl.per_class").ways]
    assert kinds == ["Doubled", "Impl"]


def test_another_class_of_metadata_is_another_way(made: Callable[[], Recorded]) -> None:
    run = made()
    for kind in (run.module.DecodeMetadata, run.module.PrefillMetadata):
        run.impl.of_metadata(kind(4))
    roles = [leaf.role for request in run.requests() for leaf in request.provenance.leaves]  # type: ignore[union-attr]
    assert sorted(filter(None, roles)) == ["num_decodes", "num_prefills"]


def test_a_function_that_asks_no_caller_has_no_way_to_check(
    made: Callable[[], Recorded],
) -> None:
    run = made()
    ask = _plain(run.manager)
    ask()
    assert [entry.on_way for entry in run.live.counters.entries()] == [None]


def _plain(manager: WorkspaceManager) -> Callable[[], None]:
    held = SimpleNamespace(manager=manager)
    return lambda: held.manager.get_simultaneous(((4, 512), torch.bfloat16))


def test_a_request_that_was_seen_and_is_refused_is_a_failure(
    made: Callable[[], Recorded],
) -> None:
    run, refuses = made(), False

    def original(manager: Any, size: int) -> Any:
        assert not refuses, f"locked: {size}"
        return manager._current_workspaces[0]

    run.manager.ensure = wrap_seen(run.live)(original)
    run.traffic(("d4", "d4", "d4"))
    assert [entry.calls for entry in run.live.counters.entries()] == [3]
    refuses = True
    with pytest.raises(AssertionError, match="locked"):
        run.traffic(("d4",))
    failure = run.records[-1]
    assert (failure.required, failure.arena) == (4 * HEADS_AND_SIZE, 1 << 20)
    assert failure.text.startswith(f"locked: {4 * HEADS_AND_SIZE}")
    assert run.requests()[-1].site == failure.site
