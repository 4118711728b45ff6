"""Layers whose next request may be larger than the source that was followed says.

Each is recorded with a few small steps. A bound that calls itself proved must then hold for
every later step inside the scheduler's limits, whatever the module's own code does between.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from wstrace.bounds.bound import Bound
from wstrace.bounds.ways import bound_site
from wstrace.recorder.hooks.native import wrap_seen
from wstrace.recorder.settings import Settings
from wstrace.recorder.state.counters import CLOSE_LOOKS
from wstrace.recorder.state.process import Live
from wstrace.trace.records import Request

torch = pytest.importorskip("torch")
LIMITS: dict[str, int] = {
    "max_num_seqs": 8,
    "max_num_batched_tokens": 256,
    "max_model_len": 4096,
}
HEAD = """
import functools
import torch

class Metadata:
    def __init__(self, num_decode_tokens=0, num_prefill_tokens=0):
        self.num_decode_tokens = num_decode_tokens
        self.num_prefill_tokens = num_prefill_tokens

class Plan:
    def __init__(self, width):
        self.width = width

    def most(self):
        return self.width

class LayerConfig:
    def __init__(self, width):
        self.width = width

class Nest:
    def __init__(self, depth, width):
        self.inner = Nest(depth - 1, width) if depth else Plan(width)

SIZES = {"w": 512}
WIDTH = 512
"""
IMPL = """
class Impl:
    def __init__(self, manager):
        self.manager = manager
        self.width = 512
        self.cap = 4
        self.plan = Plan(512)
        self.specs = [((4, 512), torch.bfloat16)]

    def decode(self, attn_metadata: Metadata):
        return self.rows(attn_metadata.num_decode_tokens)
"""
ROWS = """
    def rows(self, num_rows):
        return self.manager.get_simultaneous(((num_rows, SIZE), torch.bfloat16))
