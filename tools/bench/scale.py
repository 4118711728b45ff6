"""Reading, report and gate of large traces, beside other readers of the same file.

    scripts/bench scale [--records 100000] [--rounds 3] [--most 1000000] [--long 10000000]
                        [--write]

Three shapes (`tools/bench/scale_traces.py`). `repeated`: every round runs every program once,
in a process of its own; a program that is not installed is left out. Then the gate and the bare
loop run once on `--most` records, and the gate on as many `distinct` ones. `short`: the gate on
`--most` and on `--long` records, whether its memory is bounded. 0: not. Prints one JSON line:
for each program the medians of wall and CPU seconds, peak MB, and of the ratio of its CPU time
to the bare loop's of the same round. --write puts them into docs/scale.md, with the targets and
whether they are met.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from tools import ROOT
from tools.bench.machine import machine, write
from tools.bench.scale_traces import Shape

BEGIN: Final = "<!-- made by scripts/bench scale -->"
END: Final = "<!-- end -->"
GATE_SECONDS, GATE_MB, OF_RECORDS = 6.0, 1000.0, 1_000_000
"""The target: a gate of so many records."""
GROWN: Final = 1.25
"""How much more memory ten times the records may take, where what is different stays."""
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
DUCKDB: Final = (
    "import sys, duckdb; duckdb.sql('set threads = 1'); "
    "duckdb.read_json(sys.argv[1]).count('*').fetchall()"
)


WHAT: Final = {
    "loop": "a loop that parses each line (msgspec) and drops it",
    "load": "`wstrace.load`'s reading and analysis",
    "report": "`wstrace report`",
    "gate": "`wstrace gate`",
    "pandas": "pandas.read_json (rows only)",
    "duckdb": "DuckDB read_json, count of rows",
}
Measured = dict[str, dict[str, float]]


def made(folder: Path, shape: Shape, records: int) -> list[Path]:
    """The trace's files, written by a process of its own."""
    module = [sys.executable, "-m", "tools.bench.scale_traces"]
    subprocess.run([*module, str(folder), shape, str(records)], cwd=ROOT, check=True)
    return sorted(folder.glob("*.wst.jsonl"))


def programs(folder: Path, file: Path) -> dict[str, list[str]]:
    """What is measured, by name."""
    python = sys.executable
    found = {
        "loop": [python, "-c", LOOP, str(file)],
        "load": [python, "-c", LOAD, str(file)],
        "report": [*WSTRACE, "report", str(folder), "--format", "text"],
        "gate": [*WSTRACE, "gate", str(folder)],
    }
    others = {"pandas": PANDAS, "duckdb": DUCKDB}
    return found | {n: [python, "-c", s, str(file)] for n, s in others.items() if find_spec(n)}


class Spent(NamedTuple):
    """What a process took."""

    wall: float
    cpu: float
    peak_mb: float


def spent(command: list[str]) -> Spent:
    """Wall and CPU seconds and the peak memory of a process."""
    begun = time.monotonic()
    child = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in (0, 1):
        raise RuntimeError(f"exit code {child.returncode}: {' '.join(command[:4])}")
    cpu = usage.ru_utime + usage.ru_stime
    return Spent(time.monotonic() - begun, cpu, usage.ru_maxrss / 1024)


def measured(commands: dict[str, list[str]], rounds: int) -> Measured:
    """Medians over the rounds; every other round in the opposite order."""
    found: dict[str, list[Spent]] = {name: [] for name in commands}
    for number in range(rounds):
        for name in list(commands)[:: -1 if number % 2 else 1]:
            found[name].append(spent(commands[name]))
    loop = [one.cpu for one in found.get("loop", [])]
    return {
        name: {
            "wall_s": round(median(one.wall for one in rows), 2),
            "cpu_s": round(median(one.cpu for one in rows), 2),
            "peak_mb": round(median(one.peak_mb for one in rows)),
        }
        | (
            {"of_loop": round(median(r.cpu / b for r, b in zip(rows, loop, strict=True)), 2)}
            if loop
            else {}
        )
        for name, rows in found.items()
    }


