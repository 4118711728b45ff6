"""A fleet of very many files: made runs, each written again and again under other ids."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tools.fleet.generate import plans, spoil
from tools.fleet.planted import Fault, write_run

KINDS = 120
"""Made runs that are written again: every fault, all models, versions and lengths."""
LARGEST = 16


@dataclass(frozen=True)
class MadeRun:
    """The files of one run, by their path below the fleet's folder."""

    run: str
    fault: Fault
    files: dict[str, bytes]

    def write(self, folder: Path, run: str) -> int:
        """The same files as a run of another id; returns how many."""
        old, new = self.run.encode(), run.encode()
        for name, data in self.files.items():
            path = folder / name.replace(self.run, run)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data.replace(old, new))
        return len(self.files)


def write_many(traces: Path, files: int, seed: int) -> tuple[int, dict[str, str]]:
    """Write at least `files` files below `traces`; how many, and the fault of each run.

    No two are equal: each has its run's id in it, as have the real ones.
    """
    lot = random.Random(seed)
    kinds = list(_made(seed))
    planted: dict[str, str] = {}
    count = number = 0
    while count < files:
        kind = kinds[number % len(kinds)]
        run = f"{kind.run[:17]}{lot.getrandbits(32):08x}"
        if run not in planted:
            count += kind.write(
                traces / f"{number // 2000:04}" / f"{number // 20 % 100:02}", run
            )
            planted[run] = kind.fault
        number += 1
    return count, planted


def _made(seed: int) -> Iterator[MadeRun]:
    for plan in islice(plans(KINDS, LARGEST, seed), KINDS):
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            spoil(plan, write_run(plan, place / "traces"), place)
            files = {
                path.relative_to(place).as_posix(): path.read_bytes()
                for path in sorted(place.rglob("*"))
                if path.is_file()
            }
        yield MadeRun(plan.run, plan.fault, files)
