"""`wstrace fleet`: the same verdicts as `report`, outputs, cache, bad input."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.commands import wstrace
from tools import ROOT
from tools.fleet.planted import Fault, Plan, write_run
from wstrace.fleet.fleet import Fleet
from wstrace.fleet.store import Store
from wstrace.fleet.summary import RunSummary
from wstrace.frames.columns import FLEET
from wstrace.report.html.fleet_site import write_site

SAMPLES = ROOT / "sample_traces"


def fleet(*words: str) -> dict[str, Any]:
    """The JSON of a fleet, read in this process."""
    told = wstrace("fleet", *words, "--jobs", "1", "--format", "json")
    assert told.returncode == 0, told.stderr
    return dict(json.loads(told.stdout))


def run(folder: Path, name: str, fault: Fault = "none", **more: Any) -> None:
    """A made run below `folder`."""
    write_run(Plan(run=name, fault=fault, **more), folder / name)


@pytest.mark.parametrize("name", ["demo-crash", "h200x2-vllm-0.21.0-dcp-grow"])
def test_a_row_says_what_the_report_says(name: str) -> None:
    (row,) = fleet(str(SAMPLES / name), "--no-cache")["runs"]
    report = json.loads(wstrace("report", str(SAMPLES / name), "--format", "json").stdout)
    assert (row["verdict"], row["sentence"]) == (report["verdict"], report["sentence"])
    assert row["codes"] == sorted({finding["code"] for finding in report["findings"]})
    assert row["ranks"] == len(report["run"]["workers"])


def test_a_log_is_a_row_with_triages_finding() -> None:
    log = ROOT / "tests" / "data" / "docs" / "pasted.log"
    made = fleet(str(log), "--no-cache")
    (row,) = made["runs"]
    assert (row["kind"], row["codes"], row["vllm"]) == ("log", ["WS101"], "0.21.0")
    assert row["model"] == "q3"  # the line's model='/srv/q3'
    (escape,) = made["escapes"]
    assert escape["function"] == "_continuation_prefill"


def test_the_files_of_a_run_are_one_row_wherever_they_lie(tmp_path: Path) -> None:
    run(tmp_path, "a", ranks=8, hosts=4)
    run(tmp_path, "b")
    rows = fleet(str(tmp_path), "--no-cache")["runs"]
    assert [(r["run"], r["ranks"], r["hosts"]) for r in rows] == [("a", 8, 4), ("b", 1, 1)]


def test_two_launches_of_one_folder_are_two_rows(tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_run(Plan(run=name, fault="death" if name == "first" else "none"), tmp_path)
    rows = fleet(str(tmp_path), "--no-cache")["runs"]
    assert {r["run"]: r["verdict"] for r in rows} == {"first": "findings", "second": "clean"}


def test_a_second_reading_reads_what_is_new(tmp_path: Path) -> None:
    traces, cache = tmp_path / "t", str(tmp_path / "cache")
    run(traces, "a", "death")
    run(traces, "b")
    first = fleet(str(traces), "--cache", cache)
    again = fleet(str(traces), "--cache", cache)
    assert (first["read"], again["read"], again["cached"]) == (2, 0, 2)
    assert first["runs"] == again["runs"]
    run(traces, "c")
    assert fleet(str(traces), "--cache", cache)["read"] == 1
    moved = tmp_path / "moved"
    traces.rename(moved)
    rows = fleet(str(moved), "--cache", cache)
    assert (rows["read"], rows["cached"]) == (0, 3)
    assert rows["runs"][0]["folders"] == [str(moved / "a" / "node0")]


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    run(tmp_path / "t", "a", ranks=2)
    words = (str(tmp_path / "t"), "--cache", str(tmp_path / "cache"))
    assert fleet(*words)["runs"][0]["verdict"] == "clean"
    file = max((tmp_path / "t").rglob("*.wst.jsonl"))
    file.write_bytes(file.read_bytes()[:-20])
    assert fleet(*words)["runs"][0]["verdict"] == "inconclusive"


class Links(HTMLParser):
    """The addresses that a page links to, and whatever it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a":
            self.links.append(given.get("href") or "")
        self.loads += [v for name, v in given.items() if name == "src" and v]


