"""Many requests through the look-up in C: `python -m tests.unit.recorder.soak CALLS`.

They come from two threads and two callers, in ten phases, with one slot and with several, and
some sizes are no plain integers. Prints one line of JSON: how many were counted, and the
kilobytes that the process grew by after the first phase. Fails where one was lost or counted
twice, where the table is kept alive, or where it grew by more than GROWN_KB.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import resource
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from wstrace.recorder.hooks.native import wrap_seen
from wstrace.recorder.settings import Settings
from wstrace.recorder.state.process import Live

GROWN_KB = 4096
PHASES = 10
THREADS = 2
SIZES: tuple[Any, ...] = (256, 512, 1 << 40, 1 << 70, 0, -1, True, 2.0)


class WorkspaceManager:
    """vLLM's manager, as far as the hot path looks at it; nothing is ever too large."""

    _num_ubatches = 3
    _locked = False

    def __init__(self, live: Live) -> None:
        self._current_workspaces = [None] * 3
        self.answered: Callable[..., Any] = wrap_seen(live)(lambda manager, size: size)

    def get_simultaneous(self, size: Any) -> Any:
        return self.answered(self, size)


def soak(calls: int) -> dict[str, int]:
    """About `calls` requests."""
    with tempfile.TemporaryDirectory() as folder:
        live = Live(Settings(directory=folder, run="soak"))
        manager = WorkspaceManager(live)
        assert live.counters.table is not None, "the look-up is not C's"
        each, before = calls // PHASES // THREADS, 0
        for phase in range(PHASES):
            live.forget_hot()
            live.manager.slot_of = (lambda _: phase % 3) if phase % 2 else None  # noqa: B023
            _in_threads(functools.partial(_ask, manager, each))
            before = before or _peak()
        grown = _peak() - before
        live.forget_hot()
        counted = sum(tally.calls for tally in live.counters.tallies.values())
        live.output.writer.close()
        table = live.counters.table
    live = manager = None  # type: ignore[assignment]
    gc.collect()
    kept = sys.getrefcount(table) - 2  # `table` and the argument
    assert kept == 0, f"the table is kept: {kept} references"
    assert counted == each * THREADS * PHASES, f"counted {counted}"
    assert grown <= GROWN_KB, f"grew by {grown} KB"
    return {"calls": counted, "grown_kb": grown}


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _in_threads(work: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _ask(manager: WorkspaceManager, calls: int) -> None:
    for number in range(calls):
        size = SIZES[number // 16 % len(SIZES)] if number % 16 == 0 else 256
        if number % 2:
            manager.get_simultaneous(size)
        else:
            manager.get_simultaneous(size)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Many requests through the look-up in C.")
    parser.add_argument("calls", type=int)
    print(json.dumps(soak(parser.parse_args().calls)))
