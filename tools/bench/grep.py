"""Triage beside grep: CPU time of both on the same log, in turn.

    scripts/bench grep [--mb 256] [--rounds 6] [--write]

`grep -c` counts the lines with the message's beginning and understands nothing: what reading a
log costs at least. Both read the same file, the one after the other, in turn; the first half of
the rounds is one run, the second half the other. Seconds are for 1 GB. --write puts the table
into docs/scale.md. The last line is all of it as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from tools import ROOT
from tools.bench import twice
from tools.bench.machine import machine, write
from tools.bench.triage import MESSAGE, SHAPES, WHOLE_MB

BEGIN, END = "<!-- made by scripts/bench grep -->", "<!-- end of bench grep -->"
LOGS = ("quiet", "crash-loop")
WORDS = MESSAGE.partition(":")[2].strip()[:24]


def cpu(command: list[str]) -> tuple[float, bytes]:
    """CPU seconds of a command, and what it said."""
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    assert child.stdout is not None
    said = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = status
    if status:
        sys.exit(f"grep: {command[0]} failed")
    return usage.ru_utime + usage.ru_stime, said


def round_of(log: Path, turn: int) -> dict[str, float]:
    """Seconds of both, for 1 GB."""
    commands = {
        "grep": ["grep", "-c", WORDS, str(log)],
        "triage": [sys.executable, "-m", "wstrace.cli.app", "triage", str(log)],
    }
    found = {}
    for name in list(commands)[:: -1 if turn % 2 else 1]:
        seconds, said = cpu(commands[name])
        if not (int(said) if name == "grep" else b"_continuation_prefill" in said):
            sys.exit(f"grep: {name} did not find the failure")
        found[name] = seconds * (WHOLE_MB << 20) / log.stat().st_size
    return found


def figures(run: list[dict[str, float]]) -> twice.Run:
    return {
        "grep s": [r["grep"] for r in run],
        "triage s": [r["triage"] for r in run],
        "ratio": [r["triage"] / r["grep"] for r in run],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mb", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--write", action="store_true", help="Put it into docs/scale.md.")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("two runs need two rounds")
    half, facts = options.rounds // 2, {}
    rows = ["| log | grep -c, s | triage, s | of grep's |", "| --- | --- | --- | --- |"]
    said = []
    with tempfile.TemporaryDirectory() as folder:
        for shape in LOGS:
            log = Path(folder) / f"{shape}.log"
            with log.open("wb") as file:
                file.writelines(SHAPES[shape](options.mb << 20))
            rounds = [round_of(log, turn) for turn in range(options.rounds)]
            log.unlink()
            first, second = figures(rounds[:half]), figures(rounds[half:])
            whole = {name: median(v) for name, v in twice.both(first, second).items()}
            rows.append(
                f"| {shape} | {whole['grep s']:.2f} | {whole['triage s']:.1f} | "
                f"{whole['ratio']:.0f} |"
            )
            said.append(f"{shape}: {twice.told(first, second)}")
            facts[shape] = twice.facts(first, second)
    text = "\n".join([*rows, "", *said, "", machine()])
    print(text)
    print(json.dumps({"bench": "grep", "mb": options.mb, "logs": facts}))
    if options.write:
        write(ROOT / "docs" / "scale.md", f"\n{text}\n", BEGIN, END)
    return 0


if __name__ == "__main__":
    sys.exit(main())
