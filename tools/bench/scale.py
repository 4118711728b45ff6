"""Reading, report and gate of a large trace, beside other readers of the same file.

    scripts/bench scale [--records 100000] [--rounds 3]

The trace is a sample's, its serving requests repeated with other sizes and steps, each with
its stack and provenance (2 KB a record). Every round runs every program once, in a process of
its own; a program that is not installed is left out. Prints one JSON line: for each program
the medians of CPU seconds and peak MB, and of the ratio of its CPU time to the bare loop of
the same round. Exits 1 where `gate` is above its share of 6 s and 1 GB for 1,000,000.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, Final

from tools import ROOT

SAMPLE: Final = ROOT / "sample_traces" / "h100-vllm-0.21.0-turboquant-grow"
GATE_SECONDS, GATE_MB, OF_RECORDS = 6.0, 1000.0, 1_000_000
WSTRACE: Final = (sys.executable, "-m", "wstrace.cli.app")
LOOP: Final = """
import sys, msgspec
for line in open(sys.argv[1], "rb"): msgspec.json.decode(line)
"""
LOAD: Final = """
import sys
from pathlib import Path
from wstrace.findings.analysed_run import load_run
load_run(Path(sys.argv[1]).parent)
"""
PANDAS: Final = "import sys, pandas; pandas.read_json(sys.argv[1], lines=True)"
DUCKDB: Final = "import sys, duckdb; duckdb.read_json(sys.argv[1]).count('*').fetchall()"


def records(lines: list[str], wanted: int) -> Iterator[str]:
    """The sample's lines, and before its last phase `wanted` more requests in serving."""
    kept = [json.loads(line) for line in lines]
    model = next(r for r in kept if r["t"] == "request" and r["phase"] == "serving")
    last = max(n for n, r in enumerate(kept) if r["t"] == "request")
    yield from lines[: last + 1]
    for number in range(wanted):
        yield json.dumps(another(model, number), separators=(",", ":"))
    yield from lines[last + 1 :]


def another(model: dict[str, Any], number: int) -> dict[str, Any]:
    """The same request in another step, of another length; sizes follow the real rule."""
    computed = 16 * (1 + number % 2000)
    made = {**model, "bytes": 2 * 4 * 128 * 2 * computed, "ns": model["ns"] + number}
    step = dict(model["step"], index=number)
    step["requests"] = [dict(r, computed=computed) for r in step.get("requests", ())]
    specs = [
        dict(s, bytes=made["bytes"] // 2, shape=[1, 4, computed, 128]) for s in model["specs"]
    ]
    leaves = [
        dict(leaf, value=computed) if leaf.get("role") == "num_computed_tokens" else leaf
        for leaf in model["provenance"]["leaves"]
    ]
    provenance = dict(model["provenance"], leaves=leaves)
    return {**made, "step": step, "specs": specs, "provenance": provenance}


def write(folder: Path, wanted: int) -> Path:
    """The trace; returns its one file."""
    (source,) = SAMPLE.glob("*.wst.jsonl")
    (folder / "run.json").write_text((SAMPLE / "run.json").read_text())
    target = folder / source.name
    with target.open("w") as file:
        for line in records(source.read_text().splitlines(), wanted):
            file.write(line + "\n")
    return target


def programs(file: Path) -> dict[str, list[str]]:
    """What is measured, by name."""
    folder, python = str(file.parent), sys.executable
    found = {
        "loop": [python, "-c", LOOP, str(file)],
        "load": [python, "-c", LOAD, str(file)],
        "report": [*WSTRACE, "report", folder, "--format", "text"],
        "gate": [*WSTRACE, "gate", folder],
    }
    others = {"pandas": PANDAS, "duckdb": DUCKDB}
    return found | {n: [python, "-c", s, str(file)] for n, s in others.items() if find_spec(n)}


def spent(command: list[str]) -> tuple[float, float]:
    """CPU seconds and peak MB of a process."""
    child = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in (0, 1):
        raise RuntimeError(f"exit code {child.returncode}: {' '.join(command[:4])}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def measured(file: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Medians over the rounds; every other round in the opposite order."""
    commands = programs(file)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for number in range(rounds):
        for name in list(commands)[:: -1 if number % 2 else 1]:
            found[name].append(spent(commands[name]))
    loop = [seconds for seconds, _ in found["loop"]]
    return {
        name: {
            "cpu_s": round(median(s for s, _ in rows), 2),
            "peak_mb": round(median(mb for _, mb in rows)),
            "of_loop": round(median(s / b for (s, _), b in zip(rows, loop, strict=True)), 2),
        }
        for name, rows in found.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = write(Path(folder), options.records)
        size = file.stat().st_size
        found = measured(file, options.rounds)
    facts = {"bench": "scale", "records": options.records, "bytes": size}
    facts |= {"python": platform.python_version(), "load": round(os.getloadavg()[0], 1)}
    print(json.dumps(facts | {"programs": found}))
    share = options.records / OF_RECORDS
    gate = found["gate"]
    return int(gate["cpu_s"] > max(2.0, GATE_SECONDS * share) or gate["peak_mb"] > GATE_MB)


if __name__ == "__main__":
    sys.exit(main())
