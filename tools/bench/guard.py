"""What the guard adds to one get_simultaneous call that grows nothing.

    scripts/bench guard [--pairs 400] [--calls 100] [--write]

As scripts/bench overhead, whose pairs, table and machine line it shares: one side is vLLM's own
method, the other the guard's wrapper. The last line is the result as JSON. --write puts the
table into docs/guard.md. A step with and without WSTRACE_WARN_AT is timed as in
scripts/bench overhead: each against no hooks, cold.
"""

from __future__ import annotations

import argparse
import importlib
import time
from dataclasses import replace
from functools import partial
from statistics import quantiles
from types import ModuleType
from typing import Any

from tools import ROOT
from tools.bench.machine import machine, write
from tools.bench.pairs import Block, Row, block, filled, line, paired, table
from tools.bench.step_cost import decode_step, step_cost
from tools.bench.toggle import detached
from wstrace.recorder.hooks.manager import hook_manager
from wstrace.recorder.settings import Settings
from wstrace.recorder.state.process import Live

BEGIN, END = "<!-- made by scripts/bench guard -->", "<!-- end of bench guard -->"


def bare(manager: Any) -> Block:
    """Microseconds a call of `_ensure_workspace_size` alone."""

    def run(calls: int) -> float:
        ensure = manager._ensure_workspace_size
        start = time.thread_time_ns()
        for _ in range(calls):
            ensure(8192)
        return (time.thread_time_ns() - start) / calls / 1000

    return run


def measure(live: Live, module: ModuleType, pairs: int, calls: int) -> list[Row]:
    """Rows of one to three buffers, and of the wrapper on neither side."""
    import torch

    if not torch.accelerator.is_available():
        torch.accelerator.empty_cache = lambda: None  # a growth calls it; it raises without one
    spec, off = ((64, 128), torch.float16), partial(detached, live)
    one = filled(module, num_ubatches=1)
    rows = [paired(off, "the bare method", bare(one), pairs, 10 * calls)]
    for count in (1, 2, 3):
        run = block(one, [spec] * count)
        rows.append(paired(off, f"{count} buffer{'s' * (count > 1)}", run, pairs, calls))
    assert live.guard.least == 1 << 20, "the requests would take the slow path"
    rows.append(paired(off, "3 buffers, off/off", run, pairs, calls, control=True))
    assert not live.guard.by_site, "something grew"
    return rows


def steps(pairs: int) -> dict[str, list[float]]:
    """Microseconds that a step of eight requests takes more, without a site near its arena."""
    output = [decode_step(8)]
    plain = Settings(directory=None, run="bench", guard=True)
    warns = replace(plain, warn_at=0.9)
    return {
        "a step, recorded": step_cost(output, pairs, plain),
        "a step, recorded, WSTRACE_WARN_AT=0.9": step_cost(output, pairs, warns),
    }


def step_rows(found: dict[str, list[float]], pairs: int) -> str:
    """The rows of the table of steps."""
    rows = ["| hooks | added, us | middle half |", "| --- | --- | --- |"]
    for name, added in found.items():
        low, middle, high = quantiles(added, n=4)
        rows.append(f"| {name} | {middle:+.0f} | {low:.0f} to {high:.0f} |")
    return "\n".join([*rows, "", f"{pairs} pairs of single steps of 8 requests; {machine()}"])


def main() -> None:
    parser = argparse.ArgumentParser(description="What the guard adds to one call.")
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--write", action="store_true", help="Put it into docs/guard.md.")
    options = parser.parse_args()
    module = importlib.import_module("vllm.v1.worker.workspace")
    live = Live(Settings(directory=None, run="bench", guard=True))
    hook_manager(live, module)
    rows = measure(live, module, options.pairs, options.calls)
    text = table(rows, options.pairs, options.calls)
    text += f"\n\n{step_rows(steps(options.pairs), options.pairs)}"
    print(text)
    print(line(rows, options.pairs, options.calls, bench="guard"))
    if options.write:
        write(ROOT / "docs" / "guard.md", f"\n{text}\n", BEGIN, END)


if __name__ == "__main__":
    main()
