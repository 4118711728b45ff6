"""The commands of scripts/gpu with wrong input: two lines, exit code 2, nothing written."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest
from gpu_runs.session import verdict
from gpu_runs.table import Claim

GPU = Path(__file__).resolve().parents[3] / "scripts" / "gpu"
SAMPLES = GPU.parents[1] / "sample_traces"
RUN, PUBLISH = (sys.executable, str(GPU / "run.py")), (sys.executable, str(GPU / "publish"))
DOCS = (sys.executable, str(GPU.parent / "make-docs-gpu"))
UNPACK, PREPARE = (str(GPU / "unpack"),), (str(GPU / "prepare"),)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ((*RUN, "--scenario", "zz"), "No scenario 'zz'."),
        ((*RUN, "--scenario", ""), "No scenario ''."),
        ((*RUN, "--deadline", "-5"), "A deadline of -5 s is too short."),
        ((*RUN, "--share", "7"), "A share of 7.0 is not one."),
        ((*RUN, "--caches", "/no/file"), "/no/file is not there."),
        ((*RUN, "--check", "/no/folder"), "/no/folder is not a result"),
        ((*RUN, "--check", str(SAMPLES / "demo-crash")), "is not a result"),
        ((*PUBLISH,), "usage: scripts/gpu/publish"),
        ((*PUBLISH, "/no/folder", ""), "'' is no name for a sample."),
        ((*PUBLISH, "/no/folder", "../victim"), "'../victim' is no name for a sample."),
        ((*PUBLISH, "/no/folder", "name"), "/no/folder holds no trace."),
        ((*PUBLISH, str(SAMPLES), "name"), "holds no trace."),
        ((*UNPACK,), "usage: scripts/gpu/unpack"),
        ((*UNPACK, "0.21.0", "/no/folder"), "No part.* in /no/folder."),
        ((*PREPARE,), "usage: scripts/gpu/prepare"),
        ((*DOCS, "--from", "/no/folder"), "/no/folder is not a result"),
    ],
)
def test_wrong_input_is_two_lines(tmp_path: Path, command: tuple[str, ...], told: str) -> None:
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
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
    script = SourceFileLoader("publish", PUBLISH[1])
    spec = spec_from_loader("publish", script)
    assert spec is not None
    module = module_from_spec(spec)
    script.exec_module(module)
    module.publish(server, tmp_path / "sample")
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