def test_every_link_of_the_site_leads_to_a_page_of_it(tmp_path: Path) -> None:
    run(tmp_path / "t", "a", "death")
    run(tmp_path / "t", "b", "risk", model="../<b>&evil")
    run(tmp_path / "t", "c")
    site = tmp_path / "site"
    told = wstrace("fleet", str(tmp_path / "t"), "--no-cache", "--jobs", "1", "-o", str(site))
    assert told.returncode == 0, told.stderr
    pages = sorted(p.relative_to(site).as_posix() for p in site.rglob("*.html"))
    assert len(pages) == 1 + 2 + 3
    reached = {"index.html"}
    for page in pages:
        found = Links((site / page).read_text())
        assert found.loads == []
        for link in found.links:
            if not link.startswith(("#", "data:")):
                target = ((site / page).parent / link).resolve()
                assert target.is_file(), (page, link)
                reached.add(target.relative_to(site).as_posix())
    assert reached == set(pages)
    assert "<b>&evil" not in (site / "index.html").read_text()
    assert {p.name for p in site.rglob("*")} <= {
        "index.html", "models", "runs", *(Path(p).name for p in pages)
    }  # fmt: skip


def test_the_index_leads_to_more_models_than_a_table_has_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wstrace.report.html.fleet_site.MOST_ROWS", 2)
    with Store(None) as store:
        for number in range(5):
            store.add(RunSummary(kind="run", run=f"r{number}", model=f"m{number}"))
        write_site(Fleet(store), tmp_path)
    found = Links((tmp_path / "index.html").read_text()).links
    pages = {f"models/{path.name}" for path in (tmp_path / "models").iterdir()}
    assert len(pages) == 5
    assert pages <= set(found)


def test_reports_of_clean_runs_can_be_left_out(tmp_path: Path) -> None:
    run(tmp_path / "t", "a", "death")
    run(tmp_path / "t", "b")
    words = ("fleet", str(tmp_path / "t"), "--no-cache", "--jobs", "1", "-o")
    wstrace(*words, str(tmp_path / "site"), "--reports", "findings")
    assert len(list((tmp_path / "site" / "runs").iterdir())) == 1


def test_parquet_has_a_row_a_site_and_one_where_there_is_none(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    run(tmp_path / "t", "a", "death")
    run(tmp_path / "t", "b", "no worker")
    target = tmp_path / "fleet.parquet"
    told = wstrace("fleet", str(tmp_path / "t"), "--no-cache", "--jobs", "1", "-o", str(target))
    assert told.returncode == 0, told.stderr
    table = parquet.read_table(target)
    assert table.column_names == [column.name for column in FLEET]
    rows = table.to_pylist()
    assert [r["run"] for r in rows] == ["a", "a", "b"]
    worst = next(r for r in rows if r["escaped"])
    # a quarter of 4 MiB, and 64 KiB more
    assert (worst["arena_bytes"], worst["serving_bytes"]) == (1 << 20, (1 << 20) + 65536)
    assert rows[-1]["file"] is None
    # the planted site is no known one
    unfilled = {name for name in table.column_names if all(row[name] is None for row in rows)}
    assert unfilled == {"rule"}, "what fleet_table.py or summary.py gives no value"


def test_the_text_names_site_model_and_numbers(tmp_path: Path) -> None:
    run(tmp_path / "t", "a", "death")
    run(tmp_path / "t", "b")
    told = wstrace("fleet", str(tmp_path / "t"), "--no-cache", "--jobs", "1")
    assert told.returncode == 0
    assert "2 runs of 2 ranks: 1 clean, 1 with findings (1 died of one)" in told.stdout
    assert "fleet_attn.py:_continuation_prefill" in told.stdout.replace("\n  ", "")
    assert "1.06 MiB" in told.stdout  # 1 MiB and 64 KiB


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("gone",), "No such file or folder: gone."),
        (("t", "-o", "x.doc"), "Cannot tell the format from x.doc."),
        (("t", "--format", "xml"), "No such format: xml."),
        (("t", "--format", "parquet"), "parquet does not go to standard output."),
        (("t", "--format", "html"), "html does not go to standard output."),
        (("t", "--cache", "file"), "Cannot use the cache file/fleet.sqlite"),
        (("empty",), "No trace and no log below empty."),
    ],
)
def test_bad_input_is_two_lines(words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    run(tmp_path / "t", "a")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    told = wstrace("fleet", *words, "--jobs", "1", cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path))
    assert (told.returncode, told.stdout) == (2, "")
    lines = told.stderr.splitlines()
    assert len(lines) == 2
    assert says in lines[0]


