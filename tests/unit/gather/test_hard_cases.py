"""`wstrace gather` where something goes wrong: kills, two at once, odd names, changed files."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import msgspec
import pytest

from tests.commands import wstrace
from tools.fleet.planted import Plan, write_run
from wstrace.findings.analysed_run import load_run
from wstrace.gather.checking import check
from wstrace.gather.copies import MANIFEST, Copies, alone, file_name
from wstrace.gather.gathering import BUSY, Gathered, gather
from wstrace.gather.places import FarFile, Folder, Place


def bring(
    far: Path | Place, here: Path, said: list[str] | None = None, run: str | None = None
) -> Gathered:
    place = Folder(far) if isinstance(far, Path) else far
    words = said if said is not None else []
    return gather([("far", place)], here, run, lambda *_: None, words.append)


def below(folder: Path) -> set[str]:
    """Every file of a folder, hidden ones too."""
    return {f.relative_to(folder).as_posix() for f in folder.rglob("*") if f.is_file()}


def sources(folder: Path) -> set[str]:
    manifest = msgspec.json.decode((folder / MANIFEST).read_bytes())
    return set(manifest["files"])


def test_a_gather_that_is_killed_at_any_moment_goes_on(tmp_path: Path) -> None:
    far, here = tmp_path / "far", tmp_path / "here"
    for name in "abc":
        write_run(Plan(run=name, ranks=4), far)
    lot = random.Random(4)
    for _ in range(5):
        child = os.fork()
        if not child:
            bring(far, here)
            os._exit(0)
        time.sleep(lot.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    brought = {p.name for p in here.rglob("*.wst.jsonl") if not p.parent.name.startswith(".")}
    done = bring(far, here)
    # what has its name is in the journal too, but for the one file between the two
    assert done.known >= len(brought) - 1
    assert done.known + done.copied == 3 * 5
    assert done.runs == dict.fromkeys("abc", 5)
    assert check(here, lambda *_: None).wrong == []
    wanted = {p.name for p in far.rglob("*.wst.jsonl")} | {"run.json", MANIFEST}
    assert {Path(name).name for name in below(here)} == wanted  # nothing else was left behind
    for file in far.rglob("*.wst.jsonl"):
        (copy,) = here.rglob(file.name)
        assert copy.read_bytes() == file.read_bytes()


def test_two_at_once_wait_for_each_other(tmp_path: Path) -> None:
    far, here = tmp_path / "far", tmp_path / "here"
    write_run(Plan(run="a", ranks=3), far)
    here.mkdir()
    child = os.fork()
    if not child:
        with alone(here, lambda: None):
            (here / "held").touch()
            time.sleep(0.2)
            (here / "held").unlink()
        os._exit(0)
    while not (here / "held").exists():
        time.sleep(0.005)
    said: list[str] = []
    done = bring(far, here, said)
    assert not (here / "held").exists()
    assert (said, done.copied) == ([BUSY], 4)
    os.waitpid(child, 0)


ODD = (
    "a\nb.wst.jsonl",
    "-rf.wst.jsonl",
    "..wst.jsonl",
    "..\\..\\x.wst.jsonl",
    "\x1b[31m.wst.jsonl",
    "x" * 245 + ".wst.jsonl",
    "ü" * 120 + ".wst.jsonl",
    os.fsdecode(b"\xff\xfe.wst.jsonl"),
)


def test_odd_names_are_brought_and_stay_in_the_folder(tmp_path: Path) -> None:
    far, here = tmp_path / "far", tmp_path / "x" / "here"
    for number, name in enumerate(ODD):
        (file,) = write_run(Plan(run=f"r{number}"), tmp_path / "made").files.values()
        target = far / str(number) / name
        target.parent.mkdir(parents=True)
        file.rename(target)
    done = bring(far, here)
    assert (done.failed, done.copied) == ([], len(ODD))
    assert {p.name for p in (tmp_path / "x").iterdir()} == {"here"}
    for number in range(len(ODD)):
        assert load_run(here / f"r{number}").verdict() == "clean"
    again = bring(far, here)
    assert (again.copied, again.known) == (0, len(ODD))
    assert check(here, lambda *_: None).wrong == []


@pytest.mark.parametrize("name", [*ODD, "..", ".", "a/b", "/etc/passwd", "run.json", "é.log"])
def test_a_name_is_one_part_of_a_path(name: str) -> None:
    made = file_name(name)
    assert "/" not in made
    assert made.isprintable()
    assert made.strip(".")
    assert 0 < len(made.encode()) <= 200
    assert made.endswith(".wst.jsonl") == name.endswith(".wst.jsonl")


class Far(Place):
    """An object store that answers with names and bytes of its own choice."""

    def __init__(self, files: dict[str, bytes], sizes: dict[str, int] | None = None) -> None:
        self.wrong: list[str] = []
        self._files, self._sizes = files, sizes or {}

    def files(self) -> Iterator[FarFile]:
        for name, data in self._files.items():
            yield FarFile(name, self._sizes.get(name, len(data)))

    def pieces(self, file: FarFile) -> Iterator[bytes]:
        yield self._files[file.path]


def test_a_store_cannot_lead_outside(tmp_path: Path) -> None:
    (file,) = write_run(Plan(run="a"), tmp_path / "far").files.values()
    data = file.read_bytes()
    names = ("../../../up.wst.jsonl", "/etc/abs.wst.jsonl", "a/..", "..", "x/\0.wst.jsonl")
    bring(Far(dict.fromkeys(names, data)), tmp_path / "x" / "y" / "here")
    assert {p.name for p in tmp_path.iterdir()} == {"far", "x"}
    assert {p.name for p in (tmp_path / "x").rglob("*")} - {"y", "here", "a", MANIFEST}
    assert not Path("/etc/abs.wst.jsonl").exists()


def test_a_file_that_shrinks_while_it_is_read_is_told(tmp_path: Path) -> None:
    (file,) = write_run(Plan(run="a"), tmp_path / "far").files.values()
    data = file.read_bytes()
    store = Far({file.name: data[:-40]}, {file.name: len(data)})
    done = bring(store, tmp_path / "here")
    (failed,) = done.failed
    assert "it shrank while it was read" in failed
    assert done.copied == 0


def test_a_file_that_grows_while_it_is_read_is_brought_as_far_as_it_was_read(
    tmp_path: Path,
) -> None:
    (file,) = write_run(Plan(run="a"), tmp_path / "far").files.values()
    whole = file.read_bytes()
    here = tmp_path / "here"
    assert bring(Far({file.name: whole[:-40]}), here).copied == 1
    # listed at one size, read at another: what counts is what was read
    assert bring(Far({file.name: whole}, {file.name: len(whole) - 20}), here).copied == 1
    assert bring(Far({file.name: whole}), here).copied == 0
    assert (here / "a" / file.name).read_bytes() == whole


def test_two_hosts_files_of_one_name_are_both_kept(tmp_path: Path) -> None:
    far, here = tmp_path / "far", tmp_path / "here"
    files = write_run(Plan(run="a", ranks=2), tmp_path / "made").files
    for rank, file in files.items():
        target = far / f"node{rank}" / "trace.wst.jsonl"
        target.parent.mkdir(parents=True)
        file.rename(target)
    assert bring(far, here).copied == 2
    run = load_run(here / "a")
    assert [worker.ranks.tp for worker in run.workers] == [0, 1]
    # a host's file that has grown finds the name that it got
    grown = far / "node1" / "trace.wst.jsonl"
    grown.write_bytes(grown.read_bytes() + b"\n")
    bring(far, here)
    assert len(load_run(here / "a").workers) == 2
    assert len(list((here / "a").glob("*.wst.jsonl"))) == 2


def test_a_shorter_copy_is_not_read_again_and_again(tmp_path: Path) -> None:
    (file,) = write_run(Plan(run="a"), tmp_path / "long").files.values()
    short = tmp_path / "short" / file.name
    short.parent.mkdir()
    short.write_bytes(file.read_bytes()[:-40])
    here = tmp_path / "here"
    for place in ("short", "long"):
        bring(tmp_path / place, here)
    done = bring(tmp_path / "short", here)
    assert (done.copied, done.known, done.words) == (0, 1, [])
    assert sources(here / "a") == {str(short), str(file), *map(str, file.parent.glob("run*"))}


def test_what_cannot_be_listed_is_told(tmp_path: Path) -> None:
    far = tmp_path / "far"
    write_run(Plan(run="a"), far)
    os.mkfifo(far / "pipe.wst.jsonl")
    (far / "gone.wst.jsonl").symlink_to(tmp_path / "nothing")
    done = bring(far, tmp_path / "here")
    assert sorted(Path(told.partition(":")[0]).name for told in done.failed) == [
        "gone.wst.jsonl",
        "pipe.wst.jsonl",
    ]
    assert done.copied == 2


def test_a_cut_journal_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    write_run(Plan(run="a", ranks=2), tmp_path / "far")
    here = tmp_path / "here"
    here.mkdir()
    with Copies(here) as copies:
        journal = next(here.glob(".gathering*"))
        gone = journal.read_bytes()
    assert gone == b""
    assert copies.folder == here
    journal.write_bytes(b'{"folder":"a","run":"a","cop')
    assert bring(tmp_path / "far", here).copied == 3
    assert not journal.exists()


def test_check_finds_what_is_no_longer_what_was_copied(tmp_path: Path) -> None:
    far, here = tmp_path / "far", tmp_path / "here"
    files = write_run(Plan(run="a", ranks=3), far).files
    bring(far, here)
    told = wstrace("gather", "--check", "-o", str(here))
    assert (told.returncode, "4 files of 1 folder as they were" in told.stdout) == (0, True)
    changed, gone, _ = (here / "a" / file.name for file in files.values())
    data = bytearray(changed.read_bytes())
    data[100] ^= 1  # of the same length
    changed.write_bytes(data)
    gone.unlink()
    (here / "a" / "other.wst.jsonl").write_bytes(b"")
    told = wstrace("gather", "--check", "-o", str(here))
    assert (told.returncode, "2 files of 1 folder" in told.stdout) == (1, True)
    said = told.stderr.splitlines()
    assert len(said) == 3
    for name, word in ((changed, "is not what was copied"), (gone, "is gone")):
        assert any(name.name in line and word in line for line in said)
    assert any("other.wst.jsonl is in no manifest" in line for line in said)


def checked(here: Path) -> list[str]:
    return check(here, lambda *_: None).wrong


def test_other_files_that_lay_in_the_same_place_are_known_too(tmp_path: Path) -> None:
    """Two hosts gather the same path into one folder, and a relative one from two folders."""
    far, here = tmp_path / "far", tmp_path / "here"
    write_run(Plan(run="a", ranks=2, hosts=2), tmp_path / "all")
    for exit_code, host in enumerate(("node0", "node1")):
        shutil.rmtree(far, ignore_errors=True)
        far.mkdir()
        for file in (tmp_path / "all" / host).glob("*.wst.jsonl"):
            shutil.copy2(file, far / "0.wst.jsonl")
        (end,) = (tmp_path / "all" / "node0").glob("run.*.json")
        text = end.read_text().replace('"exit_code":0', f'"exit_code":{exit_code}')
        (far / "run.json").write_text(text)
        assert bring(far, here).copied == 2
        assert checked(here) == []
    run = load_run(here / "a")
    assert run.trace.meta is not None
    assert run.trace.meta.exit_code == 1
    assert len(run.workers) == 2
    assert (bring(far, here).known, checked(here)) == (2, [])


def test_a_relative_source_is_known_by_its_whole_path(tmp_path: Path) -> None:
    for name in "ab":
        write_run(Plan(run=f"run-{name}"), tmp_path / name / "traces")
        (tmp_path / name / "traces" / "serve.log").write_text(f"log of {name}")
        told = wstrace("gather", "traces", "-o", str(tmp_path / "here"), cwd=tmp_path / name)
        assert told.returncode == 0
    assert checked(tmp_path / "here") == []
    logs = {str(tmp_path / name / "traces" / "serve.log") for name in "ab"}
    assert sources(tmp_path / "here" / "logs") == logs
    for place in ("traces", "traces/", "./traces", str(tmp_path / "a" / "traces")):
        told = wstrace("gather", place, "-o", str(tmp_path / "here"), cwd=tmp_path / "a")
        assert "0 files copied (0 B), 3 there before" in told.stdout


def test_a_source_that_was_cut_later_leaves_its_copy_known(tmp_path: Path) -> None:
    far, here = tmp_path / "far", tmp_path / "here"
    (file,) = write_run(Plan(run="a"), far).files.values()
    whole = file.read_bytes()
    bring(far, here)
    for size in (-40, -80):
        file.write_bytes(whole[:size])
        bring(far, here)
        assert checked(here) == []
    assert (here / "a" / file.name).read_bytes() == whole
    assert bring(far, here).known == 2


def test_a_manifest_of_an_earlier_wstrace_is_read(tmp_path: Path) -> None:
    """It had one copy for each source, and relative ones."""
    far, here = tmp_path / "far", tmp_path / "here"
    write_run(Plan(run="a"), far)
    bring(far, here)
    manifest = here / "a" / MANIFEST
    made = json.loads(manifest.read_text())
    for known in made["files"].values():
        known["source"] = known["source"].removeprefix(f"{tmp_path}/")
    made["files"] = {known["source"]: known for known in made["files"].values()}
    manifest.write_text(json.dumps(made))
    assert checked(here) == []
    done = bring(far, here)
    assert (done.failed, done.words, checked(here)) == ([], [], [])
    assert done.runs == {"a": 2}


def test_a_copy_under_another_name_is_no_second_process(tmp_path: Path) -> None:
    far, here = tmp_path / "far", tmp_path / "here"
    files = write_run(Plan(run="a", ranks=2), far).files
    whole = files[0].read_bytes()
    bring(far, here)
    (far / "old-copy.wst.jsonl").write_bytes(whole[:-40])
    (far / "same.wst.jsonl").write_bytes(whole)
    assert bring(far, here).failed == []
    assert len(list((here / "a").glob("*.wst.jsonl"))) == 2
    assert (here / "a" / files[0].name).read_bytes() == whole
    assert checked(here) == []
    # the other order, and as after a kill between the rename and the journal
    there = tmp_path / "there"
    first = tmp_path / "first"
    first.mkdir()
    (first / "old-copy.wst.jsonl").write_bytes(whole[:-40])
    bring(first, there)
    (there / "a" / MANIFEST).unlink()
    bring(far, there)
    assert (there / "a" / files[0].name).read_bytes() == whole
    assert len(list((there / "a").glob("*.wst.jsonl"))) == 2
    assert checked(there) == []


@pytest.mark.parametrize("order", list(permutations(("early", "cut", "far"))))
def test_a_process_has_the_name_that_its_recorder_gave_it(
    order: tuple[str, ...], tmp_path: Path
) -> None:
    """run.json says sizes by these names; a copy's name may come first, or in another call."""
    far, here = tmp_path / "far", tmp_path / "here"
    files = write_run(Plan(run="a", ranks=2), far).files
    (end,) = far.rglob("run.*.json")
    said = json.loads(end.read_text())
    said["sizes"] = {file.name: file.stat().st_size for file in files.values()}
    end.write_text(json.dumps(said))
    whole = files[0].read_bytes()
    for name, data in (("early", whole), ("cut", whole[:-40])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "backup.wst.jsonl").write_bytes(data)
    for name in order:
        assert bring(tmp_path / name, here).failed == []
        assert checked(here) == []
    names = {file.name for file in (here / "a").glob("*.wst.jsonl")}
    assert names == {file.name for file in files.values()}
    assert (here / "a" / files[0].name).read_bytes() == whole
    run = load_run(here / "a")
    assert (run.verdict(), run.inconclusive) == ("clean", [])
    for name in order:
        assert bring(tmp_path / name, here).copied == 0


