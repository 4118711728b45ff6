"""`scripts/test` with small programs in the place of its parts: what runs, what is told."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PARTS = (
    "scripts/check",
    "scripts/browser-tests",
    "scripts/test-versions",
    "scripts/test-native",
)
# Each tells its name and words, and fails where the words hold what FAILS names.
STUB = """#!/bin/bash
said="$(basename "$0") $*"
echo "begins $said"; echo "ends $said"
[[ -z "$FAILS" || "$said" != *"$FAILS"* ]] || exit 4
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository whose environment and parts are stubs."""
    for name in (*PARTS, "env/bin/pytest"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(STUB)
        path.chmod(0o755)
    made = tmp_path / "scripts" / "engine-env"
    made.write_text(f"#!/bin/sh\necho {tmp_path}/env\n")
    made.chmod(0o755)
    shutil.copy(ROOT / "scripts" / "test", tmp_path / "scripts" / "test")
    return tmp_path


def run(tree: Path, fails: str = "", *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [tree / "scripts" / "test", *words],
        env={"PATH": "/usr/bin:/bin", "FAILS": fails},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_part_runs_and_what_runs_beside_another_is_told_whole(tree: Path) -> None:
    done = run(tree)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines[::2]] == [
        *("pytest", "check", "pytest", "test-versions", "browser-tests", "test-native"),
        "pytest",
    ]
    assert all(
        a.split()[1:] == b.split()[1:] for a, b in zip(lines[::2], lines[1::2], strict=True)
    )


@pytest.mark.parametrize(
    ("fails", "command"),
    [
        ("check", "scripts/check"),
        ("tests/unit", "-m not slow tests/unit"),
        ("tests/processes", "-m not slow tests/processes"),
        ("browser-tests", "scripts/browser-tests"),
        ("test-versions", "scripts/test-versions --ci"),
        ("test-native", "scripts/test-native"),
        ("tests/integration", "-m not slow tests/integration"),
    ],
)
def test_a_part_that_fails_is_told_and_stops_no_other(
    fails: str, command: str, tree: Path
) -> None:
    done = run(tree, fails)
    assert done.returncode == 4
    (told,) = done.stderr.splitlines()
    assert told.startswith("scripts/test: failed: ")
    assert told.endswith(command)
    assert done.stdout.count("ends ") == 7


def test_with_arguments_it_is_pytest(tree: Path) -> None:
    done = run(tree, "-k this", "tests/unit", "-k", "this")
    assert done.returncode == 4
    assert done.stdout.splitlines()[-1] == "ends pytest tests/unit -k this"