def run(shape: Shape, count: int, rounds: int = 1, only: Sequence[str] = ()) -> dict[str, Any]:
    """One trace of `count` records, measured; `only`: the programs of this name."""
    with tempfile.TemporaryDirectory() as folder:
        files = made(Path(folder), shape, count)
        every = programs(Path(folder), files[0])
        return {
            "shape": shape,
            "records": count,
            "processes": len(files),
            "bytes": sum(file.stat().st_size for file in files),
            "rounds": rounds,
            "programs": measured(
                {n: c for n, c in every.items() if not only or n in only}, rounds
            ),
        }


def table(found: dict[str, Any]) -> list[str]:
    """A run as a table, the bare loop first."""
    per_record = found["bytes"] / found["records"]
    several = f" of {found['processes']} processes" if found["processes"] > 1 else ""
    rows = [
        f"{found['records']:,} {found['shape']} records{several}, "
        f"{found['bytes'] / 1e9:.2f} GB ({per_record:,.0f} bytes a record), {found['rounds']} "
        f"round{'s' * (found['rounds'] > 1)}:",
        "",
        "| program | wall time, s | CPU time, s | peak, MB | of the loop |",
        "| --- | --- | --- | --- | --- |",
    ]
    rows += [
        f"| {WHAT[name]} | {row['wall_s']:.2f} | {row['cpu_s']:.2f} | {row['peak_mb']:,.0f} | "
        f"{row.get('of_loop', '-')} |"
        for name, row in found["programs"].items()
    ]
    return [*rows, ""]


def target(found: dict[str, Any]) -> str:
    """Whether the gate keeps to its target, with its numbers."""
    gate, share = found["programs"]["gate"], found["records"] / OF_RECORDS
    told = [
        f"{value:,.1f} {unit} against {limit:,.1f}: {'met' if value <= limit else 'missed'}"
        for value, unit, limit in (
            (gate["wall_s"], "s of wall time", GATE_SECONDS * share),
            (gate["cpu_s"], "s of CPU time", GATE_SECONDS * share),
            (gate["peak_mb"], "MB", GATE_MB),
        )
    ]
    return (
        f"Target, a gate of {found['records']:,} {found['shape']} records: {'; '.join(told)}."
    )


def bounded(few: dict[str, Any], many: dict[str, Any]) -> str:
    """Whether the gate's memory stays where the records become many."""
    one, other = (found["programs"]["gate"]["peak_mb"] for found in (few, many))
    kept = "met" if other <= one * GROWN else "missed"
    return (
        f"Target, bounded memory: {other:,} MB for {many['records']:,} {many['shape']} "
        f"records, {one:,} MB for {few['records']:,}: {kept}."
    )


def further(few: dict[str, Any], many: dict[str, Any]) -> str:
    """What one more record cost the gate, from two runs."""
    records = many["records"] - few["records"]
    one, other = (found["programs"]["gate"] for found in (few, many))
    kilobytes = (other["peak_mb"] - one["peak_mb"]) * 1000 / records
    micros = (other["cpu_s"] - one["cpu_s"]) * 1e6 / records
    return f"Each further one costs {micros:.1f} us of CPU time and {kilobytes:.2f} KB."


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most", type=int, default=OF_RECORDS)
    parser.add_argument("--long", type=int, default=10 * OF_RECORDS)
    parser.add_argument("--write", action="store_true", help="Put it into docs/scale.md.")
    options = parser.parse_args()
    runs, said = [run("repeated", options.records, options.rounds)], []
    if options.most:
        runs.append(run("repeated", options.most, only=("loop", "gate")))
        said = [f"{target(runs[-1])} {further(*runs)}"]
        runs.append(run("distinct", options.most, only=("gate",)))
        said.append(target(runs[-1]))
    if options.long and options.most:
        runs += [run("short", n, only=("gate",)) for n in (options.most, options.long)]
        said.append(f"{bounded(*runs[-2:])} {further(*runs[-2:])}")
    facts = {"bench": "scale", "machine": machine(), "runs": runs, "target": said}
    print(json.dumps(facts))
    if options.write:
        lines = [line for found in runs for line in table(found)]
        told = [text for one in said for text in (one, "")]
        text = "\n".join(["", *lines, *told, machine(), ""])
        write(ROOT / "docs" / "scale.md", text, BEGIN, END)
    return int(any("missed" in one for one in said))


if __name__ == "__main__":
    sys.exit(main())
