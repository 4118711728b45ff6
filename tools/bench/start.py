"""What wstrace adds to a start: `--help`, and the plugin in a process of vLLM.

    scripts/bench start [--rounds 9] [--write]

`--help` is a process of its own; its target is 200 ms of CPU time. The plugin's entry point is
called in a process that has imported vLLM's worker already, with nothing set and with a trace
folder: CPU time of the call. Rounds take both in turn; the last line is the medians as JSON.
--write puts the sentence into docs/overhead.md.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Final

from tools import ROOT
from tools.bench.machine import machine, write

BEGIN, END = "<!-- made by scripts/bench start -->", "<!-- end of bench start -->"
HELP_MS: Final = 200.0
PLUGIN: Final = """
import time
import vllm.v1.worker.worker_base, vllm.v1.worker.workspace
before = time.process_time()
from wstrace.recorder.plugin import register
register()
print((time.process_time() - before) * 1000)
"""


def help_ms() -> float:
    """CPU milliseconds of `wstrace --help`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [str(Path(sys.executable).parent / "wstrace"), "--help"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used * 1000


def plugin_ms(folder: str | None) -> float:
    """CPU milliseconds of the plugin's entry point."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("WSTRACE", "VLLM"))}
    env |= {"WSTRACE_DIR": folder} if folder else {}
    done = subprocess.run(
        [sys.executable, "-c", PLUGIN],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    return float(done.stdout.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="Put it into docs/overhead.md.")
    options = parser.parse_args()
    rows: dict[str, list[float]] = {"help": [], "nothing set": [], "recording": []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            rows["help"].append(help_ms())
            rows["nothing set"].append(plugin_ms(None))
            rows["recording"].append(plugin_ms(folder))
    found = {name: round(median(times), 1) for name, times in rows.items()}
    told = "met" if found["help"] <= HELP_MS else "missed"
    text = (
        f"`wstrace --help` takes {found['help']:.0f} ms of CPU time (target {HELP_MS:.0f}: "
        f"{told}). In a process of vLLM the plugin takes {found['nothing set']:.1f} ms with "
        f"nothing set, and {found['recording']:.0f} ms where it records (medians of "
        f"{options.rounds} rounds). "
        f"{machine()}"
    )
    print(text)
    print(json.dumps({"bench": "start", "rounds": options.rounds, "ms": found}))
    if options.write:
        write(ROOT / "docs" / "overhead.md", f"\n{text}\n", BEGIN, END)
    return int(told == "missed")


if __name__ == "__main__":
    sys.exit(main())
