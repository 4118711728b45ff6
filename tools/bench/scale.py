"""Reading, report and gate of a large trace, beside other readers of the same file.

    scripts/bench scale [--records 100000] [--rounds 3] [--most 1000000] [--write]

The trace is a sample's, its serving requests repeated with other sizes and steps, each with
its stack and provenance (4 KB a record). Every round runs every program once, in a process of
its own; a program that is not installed is left out. Then the gate and the bare loop run once
on `--most` records (0: not). Prints one JSON line: for each program the medians of CPU
seconds and peak MB, and of the ratio of its CPU time to the bare loop of the same round.
--write puts them into docs/scale.md, with the targets and whether they are met.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec

from tools import ROOT
from tools.bench.overhead import machine, write

BEGIN: Final = "<!-- made by scripts/bench scale -->"
END: Final = "<!-- end -->"
SAMPLE: Final = ROOT / "sample_traces" / "h100-vllm-0.21.0-turboquant-grow"
GATE_SECONDS, GATE_MB, OF_RECORDS = 6.0, 1000.0, 1_000_000
"""The target: a gate of so many records."""
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


def records(lines: list[str], wanted: int) -> Iterator[str]:
    """The sample's lines, and before its last phase `wanted` more requests in serving."""
    kept = [json.loads(line) for line in lines]
    model = next(r for r in kept if r["t"] == "request" and r["phase"] == "serving")
    last = max(n for n, r in enumerate(kept) if r["t"] == "request")
    yield from lines[: last + 1]
    for number in range(wanted):
        yield msgspec.json.encode(another(model, number)).decode()
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


def write_trace(folder: Path, wanted: int) -> Path:
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


def measured(commands: dict[str, list[str]], rounds: int) -> Measured:
    """Medians over the rounds; every other round in the opposite order."""
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


def run(count: int, rounds: int, only: Sequence[str] = ()) -> dict[str, Any]:
    """One trace of `count` records, measured; `only`: the programs of this name."""
    with tempfile.TemporaryDirectory() as folder:
        file = write_trace(Path(folder), count)
        chosen = {n: c for n, c in programs(file).items() if not only or n in only}
        size = file.stat().st_size
        return {
            "records": count,
            "bytes": size,
            "rounds": rounds,
            "programs": measured(chosen, rounds),
        }


def table(found: dict[str, Any]) -> list[str]:
    """A run as a table, the bare loop first."""
    per_record = found["bytes"] / found["records"]
    rows = [
        f"{found['records']:,} records, {found['bytes'] / 1e9:.2f} GB ({per_record:,.0f} bytes "
        f"a record), {found['rounds']} round{'s' * (found['rounds'] > 1)}:",
        "",
        "| program | CPU time, s | peak, MB | of the loop |",
        "| --- | --- | --- | --- |",
    ]
    rows += [
        f"| {WHAT[name]} | {row['cpu_s']:.2f} | {row['peak_mb']:,.0f} | {row['of_loop']:.2f} |"
        for name, row in found["programs"].items()
    ]
    return [*rows, ""]


def targets(found: dict[str, Any]) -> str:
    """Whether the gate keeps to its target, with its numbers."""
    gate, share = found["programs"]["gate"], found["records"] / OF_RECORDS
    told = [
        f"{value:,.1f} {unit} against {limit:,.1f}: {'met' if value <= limit else 'missed'}"
        for value, unit, limit in (
            (gate["cpu_s"], "s", GATE_SECONDS * share),
            (gate["peak_mb"], "MB", GATE_MB),
        )
    ]
    return f"Target, a gate of {found['records']:,} records: " + "; ".join(told) + "."


def further(few: dict[str, Any], many: dict[str, Any]) -> str:
    """What one more record cost the gate, from two runs."""
    records = many["records"] - few["records"]
    one, other = (found["programs"]["gate"] for found in (few, many))
    kilobytes = (other["peak_mb"] - one["peak_mb"]) * 1000 / records
    micros = (other["cpu_s"] - one["cpu_s"]) * 1e6 / records
    return f"Each further record costs the gate {micros:.1f} us and {kilobytes:.2f} KB."


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most", type=int, default=OF_RECORDS)
    parser.add_argument("--write", action="store_true", help="Put it into docs/scale.md.")
    options = parser.parse_args()
    runs = [run(options.records, options.rounds)]
    if options.most:
        runs.append(run(options.most, 1, ("loop", "gate")))
    said = targets(runs[-1])
    if options.most:
        said += f" {further(*runs)}"
    facts = {"bench": "scale", "machine": machine(), "runs": runs, "target": said}
    print(json.dumps(facts))
    if options.write:
        lines = [line for found in runs for line in table(found)]
        text = "\n".join(["", *lines, said, "", machine(), ""])
        write(ROOT / "docs" / "scale.md", text, BEGIN, END)
    return int("missed" in said)


if __name__ == "__main__":
    sys.exit(main())
