"""`wstrace gather`: folders and fsspec's memory; resumed, checked, never two runs mixed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import wstrace
from tools.fleet.planted import Plan, write_run
from wstrace.findings.analysed_run import load_run
from wstrace.gather.copies import MANIFEST, folder_name
from wstrace.gather.gathering import gather
from wstrace.gather.places import FarFile, Folder, place_named


def bring(*words: str) -> tuple[int, str, str]:
    told = wstrace("gather", *words)
    return told.returncode, told.stdout, told.stderr


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir() if file.name != MANIFEST)


def test_the_hosts_of_a_run_are_one_folder_that_reports_read(tmp_path: Path) -> None:
    write_run(Plan(run="r1", ranks=8, hosts=4), tmp_path / "far")
    code, out, _ = bring(str(tmp_path / "far"), "-o", str(tmp_path / "here"))
    assert code == 0
    assert "r1: 9 files" in out  # eight ranks and run.json
    run = load_run(tmp_path / "here" / "r1")
    assert (len(run.workers), run.verdict()) == (8, "clean")
    assert run.trace.meta is not None


def test_two_launches_of_one_folder_are_never_mixed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(Plan(run=name, ranks=2), tmp_path / "far")
    assert bring(str(tmp_path / "far"), "-o", str(tmp_path / "here"))[0] == 0
    for name in ("a", "b"):
        run = load_run(tmp_path / "here" / name)
        assert {p.header.run for p in run.trace.processes} == {name}
        assert len(run.workers) == 2


def test_only_the_run_that_is_asked_for(tmp_path: Path) -> None:
    for name in ("a1", "b1"):
        write_run(Plan(run=name), tmp_path / "far")
    bring(str(tmp_path / "far"), "-o", str(tmp_path / "here"), "--run", "b")
    assert [folder.name for folder in (tmp_path / "here").iterdir()] == ["b1"]


@pytest.mark.parametrize("asked", ["s-1", "s-10", "s-", "a b"])
def test_a_run_whose_whole_id_begins_anothers_is_brought_alone(
    asked: str, tmp_path: Path
) -> None:
    """Also where the other one is in another place, and comes first."""
    there = ["s-10", "s-11", "s-1", "a b", "a b2"]
    for name in there:
        write_run(Plan(run=name), tmp_path / f"far{there.index(name)}")
    places = [str(tmp_path / f"far{number}") for number in range(len(there))]
    wanted = [asked] if asked in there else ["s-1", "s-10", "s-11"]
    for _ in range(2):
        words = (*places, "-o", str(tmp_path / "here"), "--run", asked)
        assert bring(*words)[0] == 0
        made = {folder.name for folder in (tmp_path / "here").iterdir()}
        assert made == {folder_name(name) for name in wanted}


def test_what_is_there_is_not_copied_again(tmp_path: Path) -> None:
    write_run(Plan(run="a", ranks=2), tmp_path / "far")
    words = (str(tmp_path / "far"), "-o", str(tmp_path / "here"))
    assert "3 files copied" in bring(*words)[1]
    assert "0 files copied (0 B), 3 there before" in bring(*words)[1]
    (file, *_) = (tmp_path / "here" / "a").glob("*.wst.jsonl")
    file.unlink()  # as after a call that was cut
    assert "1 file copied" in bring(*words)[1]
    assert len(names(tmp_path / "here" / "a")) == 3


def test_a_file_that_has_grown_is_copied_again_and_a_shorter_one_is_not_taken(
    tmp_path: Path,
) -> None:
    files = write_run(Plan(run="a"), tmp_path / "far").files
    whole = files[0].read_bytes()
    files[0].write_bytes(whole[:-40])
    words = (str(tmp_path / "far"), "-o", str(tmp_path / "here"))
    bring(*words)
    files[0].write_bytes(whole)
    code, _, err = bring(*words)
    assert (code, "the longer one is kept" in err) == (0, True)
    (copy,) = (tmp_path / "here" / "a").glob("*.wst.jsonl")
    assert copy.read_bytes() == whole
    older = tmp_path / "older" / files[0].name
    older.parent.mkdir()
    older.write_bytes(whole[:-40])
    bring(str(older.parent), "-o", str(tmp_path / "here"))
    assert copy.read_bytes() == whole


def test_the_worst_end_of_a_run_counts(tmp_path: Path) -> None:
    write_run(Plan(run="a"), tmp_path / "good")
    for end in (tmp_path / "good").rglob("run.*.json"):
        bad = tmp_path / "bad" / end.name
        bad.parent.mkdir()
        bad.write_text(end.read_text().replace('"exit_code":0', '"exit_code":9'))
    for order in (("good", "bad"), ("bad", "good")):
        here = tmp_path / "-".join(order)
        bring(*(str(tmp_path / name) for name in order), "-o", str(here))
        meta = load_run(here / "a").trace.meta
        assert meta is not None
        assert meta.exit_code == 9


ENDED = ("ended", "exit_code", "sizes")
GONE = "gone.wst.jsonl: records were lost: No space left on device"


def _launch(
    folder: Path, first: dict[str, object], second: dict[str, object]
) -> tuple[Path, Path]:
    """A dense launch of two engines from two commands, of which the first left a trace."""
    both = ["vllm", "serve", "fleet-8b", "--data-parallel-size=2", "-dpl", "1"]
    written = write_run(Plan(run="r1"), folder / "A")
    (end,) = (folder / "A").rglob("run.*.json")
    meta = json.loads(end.read_text())
    sizes = {file.name: file.stat().st_size for file in written.files.values()}
    end.unlink()
    (folder / "B").mkdir()
    (folder / "A" / "node0" / "run.json").write_text(
        json.dumps(meta | {"command": both, "sizes": sizes} | first)
    )
    headless = [*both, "--headless", "--data-parallel-start-rank", "1"]
    (folder / "B" / "run.json").write_text(json.dumps(meta | {"command": headless} | second))
    return folder / "A" / "node0", folder / "B"


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ({}, {}, "1 of 2 data-parallel engines left no trace"),
        ({"command": ["vllm"]}, {"command": ["vllm"]}, "1 of 2 commands of this run left no"),
        ({}, {"lost": [GONE]}, GONE),
        ({"lost": [GONE]}, {}, GONE),
        ({}, {"sizes": {"b.wst.jsonl": 9}}, "b.wst.jsonl was there when the command ended"),
        ({}, {"exit_code": 9}, "ended with exit code 9"),
        ({}, {"ended": None, "exit_code": None}, "1 of 2 data-parallel engines left no trace"),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_the_folders_of_a_launch_and_the_gathered_one_are_judged_alike(
    first: dict[str, object], second: dict[str, object], why: str, order: int, tmp_path: Path
) -> None:
    places = [str(folder) for folder in _launch(tmp_path, first, second)][::order]
    here = tmp_path / "here"
    assert bring(*places, "-o", str(here))[0] == 0
    for folders in (places, [str(here / "r1")], [*places, str(here / "r1")]):
        told = wstrace("gate", *folders)
        assert (told.returncode, why in told.stdout) == (3, True), (folders, told.stdout)
        assert told.stdout.count("\nrun ") == 1
    for folder in (tmp_path, here):
        words = ("fleet", str(folder), "--no-cache", "--jobs", "1", "--format", "json")
        (row,) = json.loads(wstrace(*words).stdout)["runs"]
        assert row["verdict"] == "inconclusive", row["words"]


def test_two_whole_commands_of_a_launch_are_clean_in_one_folder(tmp_path: Path) -> None:
    written = write_run(Plan(run="r1", ranks=2, hosts=2), tmp_path)
    (end,) = tmp_path.rglob("run.*.json")
    meta = json.loads(end.read_text())
    end.unlink()
    for file in written.files.values():
        sizes = {file.name: file.stat().st_size}
        (file.parent / "run.json").write_text(json.dumps(meta | {"sizes": sizes}))
    places = [str(tmp_path / name) for name in ("node0", "node1")]
    here = tmp_path / "here"
    bring(*places, "-o", str(here))
    assert len(names(here / "r1")) == 4
    run = load_run(here / "r1")
    assert (run.verdict(), run.trace.among_others) == ("clean", False)
    assert len(run.trace.commands) == 2
    assert "the worst of its 2 commands ended" in run.rests_on.command
    again = tmp_path / "again"
    bring(str(here), *places, "-o", str(again))
    assert sorted(names(again / "r1")) == sorted(names(here / "r1"))


def test_a_commands_end_takes_the_place_of_its_own_beginning(tmp_path: Path) -> None:
    folders = _launch(tmp_path, {}, {})
    ends = [folder / "run.json" for folder in folders]
    whole = [end.read_text() for end in ends]
    for end, text in zip(ends, whole, strict=True):
        begun = {key: v for key, v in json.loads(text).items() if key not in ENDED}
        end.write_text(json.dumps(begun))
    words = (*map(str, folders), "-o", str(tmp_path / "here"))
    for texts in (None, whole, whole):
        for end, text in zip(ends, texts or (), strict=False):
            end.write_text(text)
        bring(*words)
        there = list((tmp_path / "here" / "r1").glob("run*.json"))
        assert sorted(p.read_text() for p in there) == sorted(p.read_text() for p in ends)
    assert "3 there before" in bring(*words)[1]
    assert wstrace("gather", "--check", "-o", str(tmp_path / "here")).returncode == 0


def test_a_run_id_that_is_no_file_name_stays_inside(tmp_path: Path) -> None:
    files = write_run(Plan(run="evil"), tmp_path / "far").files
    text = files[0].read_text().replace('"run":"evil"', '"run":"../../evil"')
    files[0].write_text(text)
    assert bring(str(tmp_path / "far"), "-o", str(tmp_path / "x" / "here"))[0] == 0
    assert not (tmp_path / "evil").exists()
    assert folder_name("../../evil") in {p.name for p in (tmp_path / "x" / "here").iterdir()}
    assert folder_name("a/b") != folder_name("a-b") == "a-b"


def test_what_is_torn_is_brought_too_under_the_run_of_its_name(tmp_path: Path) -> None:
    files = write_run(Plan(run="a", ranks=2), tmp_path / "far").files
    files[1].write_bytes(files[1].read_bytes()[:30])
    bring(str(tmp_path / "far"), "-o", str(tmp_path / "here"))
    assert files[1].name in names(tmp_path / "here" / "a")
    assert load_run(tmp_path / "here" / "a").verdict() == "inconclusive"


@pytest.fixture
def store() -> Iterator[str]:
    """An empty address of fsspec's memory file system."""
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    yield "memory://bucket"
    memory.rm("/bucket", recursive=True)


