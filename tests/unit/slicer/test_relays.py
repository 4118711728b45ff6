"""Calls that reach a function through torch (the real one), a bound method or a helper."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from wstrace.slicer.slicer import Sliced, slice_request

torch = pytest.importorskip("torch")
_numbers = itertools.count()
SOURCE = """
import functools
import torch

class FakeMetadata:
    def __init__(self, rows):
        self.num_decode_tokens = rows

class Scratch(torch.nn.Module):
    width = 512

    def __init__(self, manager):
        super().__init__()
        self.manager = manager

    def forward(self, rows, unused=None):
        return self.manager.get_simultaneous(((rows, self.width), torch.bfloat16))

class Relayed(torch.nn.Module):
    def __init__(self, manager):
        super().__init__()
        self.scratch = Scratch(manager)
        self._forward_method = self.forward_cuda
        self._fixed = functools.partial(self.both, 512)
        self._named = functools.partial(self.both, rows=4)

    def forward(self, *args, **kwargs):
        return self._forward_method(*args, **kwargs)

    def forward_cuda(self, rows):
        return self.scratch.manager.get_simultaneous(((rows, 512), torch.bfloat16))

    def both(self, width, rows):
        return self.scratch.manager.get_simultaneous(((rows, width), torch.bfloat16))

class Impl:
    def __init__(self, manager):
        self.scratch = Scratch(manager)
        self.relayed = Relayed(manager)

    def attribute(self, attn_metadata: FakeMetadata):
        return self.scratch(attn_metadata.num_decode_tokens)

    def keyword(self, attn_metadata: FakeMetadata):
        return self.scratch(unused=1, rows=attn_metadata.num_decode_tokens)

    def local(self, attn_metadata: FakeMetadata):
        layer = self.scratch
        return layer(attn_metadata.num_decode_tokens)

    def method(self, attn_metadata: FakeMetadata):
        return self.relayed(attn_metadata.num_decode_tokens)

    def partial(self, attn_metadata: FakeMetadata):
        return self.relayed._fixed(attn_metadata.num_decode_tokens)

    def loose(self, attn_metadata: FakeMetadata):
        made = functools.partial(self.relayed.both, 512)
        return made(attn_metadata.num_decode_tokens)

    def op(self, attn_metadata: FakeMetadata):
        return torch.ops.OPS.ask_rows(torch.empty(1), attn_metadata.num_decode_tokens)

    def helper(self, attn_metadata: FakeMetadata):
        rows = attn_metadata.num_decode_tokens

        def run():
            return self.scratch.manager.get_simultaneous(((rows, 512), torch.bfloat16))

        return execute_in_parallel(run, lambda: None)

    def rebound(self, attn_metadata: FakeMetadata):
        rows = 1

        def run():
            return self.scratch.manager.get_simultaneous(((rows, 512), torch.bfloat16))

        rows = attn_metadata.num_decode_tokens
        return execute_in_parallel(run, lambda: None)

class SparseMLAAttentionImpl:
    pass

class SparseImpl(SparseMLAAttentionImpl):
    @classmethod
    def forward_mqa(cls, layer, q: torch.Tensor):
        return cls._forward_prefill(layer=layer, q=q[1:])

    @classmethod
    def _forward_prefill(cls, layer, q: torch.Tensor):
        return layer.manager.get_simultaneous(((4, layer.width, q.shape[-1]), torch.bfloat16))

class Attention(torch.nn.Module):
    width = 2176

    def __init__(self, manager):
        super().__init__()
        self.manager = manager

    def forward(self, q):
        return SparseImpl.forward_mqa(self, q)

def execute_in_parallel(fn0, fn1):
    result0 = fn0()
    return result0, fn1()

MANAGER = []

def ask_rows(x: torch.Tensor, rows: int) -> None:
    MANAGER[0].get_simultaneous(((rows, 512), torch.bfloat16))
"""


class Manager:
    """Slices every request, as the recorder does on a novel one."""

    last: Sliced

    def get_simultaneous(self, *shapes_and_dtypes: Any) -> None:
        self.last = slice_request(sys._getframe(1), shapes_and_dtypes)


class Layers:
    """The module above, loaded under a name of vLLM's."""

    def __init__(self, folder: Path) -> None:
        number = next(_numbers)
        self.name = f"vllm.v1.attention.backends.relays_{number}"
        self.ops = f"wstrace_relays_{number}"
        file = folder / "relays.py"
        file.write_text(SOURCE.replace("OPS", self.ops))
        self.module: Any = ModuleType(self.name)
        self.module.__file__ = str(file)
        sys.modules[self.name] = self.module
        exec(compile(file.read_text(), str(file), "exec"), vars(self.module))
        self.manager = Manager()
        self.module.MANAGER.append(self.manager)
        self.impl = self.module.Impl(self.manager)

    def sliced(self, method: str) -> Sliced:
        getattr(self.impl, method)(self.module.FakeMetadata(4))
        return self.manager.last


@pytest.fixture
def layers(tmp_path: Path) -> Iterator[Layers]:
    made = Layers(tmp_path)
    yield made
    del sys.modules[made.name]


ROWS = "round256(num_decode_tokens * 512 * 2)"
WIDE = "round256(num_decode_tokens * width * 2)"


@pytest.mark.parametrize(
    ("method", "formula"),
    [
        ("attribute", WIDE),
        ("keyword", WIDE),
        ("local", WIDE),
        ("method", ROWS),
        ("helper", ROWS),
        ("partial", "round256(num_decode_tokens * partial_0 * 2)"),
    ],
)
def test_what_is_called_is_followed_to_the_caller(
    layers: Layers, method: str, formula: str
) -> None:
    found = layers.sliced(method)
    assert (found.formula, found.stopped) == (formula, None)


def test_a_custom_op_is_followed_to_the_call_of_torch_ops(layers: Layers) -> None:
    library = torch.library.Library(layers.ops, "DEF")
    library.define("ask_rows(Tensor x, int rows) -> ()")
    library.impl("ask_rows", layers.module.ask_rows, "CPU")
    found = layers.sliced("op")
    assert (found.formula, found.stopped) == (ROWS, None)


def test_hooks_are_named_as_the_end(layers: Layers) -> None:
    layers.impl.scratch.register_forward_pre_hook(lambda module, args: (2 * args[0],))
    found = layers.sliced("attribute")
    assert found.stopped is not None
    assert "hooks are registered on Scratch" in found.stopped
    assert [leaf.kind for leaf in found.leaves if leaf.name == "rows"] == ["unbound"]


def test_a_partial_that_is_made_for_the_call_proves_nothing(layers: Layers) -> None:
    found = layers.sliced("loose")
    assert found.stopped is not None
    assert "functools.partial" in found.stopped


def test_a_name_that_is_bound_twice_around_a_function_proves_nothing(layers: Layers) -> None:
    found = layers.sliced("rebound")
    assert found.stopped is not None
    assert "enclosing function" in found.stopped


def test_the_query_of_a_sparse_impl_is_known_by_the_interface(layers: Layers) -> None:
    """DeepSeek-V4 of 0.22.1: q comes from a compiled op, its last dimension is assumed."""
    layers.module.Attention(layers.manager)(torch.empty(8, 16, 512))
    found = layers.manager.last
    assert (found.formula, found.stopped) == ("round256(4 * width * q_2 * 2)", None)
    (assumed,) = [leaf for leaf in found.leaves if leaf.why]
    assert (assumed.value, assumed.why[:16]) == (512, "assumed constant")
    assert [caller.rpartition(":")[2] for caller in found.way.callers] == [
        "SparseImpl.forward_mqa",
        "Attention.forward",
    ]