def test_a_kill_between_a_name_and_its_journal_leaves_no_wrong_word(tmp_path: Path) -> None:
    far, here = tmp_path / "far", tmp_path / "here"
    (file,) = write_run(Plan(run="a"), tmp_path / "far").files.values()
    (tmp_path / "early").mkdir()
    (tmp_path / "early" / "backup.wst.jsonl").write_bytes(file.read_bytes())
    for after in (False, True):
        shutil.rmtree(here, ignore_errors=True)
        bring(tmp_path / "early", here)
        entry = {"folder": "a", "run": "a", "was": "backup.wst.jsonl", "now": file.name}
        (here / ".gathering.jsonl").write_text(json.dumps(entry) + "\n")
        if after:
            (here / "a" / "backup.wst.jsonl").rename(here / "a" / file.name)
        bring(tmp_path / "early", here)
        bring(far, here)
        assert checked(here) == []
        assert [f.name for f in (here / "a").glob("*.wst.jsonl")] == [file.name]


def test_files_of_one_process_that_differ_are_both_kept_and_told(tmp_path: Path) -> None:
    far, here = tmp_path / "far", tmp_path / "here"
    (file,) = write_run(Plan(run="a"), far).files.values()
    whole = file.read_bytes()
    bring(far, here)
    header, rest = whole.split(b"\n", 1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / file.name).write_bytes(header + b"\n" + b" " * 50 + rest)
    done = bring(tmp_path / "other", here)
    assert [word for word in done.words if "are of one process and differ: both" in word]
    assert len(list((here / "a").glob("*.wst.jsonl"))) == 2
    assert (here / "a" / file.name).read_bytes() == whole
    assert checked(here) == []
    assert bring(tmp_path / "other", here).known == 1