def test_an_object_store_gives_the_same_bytes(store: str, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    files = write_run(Plan(run="a", ranks=4, hosts=2), tmp_path / "far").files
    fsspec.filesystem("memory").put(str(tmp_path / "far"), "/bucket/far", recursive=True)
    words = (f"{store}/far", "-o", str(tmp_path / "here"))
    assert "5 files copied" in bring(*words)[1]
    assert "0 files copied (0 B), 5 there before" in bring(*words)[1]
    for file in files.values():
        assert (tmp_path / "here" / "a" / file.name).read_bytes() == file.read_bytes()


def test_a_fleet_reads_an_address(store: str, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    write_run(Plan(run="a", fault="death"), tmp_path / "far")
    fsspec.filesystem("memory").put(str(tmp_path / "far"), "/bucket/far", recursive=True)
    told = wstrace(
        "fleet", store, "--jobs", "1", "--format", "json", "--cache", str(tmp_path / "cache")
    )
    (row,) = json.loads(told.stdout)["runs"]
    assert (row["run"], row["verdict"]) == ("a", "findings")


class Broken(Folder):
    """A place that gives other bytes than it read, and one file that cannot be read."""

    def pieces(self, file: FarFile) -> Iterator[bytes]:
        if file.name.startswith("run."):
            raise PermissionError(13, "Permission denied")
        yield from super().pieces(file)


def test_a_file_that_cannot_be_read_is_told_and_the_rest_is_brought(tmp_path: Path) -> None:
    write_run(Plan(run="a", ranks=2), tmp_path / "far")
    done = gather(
        [("far", Broken(tmp_path / "far"))],
        tmp_path / "here",
        None,
        lambda *_: None,
    )
    assert done.copied == 2
    (failed,) = done.failed
    assert failed.endswith("run.a.json: Permission denied")
    assert (
        gather(
            [("far", place_named(str(tmp_path / "far")))],
            tmp_path / "here",
            None,
            lambda *_: None,
        ).copied
        == 1
    )  # the next call brings it


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("gone",), "No such file or folder: gone."),
        (("empty",), "No file of a trace was found there."),
        (("nothing://x",), "nothing://x: Protocol not known: nothing"),
    ],
)
def test_bad_input_is_two_lines(words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    told = wstrace("gather", *words, "-o", "here", cwd=tmp_path)
    assert (told.returncode, told.stdout) == (2, "")
    assert len(told.stderr.splitlines()) == 2
    assert says in told.stderr.splitlines()[0]


def test_without_fsspec_an_address_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    write_run(Plan(run="a"), tmp_path / "far")
    told = wstrace("gather", "s3://bucket/x", "-o", str(tmp_path / "here"))
    assert told.returncode == 2
    assert "pip install 'wstrace[s3]'" in told.stderr.splitlines()[1]
    assert bring(str(tmp_path / "far"), "-o", str(tmp_path / "here"))[0] == 0


def test_without_ray_its_nodes_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    told = wstrace("gather", "ray:/tmp/traces", "-o", "here")
    assert (told.returncode, "pip install 'wstrace[ray]'" in told.stderr) == (2, True)


def test_a_manifest_that_was_changed_is_refused(tmp_path: Path) -> None:
    write_run(Plan(run="a"), tmp_path / "far")
    words = (str(tmp_path / "far"), "-o", str(tmp_path / "here"))
    bring(*words)
    (tmp_path / "here" / "a" / MANIFEST).write_text("{")
    code, _, err = bring(*words)
    assert code == 2
    assert "Delete it" in err
