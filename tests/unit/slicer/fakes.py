"""A worker in miniature: modules from real files, vLLM-named metadata, a slicing manager."""

from __future__ import annotations

import importlib.util
import itertools
import math
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from wstrace.slicer.slicer import Sliced, slice_request

_numbers = itertools.count()


def _class(name: str, module: str, body: dict[str, Any]) -> type:
    return type(name, (), {"__module__": module, "__qualname__": name, **body})


def _dtype_init(self: Any, itemsize: int) -> None:
    self.itemsize = itemsize


def _tensor_init(self: Any, *shape: int, dtype: Any = None, values: Any = None) -> None:
    self.shape = tuple(shape)
    self.dtype = dtype or float16
    self.values = values


def _tolist(self: Any) -> list[int]:
    return list(self.values)


def _cut(self: Any, key: Any) -> Any:
    if isinstance(key, int):
        return Tensor(values=self.values[key])
    size = len(range(*key.indices(self.shape[0])))
    values = None if self.values is None else self.values[key]
    return Tensor(size, *self.shape[1:], dtype=self.dtype, values=values)


def _view(self: Any, *sizes: int) -> Any:
    total, known = 1, 1
    for size in self.shape:
        total *= size
    for size in sizes:
        known *= size if size > 0 else 1
    return Tensor(*(total // known if s < 0 else s for s in sizes), dtype=self.dtype)


def _item(self: Any) -> int:
    return int(self.values)


dtype = _class("dtype", "torch", {"__init__": _dtype_init})
float16, float32, uint8 = dtype(2), dtype(4), dtype(1)
Tensor: Any = _class(
    "Tensor",
    "torch",
    {
        "__init__": _tensor_init,
        "tolist": _tolist,
        "item": _item,
        "__getitem__": _cut,
        "view": _view,
        "size": lambda self, i: self.shape[i],
        "reshape": _view,
        "__mul__": lambda self, other: self,
        "numel": lambda self: math.prod(self.shape),
        "max": lambda self: Tensor(values=max(self.values)),
        "__int__": _item,
        "__len__": lambda self: self.shape[0],
    },
)


def tensor(*shape: int, values: list[int] | None = None) -> Any:
    """A fake of torch.Tensor; `values` make it one-dimensional."""
    return Tensor(*(shape if values is None else (len(values),)), values=values)


def torch_module() -> types.ModuleType:
    module = types.ModuleType("torch")
    for name, value in (("float16", float16), ("float32", float32), ("uint8", uint8)):
        setattr(module, name, value)
    module.Tensor = Tensor  # type: ignore[attr-defined]
    return module


def vllm_module(name: str) -> types.ModuleType:
    """`vllm.NAME` with a dataclass for metadata in it."""
    module = types.ModuleType(f"vllm.{name}")

    @dataclass
    class FakeMetadata:
        num_actual_tokens: int = 0
        num_reqs: int = 0
        num_decodes: int = 0
        num_decode_tokens: int = 0
        max_query_len: int = 0
        max_seq_len: int = 0
        num_splits: int = 0
        seq_lens: Any = None
        query_start_loc: Any = None
        block_table: Any = None
        slot_mapping: Any = None
        decode_lens: Any = None
        decode_row_lens: Any = None

    FakeMetadata.__module__ = module.__name__
    module.FakeMetadata = FakeMetadata  # type: ignore[attr-defined]
    return module


class Manager:
    """Slices every request, as the recorder does on a novel one."""

    def __init__(self) -> None:
        self.results: list[Sliced] = []

    def get_simultaneous(self, *specs: Any) -> list[Any]:
        self.results.append(slice_request(sys._getframe(1), specs))
        return [Tensor(*shape, dtype=kind) for shape, kind in specs]

    @property
    def last(self) -> Sliced:
        return self.results[-1]


class Worker:
    """Writes modules to files and runs them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manager = Manager()
        self.metadata_class = vllm_module("fake_backend").FakeMetadata

    def metadata(self, **fields: Any) -> Any:
        return self.metadata_class(**fields)

    def load(self, source: str, name: str = "") -> types.ModuleType:
        """A module from real source; `manager` and `torch` are in its globals."""
        title = name or f"third_party_{next(_numbers)}"
        path = self.folder / f"{title.replace('.', '_')}_{next(_numbers)}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(title, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        vars(module).update(
            manager=self.manager, torch=torch_module(), Meta=self.metadata_class
        )
        sys.modules[title] = module
        spec.loader.exec_module(module)
        return module

    def close(self) -> None:
        for name in [n for n in sys.modules if n.startswith(("third_party_", "vllm.fake"))]:
            del sys.modules[name]


@contextmanager
def running(folder: Path) -> Iterator[Worker]:
    worker = Worker(folder)
    try:
        yield worker
    finally:
        worker.close()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    with running(tmp_path) as made:
        yield made
