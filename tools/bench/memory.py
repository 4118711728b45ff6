"""What the recorder keeps in a worker: 10,000,000 requests of 100,000 shapes.

    scripts/bench memory [--requests 10000000] [--shapes 100000] [--write]

A process of its own asks vLLM's manager (its `_ensure_workspace_size`, where every request
ends) on CPU tensors. The resident memory is read before the first request is recorded and
after the last, the Python memory by tracemalloc in a second process with a fiftieth of the
requests, which has as many keys. The recorder keeps at most WSTRACE_MAX_KEYS keys a phase
(20,000); what lies beyond is counted by its site, and written where it is larger than any
before. --write puts the sentence into docs/overhead.md. The last line is all of it as JSON.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from tools import ROOT
from tools.bench import twice
from tools.bench.machine import machine, write
from tools.bench.pairs import filled
from wstrace.recorder.hooks.manager import hook_manager
from wstrace.recorder.settings import Settings
from wstrace.recorder.state.process import Live

BEGIN, END = "<!-- made by scripts/bench memory -->", "<!-- end of bench memory -->"
TARGET_MB: Final = 30.0
FEWER: Final = 50
SHARE: Final = 0.1


def resident_mb() -> float:
    # matches: "VmRSS:\t   10240 kB"
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def ask(requests: int, shapes: int, traced: bool) -> dict[str, float]:
    """Ask, in this process; megabytes before and after, and microseconds a request."""
    module = importlib.import_module("vllm.v1.worker.workspace")
    with tempfile.TemporaryDirectory() as folder:
        live = Live(Settings(directory=folder, run="bench"))
        hook_manager(live, module)
        manager = filled(module, num_ubatches=1)
        _all_sizes(manager, 1, 1)  # what is loaded and read once: the source, its formula
        gc.collect()
        if traced:
            tracemalloc.start()
        before, began = resident_mb(), time.process_time()
        _all_sizes(manager, shapes, requests // shapes)
        seconds = time.process_time() - began
        gc.collect()
        python = tracemalloc.get_traced_memory()[0] / (1 << 20) if traced else 0.0
        return {
            "resident MB": resident_mb() - before,
            "python MB": python,
            "us": seconds / requests * 1e6,
            "keys": live.counters.holds(),
            "trace MB": sum(p.stat().st_size for p in Path(folder).iterdir()) / (1 << 20),
        }


def _all_sizes(manager: Any, shapes: int, rounds: int) -> None:
    """Each of the sizes once a round, from one place."""
    need = manager._ensure_workspace_size
    for _ in range(rounds):
        for size in range(1, shapes + 1):
            need(size)


def _twice(requests: int, shapes: int) -> list[dict[str, float]]:
    """Two runs beside each other: a process for the resident memory, one for Python's."""
    fewer = max(shapes, requests // FEWER)
    with ThreadPoolExecutor(2) as pool:
        whole = list(pool.map(lambda _: _process(requests, shapes, False), range(2)))
        traced = list(pool.map(lambda _: _process(fewer, shapes, True), range(2)))
    return [w | {"python MB": t["python MB"]} for w, t in zip(whole, traced, strict=True)]


def _process(requests: int, shapes: int, traced: bool) -> dict[str, float]:
    command = [sys.executable, "-m", "tools.bench.memory", "--shapes", str(shapes)]
    command += ["--requests", str(requests), "--child", "traced" if traced else "whole"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("WSTRACE_")}
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000_000)
    parser.add_argument("--shapes", type=int, default=100_000)
    parser.add_argument("--write", action="store_true", help="Put it into docs/overhead.md.")
    parser.add_argument("--child", choices=["traced", "whole"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(ask(options.requests, options.shapes, options.child == "traced")))
        return 0
    first, second = _twice(options.requests, options.shapes)
    most = max(first["resident MB"], second["resident MB"])
    # one process has no spread of its own; the allocator's pages scatter by about so much
    spread, again = (
        {n: [v * (1 - SHARE), v * (1 + SHARE)] for n, v in one.items()}
        for one in (first, second)
    )
    text = (
        f"After {options.requests:,} requests of {options.shapes:,} shapes a worker's resident "
        f"memory is {most:.1f} MB larger (the larger of two runs), {first['python MB']:.1f} MB "
        f"of it Python's by tracemalloc; target {TARGET_MB:.0f} MB: "
        f"{'met' if most <= TARGET_MB else 'missed'}. {first['keys']:,.0f} keys are kept, the "
        f"trace has {first['trace MB']:.0f} MB; a request takes {first['us']:.1f} us of CPU "
        f"time on the whole, most of them beyond the keys that are kept. "
        f"{twice.told(spread, again)} ({SHARE:.0%} are taken for the spread.) {machine()}"
    )
    print(text)
    facts = {"requests": options.requests, "shapes": options.shapes}
    print(json.dumps({"bench": "memory", **facts, **twice.facts(spread, again)}))
    if options.write:
        write(ROOT / "docs" / "overhead.md", f"\n{text}\n", BEGIN, END)
    return int(most > TARGET_MB)


if __name__ == "__main__":
    sys.exit(main())
