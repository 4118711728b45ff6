"""A made fleet: runs of many sizes with planted faults, and what was planted where.

    python -m tools.fleet.generate FOLDER [--runs 2000] [--largest 512] [--seed 1]

Writes traces below FOLDER/traces and FOLDER/planted.json: the fault of each run, and what lies
there that is no trace.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, get_args

from tools.fleet.planted import SMALL, Fault, Plan, Written, write_run

FAULTS: Final[tuple[Fault, ...]] = get_args(Fault)
SHARE: Final = 0.15
"""Of the runs that get a fault."""
MODELS: Final = ("fleet-8b", "fleet-70b", "fleet-moe", "fleet-mla")
VERSIONS: Final = ("0.30.0", "0.32.0", "0.33.0")
REGRESSED: Final = ("fleet-regressed", "0.32.0", "0.33.0")
"""A model whose arena is smaller and whose continuation escapes in the second version."""
NEEDS_HOSTS: Final = frozenset(("dead node", "clock"))
NEEDS_RANKS: Final = frozenset(("small rank", "old format", "cut", "torn", "broken line"))
LOG: Final = (
    "(EngineCore pid=2452) ERROR 11-27 21:29:41 [core.py:1142] AssertionError: Workspace is "
    "locked but allocation from 'turboquant_attn.py:747:_continuation_prefill' requires "
    "9.94 MB, current size is 2.05 MB. Workspace growth is not allowed after locking.\n"
)


def plans(count: int, largest: int, seed: int) -> Iterator[Plan]:
    """The runs: mostly small ones, every fault in turn, a few of `largest` ranks."""
    lot = random.Random(seed)
    faults = [fault for fault in FAULTS if fault != "none"]
    faulty = 0
    for number in range(count):
        planted: Fault = "none"
        if lot.random() < SHARE or number < len(faults):
            planted = faults[faulty % len(faults)]
            faulty += 1
        ranks = lot.choice((1, 1, 1, 2, 2, 4, 8))
        if number % max(1, count // 4) == count // 8:
            ranks = largest
        if planted in NEEDS_RANKS:
            ranks = max(ranks, 2)
        if planted in NEEDS_HOSTS:
            ranks = max(ranks, 8)
        hosts = max(1, ranks // 8) if planted not in NEEDS_HOSTS else max(4, ranks // 8)
        yield Plan(
            run=f"20260528T{number // 3600 % 24:02}{number // 60 % 60:02}{number % 60:02}Z"
            f"-{lot.getrandbits(32):08x}",
            # an arena follows from model, settings and version: too small, it is another model
            model=f"fleet-{planted}" if planted in SMALL else lot.choice(MODELS),
            vllm=lot.choice(VERSIONS),
            ranks=ranks,
            hosts=hosts,
            dp=2 if ranks >= 16 else 1,
            fault=planted,
            day=number % 60,
            max_model_len=lot.choice((2048, 4096, 8192)),
        )


def regressed(seed: int) -> Iterator[Plan]:
    """Ten runs of one setting on two versions: of the later one all die and lock at less."""
    model, old, new = REGRESSED
    lot = random.Random(seed + 1)
    for number in range(10):
        vllm = (old, new)[number % 2]
        yield Plan(
            run=f"20260529T00{number:02}00Z-{lot.getrandbits(32):08x}",
            model=model,
            vllm=vllm,
            fault="death" if vllm == new else "none",
            day=number,
        )


def write_fleet(folder: Path, count: int, largest: int, seed: int) -> dict[str, str]:
    """Write the fleet; returns and keeps the fault of each run, and of what is no trace."""
    traces = folder / "traces"
    planted: dict[str, str] = {}
    for number, plan in enumerate((*plans(count, largest, seed), *regressed(seed))):
        # several launches share a folder, as they do on shared storage
        at = traces / plan.model / f"{number // 20:04}"
        spoil(plan, write_run(plan, at), traces)
        planted[plan.run] = plan.fault
    planted |= _beside(traces)
    (folder / "planted.json").write_text(json.dumps(planted, indent=1))
    return planted


def spoil(plan: Plan, written: Written, traces: Path) -> None:
    """What happens to files after they were written."""
    last = written.files[max(written.files)]
    match plan.fault:
        case "cut":
            last.write_bytes(last.read_bytes()[:-25])
        case "torn":
            last.write_bytes(last.read_bytes()[:40])
        case "broken line":
            lines = last.read_bytes().splitlines(keepends=True)
            lines[len(lines) // 2] = b'{"t":"request","si\n'
            last.write_bytes(b"".join(lines))
        case "twice" | "grown copy":
            again = traces / "gathered-again" / plan.run
            again.mkdir(parents=True)
            for file in written.files.values():
                copy = shutil.copy2(file, again)
                if plan.fault == "grown copy":  # gathered while it was still written
                    lines = file.read_bytes().splitlines(keepends=True)
                    Path(copy).write_bytes(b"".join(lines[:-3]))
        case "restarted":
            write_run(plan, last.parent.parent)


def _beside(traces: Path) -> dict[str, str]:
    """What lies on the same storage and is no run."""
    notes = traces / "notes"
    notes.mkdir(parents=True)
    (notes / "README.md").write_text("Not a trace.\n")
    (notes / "results.json").write_text("{}")
    (notes / "serve.log").write_text(LOG)
    (notes / "quiet.log").write_text("INFO 11-27 21:27:41 [core.py:109] nothing happened\n")
    (notes / "foreign.wst.jsonl").write_text('{"not": "ours"}\n')
    return {"serve.log": "log", "quiet.log": "quiet log", "foreign.wst.jsonl": "foreign"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write one fleet and say how large it is."""
    parser = argparse.ArgumentParser(prog="tools.fleet.generate", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--largest", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    planted = write_fleet(options.folder, options.runs, options.largest, options.seed)
    files = [file for file in (options.folder / "traces").rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    print(f"{len(planted):,} runs, {len(files):,} files, {size / 1e6:,.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
