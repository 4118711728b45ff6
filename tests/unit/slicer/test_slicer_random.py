"""Random functions: a formula read off one request must predict the bytes of others."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.unit.slicer.fakes import running
from wstrace.expr.expression import parse
from wstrace.slicer.slicer import Sliced

NAMES = ("a", "b", "c")
names = st.sampled_from(NAMES)
small = st.integers(1, 9).map(str)
atoms = st.one_of(names, small, st.just("meta.num_reqs"), st.just("self.heads"))


def wider(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    two = st.tuples(inner, inner)
    return st.one_of(
        st.tuples(inner, st.sampled_from("+*"), inner).map(lambda t: f"({' '.join(t)})"),
        st.tuples(inner, small).map(lambda t: f"({t[0]} // {t[1]})"),
        st.tuples(inner, small).map(lambda t: f"math.ceil({t[0]} / {t[1]}) * {t[1]}"),
        two.map(lambda t: f"max({t[0]}, {t[1]})"),
        two.map(lambda t: f"half({t[0]}, to={t[1]})"),
        two.map(lambda t: f"(({t[0]}, 3), {t[1]})[0][0]"),
        two.map(lambda t: f"({t[0]} if meta.num_reqs > 6 else {t[1]})"),
    )


values = st.recursive(atoms, wider, max_leaves=4)
plain = st.one_of(
    st.tuples(names, values).map(lambda t: [f"{t[0]} = {t[1]}"]),
    st.tuples(names, values).map(lambda t: [f"{t[0]} += {t[1]}"]),
    st.tuples(values, values).map(lambda t: [f"a, (b, _) = {t[0]}, ({t[1]}, 0)"]),
    values.map(lambda v: [f"specs.append((({v},), torch.uint8))"]),
    values.map(lambda v: [f"specs += [((2, {v}), torch.float16)]"]),
    st.just(["print"]),
)


def nested(inner: st.SearchStrategy[list[str]]) -> st.SearchStrategy[list[str]]:
    def indent(lines: list[str]) -> list[str]:
        return [f"    {line}" for line in lines]

    block = st.lists(inner, min_size=1, max_size=2).map(lambda b: [x for s in b for x in s])
    test = st.sampled_from(("meta.num_reqs > 4", "a % 2 == 0", "self.heads == 2"))
    return st.one_of(
        st.tuples(test, block, block).map(
            lambda t: [f"if {t[0]}:", *indent(t[1]), "else:", *indent(t[2])]
        ),
        st.tuples(test, block).map(lambda t: [f"if {t[0]}:", *indent(t[1])]),
        st.tuples(test, block).map(
            lambda t: [f"if {t[0]} and self.heads > 9:", *indent(t[1]), "    return"]
        ),
        block.map(lambda b: ["with SEEN:", *indent(b)]),
    )


bodies = st.lists(st.recursive(plain, nested, max_leaves=4), min_size=1, max_size=5)


def source(body: list[list[str]]) -> str:
    lines = "\n".join(f"        {line}" for statement in body for line in statement)
    return f"""
import contextlib
import math
SEEN = contextlib.nullcontext()
def half(n, to):
    if n > 20:
        return n // 2 + to
    return n
class Layer:
    def __init__(self):
        self.heads = 2
    def f(self, meta):
        a, b, c = meta.num_reqs, 2, self.heads
        specs = [((meta.num_reqs, 8), torch.float32)]
{lines}
        manager.get_simultaneous(*specs, ((a, b), torch.uint8), ((c,), torch.uint8))
"""


def asked(specs: Any) -> int:
    total = 0
    for shape, kind in specs:
        size = kind.itemsize
        for dim in shape:
            size *= dim
        total += -(-size // 256) * 256
    return total


def predicted(sliced: Sliced, num_reqs: int) -> list[int]:
    values = {leaf.name: leaf.value or 0 for leaf in sliced.leaves}
    values.update({x.name: num_reqs for x in sliced.leaves if x.role == "num_reqs"})
    assert sliced.formula is not None
    arms = [parse(text).evaluate(values) for text in sliced.arms or (sliced.formula,)]
    assert parse(sliced.formula).evaluate(values) == max(arms)
    return arms


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(bodies, st.integers(0, 12), st.lists(st.integers(0, 60), min_size=2, max_size=2))
def test_one_request_predicts_the_others(
    body: list[list[str]], seen: int, others: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as worker:
        layer = worker.load(source(body)).Layer()
        layer.f(worker.metadata(num_reqs=seen))
        if not worker.manager.results:
            return
        first = worker.manager.results[0]
        event("closed" if first.stopped is None else f"stopped: {first.stopped[-30:]}")
        if first.stopped is not None:
            assert "internal" not in first.stopped
            assert "self-check" not in first.stopped
            return
        recorded: list[Any] = []
        worker.manager.get_simultaneous = (  # type: ignore[method-assign]
            lambda *specs: recorded.append(specs)  # type: ignore[assignment]
        )
        for number in others:
            recorded.clear()
            layer.f(worker.metadata(num_reqs=number))
            assert asked(recorded[0]) in predicted(first, number)
