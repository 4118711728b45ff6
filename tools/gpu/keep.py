"""Make sample_traces/gpu-tables/NAME.json anew from unpacked results.

    scripts/gpu keep UNPACKED...

NAME is the folder's: SCENARIO or, of another run, SCENARIO-x.

Each trace is judged again with this tree's wstrace, so that a table says what it would find
today; then the claims are evaluated from the run's own files. scripts/make-docs gpu writes
the pages from these.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Final

from tools import ROOT
from tools.gpu.claims import setting_of, table_of
from tools.gpu.host import FACTS
from wstrace.errors import WstraceError

TABLES: Final = ROOT / "sample_traces" / "gpu-tables"
# matches: "Command '['/opt/torch/bin/python3', '-P']' timed out"
FOLDERS: Final = re.compile(r"(?<![\w/.])/(?:[\w.+-]+/)+")
NEVER_LOCKS: Final = ("b", "e", "h-prefix")
GATE: Final = (sys.executable, "-m", "wstrace.cli.app", "gate")


def judge(server: Path, scenario: str) -> None:
    """gate.json and gate.exit of one server, as the runner made them on the host."""
    options = ["--allow-unlocked"] if scenario in NEVER_LOCKS else []
    done = subprocess.run(
        [*GATE, "trace", "--format", "json:gate.json", *options],
        cwd=server,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    (server / "gate.exit").write_text(f"{done.returncode}\n")


def keep(result: Path) -> None:
    """Make the kept table of one unpacked result. Raises WstraceError where it is not one."""
    setting_of(result)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(shutil.copytree(result, Path(scratch) / result.resolve().name))
        setting = json.loads((folder / "scenario.json").read_text())
        for trace in folder.glob("*/trace"):
            judge(trace.parent, setting["scenario"])
        claims, told = table_of(folder)
    payload = {
        "facts": {name: setting[name] for name in FACTS if name in setting},
        "claims": [asdict(claim) for claim in claims],
        "not_run": [FOLDERS.sub("", line) for line in told],
    }
    TABLES.mkdir(parents=True, exist_ok=True)
    name = result.resolve().name
    if name != setting["scenario"] and not name.startswith(f"{setting['scenario']}-"):
        raise WstraceError(f"{name} holds scenario {setting['scenario']}.", "Name it after it.")
    (TABLES / f"{name}.json").write_text(json.dumps(payload, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/gpu keep")
    parser.add_argument("results", type=Path, nargs="+", metavar="UNPACKED")
    try:
        for result in parser.parse_args().results:
            keep(result)
    except WstraceError as error:
        print(f"gpu keep: {error.message}\n{error.hint}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
