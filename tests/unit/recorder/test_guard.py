"""The guard's settings, its counters, the line that it tells; real managers: tests/matrix."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.recorder.test_growth import Manager, hold, manager
from wstrace.recorder.hooks.growth import MARGIN, may_grow, try_grow
from wstrace.recorder.hooks.production import announce, as_line, tell_misspelt
from wstrace.recorder.install import install, uninstall
from wstrace.recorder.settings import Settings, read_settings
from wstrace.recorder.state.guard_file import file_of_rank, write_counters
from wstrace.recorder.state.guard_state import GuardState, Outgrown
from wstrace.recorder.state.process import Live
from wstrace.reserve.schema import SiteReserve
from wstrace.trace.records import Hook, Ranks, Slot

__all__ = ["manager"]
MIB = 1 << 20


@pytest.mark.parametrize("text", ["1", "true", "yes", "ON"])
def test_the_guard_is_on_and_lets_a_locked_arena_grow(text: str) -> None:
    settings = read_settings({"WSTRACE_GUARD": text, "WSTRACE_GUARD_MAX": "2GiB"})
    assert (settings.guard, settings.on_growth, settings.grows) == (True, "grow", True)
    assert (settings.guard_max, settings.not_understood) == (2 << 30, ())
    assert not settings.records


@pytest.mark.parametrize("text", ["", "0", "false", "No", "off"])
def test_the_guard_is_off(text: str) -> None:
    settings = read_settings({"WSTRACE_GUARD": text})
    assert (settings.guard, settings.on_growth, settings.grows) == (False, "raise", False)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("GUARD_MAX", "two gigs"),
        ("GUARD_MAX", "-1"),
        ("MAX_RESERVE", "90%"),
        ("WARN_AT", "1.5"),
        ("WARN_AT", "0"),
        ("WARN_AT", "90"),
        ("WARN_AT", "90%%"),
        ("WARN_AT", "nan"),
        ("ON_GROWTH", "allow"),
        ("RESERVE_POLICY", "Skip"),
        ("MAX_KEYS", "many"),
        *((name, "9" * 150) for name in ("MAX_KEYS", "MAX_RESERVE", "GUARD_MAX", "WARN_AT")),
    ],
)
def test_what_is_not_understood_is_kept_to_be_told_and_changes_nothing(
    name: str, text: str
) -> None:
    settings = read_settings({f"WSTRACE_{name}": text})
    (told,) = settings.not_understood
    assert told.startswith(f"WSTRACE_{name}='{text}' is n")
    assert replace(settings, not_understood=()) == read_settings({})


@pytest.mark.parametrize("name", ["MAX_KEYS", "MAX_RESERVE", "GUARD_MAX", "WARN_AT"])
def test_a_number_of_more_digits_than_python_reads_is_cut_where_it_is_told(name: str) -> None:
    settings = read_settings({f"WSTRACE_{name}": "9" * 5000})
    (told,) = settings.not_understood
    assert told.startswith(f"WSTRACE_{name}='{'9' * 200}...' is no ")
    assert replace(settings, not_understood=()) == read_settings({})


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("MAX_RESERVE", "2GiB", 2 << 30),
        ("MAX_RESERVE", "4096", 4096),
        ("GUARD_MAX", " 1.5 GiB ", 3 << 29),
        ("WARN_AT", "0.9", 0.9),
        ("WARN_AT", "90%", 0.9),
        ("WARN_AT", "90 %", 0.9),
        ("WARN_AT", "1", 1.0),
        ("WARN_AT", "100%", 1.0),
        ("RESERVE_POLICY", "skip", "skip"),
        ("MAX_KEYS", "7", 7),
        ("CHECK_VIEWS", "true", True),
        ("CHECK_VIEWS", "0", False),
    ],
)
def test_the_spellings_of_a_setting(name: str, text: str, found: object) -> None:
    settings = read_settings({f"WSTRACE_{name}": text})
    assert getattr(settings, name.lower()) == found
    assert settings.not_understood == ()


def test_without_a_guard_too_a_wrong_setting_is_told_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Production with a reserve alone: a cap that is none must not pass unseen."""
    live = Live(read_settings({"WSTRACE_RESERVE": "r.yaml", "WSTRACE_MAX_RESERVE": "some"}))
    tell_misspelt(live)
    assert [r.getMessage() for r in caplog.records] == [
        "wstrace: WSTRACE_MAX_RESERVE='some' is no size: write it as 2GiB, 512MiB or in bytes. "
        "It is not used."
    ]


