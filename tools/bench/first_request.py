"""What a request costs with its callers and classes recorded: the first of a size, and seen.

    scripts/bench first-request [--sizes 200] [--pairs 200] [--calls 100] [--write]

Needs PyTorch, no vLLM: the manager is a stand-in with vLLM's method, the layers are
`tools/bench/layers.py`. The first request of a size pays for its stack, shapes, formula through
two callers, class names and one write. A seen one pays for a look-up; where callers were
followed, for a look at who they are too. Pairs alternate with and without the hooks, CPU time
of the thread; what is printed is one line of JSON. --write puts it into docs/overhead.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from tools import ROOT
from tools.bench.overhead import Block, cpu_name, paired, write
from wstrace.recorder.hooks.requests import wrap_ensure
from wstrace.recorder.settings import Settings
from wstrace.recorder.state.process import Live
from wstrace.recorder.toggle import detached
from wstrace.trace.records import Request
from wstrace.vllm import methods

BEGIN, END = "<!-- made by scripts/bench first_request -->", "<!-- end -->"
WARM_CALLS = 20


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


def measure(sizes: int, pairs: int, calls: int) -> dict[str, Any]:
    """The numbers of the last line."""
    with tempfile.TemporaryDirectory() as folder:
        live = Live(Settings(directory=folder, run="bench"))
        known = next(k for k in methods.MANAGER if k.name == "_ensure_workspace_size")
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
        for name, ask in (("no_caller", layer.scratch), ("two_callers", layer.decode)):
            row = paired(off, name, seen(ask, step), pairs, calls)
            cost[name] = round(median(row.added), 3)
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
        "machine": cpu_name(),
    }


def _closed(ask: Request) -> bool:
    return ask.provenance is not None and ask.provenance.stopped is None


def told(found: dict[str, Any]) -> str:
    """The numbers in words."""
    cost = found["seen_added_us"]
    more = {name: cost[name] - cost["no_caller"] for name in ("two_callers", "two_ways")}
    first = (
        f"median {found['first_ms']:.2f} ms, nine of ten under {found['first_p90_ms']:.2f} ms"
    )
    return (
        f"Through two followed callers, with class names: {first} ({found['sizes']} sizes).\n"
        f"Once seen, such a request costs {more['two_callers']:.2f} us more than one whose\n"
        f"formula needs no caller ({cost['no_caller']:.2f} us here, on a manager that does\n"
        f"nothing), and {more['two_ways']:.2f} us more where another way makes equal bytes."
    )


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
