"""The trace file: append-only, private, one file a process, and never in vLLM's way."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from wstrace.errors import WstraceError
from wstrace.files import open_above
from wstrace.recorder.hooks.novel import whole
from wstrace.recorder.record import make_trace_folder
from wstrace.recorder.settings import Settings
from wstrace.recorder.state import writer as writer_module
from wstrace.recorder.state.output import TraceOutput
from wstrace.recorder.state.writer import TraceWriter
from wstrace.trace.process_file import read_file
from wstrace.trace.reader import load_trace
from wstrace.trace.records import (
    FORMAT,
    Failure,
    Header,
    Note,
    Ranks,
    Request,
    Slot,
    Spec,
    WorkerInit,
)


def new_writer(folder: Path | str | None) -> TraceWriter:
    return TraceWriter(
        None if folder is None else str(folder),
        "run1",
        lambda: Header(format=FORMAT, run="run1", wstrace="0"),
    )


def test_nothing_is_created_until_something_happens(tmp_path: Path) -> None:
    new_writer(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_private_and_starts_with_its_header(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    writer.write(Note(text="one"))
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    process = read_file(file)
    assert process.header.run == "run1"
    assert [r.text for r in process.records if isinstance(r, Note)] == ["one"]


def test_every_record_is_on_disk_before_write_returns(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    for number in range(3):
        writer.write(Note(text=str(number)))
        (file,) = tmp_path.iterdir()
        assert file.read_bytes().count(b"\n") == number + 2


@pytest.mark.parametrize(
    ("asked", "kept"),
    [(2**63 - 1, 2**63 - 1), (2**63, 2**63 - 1), (2**64, 2**63 - 1), (-(2**70), -(2**63))],
)
def test_a_number_beyond_64_bits_is_written_as_one_that_is_read(
    asked: int, kept: int, tmp_path: Path
) -> None:
    spec, slot = Spec(shape=[2, asked], dtype="uint8", bytes=asked), Slot(lane=1)
    writer = new_writer(tmp_path)
    writer.write(
        Request(
            site=1, slot=slot, bytes=asked, arena=0, phase="serving", specs=[spec], locked=True
        )
    )
    writer.write(
        Failure(kind="memory", slot=slot, required=asked, phase="serving", text="no room")
    )
    (file,) = tmp_path.iterdir()
    request, failure = read_file(file).records[-2:]
    assert isinstance(request, Request)
    assert isinstance(failure, Failure)
    assert (request.bytes, request.slot, request.locked) == (kept, Slot(lane=1), True)
    assert request.specs == [Spec(shape=[2, kept], dtype="uint8", bytes=kept)]
    assert (failure.required, failure.text) == (kept, "no room")


def test_a_forked_child_writes_a_file_of_its_own(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    writer.write(Note(text="parent"))
    pid = os.fork()
    if pid == 0:
        writer.write(Note(text="child"))
        os._exit(0)
    os.waitpid(pid, 0)
    writer.write(Note(text="parent again"))
    texts = sorted(
        [r.text for r in read_file(f).records if isinstance(r, Note)]
        for f in tmp_path.iterdir()
    )
    assert texts == [["child"], ["parent", "parent again"]]


def test_a_folder_that_is_gone_stands_the_writer_down_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    writer = new_writer(tmp_path / "gone")
    writer.write(Note(text="a"))
    writer.write(Note(text="b"))
    assert capfd.readouterr().err.count("recording stops, serving goes on") == 1


def test_a_full_disk_stands_the_writer_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    writer = new_writer(tmp_path)
    writer.write(Note(text="a"))

    def full(fd: int, data: bytes) -> int:
        if fd == 2:
            return real(fd, data)
        raise OSError(28, "No space left on device")

    real = os.write
    monkeypatch.setattr(os, "write", full)
    writer.write(Note(text="b"))
    monkeypatch.undo()
    writer.write(Note(text="c"))
    assert "No space left" in capfd.readouterr().err
    (file,) = tmp_path.iterdir()
    assert len(read_file(file).records) == 1


def test_a_planted_symlink_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "trace"
    folder.mkdir()
    monkeypatch.setattr(writer_module, "new_file_name", lambda run: "known.wst.jsonl")
    (folder / "known.wst.jsonl").symlink_to(victim)
    new_writer(folder).write(Note(text="a"))
    assert victim.read_text() == "precious"
    assert "recording stops" in capfd.readouterr().err


def test_a_trace_folder_is_private_and_no_symlink(tmp_path: Path) -> None:
    folder = make_trace_folder(tmp_path / "new")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(WstraceError, match="symbolic link"):
        make_trace_folder(tmp_path / "link")


def test_records_are_one_json_object_a_line(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    writer.write(Note(text="line\nbreak"))
    (file,) = tmp_path.iterdir()
    lines = file.read_bytes().splitlines()
    assert [msgspec.json.decode(line)["t"] for line in lines] == ["header", "note"]


FULL = """
import resource, sys
from tests.unit.recorder.test_writer import new_writer
from wstrace.trace.records import Failure, Note, Slot
writer = new_writer(sys.argv[1])
writer.write(Note(text="first"))
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
for number in range(100):
    writer.write(Note(text=f"{number} " + "x" * 100))
