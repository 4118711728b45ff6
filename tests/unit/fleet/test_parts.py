"""Clocks, groups, versions that can be compared, files by name, a reader that dies."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.unit.fleet.dying import dies_of_one, stays
from wstrace.cli.fleet import engines
from wstrace.cli.fleet.job import Job
from wstrace.cli.sigterm import heed_sigterm
from wstrace.file_names import named_run
from wstrace.fleet.clocks import clock_words, started_ns
from wstrace.fleet.found_files import kind_of
from wstrace.fleet.grouped_rows import GroupedRows
from wstrace.fleet.regressions import regressions, setting_text
from wstrace.fleet.source import RowSource
from wstrace.trace.run_file import RunFile

HOUR = 3600 * 10**9
BEGUN = 1_780_000_000 * 10**9


def meta(seconds: int) -> RunFile:
    """A run.json that was started so many seconds after BEGUN (2026-05-28T20:26:40Z)."""
    started = f"2026-05-28T20:26:{40 + seconds:02}+00:00"
    return RunFile(run="r", command=[], started=started, wstrace="0")


@pytest.mark.parametrize(
    ("starts", "end", "says"),
    [
        ({}, None, []),
        ({"a": BEGUN}, None, []),
        ({"a": BEGUN, "b": BEGUN + HOUR // 4}, None, []),
        ({"a": BEGUN, "b": BEGUN + 3 * HOUR}, None, ["a and b are 3 h 0 min apart"]),
        ({"a": BEGUN, "b": BEGUN + 3 * HOUR}, meta(0), ["b started 3 h 0 min after the rest"]),
        ({"a": BEGUN, "b": BEGUN - 3 * HOUR}, meta(9), ["b started 3 h 0 min before the rest"]),
        (
            {"a": BEGUN, "b": BEGUN + 1, "c": BEGUN + 3 * HOUR},
            None,
            ["c started 3 h 0 min after the rest"],
        ),
        (
            {"a": BEGUN, "b": BEGUN + 5 * HOUR, "c": BEGUN + 10 * HOUR},
            meta(0),
            ["clocks of its 3 hosts do not agree: they are up to 10 h 0 min apart"],
        ),
        (
            {"a": BEGUN, "b": BEGUN, "c": BEGUN + 3 * HOUR, "d": BEGUN + 3 * HOUR},
            None,
            ["clocks of its 4 hosts do not agree: they are up to 3 h 0 min apart"],
        ),
        (
            dict.fromkeys("abcd", BEGUN + 48 * HOUR),
            meta(0),
            ["run.json and the workers' hosts are 48 h 0 min apart: a clock is wrong"],
        ),
        (
            {"a": BEGUN - 3 * HOUR, "b": BEGUN - 3 * HOUR},
            meta(0),
            ["run.json and the workers' hosts are 3 h 0 min apart: a clock is wrong"],
        ),
        (
            {"a": BEGUN + 3 * HOUR},
            meta(0),
            ["run.json and the workers' hosts are 3 h 0 min apart: a clock is wrong"],
        ),
        ({"a": BEGUN + 3 * HOUR, "b": BEGUN + 9 * HOUR}, meta(0), ["a and b are 6 h 0 min"]),
        # a clock that has begun anew with its battery, on all of them
        (dict.fromkeys("abc", HOUR), None, ["a time before any vLLM that has a workspace"]),
    ],
)
def test_a_clock_that_is_far_from_the_others(
    starts: dict[str, int], end: RunFile | None, says: list[str]
) -> None:
    words = clock_words(starts, end)
    assert len(words) == len(says)
    for word, part in zip(words, says, strict=True):
        assert part in word


def test_a_run_began_when_most_of_its_hosts_say() -> None:
    starts = {"a": BEGUN, "b": BEGUN + 3 * HOUR, "c": BEGUN + 2}
    assert started_ns(starts, meta(50)) == BEGUN + 2


def test_groups_do_not_depend_on_the_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    lot = random.Random(5)
    rows: list[dict[str, Any]] = [
        {
            "a": lot.choice("xyz"),
            "b": lot.choice((None, 1, 2)),
            "n": 1,
            "most": lot.choice((None, lot.randrange(99))),
            "day": f"2026-05-{lot.randrange(10, 30)}",
            "first": str(number),
        }
        for number in range(300)
    ]
    tables = []
    for portion in (37, 10_000):
        monkeypatch.setattr("wstrace.fleet.grouped_rows.BUFFER", portion)
        made = GroupedRows(
            ("a", "b"), {"n": "sum", "most": "max", "day": "min", "first": "first"}
        )
        for row in rows:
            made.add(row)
        tables.append(made.frame())
    pd.testing.assert_frame_equal(tables[0], tables[1])
    for group in tables[0].to_dict("records"):
        b = None if pd.isna(group["b"]) else group["b"]
        mine = [row for row in rows if (row["a"], row["b"]) == (group["a"], b)]
        assert group["n"] == len(mine)
        assert group["most"] == max(r["most"] for r in mine if r["most"] is not None)
        assert group["day"] == min(str(r["day"]) for r in mine)
        assert group["first"] == mine[0]["first"]


def compared(old: dict[str, int], new: dict[str, int], **changes: object) -> list[str]:
    """What is worse where 0.30.0 and 0.32.0 ran with these settings; `changes` of the later."""
    groups, sites = [], []
    for vllm, setting in (("0.32.0", new), ("0.30.0", old)):
        group = {"model": "m", "setting": setting_text(setting), "vllm": vllm, "runs": 2}
        groups.append({**group, "escaped": 0, "example": vllm})
        site = {
            **group, "file": "f.py", "function": "F.g", "ubatch": 0, "lane": 0, "escaped": 0,
            "arena_low": 100, "arena_high": 100, "bound_low": 80, "bound_high": 80,
        }  # fmt: skip
        sites.append(site | (changes if vllm == "0.32.0" else {}))
    return [r.change for r in regressions(pd.DataFrame(groups), pd.DataFrame(sites))]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, []),
        ({"escaped": 1}, ["escapes"]),
        ({"arena_low": 90, "arena_high": 90}, ["smaller arena"]),
        ({"arena_low": 90, "arena_high": 110}, []),
        ({"arena_low": 110, "arena_high": 120}, ["larger arena"]),
        ({"bound_low": 81, "bound_high": 90}, ["larger bound"]),
        ({"bound_low": None, "bound_high": None}, []),
    ],
)
def test_what_is_worse_in_a_later_version(changes: dict[str, object], says: list[str]) -> None:
    assert compared({"max_model_len": 8}, {"max_model_len": 8}, **changes) == says


VERSIONS = ("0.20.0", "0.21.0rc1", "0.21.0", "0.21.0.post1", "0.33.0", "0.1.dev12345+gabc")


@pytest.mark.parametrize("seed", range(12))
def test_a_version_is_compared_with_the_next_older_one(seed: int) -> None:
    """Each asks for more than the one before it; the rows come in any order."""
    rows = []
    for rank, vllm in enumerate([*VERSIONS, "", "?", "0.20.0, 0.21.0"]):
        rows.append(
            {
                "model": "m", "setting": "{\"a\":1}", "vllm": vllm, "runs": 1, "escaped": 0,
                "example": vllm, "file": "f.py", "function": "F.g", "ubatch": 0, "lane": 0,
                "arena_low": 100, "arena_high": 100, "bound_low": rank, "bound_high": rank,
            }
        )  # fmt: skip
    random.Random(seed).shuffle(rows)
    found = regressions(pd.DataFrame(rows), pd.DataFrame(rows))
    assert {(r.old, r.new) for r in found} == set(pairwise(VERSIONS))
    assert len(found) == len(VERSIONS) - 1


def test_two_builds_of_one_release_are_not_compared_whichever_comes_first() -> None:
    """With the next older one: of two that are equal always the same."""
    for order in permutations(("0.32.0", "0.32.0+cu130", "0.33.0")):
        groups = [
            {"model": "m", "setting": '{"a":1}', "vllm": v, "runs": 1, "example": v}
            for v in order
        ]
        place = {"file": "f.py", "function": "F.g", "ubatch": 0, "lane": 0, "escaped": 0}
        sizes = {"0.32.0": 10, "0.32.0+cu130": 10, "0.33.0": 11}
        sites = [
            {**g, **place, "arena_low": 1, "arena_high": 1, "bound_low": b, "bound_high": b}
            for g in groups
            for b in (sizes[str(g["vllm"])],)
        ]
        found = regressions(pd.DataFrame(groups), pd.DataFrame(sites))
        assert [(r.old, r.new) for r in found] == [("0.32.0", "0.33.0")]


def worse(*runs: tuple[str, dict[str, int], dict[str, object]]) -> list[str]:
    """What is worse in 0.33.0, told the same in every order: runs of a version, a setting, and
    what its one site has that is its own."""
    told = set()
    for order in permutations(runs):
        groups, sites = [], []
        for vllm, setting, own in order:
            group = {"model": "m", "setting": setting_text(setting), "vllm": vllm, "runs": 1}
            group["example"] = f"{vllm} {setting}"
            groups.append(group)
            site = {
                **group, "file": "f.py", "function": "F.g", "ubatch": 0, "lane": 0,
                "escaped": 0, "arena_low": 100, "arena_high": 100, "bound_low": 80,
                "bound_high": 80,
            }  # fmt: skip
            sites.append(site | own)
        found = regressions(pd.DataFrame(groups), pd.DataFrame(sites))
        told.add(tuple(f"{r.change} {r.old} {r.before} {r.after} {r.old_runs}" for r in found))
    (one,) = told
    return list(one)


DIED: dict[str, object] = {"escaped": 1}
LARGE: dict[str, object] = {"bound_low": 90, "bound_high": 90}
BY_HAND: dict[str, object] = {"file": "g.py", "arena_low": 70, "arena_high": 70}


@pytest.mark.parametrize(
    ("olds", "new", "says"),
    [
        # the newer version does not know a number: two kinds of GPU are one setting
        ([("0.32.0", {"a": 1, "n": 1}, DIED), ("0.32.0", {"a": 1, "n": 2}, {})], DIED, []),
        ([("0.32.0", {"a": 1, "n": 1}, LARGE), ("0.32.0", {"a": 1, "n": 2}, {})], LARGE, []),
        (
            [("0.32.0", {"a": 1, "n": 1}, {}), ("0.32.0", {"a": 1, "n": 2}, {})],
            DIED,
            ["escapes 0.32.0 0 1 2"],
        ),
        # groups that name other numbers
        ([("0.32.0", {"a": 1, "n": 1}, {}), ("0.32.0", {"a": 1}, DIED)], DIED, []),
        # builds of one release
        ([("0.32.0", {"a": 1}, {}), ("0.32.0+cu130", {"a": 1}, DIED)], DIED, []),
        ([("0.32.0", {"a": 1}, DIED), ("0.32.0+cu130", {"a": 1}, {})], DIED, []),
        (
            [("0.32.0", {"a": 1}, {}), ("0.32.0+cu130", {"a": 1}, {})],
            DIED,
            ["escapes 0.32.0 0 1 2"],
        ),
        # another setting, and an older release, do not speak for it
        (
            [("0.32.0", {"a": 1}, {}), ("0.32.0", {"a": 2}, DIED)],
            DIED,
            ["escapes 0.32.0 0 1 1"],
        ),
        (
            [("0.32.0", {"a": 1}, {}), ("0.31.0", {"a": 1}, DIED)],
            DIED,
            ["escapes 0.32.0 0 1 1"],
        ),
        # a slot's arena is that of all its sites: not every run has every site
        (
            [("0.32.0", {"a": 1, "n": 1}, {}), ("0.32.0", {"a": 1, "n": 2}, BY_HAND)],
            {"arena_low": 80, "arena_high": 80},
            [],
        ),
    ],
)
def test_all_groups_of_the_older_release_that_agree_are_compared_with(
    olds: list[tuple[str, dict[str, int], dict[str, object]]],
    new: dict[str, object],
    says: list[str],
) -> None:
    assert worse(*olds, ("0.33.0", {"a": 1}, new)) == says


def test_other_settings_are_not_compared() -> None:
    worse = {"escaped": 2, "arena_low": 1, "arena_high": 1}
    assert compared({"max_model_len": 8}, {"max_model_len": 9}, **worse) == []
    # a number that one version does not know makes no difference
    assert compared({"a": 8}, {"a": 8, "b": 1}, **worse) == ["escapes", "smaller arena"]


@pytest.mark.parametrize(
    ("name", "kind", "run"),
    [
        ("r1.host.30091.1795830203879311338.2fa811b7.wst.jsonl", "records", "r1"),
        ("a.b.host.1.2.ff.wst.jsonl", "records", "a.b"),
        ("renamed.wst.jsonl", "records", ""),
        ("run.json", "end", ""),
        ("run.r1.json", "end", "r1"),
        ("serve.log", "log", ""),
        ("serve.log.3.gz", "log", ""),
        ("run.yaml", None, ""),
        ("README.md", None, ""),
    ],
)
def test_files_are_known_by_their_names(name: str, kind: str | None, run: str) -> None:
    assert kind_of(name) == kind
    assert named_run(name) == (run if kind in ("records", "end") else "")


def test_a_reader_that_is_killed_loses_its_run_and_no_other() -> None:
    names = ["a", "bad", "c"]
    sources = [RowSource(run=name, files=()) for name in names]
    rows = [row for _, row in engines._pool(1, Job(), sources, dies_of_one)]
    assert sorted(row.run for row in rows) == sorted(names)
    lost = {row.run: row.sentence for row in rows if row.kind == "unread"}
    assert lost == {"bad": f"could not be read: {engines.KILLED}"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_its_processes_end_with_a_fleet(number: signal.Signals, tmp_path: Path) -> None:
    told = tmp_path / "pid"
    child = os.fork()
    if not child:
        with suppress(BaseException):
            # a shell starts what is in the background with SIGINT ignored, and so these tests
            signal.signal(signal.SIGINT, signal.default_int_handler)
            heed_sigterm()
            list(engines._pool(1, Job(), [RowSource(run=str(told), files=())], stays))
        os._exit(7)
    try:
        waits(told.exists)
        os.kill(child, number)
        waits(lambda: is_gone(child))
    finally:
        os.kill(child, signal.SIGKILL)
        ended = os.waitpid(child, 0)[1]
    assert ended == (9 if number == signal.SIGKILL else 7 << 8)
    waits(lambda: is_gone(int(told.read_text())))
    assert [file.name for file in tmp_path.iterdir()] == ["pid"]


def waits(happened: Callable[[], bool]) -> None:
    """Until it happened, for as long as a busy machine takes; pytest's limit ends a hang."""
    while not happened():
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Whether no such process runs; one that nobody waited for yet is gone too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_batches_keep_every_source_in_order() -> None:
    sources = [RowSource(run=str(n), files=(), bytes=n << 20) for n in range(40)]
    made = list(engines.batches(sources))
    assert [s for batch in made for s in batch] == sources
    assert max(len(batch) for batch in made) <= engines.BATCH_SOURCES
    assert len(made) > 30  # from 4 MiB on each alone


def test_one_bad_source_is_a_row(tmp_path: Path) -> None:
    from wstrace.cli.fleet.job import do

    gone = RowSource(run="r", files=(str(tmp_path / "gone.wst.jsonl"),))
    (row,) = do(Job(), [gone])
    assert row.kind == "unread"
    assert "gone.wst.jsonl" in row.sentence
