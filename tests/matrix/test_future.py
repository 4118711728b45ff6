"""A manager of the future, made by editing a copy of the newest one when the test runs.

vLLM must go on as if wstrace were not there, and neither trace nor gate may say clean.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.matrix.runs import Run, run_scenarios
from tests.matrix.wheels import CI, UnavailableError, sources

pytestmark = pytest.mark.matrix
Edit = Callable[[str], str]


def renamed(old: str, new: str) -> Edit:
    """All uses of a name."""
    return lambda text: re.sub(rf"\b{old}\b", new, text)


def argument_added(text: str) -> str:
    """`_ensure_workspace_size` takes an alignment, and its callers give one."""
    text = text.replace(
        "def _ensure_workspace_size(self, required_bytes: int)",
        "def _ensure_workspace_size(self, required_bytes: int, alignment: int)",
    )
    return text.replace(
        "self._ensure_workspace_size(total_bytes)",
        "self._ensure_workspace_size(total_bytes, alignment=256)",
    )


EDITS: dict[str, tuple[Edit, str]] = {
    "method renamed": (
        renamed("_ensure_workspace_size", "_make_room"),
        "WorkspaceManager._ensure_workspace_size",
    ),
    "argument added": (argument_added, "WorkspaceManager._ensure_workspace_size"),
    "lock takes an argument": (
        lambda text: text.replace("def lock(self)", "def lock(self, strict: bool = True)"),
        "WorkspaceManager.lock",
    ),
    "class moved": (renamed("WorkspaceManager", "ScratchManager"), "WorkspaceManager"),
    "field renamed": (
        renamed("_current_workspaces", "_arenas"),
        "WorkspaceManager._ensure_workspace_size",
    ),
}


@pytest.fixture(scope="session")
def newest() -> Path:
    """Sources of the newest pinned version."""
    try:
        return sources(CI[-1])
    except UnavailableError as error:
        pytest.fail(f"vLLM {CI[-1]} cannot be had: {error}", pytrace=False)


@pytest.fixture(params=EDITS)
def edited(request: pytest.FixtureRequest, newest: Path, tmp_path: Path) -> tuple[Run, str]:
    """A run against an edited copy, and the hook that must stand down there."""
    edit, hook = EDITS[request.param]
    folder = tmp_path / "sources"
    shutil.copytree(newest, folder)
    file = folder / "vllm/v1/worker/workspace.py"
    before = file.read_text()
    file.write_text(edit(before))
    assert file.read_text() != before
    return run_scenarios(folder, tmp_path / "out", "future"), hook


def test_an_unknown_manager_is_left_alone_and_the_gate_is_inconclusive(
    edited: tuple[Run, str],
) -> None:
    run, hook = edited
    facts = run.facts("future")
    assert facts["recorded"] == facts["plain"]
    assert "Workspace is locked" in facts["plain"][2]
    assert list(facts["stood_down"]) == [hook]
    session = run.session("future")
    assert session.verdict() == "inconclusive"
    assert any(hook in reason for reason in session.inconclusive)