if sys.argv[2] == "refused":
    writer.write(Failure(kind="arena", slot=Slot(), phase="serving"))
"""


@pytest.mark.parametrize("after", ["nothing", "refused"])
def test_a_full_disk_is_told_in_the_room_that_the_header_kept(
    tmp_path: Path, after: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path), after],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.count("recording stops, serving goes on") == 1
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size <= 2000
    (process,) = load_trace(tmp_path).processes
    assert "disk full?" in process.lost
    assert ("vLLM refused a request after that" in process.lost) == (after == "refused")


def test_an_untouched_file_says_that_nothing_was_lost(tmp_path: Path) -> None:
    new_writer(tmp_path).write(Note(text="all"))
    assert load_trace(tmp_path).processes[0].lost == ""


def test_a_descriptor_that_others_closed_and_reused_gets_no_byte(tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    folder.mkdir()
    writer = new_writer(folder)
    writer.write(Note(text="before"))
    (file,) = folder.iterdir()
    handle = next(
        int(entry.name) for entry in Path("/proc/self/fd").iterdir()
        if entry.is_symlink() and os.path.realpath(entry) == str(file)
    )  # fmt: skip
    os.close(handle)
    theirs = os.open(tmp_path / "theirs", os.O_WRONLY | os.O_CREAT)
    assert theirs == handle
    writer.write(Note(text="after"))
    os.close(theirs)
    writer.write(Note(text="closed"))
    assert (tmp_path / "theirs").read_bytes() == b""
    texts = [r.text for r in read_file(file).records if isinstance(r, Note)]
    assert texts == ["before", "after", "closed"]
    assert load_trace(folder).doubts == []


def test_a_deleted_file_is_followed_by_one_that_says_so(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    writer.write(Note(text="gone"))
    (first,) = tmp_path.iterdir()
    first.unlink()
    writer.write(Note(text="kept"))
    (process,) = load_trace(tmp_path).processes
    assert "an earlier trace file of this process was deleted" in process.lost
    (second,) = tmp_path.iterdir()
    assert read_file(second).header.parent == first.name


def test_a_deleted_folder_is_told_on_stderr(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "trace"
    folder.mkdir()
    writer = new_writer(folder)
    writer.write(Note(text="one"))
    shutil.rmtree(folder)
    for _ in range(3):
        writer.write(Note(text="two"))
    assert capfd.readouterr().err.count("cannot write the trace") == 1


@pytest.mark.parametrize("text", [np.int64(3), object()])
def test_a_record_that_is_no_json_is_lost_alone_and_said(tmp_path: Path, text: object) -> None:
    output = TraceOutput(Settings(str(tmp_path), "run1"))
    output.write_worker(WorkerInit(ranks=Ranks(), world=Ranks(), limits={}))
    output.write(Note(text=text))  # type: ignore[arg-type]
    output.write(Note(text="after"))
    (process,) = load_trace(tmp_path).processes
    _, said, after = process.records
    assert isinstance(said, Note)
    assert said.text.startswith("recorder: a note record: ")
    assert isinstance(after, Note)
    assert after.text == "after"
    assert not process.lost


def test_an_argument_that_is_no_utf8_is_spelt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["serve", "mod\udcffel"])
    TraceOutput(Settings(str(tmp_path), "run1")).write(Note(text="x"))
    assert load_trace(tmp_path).processes[0].header.argv == ["serve", "mod\\udcffel"]


@pytest.mark.parametrize(
    ("size", "bytes_"),
    [(np.int64(512), 512), (2.5, 3), (True, 1), (float("nan"), 0), (float("inf"), 0)],
)
def test_the_bytes_of_a_request_are_a_plain_integer(size: object, bytes_: int) -> None:
    made = whole(size)
    assert (type(made), made) == (int, bytes_)


@pytest.mark.parametrize(
    "run", ["../../out", "/etc/out", "..", "a/b", "a\nb", "\x1b[31m", "é" * 200, "x" * 999, ""]
)
def test_whatever_the_run_is_called_its_file_is_in_the_folder(run: str, tmp_path: Path) -> None:
    folder = tmp_path / "one" / "two"
    folder.mkdir(parents=True)
    header = Header(format=FORMAT, run=run, wstrace="0")
    TraceWriter(str(folder), run, lambda: header).write(Note(text="one"))
    (file,) = folder.iterdir()
    assert {p for p in tmp_path.rglob("*") if p.is_file()} == {file}
    assert all(c.isascii() and c.isprintable() for c in file.name)
    assert len(load_trace(folder).processes) == 1


def test_a_run_with_a_usual_id_has_it_in_its_files_name() -> None:
    assert writer_module.new_file_name("20260516T101500Z-1a2b3c4d").startswith(
        "20260516T101500Z-1a2b3c4d."
    )


DAEMON = """
import os, sys
from wstrace.recorder.state.writer import TraceWriter
from wstrace.trace.records import FORMAT, Header, Note
os.close(1)
os.close(2)
header = Header(format=FORMAT, run="run1", wstrace="0")
writer = TraceWriter(sys.argv[1], "run1", lambda: header)
writer.write(Note(text="one"))
for stream in (1, 2):
    try:
        os.write(stream, b"a prompt")
    except OSError:
        pass
