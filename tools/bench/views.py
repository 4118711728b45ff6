"""What `--check-views` adds to one get_simultaneous call that the recorder sees anyway.

    scripts/bench views [--pairs 400] [--calls 100] [--write]

As scripts/bench overhead, whose pairs, table and machine line it shares: both sides run with
the recorder, one of them with the wrapper of --check-views too. A block is one step: the
views of the step before are looked at when it begins. --write puts the result into
docs/overhead.md and docs/findings/WS302.md.
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from textwrap import fill
from types import ModuleType

from tools import ROOT
from tools.bench.machine import write
from tools.bench.pairs import Block, Row, block, filled, paired, table
from wstrace.recorder.hooks.manager import hook_manager
from wstrace.recorder.settings import Settings
from wstrace.recorder.state.process import Live

BEGIN, END = "<!-- made by scripts/bench views -->", "<!-- end of bench views -->"
NAME = "get_simultaneous"


@contextmanager
def unchecked(live: Live) -> Iterator[None]:
    """The recorder without the wrapper of --check-views."""
    (patch,) = [patch for patch in live.hooks.patches if patch.name == NAME]
    setattr(patch.owner, NAME, patch.original)
    try:
        yield
    finally:
        setattr(patch.owner, NAME, patch.wrapper)


def stepping(live: Live, run: Block) -> Block:
    """The block as a step of its own."""

    def step(calls: int) -> float:
        live.steps.index += 1
        return run(calls)

    return step


def measure(live: Live, module: ModuleType, pairs: int, calls: int) -> list[Row]:
    import torch

    if not torch.accelerator.is_available():
        torch.accelerator.empty_cache = lambda: None  # a growth calls it; it raises without one
    spec, manager = ((64, 128), torch.float16), filled(module, num_ubatches=1)
    off, rows = partial(unchecked, live), []
    for count in (1, 2, 3):
        run = stepping(live, block(manager, [spec] * count))
        rows.append(paired(off, f"{count} buffer{'s' * (count > 1)}", run, pairs, calls))
    run = stepping(live, block(manager, [spec] * 2))
    rows.append(paired(off, "2 buffers, off/off", run, pairs, calls, control=True))
    return rows


def sentence(rows: list[Row]) -> str:
    """What docs/findings/WS302.md says; the control row is left out."""
    added = [on - off for row in rows[:-1] for on, off in zip(row.on, row.off, strict=True)]
    ratios = [ratio for row in rows[:-1] for ratio in row.ratios]
    return (
        f"Cost: a request took {(median(ratios) - 1) * 100:.0f} % more CPU time than with the "
        f"recorder alone, {median(added):.1f} µs (medians of `scripts/bench views`, CPU "
        "tensors; the table is in [what it costs](../overhead.md)); leave it off in production."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="What --check-views adds to one call.")
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--write", action="store_true", help="Put it into docs/.")
    options = parser.parse_args()
    module = importlib.import_module("vllm.v1.worker.workspace")
    with tempfile.TemporaryDirectory() as folder:
        live = Live(Settings(directory=folder, run="bench", check_views=True))
        hook_manager(live, module)
        rows = measure(live, module, options.pairs, options.calls)
    text = table(rows, options.pairs, options.calls)
    print(text)
    if options.write:
        write(ROOT / "docs" / "overhead.md", f"\n{text}\n", BEGIN, END)
        write(ROOT / "docs" / "findings" / "WS302.md", fill(sentence(rows), 118), BEGIN, END)


if __name__ == "__main__":
    main()