def test_without_ray_the_engine_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    run(tmp_path / "t", "a")
    told = wstrace("fleet", str(tmp_path / "t"), "--no-cache", "--engine", "ray")
    assert told.returncode == 2
    assert "wstrace: Ray is not installed." in told.stderr
    assert "pip install 'wstrace[ray]'" in told.stderr


def test_what_holds_no_trace_is_told_and_the_rest_is_read(tmp_path: Path) -> None:
    run(tmp_path / "t", "a")
    other = tmp_path / "other"
    other.mkdir()
    (other / "README.md").write_text("no trace")
    made = fleet(str(tmp_path / "t"), str(other), "--no-cache")
    assert made["counts"]["clean"] == 1
    assert made["notes"] == [f"{other} holds no trace and no log"]


def test_a_folder_that_cannot_be_listed_is_told(tmp_path: Path) -> None:
    run(tmp_path / "t", "a")
    (tmp_path / "t" / "loop").symlink_to(tmp_path / "t")
    shutil.copytree(tmp_path / "t" / "a", tmp_path / "t" / "copy")
    made = fleet(str(tmp_path / "t"), "--no-cache")
    assert [r["words"] for r in made["runs"]] == [
        ["1 file of this run lay there twice: counted once"]
    ]


@pytest.mark.parametrize("name", ["x.wst.jsonl", "run.json", "run.a.json", "serve.log"])
@pytest.mark.parametrize(
    ("leads_to", "why"),
    [("{name}", "Too many levels of symbolic links"), ("n" * 300, "File name too long")],
)
def test_a_link_that_cannot_be_followed_is_told_and_ends_nothing(
    name: str, leads_to: str, why: str, tmp_path: Path
) -> None:
    run(tmp_path / "t", "a", ranks=2)
    run(tmp_path / "other", "b")
    (tmp_path / "t" / name).symlink_to(leads_to.format(name=name))
    made = fleet(str(tmp_path / "t"), str(tmp_path / "other"), "--no-cache")
    ranks = {row["run"]: row["ranks"] for row in made["runs"] if row["kind"] == "run"}
    assert ranks == {"a": 2, "b": 1}
    (note,) = [note for note in made["notes"] if why in note]
    assert name in note
    told = wstrace("gather", str(tmp_path / "t"), "-o", str(tmp_path / "here"))
    assert told.returncode == 1
    assert f"not copied: {tmp_path / 't' / name}: {why}" in told.stderr
    assert len(list((tmp_path / "here" / "a").glob("*.wst.jsonl"))) == 2


def test_of_paths_one_that_cannot_be_looked_at_ends_nothing(tmp_path: Path) -> None:
    run(tmp_path / "t", "a", ranks=2)
    (tmp_path / "loop").symlink_to("loop")
    words = [str(tmp_path / name) for name in ("loop", "t")]
    told = wstrace("fleet", *words, "--no-cache", "--jobs", "1", "--format", "json")
    assert told.returncode == 1
    made = json.loads(told.stdout)
    assert [(row["run"], row["ranks"]) for row in made["runs"]] == [("a", 2)]
    assert made["notes"] == [f"{tmp_path}/loop: Too many levels of symbolic links."]


def test_two_hosts_files_of_one_name_are_two_ranks(tmp_path: Path) -> None:
    files = write_run(Plan(run="a", ranks=2), tmp_path / "made").files
    for rank, file in files.items():
        target = tmp_path / "t" / f"node{rank}" / "trace.wst.jsonl"
        target.parent.mkdir(parents=True)
        file.rename(target)
    (row,) = fleet(str(tmp_path / "t"), "--no-cache")["runs"]
    assert (row["ranks"], row["verdict"], row["words"]) == (2, "clean", [])


def test_a_copy_under_another_name_counts_once(tmp_path: Path) -> None:
    (file,) = write_run(Plan(run="a"), tmp_path / "t").files.values()
    shutil.copy(file, file.with_name("again.wst.jsonl"))
    (row,) = fleet(str(tmp_path / "t"), "--no-cache")["runs"]
    assert row["ranks"] == 1
    assert not {"lasting", "unwritten"} & row.keys()
    assert row["words"] == ["1 file of this run lay there twice: counted once"]