writer._reopen()
writer.write(Note(text="two"))
"""


def test_what_a_daemon_prints_is_not_in_its_trace(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", DAEMON, str(tmp_path)], check=True, timeout=60)
    (process,) = load_trace(tmp_path).processes
    assert [r.text for r in process.records if isinstance(r, Note)] == ["one", "two"]
    assert len(process.path.read_text().splitlines()) == 3


def test_a_file_that_appears_whole_is_above_the_standard_streams(tmp_path: Path) -> None:
    saved = os.dup(1)
    os.close(1)
    try:
        handle = open_above(tmp_path / "x", os.O_WRONLY | os.O_CREAT)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(1, b"a prompt")
    finally:
        os.dup2(saved, 1)
        os.close(saved)
    os.write(handle, b"ours")
    assert (handle > 2, os.get_inheritable(handle)) == (True, False)
    os.close(handle)
    assert (tmp_path / "x").read_bytes() == b"ours"


def test_a_text_of_any_record_that_is_no_utf8_is_spelt(tmp_path: Path) -> None:
    odd = "caf\udce9"
    header = Header(format=FORMAT, run="run1", wstrace="0", role=odd, reserve=odd)
    writer = TraceWriter(str(tmp_path), "run1", lambda: header)
    writer.write(Note(text=odd))
    writer.write(Note(text="after"))
    (process,) = load_trace(tmp_path).processes
    assert (process.header.role, process.header.reserve) == ("caf\\udce9", "caf\\udce9")
    assert [r.text for r in process.records if isinstance(r, Note)] == ["caf\\udce9", "after"]
