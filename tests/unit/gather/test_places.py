"""Places that fail in ways of their own: a word for each, and the rest is brought."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands import wstrace
from tools.fleet.planted import Plan, write_run
from wstrace.gather.gathering import PATIENCE

fsspec = pytest.importorskip("fsspec")


class LibraryError(Exception):
    """As botocore and aiohttp have them: no OSError."""


class Store(fsspec.AbstractFileSystem):  # type: ignore[misc, name-defined]
    """A folder as an object store that fails: `FAILS` are the names that cannot be read."""

    protocol = "failing"
    cachable = False
    FAILS: tuple[str, ...] = ()

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[dict[str, Any]]:
        """One folder."""
        if os.path.basename(path) in self.FAILS:
            raise LibraryError(f"Could not connect to {path}?password=hunter2secret")
        listed = fsspec.filesystem("file").ls(path, detail=True)
        return [*listed]

    def find(self, path: str, *words: Any, **named: Any) -> Any:
        """All at once, as S3 lists."""
        if os.path.basename(path) in self.FAILS:
            raise LibraryError("Could not connect")
        return super().find(path, *words, **named)

    def _open(self, path: str, *_: Any, **__: Any) -> io.BytesIO:
        if os.path.basename(path) in self.FAILS:
            raise LibraryError(f"Could not connect\nto {path}")
        return io.BytesIO(Path(path).read_bytes())


class Walked(Store):
    """One that lists folder by folder, as a web server does."""

    protocol = "walked"
    find = fsspec.AbstractFileSystem.find


@pytest.fixture(autouse=True)
def stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "FAILS", ())
    for kind in (Store, Walked):
        fsspec.register_implementation(kind.protocol, kind, clobber=True)


def fails(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(Store, "FAILS", names)


@pytest.mark.parametrize("scheme", ["failing", "walked"])
def test_a_store_that_dies_halfway_is_told_and_the_rest_is_brought(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_run(Plan(run="a", ranks=3), tmp_path / "far").files
    fails(monkeypatch, files[1].name)
    told = wstrace("gather", f"{scheme}://{tmp_path}/far", "-o", str(tmp_path / "here"))
    assert (told.returncode, "3 files copied" in told.stdout) == (1, True)
    (line,) = told.stderr.splitlines()
    assert line.startswith("wstrace: not copied: ")
    assert line.endswith(f"{files[1].name}: LibraryError: Could not connect")


def test_a_fleet_shows_what_a_dying_store_gave_and_says_what_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_run(Plan(run="a", ranks=3), tmp_path / "far").files
    fails(monkeypatch, files[1].name)
    words = (
        "fleet",
        f"failing://{tmp_path}/far",
        "--jobs",
        "1",
        "--cache",
        str(tmp_path / "c"),
    )
    told = wstrace(*words, "--format", "json")
    made = json.loads(told.stdout)
    assert (told.returncode, made["counts"]["ranks"]) == (1, 2)
    note, *own = made["notes"]
    assert all(word.startswith("a: ") for word in own)
    assert note.startswith("not copied: ")
    assert note.endswith("LibraryError: Could not connect")
    assert "note: not copied: " in wstrace(*words).stdout.replace("\n", " ")
    wstrace(*words, "-o", "site", cwd=tmp_path)
    assert "LibraryError: Could not connect" in (tmp_path / "site" / "index.html").read_text()


def test_a_store_that_is_gone_is_left_and_the_files_not_tried_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_run(Plan(run="a", ranks=PATIENCE + 2), tmp_path / "far").files
    fails(monkeypatch, *(file.name for file in files.values()))
    other = write_run(Plan(run="b"), tmp_path / "other").files
    told = wstrace(
        "gather", f"failing://{tmp_path}/far", str(tmp_path / "other"), "-o",
        str(tmp_path / "here"),
    )  # fmt: skip
    *each, left = told.stderr.splitlines()
    assert (told.returncode, len(each)) == (1, PATIENCE)
    assert left.endswith("far: 3 more files: it no longer answers")  # two ranks and run.json
    assert (tmp_path / "here" / "b" / other[0].name).is_file()


@pytest.mark.parametrize("scheme", ["failing", "walked"])
def test_a_place_that_cannot_be_listed_is_two_lines_alone_and_a_word_beside_others(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(Plan(run="a"), tmp_path / "far")
    (tmp_path / "dead").mkdir()
    fails(monkeypatch, "dead")
    dead, here = f"{scheme}://{tmp_path}/dead", str(tmp_path / "here")
    told = wstrace("gather", dead, "-o", here)
    assert (told.returncode, told.stdout) == (2, "")
    first, _ = told.stderr.splitlines()
    assert first.startswith(f"wstrace: Nothing was gathered: {dead}: LibraryError: Could not")
    told = wstrace("gather", dead, str(tmp_path / "far"), "-o", here)
    assert (told.returncode, "2 files copied" in told.stdout) == (1, True)
    assert "hunter2secret" not in told.stderr


def test_a_folder_of_a_store_that_cannot_be_listed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(Plan(run="a"), tmp_path / "far" / "sound")
    write_run(Plan(run="b"), tmp_path / "far" / "torn")
    (tmp_path / "far" / "loop").symlink_to(tmp_path / "far")
    fails(monkeypatch, "torn")
    told = wstrace("gather", f"walked://{tmp_path}/far", "-o", str(tmp_path / "here"))
    assert (told.returncode, "2 files copied" in told.stdout) == (1, True)
    (line,) = told.stderr.splitlines()
    assert line.startswith(f"wstrace: not copied: {tmp_path}/far/torn: LibraryError")
    assert "hunter2secret" not in line


@pytest.mark.parametrize(
    "other",
    ["gone", "nothing://x", "s3://bucket/x", "ray:/tmp", "file:///gone/x", "failing:///gone"],
)
def test_one_source_of_several_that_cannot_be_used_ends_nothing(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("ray", "s3fs"):
        monkeypatch.setitem(sys.modules, module, None)
    write_run(Plan(run="a"), tmp_path / "far")
    for number, order in enumerate(((other, "far"), ("far", other))):
        told = wstrace("gather", *order, "-o", f"here{number}", cwd=tmp_path)
        assert (told.returncode, "2 files copied" in told.stdout) == (1, True)
        (line,) = told.stderr.splitlines()
        assert line.startswith("wstrace: not copied: ")
        assert other.removeprefix("failing://").removeprefix("file://") in line
        told = wstrace(
            "fleet", *order, "--format", "json", "--jobs", "1", "--cache", "c", cwd=tmp_path
        )
        made = json.loads(told.stdout)
        assert (told.returncode, made["counts"]["runs"], len(made["notes"])) == (1, 1, 1)
    alone = wstrace("gather", other, "-o", "none", cwd=tmp_path)
    assert (alone.returncode, alone.stdout, len(alone.stderr.splitlines())) == (2, "", 2)
    alone = wstrace("fleet", other, "--cache", "c2", cwd=tmp_path)
    assert (alone.returncode, alone.stdout) == (2, "")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("far", "--run", "2027"), "Of 2 files there none is of a run 2027."),
        (("file://{}/gone",), "file://{}/gone: No such file or directory"),
        (("failing://{}/empty",), "failing://{}/empty: nothing is there"),
        (("empty",), "No file of a trace was found there."),
        (("file://{}/other",), "No file of a trace was found there."),
    ],
)
def test_why_nothing_was_brought(words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    write_run(Plan(run="a"), tmp_path / "far")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "README").write_text("no trace")
    given = [word.format(tmp_path) for word in words]
    for _ in range(2):  # the second call knows the files of other runs
        told = wstrace("gather", *given, "-o", "here", cwd=tmp_path)
        assert (told.returncode, told.stdout) == (2, "")
        first, second = told.stderr.splitlines()
        assert says.format(tmp_path) in first
        wstrace("gather", "far", "-o", "here", cwd=tmp_path)
    assert ("Runs there: a." in second) == ("--run" in words)


def test_a_web_server_that_does_not_answer_is_told(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    told = wstrace("gather", "http://127.0.0.1:9/traces", "-o", str(tmp_path / "here"))
    assert (told.returncode, told.stdout) == (2, "")
    first, _ = told.stderr.splitlines()
    assert "http://127.0.0.1:9/traces" in first
    assert "onnect" in first  # "Connect call failed", "Cannot connect"


def test_a_fleet_of_what_cannot_be_listed_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deny").mkdir()
    scandir = os.scandir

    def denied(path: str) -> Any:
        if str(path) == "deny":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr("wstrace.fleet.found_files.os.scandir", denied)
    told = wstrace("fleet", "deny", "--no-cache", cwd=tmp_path)
    assert (told.returncode, told.stdout) == (2, "")
    first, _ = told.stderr.splitlines()
    assert first.endswith("deny: Permission denied.")


def test_a_fleet_counts_what_an_address_has_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        write_run(Plan(run=name), tmp_path / "far" / name)

    def runs() -> tuple[int, list[str]]:
        told = wstrace(
            "fleet", f"failing://{tmp_path}/far", "--jobs", "1", "--format", "json", "--cache",
            str(tmp_path / "cache"),
        )  # fmt: skip
        return told.returncode, [run["run"] for run in json.loads(told.stdout)["runs"]]

    assert runs() == (0, ["a", "b"])
    shutil.rmtree(tmp_path / "far" / "b")
    assert runs() == (0, ["a"])
    write_run(Plan(run="b"), tmp_path / "far" / "b")
    assert runs() == (0, ["a", "b"])
    fails(monkeypatch, "far")  # what was brought before is shown, with a note
    assert runs() == (1, ["a", "b"])