@pytest.mark.parametrize(("folder", "told"), [("", 0), ("missing", 1)])
def test_a_counters_file_without_its_folder_is_told_at_the_start(
    folder: str, told: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / folder / "guard.prom"
    live = Live(Settings(None, "run", guard=True, guard_file=str(file)))
    live.hooks.states["WorkspaceManager._ensure_workspace_size"] = Hook(
        name="WorkspaceManager._ensure_workspace_size", set=True
    )
    announce(live)
    assert sum("WSTRACE_GUARD_FILE" in r.getMessage() for r in caplog.records) == told


def test_ray_gets_the_setting_under_vllms_prefix() -> None:
    assert read_settings({"VLLM_WSTRACE_GUARD": "1"}).guard
    assert not read_settings({"VLLM_WSTRACE_GUARD": "1", "WSTRACE_GUARD": "0"}).guard


def test_with_the_guard_off_and_nothing_else_no_hook_is_set() -> None:
    try:
        live = install(Settings(None, "run"))
        assert not live.hooks.states
    finally:
        uninstall()


def guarded(most: int | None) -> Live:
    return Live(Settings(None, "run", guard=True, guard_max=most))


@pytest.mark.parametrize(("size", "grows"), [(3000, True), (3001, False)])
def test_the_limit_counts_what_comes_on_top_to_the_byte(
    manager: Manager, size: int, grows: bool
) -> None:
    """A slot of 1000 bytes that no graph holds: 3000 bytes are 2000 more."""
    live = guarded(2000)
    assert may_grow(live, manager)
    assert (try_grow(live, manager, 0, size) is not None) is grows
    assert manager.sizes == [size if grows else 1000, 1000]


@pytest.mark.parametrize(("size", "grows"), [(3000, True), (3001, False)])
def test_an_arena_that_is_kept_counts_too(manager: Manager, size: int, grows: bool) -> None:
    live = guarded(3000)
    hold(live, manager)
    assert (try_grow(live, manager, 0, size) is not None) is grows


@pytest.mark.parametrize(("free", "grows"), [(MARGIN + 5000, True), (MARGIN + 4999, False)])
def test_without_a_limit_a_margin_of_the_free_memory_stays(
    manager: Manager, monkeypatch: pytest.MonkeyPatch, free: int, grows: bool
) -> None:
    monkeypatch.setattr(
        "wstrace.recorder.hooks.growth.free_memory", lambda worker: (free, 1 << 40)
    )
    live = guarded(None)
    assert (try_grow(live, manager, 0, 5000) is not None) is grows
    assert ("are free" in live.guard.why) is not grows


def test_an_arena_of_the_time_of_a_capture_is_held_though_nobody_asked(
    manager: Manager, tmp_path: Path
) -> None:
    """A view that was taken before the capture may be used in it."""
    live = guarded(None)
    live.arenas.changes(manager)
    live.capture.begin()
    live.capture.end(throwaway=False, present=live.arenas.present(manager))
    assert live.capture.holds(Slot(), live.arenas.generation(0))
    live.capture.release(live.capture.graph)
    assert not live.capture.holds(Slot(), live.arenas.generation(0))


def test_a_site_is_told_once_for_growths_and_once_for_refusals() -> None:
    guard, site = GuardState(), Outgrown("file.py:ask", Slot())
    assert guard.count(site, MIB, grew=True)
    assert not guard.count(Outgrown("file.py:ask", Slot(1, 0)), 2 * MIB, grew=True)
    assert guard.count(site, 4 * MIB, grew=False)
    assert not guard.count(site, 4 * MIB, grew=False)
    tally = guard.by_site[site]
    assert (tally.growths, tally.refused, tally.bytes) == (1, 2, 4 * MIB)


def test_the_file_is_one_that_prometheus_reads(tmp_path: Path) -> None:
    guard = GuardState()
    guard.count(Outgrown('odd "name".py:ask', Slot(1, 0)), MIB, grew=True)
    write_counters(str(tmp_path / "guard.prom"), Ranks(dp=1, tp=3, rank=3), guard)
    (file,) = tmp_path.iterdir()
    assert file.name == "guard-dp1-rank3.prom"
    families = {f.name: f for f in text_string_to_metric_families(file.read_text())}
    (sample,) = families["wstrace_guard_site_bytes"].samples
    assert sample.value == MIB
    assert sample.labels == {
        "site": 'odd "name".py:ask',
        "dp": "1",
        "pp": "0",
        "tp": "3",
        "ubatch": "1",
        "lane": "0",
    }
    assert families["wstrace_guard_growths"].samples[0].value == 1


def test_a_name_without_an_ending_gets_the_one_that_node_exporter_looks_for() -> None:
    assert file_of_rank("/textfile/guard", Ranks()) == "/textfile/guard-rank0.prom"


def test_the_line_is_a_site_of_a_reserve_config() -> None:
    site = SiteReserve(
        site="file.py:ask",
        grade="proved",
        bytes=2 * MIB,
        observed=MIB,
        formula="round256(num_reqs * 4)",
        drivers={"num_reqs": "max_num_seqs"},
        why='read from "the source"',
    )
    (item,) = yaml.safe_load(as_line(site))
    assert SiteReserve(**item) == site
    assert "slots" not in item
