"""A report over a trace of 1,000,000 records: processor time, memory, size of the page."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.unit.report_html import runs
from wstrace.trace.records import Count, Counts, Record, ScheduledRequest, Site, Step

ASKS, COUNTS_EACH = 10_000, 99
MOST_TIMES, MOST_BYTES = 6, 1_500_000_000


def _write_million(path: Path) -> int:
    """A long run of one worker: 10,000 novel requests of 20 sites, and its counters."""
    clock, encode, lines = runs.Clock(), msgspec.json.Encoder().encode, 1
    with path.open("wb") as file:
        file.write(encode(runs.header()) + b"\n")

        def write(records: list[Record]) -> int:
            stamped = clock.stamp(records, 1000)
            file.write(b"".join(encode(r) + b"\n" for r in stamped))
            return len(stamped)

        sites: list[Record] = [
            Site(
                id=10 + i,
                file=f"l{i % 7}.py",
                function=f"L{i}.forward",
                line=i,
                caller=f"l:{i}:f",
            )
            for i in range(20)
        ]
        lines += write([*runs.worker(0, 1), *sites, *runs.warm_up()])
        for i in range(ASKS):
            lines += write([_novel(i), *_counters(i)])
    return lines


def _novel(i: int) -> Record:
    computed = i * 7919 % 16383
    request = ScheduledRequest(scheduled=2048, computed=computed)
    step = Step(index=i, total_tokens=2048, num_reqs=1, requests=[request])
    size, site = 256 * (1 + computed), 10 + i % 20
    return runs.ask(size, "serving", site=site, arena=24 << 20, locked=True, step=step)


def _counters(i: int) -> list[Record]:
    count = Count(10 + i % 20, runs.SLOT, "serving", i, 1 << 20)
    return [
        Counts(step=i * 100 + j, steps_real=i * 100 + j, counts=[count])
        for j in range(COUNTS_EACH)
    ]


def _spent(who: int) -> float:
    """Seconds of processor time, of this process or of its children that have ended."""
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


@pytest.mark.slow
def test_a_million_records_cost_six_plain_loops_and_1500_mb(tmp_path: Path) -> None:
    """Processor time against that of `json.loads` over the same lines, in the same run: both
    grow alike on a slower machine, or where other work shares it. The report takes 3 to 4."""
    trace = tmp_path / "r.host.1.wst.jsonl"
    assert _write_million(trace) > 1_000_000
    loop = _spent(resource.RUSAGE_SELF)
    with trace.open("rb") as lines:
        for line in lines:
            json.loads(line)
    loop = _spent(resource.RUSAGE_SELF) - loop
    spent = _spent(resource.RUSAGE_CHILDREN)
    target = tmp_path / "report.html"
    subprocess.run(
        [sys.executable, "-m", "wstrace.cli.app", "report", str(tmp_path), "-o", str(target)],
        check=True,
    )
    spent = _spent(resource.RUSAGE_CHILDREN) - spent
    assert spent < MOST_TIMES * loop
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 < MOST_BYTES
    assert target.stat().st_size < 3_000_000
    text = target.read_text("utf-8")
    assert "drawn as the" in text