def test_empty_files_of_several_processes_are_no_copies(tmp_path: Path) -> None:
    files = write_run(Plan(run="a", ranks=3), tmp_path / "t").files
    for rank in (1, 2):
        files[rank].write_bytes(b"")
    (row,) = fleet(str(tmp_path / "t"), "--no-cache")["runs"]
    assert sum("has no whole record" in word for word in row["words"]) == 2
    assert not any("twice" in word for word in row["words"])


def test_names_that_are_no_text_are_read(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path / "t") + b"/\xff\xfe"))
    write_run(Plan(run="a", ranks=2), folder)
    torn = folder / "node0" / os.fsdecode(b"\xfe.host.1.2.ff.wst.jsonl")
    torn.write_bytes(b"{")
    words = (str(tmp_path / "t"), "--cache", str(tmp_path / "cache"))
    first, again = fleet(*words), fleet(*words)
    assert {r["run"]: r["kind"] for r in first["runs"]} == {"a": "run", "\\xfe": "unread"}
    assert first["runs"] == again["runs"]
    assert (again["read"], again["cached"]) == (0, 2)


@pytest.mark.parametrize("name", ["a.host.1.2.ff.wst.jsonl", "run.a.json"])
def test_a_pipe_is_told_and_waited_for_by_nobody(name: str, tmp_path: Path) -> None:
    run(tmp_path / "t", "a", ranks=2)
    os.mkfifo(tmp_path / "t" / name)
    os.mkfifo(tmp_path / "t" / "x.log")
    (row,) = fleet(str(tmp_path / "t"), "--no-cache")["runs"]
    assert row["run"] == "a"
    assert (row["verdict"], row["ranks"]) == ("inconclusive", 2)
    assert any("plain file" in word or "a FIFO, not a file" in word for word in row["words"])


def test_a_cache_of_an_older_form_is_made_anew(tmp_path: Path) -> None:
    run(tmp_path / "t", "a")
    with sqlite3.connect(tmp_path / "fleet.sqlite") as old:
        old.execute("create table files (path text primary key, scan integer)")
    old.close()
    assert fleet(str(tmp_path / "t"), "--cache", str(tmp_path))["counts"]["clean"] == 1


@pytest.mark.parametrize("output", [None, "x.json", "x.parquet", "site"])
def test_where_nothing_can_be_read_the_exit_code_is_2(
    output: str | None, tmp_path: Path
) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "z.wst.jsonl").write_text("{}\n")
    (tmp_path / "t" / "torn.wst.jsonl").write_text("")
    words = ["fleet", str(tmp_path / "t"), "--no-cache", "--jobs", "1"]
    told = wstrace(*words, *(("-o", str(tmp_path / output)) if output else ()))
    assert (told.returncode, told.stdout) == (2, "")
    what, hint = told.stderr.splitlines()
    assert what.startswith(f"wstrace: Nothing below {tmp_path / 't'} can be read: torn.wst")
    assert "z.wst.jsonl is not a wstrace trace" in what
    assert hint.startswith("Give folders that `wstrace run` made")


