"""Every command in an environment of its own that pip made of the hard dependencies alone: no
extra, no vLLM, no test tools (tests/processes/cli/test_extras.py only blocks the imports)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.cli.test_extras import EXTRAS, NEEDS, WORDS
from tools import ROOT
from tools.fleet.planted import Plan, write_run

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an environment with the project, installed by its wheel."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-input", str(ROOT)], check=True)
    return folder


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """A folder with a run in `t`."""
    write_run(Plan(run="a"), tmp_path / "t")
    return tmp_path


def told_by(bare: Path, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {
        "PATH": f"{bare / 'bin'}:/usr/bin:/bin", "XDG_CACHE_HOME": str(cwd), "HOME": str(cwd),
        "COLUMNS": "200",
    }  # fmt: skip
    return subprocess.run(
        [str(bare / "bin" / "wstrace"), *words],
        cwd=cwd, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_pip_installed_no_extra(bare: Path) -> None:
    asked = f"import importlib.util as u; print([e for e in {EXTRAS!r} if u.find_spec(e)])"
    python = str(bare / "bin" / "python")
    told = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


@pytest.mark.parametrize("command", WORDS)
def test_a_command_works(command: str, bare: Path, traces: Path) -> None:
    code, words = WORDS[command]
    told = told_by(bare, traces, command, *words)
    assert told.returncode == code, told.stderr
    assert "pip install" not in told.stderr
    assert not any(bad in told.stderr for bad in ("ImportError", "ModuleNotFound", "Traceback"))


@pytest.mark.parametrize(("words", "advice"), NEEDS, ids=lambda w: " ".join(w)[:30])
def test_what_needs_an_extra_is_two_lines_and_a_fixed_code(
    words: tuple[str, ...], advice: str, bare: Path, traces: Path
) -> None:
    told = told_by(bare, traces, *words)
    assert told.returncode == 2, told.stderr
    what, to_do = told.stderr.splitlines()
    assert what.startswith("wstrace: ")
    assert advice in to_do
