"""What a request costs with its callers and classes recorded: the first of a size, and seen.

    scripts/bench first-request [--sizes 200] [--pairs 200] [--calls 100] [--write]

Needs PyTorch, no vLLM: the manager is a stand-in with vLLM's method, the layers are
`tools/bench/layers.py`. The first request of a size pays for its stack, shapes, formula through
two callers, class names and one write. A seen one pays for a look-up; where callers were
followed, for a look at who they are too. Pairs alternate with and without the hooks, and, for
the look alone, the hooks as they are with hooks whose source lacks the look (it is cut out of
the syntax tree here, and nowhere else). CPU time of the thread; what is printed is one line of
JSON. --write puts it into docs/overhead.md.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from tools import ROOT
from tools.bench.overhead import Block, cpu_name, paired, write
from wstrace.recorder.hooks import requests
from wstrace.recorder.hooks.requests import wrap_ensure
from wstrace.recorder.settings import Settings
from wstrace.recorder.state.process import Live
from wstrace.recorder.toggle import detached
from wstrace.trace.records import Request
from wstrace.vllm import methods

BEGIN, END = "<!-- made by scripts/bench first_request -->", "<!-- end -->"
WARM_CALLS = 20
LOOK_US = 0.1
"""What the look at the callers may cost where there is one way."""
FIRST_MS = 0.5


class WorkspaceManager:
    """vLLM's manager, as far as the recorder looks at it (0.32.0)."""

    def __init__(self) -> None:
        self._locked = False
        self._num_ubatches = 1
        self._current_workspaces = [torch.empty(1 << 24, dtype=torch.uint8)]

    def get_simultaneous(self, *shapes_and_dtypes: Any) -> Any:
        """The arena, large enough for every request here."""
        total = 0
        for shape, dtype in shapes_and_dtypes:
            size = dtype.itemsize
            for dimension in shape:
                size *= dimension
            total += -(-size // 256) * 256
        return self._ensure_workspace_size(total)

    def _ensure_workspace_size(self, required_bytes: int) -> Any:
        return self._current_workspaces[0]


def layers() -> Any:
    """`tools/bench/layers.py` as a module of vLLM: no other metadata is believed."""
    name = "vllm.v1.attention.backends.bench_layers"
    spec = spec_from_file_location(name, Path(__file__).with_name("layers.py"))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = made = module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def firsts(module: Any, layer: Any, sizes: range) -> list[float]:
    """Milliseconds of each first request of a size."""
    found = []
    for size in sizes:
        step = module.BenchMetadata(size, 0)
        start = time.thread_time_ns()
        layer.decode(step)
        found.append((time.thread_time_ns() - start) / 1e6)
    return found


def seen(ask: Any, step: Any) -> Block:
    """Microseconds a call of a request that was seen."""

    def run(calls: int) -> float:
        for _ in range(WARM_CALLS):
            ask(step)
        start = time.thread_time_ns()
        for _ in range(calls):
            ask(step)
        return (time.thread_time_ns() - start) / calls / 1000

    return run


class NoLook(ast.NodeTransformer):
    """The hot wrapper without its look at who called: what follows a key that is known."""

    cut = 0

    def visit_Try(self, node: ast.Try) -> ast.Try:
        """Leave the statement out of the hot path's `try`."""
        kept = [part for part in node.body if not ast.unparse(part).startswith("if entry is")]
        self.cut += len(node.body) - len(kept)
        node.body = kept
        return node


def without_look() -> Any:
    """`wrap_ensure` of the recorder's own source, but for the look."""
    tree, blind = ast.parse(inspect.getsource(wrap_ensure)), NoLook()
    tree = ast.fix_missing_locations(blind.visit(tree))
    if blind.cut != 1:
        raise RuntimeError(f"the hot path has {blind.cut} looks at its callers, not one")
    names: dict[str, Any] = dict(vars(requests))
    exec(compile(tree, requests.__file__, "exec"), names)
    return names["wrap_ensure"]


def look(live: Live, original: Any, ask: Any, step: Any, pairs: int, calls: int) -> float:
    """Microseconds that the look adds to a seen request of one way."""
    blind, whole = without_look()(live)(original), WorkspaceManager._ensure_workspace_size

    @contextmanager
    def off() -> Iterator[None]:
        WorkspaceManager._ensure_workspace_size = blind  # type: ignore[method-assign]
        try:
            yield
        finally:
            WorkspaceManager._ensure_workspace_size = whole  # type: ignore[method-assign]

    return round(median(paired(off, "look", seen(ask, step), pairs, calls).added), 3)


def measure(sizes: int, pairs: int, calls: int) -> dict[str, Any]:
    """The numbers of the last line."""
    with tempfile.TemporaryDirectory() as folder:
        live = Live(Settings(directory=folder, run="bench"))
        known = next(k for k in methods.MANAGER if k.name == "_ensure_workspace_size")
        original = WorkspaceManager._ensure_workspace_size
        live.hooks.wrap(WorkspaceManager, known, wrap_ensure(live))
        module = layers()
        layer, step = module.Layer(WorkspaceManager()), module.BenchMetadata(64, 64)
        written: list[Request] = []
        write = live.output.write
        live.output.write = lambda record: (written.append(record), write(record))  # type: ignore
        layer.decode(module.BenchMetadata(7, 0))  # the sources are read and parsed once
        found = firsts(module, layer, range(8, 8 + sizes))
        off = partial(detached, live)
        cost = {}
        looks = {}
        ways = {
            "no_caller": layer.scratch,
            "one_caller": layer.direct,
            "two_callers": layer.decode,
        }
        for name, ask in ways.items():
            row = paired(off, name, seen(ask, step), pairs, calls)
            cost[name] = round(median(row.added), 3)
            looks[name] = look(live, original, ask, step, pairs, calls)
        layer.prefill(step)  # a second way of the same key
        row = paired(off, "two_ways", seen(layer.decode, step), pairs, calls)
        cost["two_ways"] = round(median(row.added), 3)
        asks = [r for r in written if isinstance(r, Request)]
    return {
        "bench": "first_request",
        "sizes": sizes,
        "closed": sum(_closed(ask) for ask in asks),
        "recorded": len(asks),
        "first_ms": round(median(found), 4),
        "first_p90_ms": round(quantiles(found, n=10)[-1], 4),
        "seen_added_us": cost,
        "look_us": looks,
        "machine": cpu_name(),
        "load": round(os.getloadavg()[0], 1),
    }


def _closed(ask: Request) -> bool:
    return ask.provenance is not None and ask.provenance.stopped is None


def told(found: dict[str, Any]) -> str:
    """The numbers in words."""
    cost, looks = found["seen_added_us"], found["look_us"]
    first = (
        f"median {found['first_ms']:.2f} ms, nine of ten under {found['first_p90_ms']:.2f} ms"
    )
    met = "met" if found["first_ms"] <= FIRST_MS else "missed"
    more = cost["two_ways"] - cost["two_callers"]
    kinds = {"no_caller": "no caller", "one_caller": "one", "two_callers": "two"}
    shown = ", ".join(
        f"{looks[n]:+.2f} us where it needs {words}" for n, words in kinds.items()
    )
    worst = "met" if max(looks.values()) <= LOOK_US else "missed"
    sentences = (
        f"Through two followed callers, with class names: {first} ({found['sizes']} sizes;",
        f"target {FIRST_MS} ms: {met}). A seen request adds {cost['no_caller']:.2f} us here,",
        "on a manager that does nothing. Of that, the look at who called, against the same",
        f"code without it, in turn: {shown} for its formula (target {LOOK_US} us: {worst}).",
        f"Where another way makes equal bytes, {more:.2f} us more. {found['machine']}, load",
        f"average {found['load']:.1f}.",
    )
    return " ".join(sentences)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print one line."""
    parser = argparse.ArgumentParser(description="What one request costs the recorder.")
    parser.add_argument("--sizes", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--write", action="store_true", help="Put it into docs/.")
    options = parser.parse_args(arguments)
    found = measure(options.sizes, options.pairs, options.calls)
    print(json.dumps(found))
    if options.write:
        write(ROOT / "docs" / "overhead.md", f"\n{told(found)}\n", BEGIN, END)


if __name__ == "__main__":
    main()
