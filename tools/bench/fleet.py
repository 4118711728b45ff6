"""`wstrace fleet` on a made fleet: one process, two, two Ray nodes; DuckDB and pandas beside.

    scripts/bench fleet [--runs 2000] [--largest 512] [--rounds 3] [--write]

Every round runs every program once on the same files, in a process of its own that pays for
its start (the Ray cluster is up before), and checks that all planted faults were found and
none was invented. What is not installed is left out. Prints one JSON line: for each program
the medians of wall seconds and peak MB of its largest process, and of the ratio to one process
of the same round. --write puts them into docs/fleet.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, Final

from tools import ROOT
from tools.bench.machine import machine, write
from tools.fleet.found import wrong
from tools.fleet.generate import write_fleet
from wstrace.units import plural

BEGIN: Final = "<!-- made by scripts/bench fleet -->"
END: Final = "<!-- end -->"
PAGE: Final = ROOT / "docs" / "fleet.md"
DUCKDB: Final = """
import sys, duckdb
duckdb.sql("set threads = 2")
print(duckdb.sql(f"select t, count(*) from read_json('{sys.argv[1]}/**/*.wst.jsonl', "
    "format='newline_delimited', columns={t: 'VARCHAR'}, ignore_errors=true) group by t"))
"""
PANDAS: Final = """
import sys, pathlib, pandas
rows = 0
for file in pathlib.Path(sys.argv[1]).rglob("*.wst.jsonl"):
    try:
        rows += len(pandas.read_json(file, lines=True))
    except ValueError:
        pass
print(rows)
"""
WHAT: Final = {
    "one": "`wstrace fleet --jobs 1`",
    "two": "`wstrace fleet --jobs 2`",
    "ray": "`wstrace fleet --engine ray`, two nodes of one core on this machine",
    "again": "`wstrace fleet` once more, all in the cache",
    "duckdb": "DuckDB read_json, count of records by kind, two threads",
    "pandas": "pandas.read_json of each file, count of rows",
}


def programs(traces: Path, work: Path) -> dict[str, list[str]]:
    """What is measured, by name."""
    python = sys.executable
    fleet = [python, "-m", "wstrace.cli.app", "fleet", str(traces), "--format", "json"]
    fresh = [*fleet, "--no-cache"]
    found = {
        "one": [*fresh, "--jobs", "1", "-o", str(work / "one.json")],
        "two": [*fresh, "--jobs", "2", "-o", str(work / "two.json")],
        "again": [*fleet, "--cache", str(work / "cache"), "-o", str(work / "again.json")],
    }
    if os.environ.get("RAY_ADDRESS"):
        found["ray"] = [*fresh, "--engine", "ray", "-o", str(work / "ray.json")]
    others = {"duckdb": DUCKDB, "pandas": PANDAS}
    return found | {
        name: [python, "-c", script, str(traces)]
        for name, script in others.items()
        if find_spec(name)
    }


@contextmanager
def two_nodes() -> Iterator[None]:
    """A Ray cluster of two nodes on this machine, named in RAY_ADDRESS, where Ray is there."""
    if not find_spec("ray"):
        yield
        return
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        os.environ["RAY_ADDRESS"] = cluster.address
        yield
    finally:
        os.environ.pop("RAY_ADDRESS", None)
        cluster.shutdown()


def spent(command: list[str]) -> tuple[float, float]:
    """Wall seconds, and peak MB of the process or the largest of its children."""
    begun = time.perf_counter()
    env = {n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}
    child = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env
    )
    assert child.stderr is not None
    said = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{' '.join(command[:6])}: {said.decode()[-2000:]}")
    return time.perf_counter() - begun, usage.ru_maxrss / 1024


def check(work: Path, name: str, planted: dict[str, str]) -> None:
    """RuntimeError where a fault was missed or invented.

    In a process of its own: Linux counts what the bench once held as its next child's peak.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(_check, work, name, planted).result()


def _check(work: Path, name: str, planted: dict[str, str]) -> None:
    told = json.loads((work / f"{name}.json").read_text())
    if differs := wrong(told["runs"], planted):
        raise RuntimeError(f"{name}: {len(differs)} differ, as {differs[:3]}")


def measured(traces: Path, work: Path, planted: dict[str, str], rounds: int) -> dict[str, Any]:
    """Medians over the rounds; every other round in the opposite order."""
    commands = programs(traces, work)
    spent(commands["again"])  # fills the cache
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for number in range(rounds):
        for name in list(commands)[:: -1 if number % 2 else 1]:
            found[name].append(spent(commands[name]))
            if name in ("one", "two", "ray", "again"):
                check(work, name, planted)
    base = [seconds for seconds, _ in found["one"]]
    return {
        name: {
            "wall_s": round(median(s for s, _ in rows), 2),
            "peak_mb": round(median(mb for _, mb in rows)),
            "of_one": round(median(s / b for (s, _), b in zip(rows, base, strict=True)), 2),
        }
        for name, rows in found.items()
    }


def run(runs: int, largest: int, rounds: int) -> dict[str, Any]:
    """One fleet, made and measured."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        planted = write_fleet(place, runs, largest, seed=1)
        traces = place / "traces"
        files = [file for file in traces.rglob("*") if file.is_file()]
        size = sum(file.stat().st_size for file in files)
        with two_nodes():
            found = measured(traces, place, planted, rounds)
        faults = sum(fault != "none" for fault in planted.values())
    return {
        "runs": len(planted),
        "largest": largest,
        "faults": faults,
        "files": len(files),
        "bytes": size,
        "rounds": rounds,
        "programs": found,
    }


def section(found: dict[str, Any]) -> list[str]:
    """The table for the page."""
    rows = [
        f"{found['runs']:,} runs, the largest of {found['largest']} ranks, {found['files']:,} "
        f"files, {found['bytes'] / 1e6:,.0f} MB; {plural(found['rounds'], 'round')}:",
        "",
        "| program | wall time, s | peak of its largest process, MB | of one process |",
        "| --- | --- | --- | --- |",
    ]
    for name in (name for name in WHAT if name in found["programs"]):
        p = found["programs"][name]
        cells = (WHAT[name], f"{p['wall_s']:.1f}", f"{p['peak_mb']:,}", f"{p['of_one']:.2f}")
        rows.append(f"| {' | '.join(cells)} |")
    return [
        *rows,
        "",
        f"In every round each `wstrace fleet` found all {found['faults']} planted faults and "
        "invented none.",
        "",
        machine(),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(prog="scripts/bench fleet", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--largest", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="put it into docs/fleet.md")
    options = parser.parse_args(arguments)
    found = run(options.runs, options.largest, options.rounds)
    print(json.dumps(found))
    if options.write:
        write(PAGE, "\n".join(["", *section(found), ""]), BEGIN, END)
    return 0


if __name__ == "__main__":
    sys.exit(main())
