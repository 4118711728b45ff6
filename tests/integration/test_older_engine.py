"""The whole main job on an older release of the CPU engine.

WSTRACE_OLD_ENGINE names a folder made with `pip install --target`, as scripts/test-old-engine
does; the test is skipped without it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from wstrace.findings.analysed_run import AnalysedRun, load_run
from wstrace.testbed.engine import Server, plugin_path
from wstrace.trace.records import Phase

FOLDER = os.environ.get("WSTRACE_OLD_ENGINE", "")
PROMPTS = (100, 700)
pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER, reason="WSTRACE_OLD_ENGINE names no older engine"),
]


@dataclass
class Served:
    """What a server left: the statuses of the prompts, and its trace."""

    statuses: list[int]
    trace: Path

    @property
    def analysed(self) -> AnalysedRun:
        return load_run(self.trace)


@pytest.fixture(scope="module")
def version() -> str:
    """The older engine's version, from its metadata."""
    (alias,) = Path(FOLDER).glob("vllm-*.dist-info")
    return alias.name.removeprefix("vllm-").removesuffix(".dist-info")


def wstrace(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A wstrace command, as a person types it."""
    command = [sys.executable, "-m", "wstrace.cli.app", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def serve_prompts(serve: Callable[..., Server], trace: Path, *options: str) -> Served:
    """Answer both prompts under `wstrace run`, then stop."""
    before = [sys.executable, "-m", "wstrace.cli.app", "run", "-o", str(trace), *options, "--"]
    server = serve(
        "continuation,decode_scratch", before=before, env={"PYTHONPATH": plugin_path(FOLDER)}
    )
    statuses = [server.complete(prompt).status for prompt in PROMPTS]
    server.stop()
    return Served(statuses, trace)


def test_the_main_job(serve: Callable[..., Server], tmp_path: Path, version: str) -> None:
    crash = serve_prompts(serve, tmp_path / "crash")
    assert crash.statuses == [200, 500]
    assert crash.analysed.workers[0].header.vllm == version
    escaped = [
        f for f in crash.analysed.escapes if f.function.endswith("_continuation_prefill")
    ]
    assert [f.code for f in escaped] == ["WS101"]
    assert _phases(crash.analysed) >= {"load", "profile", "warmup", "serving"}
    assert [h for h in crash.analysed.workers[0].hooks.values() if not h.set] == []

    reserve = tmp_path / "reserve.yaml"
    made = wstrace("reserve", str(crash.trace), "-o", str(reserve))
    assert made.returncode == 0, made.stderr
    cured = serve_prompts(serve, tmp_path / "cured", "--reserve", str(reserve))
    assert cured.statuses == [200, 200]
    assert cured.analysed.escapes == []

    gate = wstrace("gate", str(cured.trace), "--format", "json")
    assert (gate.returncode, json.loads(gate.stdout)["verdict"]) == (0, "clean")
    assert wstrace("gate", str(crash.trace)).returncode == 1


def _phases(session: AnalysedRun) -> set[Phase]:
    return {change.phase for change in session.workers[0].phases}
