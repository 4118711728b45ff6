"""A vLLM of the future, made by editing a copy of the newest one when the test runs.

vLLM must go on as if wstrace were not there; the one hook that does not fit stands down; the
trace, the gate and doctor name it. What the recorder passes through is no reason to.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.matrix.futures import ENSURE, FUTURES, Future
from tests.matrix.runs import Run, run_scenarios
from tests.matrix.wheels import CI, UnavailableError, sources
from wstrace.trace.reader import load_trace
from wstrace.trace.records import Hook

pytestmark = pytest.mark.matrix
shows = pytest.mark.shows
GATE = (
    *(sys.executable, "-m", "wstrace.cli.app", "gate"),
    *("--format", "text", "--format", "json:verdict.json"),
)
Edited = tuple[Run, Future]


@pytest.fixture(scope="session")
def newest() -> Path:
    """Sources of the newest pinned version."""
    try:
        return sources(CI[-1])
    except UnavailableError as error:
        pytest.fail(f"vLLM {CI[-1]} cannot be had: {error}", pytrace=False)


@pytest.fixture(scope="module")
def runs(newest: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """A run against an edited copy for every future."""
    pairs = []
    for future in FUTURES.values():
        folder = tmp_path_factory.mktemp("future")
        shutil.copytree(newest, folder / "sources")
        future.apply(folder / "sources")
        pairs.append((folder / "sources", folder / "out"))
    ran = run_scenarios(*pairs, names=("future", "quiet", "doctor"))
    return dict(zip(FUTURES, ran, strict=True))


@pytest.fixture(params=FUTURES)
def edited(request: pytest.FixtureRequest, runs: dict[str, Run]) -> Edited:
    """One of them, and what was edited."""
    return runs[request.param], FUTURES[request.param]


def gate(folder: Path) -> tuple[int, str, dict[str, object]]:
    """`wstrace gate` on a trace: exit code, text, JSON."""
    done = subprocess.run(
        [*GATE, str(folder)],
        cwd=folder.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    verdict = json.loads((folder.parent / "verdict.json").read_text())
    return done.returncode, done.stdout + done.stderr, verdict


def test_serving_is_unbroken_and_the_hook_stands_down_alone(edited: Edited) -> None:
    run, future = edited
    for scenario in ("future", "quiet"):
        facts = run.facts(scenario)
        assert facts["recorded"] == facts["plain"]
        assert set(facts["stood_down"]) == ({future.hook} if future.hook else set())
    assert "Workspace is locked" in run.facts("future")["plain"][2]


def test_the_trace_says_which_hook_stood_down_and_why(edited: Edited) -> None:
    run, future = edited
    (process,) = load_trace(run.folder / "quiet").processes
    told = {r.name: r.why for r in process.records if isinstance(r, Hook) and not r.set}
    assert set(told) == ({future.hook} if future.hook else set())
    assert all(future.why in why for why in told.values())


def test_the_gate_exits_3_and_names_the_hook(edited: Edited) -> None:
    run, future = edited
    code, text, answer = gate(run.folder / "quiet")
    if not future.hook:
        assert (code, answer["verdict"]) == (0, "clean")
        return
    assert (code, answer["verdict"]) == (3, "inconclusive")
    reason = f"the hook {future.hook} stood down: "
    assert reason in text
    assert reason in json.dumps(answer)


def test_an_escape_that_is_seen_all_the_same_wins_over_it(edited: Edited) -> None:
    run, future = edited
    code, text, _ = gate(run.folder / "future")
    assert code == (3 if future.blind else 1)
    assert any(code in text for code in ("WS101", "WS102")) != future.blind


def test_doctor_names_the_hook_in_text_and_json(edited: Edited) -> None:
    run, future = edited
    (code, text), (json_code, machine) = (run.facts("doctor")[f] for f in ("text", "json"))
    answer = json.loads(machine)
    assert code == json_code == (1 if future.doctor else 0), text
    failed = [line for line in text.splitlines() if line.startswith("FAIL")]
    assert bool(failed) == bool(future.doctor)
    assert all(line.startswith(f"FAIL  {future.doctor}: ") for line in failed), text
    assert answer["ready"] == (not future.doctor)
    lost = {found["hook"] for found in answer["stand_down"]}
    assert lost == ({future.doctor} if future.doctor == future.hook != "" else set())


def test_an_edit_that_does_nothing_is_an_error(newest: Path, tmp_path: Path) -> None:
    shutil.copytree(newest, tmp_path / "sources")
    nothing = Future(hook=ENSURE, edits={"vllm/v1/worker/workspace.py": lambda text: text})
    with pytest.raises(AssertionError, match="changed nothing"):
        nothing.apply(tmp_path / "sources")


@shows("doctor: every hook fits the real classes, exit code 0")
def test_doctor_is_content_with_every_released_version(run: Run) -> None:
    (code, text), (json_code, machine) = (run.facts("doctor")[f] for f in ("text", "json"))
    assert (code, json_code) == (0, 0), text
    assert "FAIL" not in text
    answer = json.loads(machine)
    assert (answer["ready"], answer["stand_down"]) == (True, [])
    seen = {check["name"] for check in answer["checks"] if check["state"] == "ok"}
    for place in ("gpu_worker:Worker", "gpu_model_runner:GPUModelRunner"):
        assert f"vllm.v1.worker.{place}" in seen
