"""vLLM's own tests of its workspace manager pass with the hooks on, as they do without.

They are fetched for the engine's release when this runs, and never committed.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.matrix.wheels import UnavailableError, own_tests
from wstrace.trace.reader import load_trace
from wstrace.trace.records import Failure, Request

pytestmark = [pytest.mark.engine, pytest.mark.slow]
ROOT = Path(__file__).parents[2]


def outcomes(engine: Path, tests: Path, **environ: str) -> dict[str, str]:
    """What became of each test, by its name."""
    done = subprocess.run(
        [
            engine / "bin" / "python", "-m", "pytest", "-v", "-c", os.devnull, "--noconftest",
            "-p", "no:cacheprovider", "-p", "no:wstrace", "-p", "tests.integration.hooked",
            tests,
        ],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    # matches: "test_workspace.py::test_a[x-y] PASSED      [ 50%]"
    found = re.findall(r"::(\S+) (PASSED|FAILED|ERROR|SKIPPED)", done.stdout)
    assert found, done.stdout + done.stderr
    return dict(found)


def test_they_pass_with_the_hooks_on(engine: Path, tmp_path: Path) -> None:
    script = "from importlib.metadata import version; print(version('vllm'))"
    command = [str(engine / "bin" / "python"), "-c", script]
    release = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    try:
        tests = own_tests(release.strip().partition("+")[0])
    except UnavailableError as error:
        pytest.skip(str(error))
    plain = outcomes(engine, tests)
    assert set(plain.values()) == {"PASSED"}
    assert outcomes(engine, tests, WSTRACE_DIR=str(tmp_path)) == plain
    (process,) = load_trace(tmp_path).processes
    kinds = {type(record) for record in process.records}
    assert {Request, Failure} <= kinds  # the hooks were there