"""


class WorkspaceManager:
    """vLLM's manager, as far as the hot path looks at it."""

    def __init__(self, live: Live) -> None:
        self._current_workspaces = [torch.empty(1 << 22, dtype=torch.uint8)]
        self._locked = True
        self.largest = 0
        self.ensure = wrap_seen(live)(lambda manager, size: manager._current_workspaces[0])

    def get_simultaneous(self, *shapes_and_dtypes: Any) -> None:
        sizes = [torch.Size(s).numel() * d.itemsize for s, d in shapes_and_dtypes]
        total = sum(-(-size // 256) * 256 for size in sizes)
        self.largest = max(self.largest, total)
        self.ensure(self, total)


_numbers = itertools.count()
Made = Callable[[str], "Recorded"]


class Recorded:
    """One module, its layer, and what was recorded of it."""

    def __init__(self, folder: Path, source: str) -> None:
        self.live = Live(Settings(directory=str(folder), run="r"))
        self.records: list[Any] = []
        self.live.output.write = self.records.append  # type: ignore[assignment, method-assign]
        self.manager = WorkspaceManager(self.live)
        name = f"vllm.v1.attention.backends.ends_{next(_numbers)}"
        file = folder / f"{name}.py"
        file.write_text(HEAD + source)
        self.module: Any = ModuleType(name)
        self.module.__file__ = str(file)
        sys.modules[name] = self.module
        exec(compile(HEAD + source, str(file), "exec"), vars(self.module))
        self.impl = self.module.Impl(self.manager)

    def steps(self, *decodes: int) -> None:
        for count in decodes:
            self.impl.decode(self.module.Metadata(count))

    def bound(self, function: str = "Impl.rows") -> Bound:
        requests = [record for record in self.records if isinstance(record, Request)]
        return bound_site(requests, LIMITS, file="ends.py", function=function)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    before = set(sys.modules)
    yield lambda source: Recorded(tmp_path, source)
    for name in set(sys.modules) - before:
        if ".ends_" in name:
            del sys.modules[name]


def rows(size: str, more: str = "") -> str:
    return IMPL + ROWS.replace("SIZE", size) + more


def test_a_plain_layer_is_proved(made: Made) -> None:
    found = made(rows("self.width"))
    found.steps(1, 2, 3)
    bound = found.bound()
    assert (bound.grade, bound.bytes) == ("proved", 8 * 512 * 2)


CHANGED = {
    "its dictionary": ("self.width", "    def grow(self): self.__dict__['width'] = 2048"),
    "vars": ("self.width", "    def grow(self): vars(self).update(width=2048)"),
    "vars of a name": ("self.width", "    def grow(self): vars(self).update({'width': 2048})"),
    "object's setattr": (
        "self.width",
        "    def grow(self): object.__setattr__(self, 'width', 2048)",
    ),
    "setattr elsewhere": ("self.width", "def grow(layer): setattr(layer, 'width', 2048)"),
    "another object": ("self.plan.width", "    def grow(self): self.plan = Plan(2048)"),
    "globals": ("WIDTH", "def grow(_): globals()['WIDTH'] = 2048"),
    "a global's element": ("SIZES['w']", "def grow(_): SIZES['w'] = 2048"),
    "a global's update": ("SIZES['w']", "def grow(_): SIZES.update(w=2048)"),
}


@pytest.mark.parametrize("how", CHANGED)
def test_a_number_that_the_module_can_change_proves_nothing(made: Made, how: str) -> None:
    size, more = CHANGED[how]
    found = made(rows(size, more))
    found.steps(1, 2, 3)
    bound = found.bound()
    grow = getattr(found.impl, "grow", None) or (lambda: found.module.grow(found.impl))
    grow()
    found.steps(8)
    assert found.manager.largest == 8 * 2048 * 2
    assert bound.grade != "proved"


def test_a_list_of_specs_that_another_appends_to_proves_nothing(made: Made) -> None:
    asked = "    def rows(self, _): return self.manager.get_simultaneous(*self.specs)"
    grow = "def grow(layer): layer.specs.append(((400, 512), torch.bfloat16))"
    found = made(f"{IMPL}\n{asked}\n{grow}\n")
    found.steps(1, 2)
    assert found.bound().grade != "proved"


@pytest.mark.parametrize(
    "more",
    [
        "    def __call__(self, n): return self.rows(n * 30)",
        "    def prefill(self, metadata): self.rows(metadata.num_prefill_tokens)",
        "def warm(layer): layer.rows(4096)",
        "    scratch = rows",
        "    def later(self, n): return map(self.rows, [n])",
        "    def later(self, n): return getattr(self, 'rows')(n)",
        "    def later(self, n): return functools.partial(self.rows, n)",
    ],
)
def test_a_call_that_no_request_came_by_ends_the_proof(made: Made, more: str) -> None:
    found = made(rows("self.width", more))
    found.steps(1, 2, 3)
    bound = found.bound()
    assert bound.grade == "fitted"
    assert "not proved: no request came by the call at" in bound.why


def test_every_call_seen_is_proved_again(made: Made) -> None:
    prefill = "    def prefill(self, metadata): self.rows(metadata.num_prefill_tokens)"
    found = made(rows("self.width", prefill))
    found.steps(1, 2)
    found.impl.prefill(found.module.Metadata(0, 3))
    bound = found.bound()
    assert (bound.grade, bound.bytes) == ("proved", 256 * 512 * 2)


def test_a_call_of_another_classes_method_is_none_of_this_one(made: Made) -> None:
    other = "class Other:\n    def rows(self, n): pass\n    def use(self): self.rows(1)"
    found = made(rows("self.width", other))
    found.steps(1, 2)
    assert found.bound().grade == "proved"


TWO = """
class Sub:
    def __init__(self, manager, cap):
        self.manager = manager
        self.cap = cap
        self.caps = (cap, 1)
        self.plan = Plan(cap)
        self.weight = torch.empty(cap, 2)
        self.free = None if cap > 8 else object()
        self.table = {"cap": cap}
        self.plans = [Plan(4), Plan(cap)]
        self.shared = Plan(4)
        self.other = self.shared if cap == 4 else Plan(cap)
        self.most = self.plan.most
        self.config = LayerConfig(cap)
        self.nest = Nest(5, cap)
        self.call = functools.partial(self.capped, cap)

    def ask(self, n):
        return self.manager.get_simultaneous(((ROWS, 512), torch.bfloat16))

    def capped(self, most, n):
        return self.manager.get_simultaneous(((min(n, most), 512), torch.bfloat16))

class Impl:
    def __init__(self, manager):
        self.layers = [Sub(manager, 4), Sub(manager, CAP)]

    def decode(self, attn_metadata: Metadata):
        for layer in self.layers:
            layer.ask(attn_metadata.num_decode_tokens)
"""


@pytest.mark.parametrize(
    "rows",
    [
        "min(n, self.cap)",
        "min(n, self.caps[0])",
        "min(n, self.plan.width)",
        "min(n, self.weight.shape[0])",
        "min(n, self.table['cap'])",
        "min(n, self.plans[1].width)",
        "min(n, max(self.shared.width, self.other.width))",
        "min(n, self.most())",
        "min(n, self.config.width)",
        "min(n, self.nest.inner.inner.inner.inner.inner.inner.width)",
    ],
)
@pytest.mark.parametrize("cap", [4, 100])
def test_another_layer_of_the_class_is_looked_at_where_bytes_are_equal(
    made: Made, rows: str, cap: int
) -> None:
    """Both layers ask equal bytes up to 4 rows; only one of them is capped there."""
    found = made(TWO.replace("CAP", str(cap)).replace("ROWS", rows))
    found.steps(1, 2, 3)
    bound = found.bound("Sub.ask")
    found.steps(8)
    assert found.manager.largest == min(8, cap) * 1024
    assert bound.grade == "proved" or cap > 4
    assert bound.grade != "proved" or bound.bytes == found.manager.largest


@pytest.mark.parametrize(("cap", "most"), [(4, 4), (100, 8)])
def test_a_partial_of_another_layer_is_looked_at_where_bytes_are_equal(
    made: Made, cap: int, most: int
) -> None:
    source = (
        TWO.replace("CAP", str(cap)).replace("ROWS", "n").replace("layer.ask", "layer.call")
    )
    found = made(source)
    found.steps(1, 2, 3)
    bound = found.bound("Sub.capped")
    found.steps(8)
    assert found.manager.largest == most * 1024
    assert bound.grade != "proved" or bound.bytes == most * 1024


def test_another_layers_branch_is_followed_where_bytes_are_equal(made: Made) -> None:
    rows = "n if self.free is None else min(n, 4)"
    found = made(TWO.replace("CAP", "100").replace("ROWS", rows))
    found.steps(1, 2, 3)
    bound = found.bound("Sub.ask")
    found.steps(8)
    assert bound.grade != "proved" or bound.bytes == found.manager.largest == 8 * 1024


def test_layers_are_looked_at_for_so_many_requests_alone(made: Made) -> None:
    found = made(TWO.replace("CAP", "4").replace("ROWS", "min(n, self.cap)"))
    found.steps(1)
    (entry,) = found.live.counters.entries()
    assert entry.left > 0
    found.steps(*[1] * (CLOSE_LOOKS // 2 + 1))
    assert entry.left == 0
    assert entry.way is not None
    assert entry.way.values == ()
    assert found.live.counters.entries() == [entry]  # with what is counted elsewhere
    assert entry.calls == 2 * (CLOSE_LOOKS // 2 + 2)