def test_only_what_is_listed_stays_where_that_is_asked(tmp_path: Path) -> None:
    far, here = tmp_path / "far", tmp_path / "here"
    for name in "ab":
        write_run(Plan(run=name, ranks=2), far / name)

    def again() -> Gathered:
        return gather([("far", Folder(far))], here, None, lambda *_: None, only_listed=True)

    assert again().runs == {"a": 3, "b": 3}
    (here / "a" / "stray.wst.jsonl").write_bytes(b"")
    shutil.rmtree(far / "b")
    next((far / "a").rglob("*.wst.jsonl")).unlink()
    assert again().runs == {"a": 2}
    assert below(here) == {
        f"a/{name}" for name in ("run.json", MANIFEST, *(f.name for f in far.rglob("*.jsonl")))
    }
    os.mkfifo(far / "pipe.wst.jsonl")  # not all could be listed: nothing goes
    shutil.rmtree(far / "a")
    assert again().runs == {"a": 2}
    (far / "pipe.wst.jsonl").unlink()
    assert again().runs == {}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "No source is given."),
        (("far", "--check"), "--check copies nothing and takes no source."),
        (("--check",), "Nothing was gathered in here."),
    ],
)
def test_check_or_sources(words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    told = wstrace("gather", *words, "-o", "here", cwd=tmp_path)
    assert (told.returncode, told.stdout) == (2, "")
    first, _ = told.stderr.splitlines()
    assert says in first
