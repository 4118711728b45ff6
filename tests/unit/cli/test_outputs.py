"""Where output goes and what input may be: devices, pipes, endless files, one path twice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.gate.conftest import Gate, gate  # noqa: F401
from tests.unit.gate.traces import clean
from wstrace.audit.vllm_tree import cache_folder
from wstrace.cli.commands.triage import command as triage
from wstrace.errors import WstraceError, shell_code
from wstrace.files import user_cache, write_output
from wstrace.trace.reader import load_trace


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_output("hello", pipe)
        assert (os.read(reader, 99), pipe.is_fifo()) == (b"hello", True)
    finally:
        os.close(reader)
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_pipe_that_nobody_reads_is_told_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(WstraceError, match="a FIFO that nobody reads") as told:
        write_output("hello", pipe)
    assert (told.value.exit_code, list(tmp_path.iterdir())) == (2, [pipe])


def test_a_full_device_is_an_error() -> None:
    with pytest.raises(WstraceError, match="No space left"):
        write_output("hello", Path("/dev/full"))
    assert Path("/dev/full").is_char_device()


def test_a_name_that_is_no_utf8_is_written_as_it_was(tmp_path: Path) -> None:
    write_output(os.fsdecode(b"caf\xe9"), tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == b"caf\xe9"


@pytest.mark.parametrize("option", ["--baseline", "--config"])
def test_the_gate_reads_no_endless_file(
    option: str,
    gate: Gate,  # noqa: F811
    tmp_path: Path,
) -> None:
    clean(tmp_path / "t")
    code, text = gate("t", option, "/dev/zero")
    assert (code, "a device, not a file" in text) == (2, True)


def test_a_device_is_no_trace() -> None:
    with pytest.raises(WstraceError, match="no file and no folder"):
        load_trace(Path("/dev/null"))


def test_triage_does_not_write_two_things_to_one_file(tmp_path: Path) -> None:
    with pytest.raises(WstraceError, match="both write"):
        triage(files=["x"], output=tmp_path / "x", reserve=tmp_path / "x")


def test_triage_reads_a_file_given_twice_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "a.log"
    log.write_text("all is well\n")
    triage(files=[str(log)])
    once = capsys.readouterr().out
    triage(files=[str(log), str(log)])
    assert capsys.readouterr().out == once


def test_a_model_config_that_is_no_file_is_told_before_the_log_is_read(tmp_path: Path) -> None:
    with pytest.raises(WstraceError, match="is no file"):
        triage(files=["nowhere"], model_config=tmp_path)


def test_no_file_of_a_trace_is_overwritten(tmp_path: Path) -> None:
    """Neither what is recorded now, nor how an earlier run of the folder ended."""
    earlier = tmp_path / "run.20261128T014238Z-4bd7e681.json"
    kept = b'{\n  "run": "20261128T014238Z-4bd7e681",\n  "command": []\n}\n'
    earlier.write_bytes(kept)
    for name in ("run.json", "x.wst.jsonl", earlier.name):
        with pytest.raises(WstraceError, match="part of a trace"):
            write_output("hello", tmp_path / name)
    assert earlier.read_bytes() == kept
    assert [file.name for file in tmp_path.iterdir()] == [earlier.name]


def test_an_output_may_be_called_as_a_run_of_a_folder(tmp_path: Path) -> None:
    for _ in range(2):  # also where it stands there from the last time
        write_output('{"version": 1}', tmp_path / "run.perfetto.json")


@pytest.mark.parametrize(
    ("variable", "folder"),
    [("/big/cache", "/big/cache/wstrace"), ("", "/home/me/.cache/wstrace"),
     ("cache", "/home/me/.cache/wstrace")],
)  # fmt: skip
def test_the_users_cache_is_one_folder(
    variable: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XDG base directories: a relative one is not followed, or each folder had its own."""
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", variable)
    assert str(user_cache()) == folder
    assert cache_folder("0.33.0").is_relative_to(folder)


def test_a_childs_exit_code_is_a_shells() -> None:
    assert [shell_code(code) for code in (0, 1, 255, -2, -9, -15)] == [0, 1, 255, 130, 137, 143]
