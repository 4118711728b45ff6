"""`wstrace gather` where its folder has no room: the file is named, once, and all that was
brought before is known."""

from __future__ import annotations

import errno
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.gather.test_hard_cases import bring, checked
from tools.fleet.planted import Plan, write_run
from wstrace.errors import WstraceError
from wstrace.gather.copies import MANIFEST


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    """The limit of a file's size stands for the disk's: the call fails as it does there."""
    write_run(Plan(run="a", ranks=3, fault="death"), tmp_path / "far")
    words = ["gather", str(tmp_path / "far"), "-o", str(tmp_path / "here")]
    command = shlex.join([sys.executable, "-m", "wstrace", *words])
    told = subprocess.run(
        ["bash", "-c", f"ulimit -f 1; exec {command}"], capture_output=True, text=True
    )
    assert (told.returncode, told.stdout) == (2, "")
    what, _ = told.stderr.splitlines()
    assert what.startswith(f"wstrace: Cannot write {tmp_path / 'here'}/a.")
    assert what.endswith(".wst.jsonl: File too large.")
    assert bring(tmp_path / "far", tmp_path / "here").failed == []
    assert checked(tmp_path / "here") == []


def fails(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("function", "named"),
    [
        ("wstrace.gather.copies.write_whole", f"a/{MANIFEST}"),
        ("wstrace.gather.gathering.os.replace", "a."),
        ("wstrace.gather.gathering.tempfile.TemporaryDirectory", ""),
        ("wstrace.gather.copies.Copies._of", ""),
    ],
)
def test_whatever_cannot_be_written_is_named(
    function: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far, here = tmp_path / "far", tmp_path / "here"
    write_run(Plan(run="a", ranks=3), far)
    with monkeypatch.context() as full:
        full.setattr(function, fails)
        with pytest.raises(WstraceError, match="No space left on device") as told:
            bring(far, here)
    assert told.value.message.startswith(f"Cannot write {here / named}".rstrip("/"))
    done = bring(far, here)
    assert (done.failed, done.copied + done.known, checked(here)) == ([], 4, [])
