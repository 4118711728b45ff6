"""What is read from live objects, and how: plainly, or not at all."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from tests.unit.slicer.fakes import Worker, tensor
from wstrace.expr.expression import parse
from wstrace.slicer.slicer import Sliced


def kinds(sliced: Sliced) -> dict[str, tuple[str, int | None]]:
    return {leaf.name: (leaf.kind, leaf.value) for leaf in sliced.leaves}


def test_slots_class_attributes_and_private_builders(worker: Worker) -> None:
    module = worker.load("""
class Layer:
    __slots__ = ("rows", "_cols")
    WIDTH = 3
    def __init__(self):
        self.rows = 5
        self._build()
    def _build(self):
        self._cols = 7
    def f(self):
        shape = (self.rows, self._cols, self.WIDTH)
        manager.get_simultaneous((shape, torch.uint8))
""")
    module.Layer().f()
    want = {"rows": ("constant", 5), "cols": ("constant", 7), "WIDTH": ("constant", 3)}
    assert worker.manager.last.stopped is None
    assert kinds(worker.manager.last) == want


def test_a_private_builder_called_from_elsewhere_is_no_constructor(worker: Worker) -> None:
    module = worker.load("""
class Layer:
    def __init__(self):
        self._build(5)
    def _build(self, rows):
        self.rows = rows
    def f(self):
        self._build(6)
        manager.get_simultaneous(((self.rows,), torch.uint8))
""")
    module.Layer().f()
    assert "changed in Layer._build" in (worker.manager.last.stopped or "")


def test_parameters_and_buffers_of_a_module(worker: Worker) -> None:
    module = worker.load("""
class Layer:
    def __init__(self, weight):
        self._parameters = {"weight": weight}
        self._modules = {}
    def __getattr__(self, name):
        return self._parameters[name]
    def f(self):
        rows = self.weight.shape[0]
        manager.get_simultaneous(((rows,), self.weight.dtype))
""")
    module.Layer(tensor(40, 3)).f()
    sliced = worker.manager.last
    assert sliced.stopped is None
    assert parse(sliced.formula or "").evaluate({"weight_0": 200}) == 512


def test_a_cached_property_is_followed_once_and_then_read(worker: Worker) -> None:
    module = worker.load("""
import functools
class Layer:
    def __init__(self):
        self.rows = 5
    @functools.cached_property
    def spec(self):
        return ((self.rows, 64), torch.float32)
    def f(self):
        manager.get_simultaneous(self.spec)
""")
    module.Layer().f()
    assert worker.manager.last.stopped is None
    assert 5 in [leaf.value for leaf in worker.manager.last.leaves]


def test_the_size_of_vllms_process_group(worker: Worker) -> None:
    state = worker.load(
        """
class GroupCoordinator:
    def __init__(self, size):
        self.world_size = size
    def all_gather(self, x, dim):
        return type(x)(x.shape[0], x.shape[1] * self.world_size, x.shape[2], dtype=x.dtype)
_DCP = GroupCoordinator(4)
def get_dcp_group():
    return _DCP
def unified_attention(query):
    wide = get_dcp_group().all_gather(query, dim=1)
    manager.get_simultaneous((wide.shape, wide.dtype))
""",
        "vllm.fake_parallel_state",
    )
    state.unified_attention(tensor(6, 8, 96))
    sliced = worker.manager.last
    assert sliced.stopped is None, sliced.stopped
    assert kinds(sliced)["decode_context_parallel_size"] == ("constant", 4)
    assert "num_padded_tokens" in {leaf.role for leaf in sliced.leaves}


def test_environment_variables_of_vllm_are_not_computed(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    envs = types.ModuleType("vllm.envs")
    envs.__getattr__ = lambda name: int("512")  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "vllm.envs", envs)
    monkeypatch.setenv("VLLM_BUFFER", "512")
    module = worker.load("""
import sys
envs = sys.modules["vllm.envs"]
def f():
    manager.get_simultaneous(((envs.VLLM_BUFFER,), torch.uint8))
""")
    module.f()
    assert worker.manager.last.stopped is None
    assert kinds(worker.manager.last) == {"VLLM_BUFFER": ("constant", 512)}


def test_requests_of_decode_metadata_are_decodes(worker: Worker) -> None:
    meta: Any = worker.load(
        """
class FakeDecodeMetadata:
    def __init__(self, lens):
        self.seq_lens = lens
""",
        "vllm.fake_decode",
    )
    module = worker.load("""
def f(decode):
    manager.get_simultaneous(((decode.seq_lens.shape[0], 64), torch.float32))
""")
    module.f(meta.FakeDecodeMetadata(tensor(values=[4, 5, 6])))
    assert [leaf.role for leaf in worker.manager.last.leaves] == ["num_decodes"]
    assert worker.manager.last.stopped is None


def test_third_party_subclass_of_vllms_metadata(worker: Worker) -> None:
    """A field that vLLM declares keeps its role; one that the subclass adds has none."""
    cls = worker.metadata_class
    own = type("OwnMetadata", (cls,), {"__module__": "third_party_meta"})
    meta = own(num_reqs=5)
    meta.num_tokens = 5
    module = worker.load("""
def f(meta):
    manager.get_simultaneous(((meta.num_reqs, 64), torch.float32))
def g(meta):
    manager.get_simultaneous(((meta.num_tokens, 64), torch.float32))
""")
    module.f(meta)
    assert [leaf.role for leaf in worker.manager.last.leaves] == ["num_reqs"]
    module.g(meta)
    assert not [leaf for leaf in worker.manager.last.leaves if leaf.role]
    assert worker.manager.last.stopped is not None


def test_a_constructor_of_a_class_without_source_is_not_trusted(worker: Worker) -> None:
    names: dict[str, Any] = {}
    exec("class Layer:\n    def __init__(self):\n        self.rows = 5\n", names)
    module = worker.load("""
def f(layer):
    manager.get_simultaneous(((layer.rows, 64), torch.float32))
""")
    module.f(names["Layer"]())
    assert "no source for class Layer" in (worker.manager.last.stopped or "")
