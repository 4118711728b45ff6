"""One run of the scenarios against one version: its facts and its traces."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.integration.engine import MISSING, engine_prefix
from wstrace.findings.analysed_run import AnalysedRun, load_run
from wstrace.trace.process_file import ProcessTrace
from wstrace.trace.reader import load_trace
from wstrace.trace.records import Record

REPOSITORY = Path(__file__).parents[2]
Version = tuple[int, ...]


def parsed(version: str) -> Version:
    """(0, 20, 2) of "0.20.2"."""
    return tuple(int(part) for part in version.split("."))


@dataclass(frozen=True)
class Run:
    """The folder that the child process filled, and the version that it ran."""

    version: Version
    folder: Path

    def facts(self, scenario: str) -> dict[str, Any]:
        """What the scenario returned; a scenario that raised fails the test."""
        facts: dict[str, Any] = json.loads((self.folder / f"{scenario}.json").read_text())
        assert "raised" not in facts, facts["raised"]
        return facts

    def process(self, scenario: str) -> ProcessTrace:
        """The one trace file of a scenario."""
        self.facts(scenario)
        (process,) = load_trace(self.folder / scenario).processes
        return process

    def records(self, scenario: str, kind: type[Record]) -> list[Any]:
        """All records of one kind, in order."""
        return [r for r in self.process(scenario).records if isinstance(r, kind)]

    def analysed(self, scenario: str) -> AnalysedRun:
        """The scenario's analysed trace."""
        self.facts(scenario)
        return self.load(scenario)

    def load(self, folder: str) -> AnalysedRun:
        """The analysed trace in a folder below this run's."""
        return _load(self.folder / folder)

    def codes(self, scenario: str) -> list[str]:
        """Codes of the findings of a scenario, sorted."""
        return sorted(f.code for f in self.analysed(scenario).findings)


@cache
def _load(folder: Path) -> AnalysedRun:
    return load_run(folder)


def run_scenarios(*pairs: tuple[Path, Path], names: Iterable[str] = ()) -> list[Run]:
    """Run the scenarios (all, or those named) for each (sources, out), each in a process."""
    prefix = engine_prefix()
    assert prefix is not None, MISSING
    command = [str(prefix / "bin" / "python"), "-m", "tests.matrix.child", ",".join(names)]
    done = subprocess.run(
        [*command, *(str(folder) for pair in pairs for folder in pair)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "TQDM_DISABLE": "1"},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [Run(parsed(_version_of(sources)), out) for sources, out in pairs]


def _version_of(sources: Path) -> str:
    (metadata,) = sources.glob("*.dist-info/METADATA")
    lines = metadata.read_text().splitlines()
    return next(line.split(": ")[1] for line in lines if line.startswith("Version: "))
