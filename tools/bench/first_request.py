"""What a request costs with its callers and classes recorded: the first of a size, and seen.

    scripts/bench first-request [--sizes 200] [--pairs 200] [--calls 100] [--write]

Needs PyTorch, no vLLM: the manager is a stand-in with vLLM's method, the layers are
`tools/bench/layers.py`. The first request of a size pays for its stack, shapes, formula through
two callers, class names and one write. A seen one pays for a look-up; where callers were
followed, for a look at who they are too. Pairs alternate with and without the hooks, and, for
the look alone, the hooks as they are with hooks whose source lacks the look (it is cut out of
the syntax tree here, and nowhere else); in C (scripts/bench builds it where there is a
compiler), with entries that name no caller. All is measured twice. CPU time of the thread; what
is printed is one line of JSON. --write puts it into docs/overhead.md.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from tools import ROOT
from tools.bench.machine import cpu_name, write
from tools.bench.pairs import Block, Row, agreed, paired
from tools.bench.toggle import detached
from wstrace.recorder.hooks import requests
from wstrace.recorder.hooks.native import wrap_seen
from wstrace.recorder.hooks.requests import wrap_ensure
from wstrace.recorder.settings import Settings
from wstrace.recorder.state.counters import CLOSE_LOOKS
from wstrace.recorder.state.process import Live
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


def look(live: Live, original: Any, ask: Any, step: Any, pairs: int, calls: int) -> Row:
    """What the look adds to a seen request of one way."""
    blind, whole = without_look()(live)(original), WorkspaceManager._ensure_workspace_size

    @contextmanager
    def off() -> Iterator[None]:
        WorkspaceManager._ensure_workspace_size = blind  # type: ignore[method-assign]
        try:
            yield
        finally:
            WorkspaceManager._ensure_workspace_size = whole  # type: ignore[method-assign]

    return paired(off, "look", seen(ask, step), pairs, calls)


def look_in_c(live: Live, ask: Any, step: Any, pairs: int, calls: int) -> Row:
    """The same in C: its entries, which C reads, name no caller on the other side."""
    for _ in range(CLOSE_LOOKS + WARM_CALLS):
        ask(step)

    @contextmanager
    def off() -> Iterator[None]:
        entries = live.counters.entries()
        callers = [entry.caller for entry in entries]
        for entry in entries:
            entry.caller = None
        try:
            yield
        finally:
            for entry, caller in zip(entries, callers, strict=True):
                entry.caller = caller

    return paired(off, "look in C", seen(ask, step), pairs, calls)


@contextmanager
def in_c(folder: str, original: Any) -> Iterator[Live | None]:
    """A recorder whose look-up is C's on the manager; None where there is none."""
    live = Live(Settings(directory=folder, run="bench-c"))
    before: Any = WorkspaceManager._ensure_workspace_size
    made: Any = wrap_seen(live)(original)
    WorkspaceManager._ensure_workspace_size = made  # type: ignore[method-assign]
    try:
        yield None if live.counters.table is None else live
    finally:
        WorkspaceManager._ensure_workspace_size = before  # type: ignore[method-assign]
        live.output.writer.close()


def numbers(rows: Mapping[str, Row]) -> dict[str, float]:
    """The median of what each adds, microseconds."""
    return {name: round(median(row.added), 3) for name, row in rows.items()}


def halves(rows: Mapping[str, Row]) -> dict[str, list[float]]:
    """The middle half of what each adds."""
    cut = {name: quantiles(row.added, n=4) for name, row in rows.items()}
    return {name: [round(low, 3), round(high, 3)] for name, (low, _, high) in cut.items()}


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
        cost: dict[str, Row] = {}
        looks: dict[str, Row] = {}
        looks_in_c: dict[str, Row] = {}
        ways = {
            "no_caller": layer.scratch,
            "one_caller": layer.direct,
            "two_callers": layer.decode,
        }
        for name, ask in ways.items():
            cost[name] = paired(off, name, seen(ask, step), pairs, calls)
            looks[name] = look(live, original, ask, step, pairs, calls)
        layer.prefill(step)  # a second way of the same key
        cost["two_ways"] = paired(off, "two_ways", seen(layer.decode, step), pairs, calls)
        with in_c(folder, original) as native:
            if native is not None:
                for name, ask in ways.items():
                    looks_in_c[name] = look_in_c(native, ask, step, pairs, calls)
        requests = [r for r in written if isinstance(r, Request)]
        live.hooks.remove()
    return {
        "bench": "first_request",
        "sizes": sizes,
        "closed": sum(_closed(request) for request in requests),
        "recorded": len(requests),
        "first_ms": round(median(found), 4),
        "first_p90_ms": round(quantiles(found, n=10)[-1], 4),
        "seen_added_us": numbers(cost),
        "look_us": numbers(looks),
        "look_in_c_us": numbers(looks_in_c),
        "middle_half_us": {
            "seen_added_us": halves(cost),
            "look_us": halves(looks),
            "look_in_c_us": halves(looks_in_c),
        },
        "machine": cpu_name(),
        "load": round(os.getloadavg()[0], 1),
    }


def _closed(request: Request) -> bool:
    return request.provenance is not None and request.provenance.stopped is None


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
    in_c = found["look_in_c_us"]
    least = ", ".join(f"{in_c[n]:+.2f} us" for n in kinds if n in in_c)
    c_met = "met" if in_c and max(in_c.values()) <= LOOK_US else "missed"
    sentences = (
        f"Through two followed callers, with class names: {first} ({found['sizes']} sizes;",
        f"target {FIRST_MS} ms: {met}). A seen request adds {cost['no_caller']:.2f} us here,",
        "on a manager that does nothing. Of that, the look at who called, against the same",
        f"code without it, in turn: {shown} for its formula (target {LOOK_US} us: {worst}).",
        *([f"In C the three are {least} ({c_met})."] if in_c else []),
        f"Where another way makes equal bytes, {more:.2f} us more. {found['machine']}, load",
        f"average {found['load']:.1f}.",
    )
    return " ".join(sentences) + compared(found)


def compared(found: dict[str, Any]) -> str:
    """Where the second run differs from the first by more than the first's own spread."""
    again, names, outside = found.get("again"), [], []
    if again is None:
        return ""
    for kind, spread in found["middle_half_us"].items():
        for name, (low, high) in spread.items():
            names.append(f"{kind.removesuffix('_us')} {name}".replace("_", " "))
            if not low <= again[kind][name] <= high:
                outside.append(names[-1])
    first = f" Measured twice; the first requests' median was {again['first_ms']:.2f} ms then."
    return first + agreed(names, outside)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print one line."""
    parser = argparse.ArgumentParser(description="What one request costs the recorder.")
    parser.add_argument("--sizes", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--write", action="store_true", help="Put it into docs/.")
    options = parser.parse_args(arguments)
    found = measure(options.sizes, options.pairs, options.calls)
    again = measure(options.sizes, options.pairs, options.calls)
    found["again"] = {kind: again[kind] for kind in ("first_ms", *found["middle_half_us"])}
    print(json.dumps(found))
    if options.write:
        write(ROOT / "docs" / "overhead.md", f"\n{told(found)}\n", BEGIN, END)


if __name__ == "__main__":
    main()
