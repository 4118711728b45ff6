"""Memory does not follow the number of rows, and a fleet that was killed leaves no file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.commands import wstrace
from tools import ROOT
from tools.fleet.planted import Plan, write_run
from wstrace.cli.fleet.temporary import folder_of_its_own

FEW, MANY = 1_500, 6_000
MOST_MB = 10.0
"""Growth from FEW to MANY. A row is 8 KB here, four summaries: all of them held are 36 MB in
the least, and SQLite's sorter, which took up to 64 MB for them, sees as much."""
SHOWN = """
import re, sys
from pathlib import Path
from wstrace.fleet.fleet import Fleet
from wstrace.fleet.store import Store
from wstrace.fleet.summary import RunSummary, SlotArena
from wstrace.report.fleet_json import json_pieces
from wstrace.report.fleet_text import render_fleet
from wstrace.report.html.fleet_site import write_site

def shown(count, held, site):
    kept = []
    with Store(None) as store:
        for number in range(count):
            # in no order of ids, as they are done
            row = RunSummary(
                kind="run", run=f"r{number * 7919 % count:08}", verdict="clean", vllm="0.32.0",
                model="m", words=[f"{number} " + "x" * 8000], ranks=1,
                arenas=[SlotArena(0, 0, 9, 9, 9, number % 9)], setting={"max_model_len": 8},
            )
            store.add(row)
            if held == "hold":
                kept.append(row)
        fleet = Fleet(store)
        last = ""
        for row in fleet.rows():
            assert row.run > last
            last = row.run
        assert sum(map(len, json_pieces(fleet))) > 8000 * count
        render_fleet(fleet)
        write_site(fleet, Path(site))

shown(100, "", sys.argv[3])  # what is loaded once
open("/proc/self/clear_refs", "w").write("5")
before = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
shown(int(sys.argv[1]), sys.argv[2], sys.argv[3])
peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
print((peak - before) / 1024)
"""


def growth(count: int, held: str, folder: Path) -> float:
    """MB by which a process that shows so many rows grows."""
    words = (str(count), held, str(folder / "site"))
    told = subprocess.run(
        [sys.executable, "-c", SHOWN, *words], cwd=ROOT, capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr
    return float(told.stdout)


@pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak cannot be set back"
)
def test_memory_does_not_follow_the_number_of_rows(tmp_path: Path) -> None:
    few = growth(FEW, "", tmp_path)
    assert growth(MANY, "", tmp_path) - few < MOST_MB
    assert growth(MANY, "hold", tmp_path) - few > MOST_MB  # so that it can be seen


def test_a_killed_fleet_leaves_nothing_in_the_folder_for_temporary_files(
    tmp_path: Path,
) -> None:
    (tmp_path / "tmp").mkdir()
    write_run(Plan(run="a"), tmp_path / "t")
    command = [sys.executable, "-m", "wstrace.cli.app", "fleet", str(tmp_path / "t")]
    child = subprocess.Popen(
        [*command, "--no-cache", "--jobs", "1", "-o", "/dev/stdout", "--format", "json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp"), "SQLITE_TMPDIR": str(tmp_path)},
    )
    assert child.stdout is not None
    assert child.stdout.read(1)  # the store is in use
    child.kill()
    child.stdout.close()
    child.wait()
    assert list((tmp_path / "tmp").iterdir()) == []
    assert sorted(file.name for file in tmp_path.iterdir()) == ["t", "tmp"]


def test_a_folder_of_a_killed_process_goes_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    told = tmp_path / "told"
    child = os.fork()
    if not child:
        with folder_of_its_own() as folder:
            (folder / "copy").write_text("of a trace")
            told.with_suffix(".new").write_text(str(folder))
            told.with_suffix(".new").rename(told)
            signal.pause()
        os._exit(1)
    try:
        while not told.exists():
            time.sleep(0.01)
        theirs = Path(told.read_text())
        with folder_of_its_own() as mine:
            assert (theirs / "copy").exists()  # its owner lives
            assert mine != theirs
        assert not mine.exists()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with folder_of_its_own():
        assert not theirs.exists()


def test_no_word_says_in_whose_folder_a_run_lies(tmp_path: Path) -> None:
    home = tmp_path / "home" / "alice"
    write_run(Plan(run="a", fault="old format", ranks=2), home / "t")
    (home / "t" / "b.host.1.2.ff.wst.jsonl").write_text('{"not": "a trace"}\n')
    site = tmp_path / "site"
    told = wstrace("fleet", str(home / "t"), "--no-cache", "--jobs", "1", "-o", str(site))
    assert told.returncode == 0, told.stderr
    pages = "".join(path.read_text() for path in site.rglob("*.html") if path.parent == site)
    assert "b.host.1.2.ff.wst.jsonl" in pages.replace("<wbr>", "")
    assert "has trace format 0" in pages
    assert "alice" not in pages
