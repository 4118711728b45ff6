"""Every command without the packages of the extras; what needs one says what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import wstrace
from tools import ROOT
from tools.fleet.planted import Plan, write_run
from wstrace.cli.app import COMMANDS

EXTRAS = ("fsspec", "pyarrow", "ray", "s3fs", "wstrace_native")
CRASH = str(ROOT / "sample_traces" / "demo-crash")
LOG = str(ROOT / "tests" / "data" / "docs" / "pasted.log")
WORDS = {
    "fix": (2, ("-o", "fixed", "--", "no-such-program")),
    "run": (0, ("-q", "-o", "new", "--", "true")),
    "report": (0, ("t/node0", "-o", "page.html")),
    "diff": (0, (CRASH, CRASH)),
    "reserve": (0, (CRASH, "-o", "reserve.yaml")),
    "gate": (1, (CRASH,)),
    "exercise": (2, ("--url", "http://127.0.0.1:9", "--trace", CRASH)),
    "triage": (0, (LOG,)),
    "bound": (0, ("n * 2", "--set", "n=4")),
    "sites": (0, ()),
    "audit": (2, ("--vllm", "no-such-folder")),
    "watch": (0, (CRASH, "--once")),
    "export": (0, ("t/node0", "--format", "csv", "-o", "tables")),
    "fleet": (0, ("t", "--no-cache", "--jobs", "1", "-o", "site")),
    "gather": (0, ("t", "-o", "gathered")),
    "explain": (0, ("WS101",)),
    "demo": (0, ("--help",)),
    "doctor": (1, ("-o", "t")),
    "completion": (0, ("bash",)),
}
"""Each command with words that it can do, or refuses for a reason of its own: its exit code."""
NEEDS = [
    (("fleet", "t", "--no-cache", "--engine", "ray"), "pip install 'wstrace[ray]'"),
    (("fleet", "s3://bucket/t", "--no-cache"), "pip install 'wstrace[s3]'"),
    (("fleet", "gs://bucket/t", "--no-cache"), "pip install 'wstrace[remote]'"),
    (("fleet", "t", "--no-cache", "--jobs", "1", "-o", "f.parquet"), "pip install pyarrow"),
    (("gather", "s3://bucket/t", "-o", "g"), "pip install 'wstrace[s3]'"),
    (("gather", "memory://t", "-o", "g"), "pip install 'wstrace[remote]'"),
    (("gather", "ray:/tmp/t", "-o", "g"), "pip install 'wstrace[ray]'"),
    (("export", CRASH, "--format", "parquet", "-o", "p"), "pip install pyarrow"),
    (("doctor", "--ray", "-o", "folder"), "pip install 'wstrace[ray]'"),
]


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run in `t`, where no extra can be imported; nor vLLM, which takes seconds
    and which only `doctor` imports."""
    for name in [*sys.modules]:
        if name.partition(".")[0] in EXTRAS:
            monkeypatch.delitem(sys.modules, name)
    for name in (*EXTRAS, "vllm"):
        monkeypatch.setitem(sys.modules, name, None)
    write_run(Plan(run="a"), tmp_path / "t")
    return tmp_path


def bare_command(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command without the extras; in a new process where pandas has met them in this one."""
    if "pandas" not in sys.modules or words[0] not in ("fleet", "export"):
        return wstrace(*words, cwd=cwd, XDG_CACHE_HOME=str(cwd))
    blocked = (*EXTRAS, "vllm")
    start = f"import sys; sys.modules.update(dict.fromkeys({blocked}))"
    return subprocess.run(
        [sys.executable, "-c", f"{start}; from wstrace.cli.app import main; main()", *words],
        cwd=cwd, env=os.environ | {"XDG_CACHE_HOME": str(cwd)}, text=True,
        capture_output=True, check=False,
    )  # fmt: skip


def test_every_command_is_tried() -> None:
    assert set(WORDS) == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_works_without_extras(command: str, bare: Path) -> None:
    code, words = WORDS[command]
    told = bare_command(command, *words, cwd=bare)
    assert told.returncode == code, told.stderr
    assert "pip install" not in told.stderr
    assert not any(extra in told.stderr for extra in ("ImportError", "ModuleNotFound"))


@pytest.mark.parametrize(("words", "advice"), NEEDS, ids=lambda w: " ".join(w)[:30])
def test_what_needs_an_extra_says_what_to_install(
    words: tuple[str, ...], advice: str, bare: Path
) -> None:
    told = bare_command(*words, cwd=bare)
    assert told.returncode in (1, 2)
    assert advice in told.stdout + told.stderr
    assert "Traceback" not in told.stderr
    if words[0] == "fleet":
        what, to_do = told.stderr.splitlines()
        assert what.startswith("wstrace: ")
        assert advice in to_do


def test_no_command_loads_an_extra_when_it_is_imported() -> None:
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({EXTRAS}))\n"
        "from wstrace.cli.app import app, register_commands; register_commands()\n"
        "print(len(app.registered_commands))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert told.stdout.strip() == str(len(COMMANDS)), told.stderr
