"""`wstrace gather` over the folder that it writes: what it brought is no source of itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.commands import wstrace
from tests.unit.gather.test_hard_cases import below, checked, sources
from tools.fleet.planted import Plan, write_run
from wstrace.findings.analysed_run import load_run


def again(here: Path, *words: str) -> str:
    told = wstrace("gather", *words, cwd=here)
    assert (told.returncode, told.stderr) == (0, "")
    return told.stdout.splitlines()[-1]


@pytest.mark.parametrize("source", [".", "../t", "link"])
@pytest.mark.parametrize("output", ["gathered", ".", "x/gathered", "link/gathered"])
def test_a_second_call_finds_what_the_first_found(
    source: str, output: str, tmp_path: Path
) -> None:
    here = tmp_path / "t"
    write_run(Plan(run="a", ranks=2), here / "traces")
    (here / "link").symlink_to(here)
    (here / "serve.log").write_text("a log")
    assert again(here, source, "-o", output).startswith("4 files copied")
    first = below(here)
    for _ in range(2):
        told = again(here, source, "-o", output)
        assert told.startswith("0 files copied (0 B), 4 there before")
        assert below(here) == first
    assert checked(here / output) == []
    # what is new is brought, also from a folder that has copies
    (here / output / "logs" / "another.log").write_text("another")
    assert again(here, source, "-o", output).startswith("1 file copied")


def test_another_gathered_folder_is_a_source(tmp_path: Path) -> None:
    write_run(Plan(run="a", ranks=2), tmp_path / "traces")
    (tmp_path / "traces" / "serve.log").write_text("a log")
    again(tmp_path, "traces", "-o", "one")
    assert again(tmp_path, "one", "-o", "two").startswith("4 files copied")
    assert again(tmp_path, "one", "-o", "one/three").startswith("4 files copied")
    assert again(tmp_path, "one/three", "-o", "one").startswith("4 files copied")
    assert checked(tmp_path / "one") == []
    told = wstrace("gather", "two", "-o", "two", cwd=tmp_path)
    assert (told.returncode, told.stdout) == (2, "")
    assert "is not gathered from itself" in told.stderr.splitlines()[0]


def test_a_folder_that_is_source_and_target_is_followed(tmp_path: Path) -> None:
    """The recorder's own folder, called as its run: the file is its own copy, and grows."""
    (file,) = write_run(Plan(run="a", hosts=1), tmp_path / "made").files.values()
    (tmp_path / "a").mkdir()
    whole = file.read_bytes()
    grows = tmp_path / "a" / file.name
    grows.write_bytes(whole[:-40])
    again(tmp_path, "a", "-o", ".")
    grows.write_bytes(whole)
    again(tmp_path, "a", "-o", ".")
    assert checked(tmp_path) == []


@pytest.mark.parametrize("name", ["logs", "unread"])
def test_a_run_that_is_called_as_a_shared_folder_has_its_own(name: str, tmp_path: Path) -> None:
    write_run(Plan(run=name, ranks=2), tmp_path / "traces")
    (tmp_path / "traces" / "serve.log").write_text("a log")
    (tmp_path / "traces" / "torn.wst.jsonl").write_text("{")
    told = wstrace("gather", "traces", "-o", "here", cwd=tmp_path)
    assert f"{name}: 3 files" in told.stdout
    (own,) = (tmp_path / "here").glob(f"{name}-*")
    assert load_run(own).verdict() == "clean"
    for shared, file in (("logs", "serve.log"), ("unread", "torn.wst.jsonl")):
        assert sources(tmp_path / "here" / shared) == {os.fspath(tmp_path / "traces" / file)}
