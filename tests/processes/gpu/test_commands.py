"""The commands of scripts/gpu with wrong input: two lines, exit code 2, nothing written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import ROOT
from tools.gpu.publish import publish
from tools.gpu.session import verdict
from tools.gpu.table import Claim

SAMPLES = ROOT / "sample_traces"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("run", "--scenario", "zz"), "No scenario 'zz'."),
        (("run", "--scenario", ""), "No scenario ''."),
        (("run", "--deadline", "-5"), "A deadline of -5 s is too short."),
        (("run", "--share", "7"), "A share of 7.0 is not one."),
        (("run", "--caches", "/no/file"), "/no/file is not there."),
        (("run", "--check", "/no/folder"), "/no/folder is not a result"),
        (("run", "--check", str(SAMPLES / "demo-crash")), "is not a result"),
        (("publish",), "usage: scripts/gpu publish"),
        (("publish", "/no/folder", ""), "'' is no name for a sample."),
        (("publish", "/no/folder", "../victim"), "'../victim' is no name for a sample."),
        (("publish", "/no/folder", "name"), "/no/folder holds no trace."),
        (("publish", str(SAMPLES), "name"), "holds no trace."),
        (("unpack",), "usage: scripts/gpu unpack"),
        (("unpack", "0.21.0", "/no/folder"), "No part.* in /no/folder."),
        (("prepare",), "usage: scripts/gpu prepare"),
        (("nothing",), "no command nothing."),
        (("keep", "/no/folder"), "/no/folder is not a result"),
    ],
)
def test_wrong_input_is_two_lines(tmp_path: Path, command: tuple[str, ...], told: str) -> None:
    done = subprocess.run(
        (str(ROOT / "scripts" / "gpu"), *command),
        cwd=tmp_path,
        env={**os.environ, "WSTRACE_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr.splitlines()[0]
    assert len(done.stderr.splitlines()) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_published_trace_names_no_machine(tmp_path: Path) -> None:
    """The sample's own files as a result of another host, published under a new name."""
    server = tmp_path / "d" / "grow"
    (server / "trace").mkdir(parents=True)
    (server / "command.json").write_text('["python3"]')
    (server / "reserve.yaml").write_text("slots: []\n")
    (server / "trace" / "run.json").write_text('{"command": ["/opt/venv/bin/python3"]}')
    line = '{"t":"header","host":"gpu-7","argv":["/opt/v/engine/vllm/x.py"]}\n'
    (server / "trace" / "r.gpu-7.1.wst.jsonl").write_text(line)
    publish(server, tmp_path / "sample")
    made = {path.name: path.read_text() for path in (tmp_path / "sample").iterdir()}
    assert made == {
        "r.host.1.wst.jsonl": '{"t":"header","host":"host","argv":["vllm/x.py"]}\n',
        "run.json": '{"command": ["python3"]}',
        "reserve.yaml": "slots: []\n",
    }


@pytest.mark.parametrize(
    ("marks", "code"),
    [([True, None], 0), ([True, False], 1), ([None], 3), ([], 3)],
)
def test_a_run_that_reached_nothing_is_not_a_success(
    marks: list[bool | None], code: int
) -> None:
    assert verdict([Claim("a", "x", "", "", mark) for mark in marks]) == code
