"""What the recorder adds to the start of a whole `vllm serve` of the CPU engine.

    scripts/bench serve [--pairs 4] [--write]

A pair is a start with `wstrace run` in front and one without, in turn; a start ends when
/health answers. Its CPU time is that of all its processes then, which other work on the
machine changes less than its wall time. The first start of all is not counted: it fills the
caches. The first half of the pairs is one run, the second half the other. --write puts the
sentence into docs/overhead.md. The last line is all of it as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from tools import ROOT
from tools.bench import twice
from tools.bench.machine import machine, write
from wstrace.server_process import cpu_ticks
from wstrace.testbed.engine import Server
from wstrace.testbed.model import build_model

BEGIN, END = "<!-- made by scripts/bench serve -->", "<!-- end of bench serve -->"
TICKS = 100  # a second, on Linux


def start(model: Path, folder: Path, recorded: bool) -> tuple[float, float]:
    """Wall and CPU seconds until the server answers."""
    trace = folder / f"trace-{time.monotonic_ns()}"
    wstrace = [sys.executable, "-m", "wstrace.cli.app", "run", "-q", "-o", str(trace), "--"]
    began = time.monotonic()
    server = Server(model, folder / "log", before=wstrace if recorded else ())
    server.dies_with_parent = True  # a bench that is cut leaves none behind
    with server:
        wall = time.monotonic() - began
        cpu = sum(map(cpu_ticks, server.processes())) / TICKS
    if recorded and not list(trace.glob("*.jsonl")):
        sys.exit("serve: nothing was recorded")
    return wall, cpu


def pairs(count: int) -> list[dict[str, float]]:
    """Each pair's seconds: `on`, `off`, and their CPU time."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = build_model(folder / "model")
        start(model, folder, recorded=False)
        for number in range(count):
            pair = {}
            for recorded in (True, False) if number % 2 else (False, True):
                side = "on" if recorded else "off"
                pair[side], pair[f"{side} cpu"] = start(model, folder, recorded)
            found.append(pair)
    return found


def figures(run: list[dict[str, float]]) -> twice.Run:
    return {
        "start s": [p["off"] for p in run],
        "added s": [p["on"] - p["off"] for p in run],
        "ratio": [p["on"] / p["off"] for p in run],
        "added CPU s": [p["on cpu"] - p["off cpu"] for p in run],
        "CPU ratio": [p["on cpu"] / p["off cpu"] for p in run],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--write", action="store_true", help="Put it into docs/overhead.md.")
    options = parser.parse_args()
    if options.pairs < 2:
        parser.error("two runs need two pairs")
    found = pairs(options.pairs)
    half = options.pairs // 2
    first, second = figures(found[:half]), figures(found[half:])
    whole = twice.both(first, second)
    ends = {name: twice.Spread.of(values) for name, values in whole.items()}
    text = (
        f"A whole `vllm serve` of the CPU engine answers after "
        f"{median(whole['start s']):.1f} s; `wstrace run` in front adds "
        f"{median(whole['added s']):+.1f} s (middle half {ends['added s'].low:+.1f} to "
        f"{ends['added s'].high:+.1f}), and to its processes' CPU time "
        f"{median(whole['added CPU s']):+.1f} s ({ends['added CPU s'].low:+.1f} to "
        f"{ends['added CPU s'].high:+.1f}), {len(found)} pairs. "
        f"{twice.told(first, second)} {machine()}"
    )
    print(text)
    facts = {"bench": "serve", "pairs": len(found)}
    print(json.dumps(facts | twice.facts(first, second)))
    if options.write:
        write(ROOT / "docs" / "overhead.md", f"\n{text}\n", BEGIN, END)
    return 0


if __name__ == "__main__":
    sys.exit(main())
