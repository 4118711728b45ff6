"""`wstrace fleet` on 10,000, 100,000 and 1,000,000 files: memory and time for each size.

    scripts/bench fleet_files [--files 10000 100000 1000000] [--jobs 2] [--write]

For each size a fleet of as many files is made (`tools/fleet/many.py`: no two are equal), read
with a fresh cache to JSON, and read once more from the cache to a site without reports. Every
planted fault must be in the JSON and none invented. Prints a line a size. A million files are
4 GB on disk (in TMPDIR) and take about 20 minutes on 2 cores. --write puts the table into
docs/fleet.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tools.bench.fleet import PAGE, check, spent
from tools.bench.machine import machine, write
from tools.fleet.many import write_many

BEGIN: Final = "<!-- made by scripts/bench fleet_files -->"
END: Final = "<!-- end -->"
SIZES: Final = (10_000, 100_000, 1_000_000)


def measured(files: int, jobs: int) -> dict[str, Any]:
    """One size; what it wrote is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        traces = place / "traces"
        count, planted = write_many(traces, files, seed=1)
        fleet = [sys.executable, "-m", "wstrace.cli.app", "fleet", str(traces)]
        fleet += ["--cache", str(place / "cache"), "--jobs", str(jobs)]
        fresh, fresh_mb = spent([*fleet, "-o", str(place / "fresh.json")])
        check(place, "fresh", planted)
        site = [*fleet, "-o", str(place / "site"), "--reports", "none"]
        again, again_mb = spent(site)
        cache = (place / "cache" / "fleet.sqlite").stat().st_size
        shutil.rmtree(traces)
    return {
        "files": count,
        "runs": len(planted),
        "faults": sum(fault != "none" for fault in planted.values()),
        "fresh_s": round(fresh, 1),
        "fresh_mb": round(fresh_mb),
        "again_s": round(again, 1),
        "again_mb": round(again_mb),
        "cache_bytes": cache,
    }


def section(found: Sequence[dict[str, Any]], jobs: int) -> list[str]:
    """The table for the page."""
    rows = [
        f"`wstrace fleet --jobs {jobs}` with a fresh cache, to JSON, and once more from the "
        "cache, to a site without reports:",
        "",
        "| files | runs | time, s | a file, ms | peak of its largest process, MB "
        "| again, s | its peak, MB | cache, MB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for size in found:
        cells = (
            f"{size['files']:,}", f"{size['runs']:,}", f"{size['fresh_s']:,.1f}",
            f"{1000 * size['fresh_s'] / size['files']:.2f}", f"{size['fresh_mb']:,}",
            f"{size['again_s']:,.1f}", f"{size['again_mb']:,}",
            f"{size['cache_bytes'] / 1e6:,.0f}",
        )  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
    faults = ", ".join(f"{size['faults']:,}" for size in found)
    told = f"All planted faults ({faults}) were found, and none was invented."
    return [*rows, "", told, "", machine()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(prog="scripts/bench fleet_files", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--files", type=int, nargs="+", default=SIZES)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="put it into docs/fleet.md")
    options = parser.parse_args(arguments)
    found = []
    for files in options.files:
        found.append(measured(files, options.jobs))
        print(json.dumps(found[-1]), flush=True)
    if options.write:
        write(PAGE, "\n".join(["", *section(found, options.jobs), ""]), BEGIN, END)
    return 0


if __name__ == "__main__":
    sys.exit(main())