def test_every_format_has_the_same_notes(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    (file,) = write_run(Plan(run="a"), tmp_path / "t" / "a").files.values()
    file.write_bytes(file.read_bytes()[:-9])
    run(tmp_path / "t", "b")
    (tmp_path / "t" / "z.wst.jsonl").write_text("{}\n")
    other = tmp_path / "empty"
    other.mkdir()
    words = (str(tmp_path / "t"), str(other), "--no-cache")
    made = fleet(*words)
    own = [f"{row['run']}: {word}" for row in made["runs"] for word in row["words"]]
    assert made["notes"] == [f"{other} holds no trace and no log", *own]
    assert len(own) >= 2
    table = tmp_path / "fleet.parquet"
    told = wstrace("fleet", *words, "--jobs", "1", "-o", str(table))
    kept = parquet.read_schema(table).metadata[b"wstrace.notes"]
    assert json.loads(kept) == made["notes"]
    assert f"{len(made['notes'])} notes on what could not be read" in told.stderr
    wstrace("fleet", *words, "--jobs", "1", "-o", str(tmp_path / "site"), "--reports", "none")
    page = (tmp_path / "site" / "index.html").read_text()
    assert [w for row in made["runs"] for w in row["words"] if escape(w) not in page] == []


@pytest.mark.parametrize("output", ["x.json", "x.parquet", "site"])
def test_a_full_disk_names_the_file(output: str, tmp_path: Path) -> None:
    """The limit of a file's size stands for the disk's: the call fails as it does there."""
    run(tmp_path / "t", "a", "death")
    words = ["fleet", str(tmp_path / "t"), "--no-cache", "--jobs", "1", "--reports", "none"]
    command = shlex.join(
        [sys.executable, "-m", "wstrace", *words, "-o", str(tmp_path / output)]
    )
    told = subprocess.run(
        ["bash", "-c", f"ulimit -f 2; exec {command}"], capture_output=True, text=True
    )
    assert told.returncode == 2, told.stderr
    what, _ = told.stderr.splitlines()
    assert what.startswith(f"wstrace: Cannot write {tmp_path / output}")
    assert "File too large" in what


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_full_disk_ends_a_site_with_one_word(jobs: str, tmp_path: Path) -> None:
    for name in "abc":
        run(tmp_path / "t", name, "death")
    words = ["fleet", str(tmp_path / "t"), "--no-cache", "--jobs", jobs]
    command = shlex.join(
        [sys.executable, "-m", "wstrace", *words, "-o", str(tmp_path / "site")]
    )
    told = subprocess.run(
        ["bash", "-c", f"ulimit -f 2; exec {command}"], capture_output=True, text=True
    )
    assert told.returncode == 2, told.stderr
    what, _ = told.stderr.splitlines()
    assert what.startswith(f"wstrace: Cannot write {tmp_path / 'site'}/")
    assert what.endswith(".html: File too large.")


def test_a_site_over_an_older_one_has_no_page_of_it(tmp_path: Path) -> None:
    """Reports that are still of a run stay as they are; what others put there does as well."""
    site, words = tmp_path / "site", ("--cache", str(tmp_path / "c"), "--jobs", "1")
    run(tmp_path / "t", "a", model="kept")
    run(tmp_path / "gone", "b", model="left")
    wstrace("fleet", str(tmp_path / "t"), str(tmp_path / "gone"), *words, "-o", str(site))
    (site / "models" / "mine.html").write_text("<p>mine</p>")
    (report,) = (site / "runs").glob("a-*")
    at = report.stat().st_mtime_ns
    assert wstrace("fleet", str(tmp_path / "t"), *words, "-o", str(site)).returncode == 0
    pages = sorted(page.name[:4] for page in site.glob("*/*"))
    assert pages == sorted([report.name[:4], "kept", "mine"])
    assert report.stat().st_mtime_ns == at


@pytest.mark.parametrize("reports", ["all", "none"])
def test_a_foreign_index_is_not_overwritten(reports: str, tmp_path: Path) -> None:
    run(tmp_path / "t", "a")
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").write_text("<p>mine</p>")
    words = ("--no-cache", "--reports", reports, "-o", str(site))
    told = wstrace("fleet", str(tmp_path / "t"), *words)
    assert told.returncode == 2
    what, hint = told.stderr.splitlines()
    assert what.endswith("index.html was not made by wstrace and is not overwritten.")
    assert hint == "Give -o an empty folder, or one with a site of `wstrace fleet`."
    assert [page.name for page in site.iterdir()] == ["index.html"]


def test_a_report_of_a_fleet_says_commands_that_read_its_run(tmp_path: Path) -> None:
    """Two launches in one folder: without --run the newest would answer for the other."""
    for name in ("launch-1", "launch-2"):
        write_run(Plan(run=name, fault="survived"), tmp_path / "t")
    site = tmp_path / "site"
    wstrace("fleet", str(tmp_path / "t"), "--no-cache", "--jobs", "1", "-o", str(site))
    pages = [page.read_text() for page in (site / "runs").rglob("*.html")]
    made = {f"wstrace reserve node0 --run launch-{n} -o" for n in (1, 2)}
    assert {text for text in made for page in pages if text in page} == made
