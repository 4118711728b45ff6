"""`wstrace watch --metrics` without a Prometheus; with one: tests/monitoring."""

from __future__ import annotations

import re
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import wstrace
from tests.unit.export.test_command import write_trace
from tests.unit.report_html import runs
from wstrace.cli.watch.metrics import MetricsServer, address_of
from wstrace.errors import WstraceError
from wstrace.recorder.state.guard_file import files_of_ranks, write_counters
from wstrace.recorder.state.guard_state import GuardState, Outgrown
from wstrace.trace.records import Ranks, Slot


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":9464", ("0.0.0.0", 9464)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert address_of(text) == address


@pytest.mark.parametrize("text", ["", "9464", "host:", "host:http", ":65536", ":-1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(WstraceError, match="Not an address"):
        address_of(text)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MetricsServer]:
    made = MetricsServer(tmp_path / "t", None, tmp_path / "guard.prom", "127.0.0.1:0")
    yield made
    made.close()


def scrape(server: MetricsServer) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as reply:
        return str(reply.read().decode())


def test_it_waits_for_a_run_and_then_serves_it(server: MetricsServer, tmp_path: Path) -> None:
    server.refresh()
    assert "waiting for a run in" in server.doubt
    assert "wstrace_" not in scrape(server)
    write_trace(tmp_path / "t", runs.grown())
    server.refresh()
    assert server.doubt == ""
    assert re.search(r"^wstrace_arena_bytes\{.*\} \d", scrape(server), re.MULTILINE)


def test_a_run_is_analysed_again_only_when_its_files_changed(
    server: MetricsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path, *_) = write_trace(tmp_path / "t", runs.grown())
    server.refresh()
    analysed: list[Path] = []
    monkeypatch.setattr(server, "_analysed", lambda folder: analysed.append(folder) or [])
    server.refresh()
    assert analysed == []
    with path.open("ab") as file:
        file.write(b"\n")
    server.refresh()
    assert analysed == [tmp_path / "t"]


def test_ranks_of_a_guarded_server_are_one_family(
    server: MetricsServer, tmp_path: Path
) -> None:
    guard = GuardState()
    guard.count(Outgrown("attn.py:late", Slot()), 1024, grew=True)
    for rank in (0, 1):
        write_counters(str(tmp_path / "guard.prom"), Ranks(rank=rank, tp=rank), guard)
    server.refresh()
    text = scrape(server)
    assert text.count("# TYPE wstrace_guard_growths_total counter") == 1
    assert len(re.findall(r"^wstrace_guard_growths_total\{", text, re.MULTILINE)) == 2


@pytest.mark.parametrize("name", ["guard.prom", "guard", "guard[1].prom", "a.b.prom"])
def test_a_guards_files_are_those_that_its_ranks_wrote(name: str, tmp_path: Path) -> None:
    """Whatever the name has in it; another server's, `guard-b.prom`, are not among them."""
    for rank in (Ranks(rank=0), Ranks(rank=1, dp=1)):
        write_counters(str(tmp_path / name), rank, GuardState())
    own = sorted(tmp_path.iterdir())
    stem = name.removesuffix(".prom")
    write_counters(str(tmp_path / f"{stem}-b.prom"), Ranks(rank=0), GuardState())
    assert len(own) == 2
    assert files_of_ranks(tmp_path / name) == own


def test_a_garbled_file_of_counters_is_told(server: MetricsServer, tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    write_trace(tmp_path / "t2", runs.grown())
    server.folder = tmp_path / "t2"
    (tmp_path / "guard-rank0.prom").write_text("no metric {at all\n")
    server.refresh()
    assert "cannot read" in server.doubt
    assert "wstrace_arena_bytes" in scrape(server)


def test_wrong_input_is_two_lines_and_exit_2(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = f"127.0.0.1:{taken.getsockname()[1]}"
        wrong = {
            "Not an address": ("x", "--metrics", "9464"),
            "Cannot serve metrics at": ("x", "--metrics", busy),
            "Nothing to serve metrics of": ("--metrics", "127.0.0.1:0"),
            "--guard-file is for --metrics": ("x", "--guard-file", "f"),
            "No trace folder": (),
        }
        for told, arguments in wrong.items():
            done = wstrace("watch", *arguments)
            assert (done.returncode, done.stdout) == (2, ""), arguments
            assert len(done.stderr.splitlines()) == 2, done.stderr
            assert told in done.stderr
