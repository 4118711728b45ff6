"""The claims must be able to fail, and must not hold where the run left nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools import ROOT
from tools.gpu.claims import table_of
from tools.gpu.claims_overhead import interval
from tools.gpu.evidence import LOCKED, continuation_bytes
from tools.gpu.table import Claim, markdown

pytest_plugins = ("pytester",)
CALLER = "turboquant_attn.py:747:_continuation_prefill"
ERROR = (
    f"(EngineCore pid=7) ERROR AssertionError: Workspace is locked but allocation from "
    f"'{CALLER}' requires 8.00 MB, current size is 2.05 MB. Workspace growth is not allowed\n"
)
TURBO = {
    "max_model_len": 32768,
    "chunk": 4096,
    "block": 16,
    "threshold": 128,
    "num_kv_heads": 4,
    "head_size": 128,
    "short": 1000,
    "deadly": 9000,
    "middle": 20000,
    "longest_of_six": 6000,
    "longest_of_grow": 30000,
}
ESCAPE = {
    "code": "WS101",
    "caller": CALLER,
    "serving_bytes": 8_388_608,
    "arena_bytes": 2_146_816,
}


def make_crash(folder: Path, **changes: Any) -> dict[str, Claim]:
    """Scenario a with only its crash; `changes` go into the finding. Claims by their text."""
    crash = folder / "crash"
    crash.mkdir(parents=True)
    (folder / "scenario.json").write_text(json.dumps({"scenario": "a", "turbo": TURBO}))
    (crash / "server.log").write_text("INFO starting\n" + ERROR)
    prompts = [
        {"event": "prompt", "tokens": n, "status": s} for n, s in ((1000, 200), (9000, 500))
    ]
    (crash / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    (crash / "gate.json").write_text(json.dumps({"findings": [ESCAPE | changes]}))
    (crash / "gate.exit").write_text("1\n")
    claims, _ = table_of(folder)
    return {c.claim: c for c in claims}


def test_crash_of_the_field_holds(tmp_path: Path) -> None:
    claims = make_crash(tmp_path)
    crash = [c for text, c in claims.items() if text.startswith("crash:")]
    assert [c.ok for c in crash] == [True] * 6


@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        ({"serving_bytes": 8_388_352}, "crash: wstrace's bytes"),
        ({"arena_bytes": 2_161_000}, "crash: the arena that vLLM's log names"),
        (
            {"caller": "turboquant_attn.py:747:other"},
            "crash: wstrace names the caller that vLLM's log names",
        ),
    ],
)
def test_one_wrong_number_fails_one_claim(
    tmp_path: Path, changes: dict[str, Any], failing: str
) -> None:
    claims = make_crash(tmp_path, **changes)
    assert [text for text, c in claims.items() if c.ok is False] == [failing]


@pytest.mark.parametrize(("changes", "code"), [({}, 0), ({"serving_bytes": 1}, 1)])
def test_a_result_is_judged_by_pytest(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    changes: dict[str, int],
    code: int,
) -> None:
    make_crash(tmp_path / "result", **changes)
    monkeypatch.chdir(ROOT)
    claims = ("tools/gpu/test_results.py", f"--results={tmp_path / 'result'}")
    done = pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider", *claims)
    done.assert_outcomes(passed=6 - code, failed=code, skipped=done.parseoutcomes()["skipped"])
    assert ("expected 8,388,608, found 1" in done.stdout.str()) == bool(code)


def test_what_did_not_run_is_neither_true_nor_false(tmp_path: Path) -> None:
    claims = make_crash(tmp_path)
    others = [c for text, c in claims.items() if not text.startswith("crash:")]
    assert others
    assert {c.ok for c in others} == {None}
    assert all(c.found.startswith("not run: ") for c in others)


@pytest.mark.parametrize("scenario", ["b", "c", "d", "e", "f", "i", "j"])
def test_an_empty_scenario_claims_nothing(tmp_path: Path, scenario: str) -> None:
    setting = {"scenario": scenario, "turbo": TURBO, "tensor_parallel": 2, "prefixes": [1, 2]}
    setting |= {"servers": ["one"], "ranks": 2} if scenario in "ij" else {}
    (tmp_path / "scenario.json").write_text(json.dumps(setting))
    (tmp_path / "problems.json").write_text(
        json.dumps([{"who": "grow", "what": "ValueError: no backend", "hint": ""}])
    )
    claims, told = table_of(tmp_path)
    assert claims
    assert {c.ok for c in claims} == {None}
    assert told == [f"{tmp_path.name}: grow: ValueError: no backend"]


def test_the_error_of_the_field_is_read() -> None:
    found = LOCKED.search(ERROR)
    assert found is not None
    assert found.groupdict() == {"caller": CALLER, "required": "8.00", "current": "2.05"}


@pytest.mark.parametrize(
    ("prompts", "largest"),
    [
        ([1000, 4096], 0),
        ([4097], 0),
        ([4096 + 128], 0),
        ([4096 + 129], 8_388_608),
        ([9000], 16_777_216),
        ([1000, 9000, 30000], 58_720_256),
        ([32760], 58_720_256),
    ],
)
def test_continuation_bytes_by_hand(prompts: list[int], largest: int) -> None:
    shape = {"chunk": 4096, "block": 16, "heads": 4, "size": 128, "threshold": 128}
    assert continuation_bytes(prompts, **shape) == largest


def overhead(
    folder: Path,
    *,
    speed: float = 1.0,
    control: float = 1.0,
    off_calls: int = 0,
    replay_calls: int = 0,
    hooks_us: float = 5.0,
    pairs: int = 5,
) -> list[Claim]:
    """`pairs` pairs in which the recorded side runs at `speed` times the other side's.

    A decode step takes 2.5 ms, `hooks_us` microseconds of it in the hooks.
    """
    mode = folder / "graphs"
    mode.mkdir(parents=True)
    (folder / "scenario.json").write_text(
        json.dumps({"scenario": "overhead", "load": {"pairs": 5}})
    )
    pair = {
        "pair": [0.025 / speed, 0.025],
        "control": [0.025 / control, 0.025],
        "calls": [40, off_calls],
    }
    replay: dict[str, Any] = {
        "steps": 50,
        "replays": 50,
        "calls": replay_calls,
        "records": 0,
        "step_s": [0.0025] * 50,
        "hooks_us": [hooks_us, hooks_us, 900.0],
    }
    result = {"batch": 8, "steps": 10, "replay": replay, "first": [pair] * 5}
    (mode / "task.json").write_text("{}")
    (mode / "result.json").write_text(json.dumps(result | {"blocks": [pair] * pairs}))
    return table_of(folder)[0]


def test_overhead_at_the_target_holds(tmp_path: Path) -> None:
    rows = overhead(tmp_path, speed=0.9901, control=0.9901, hooks_us=24.9)
    assert [c.ok for c in rows] == [True] * 9
    assert rows[0].found.endswith("medians: on 3,168 tokens/s, off 3,200 tokens/s")
    assert rows[2].found.endswith("medians: on 25.25 ms, off 25.00 ms")


@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        (
            {"speed": 0.9899},
            [
                "tokens/s of decode steps, recorded over not recorded",
                "1/TTFT, recorded over not recorded",
            ],
        ),
        (
            {"control": 1.02},
            [
                "tokens/s of decode steps, hooks off on both sides",
                "1/TTFT, hooks off on both sides",
            ],
        ),
        ({"pairs": 4}, ["alternating pairs of decode steps, of first tokens"]),
        ({"replay_calls": 8}, ["manager calls in these steps"]),
        ({"hooks_us": 26.0}, ["hooks of a decode step, of its time"]),
    ],
)
def test_overhead_can_fail(tmp_path: Path, changes: dict[str, Any], failing: list[str]) -> None:
    claims = overhead(tmp_path, **changes)
    assert [c.claim for c in claims if c.ok is False] == failing


def test_a_run_that_was_cut_short_has_rows_that_are_not_run(tmp_path: Path) -> None:
    rows = [c for c in overhead(tmp_path, pairs=0) if c.ok is None]
    assert len(rows) == 3
    assert all("blocks: the time ended before a pair was taken" in row.found for row in rows)


def test_interval_is_reproducible_and_within_the_values() -> None:
    values = [0.97, 0.99, 1.0, 1.01, 1.02, 1.0, 0.98]
    low, high = interval(values)
    assert (low, high) == interval(values)
    assert 0.97 <= low <= 1.0 <= high <= 1.02


def test_a_cell_cannot_break_the_table() -> None:
    text = markdown([Claim("a", "x | y", "1", "two\nlines", False)], ["d: no | GPU"])
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows[-1] == "| a | x \\| y | 1 | two lines | **no** |"
    assert "- d: no \\| GPU" in text


def price(folder: Path, **reserved: int) -> dict[str, bool | None]:
    """The three rows about the cost of a 64 MiB reserve, by the end of their text."""
    cost, plain = (
        67_108_864,
        {
            "available_kv_bytes": 15_000_000_000,
            "graph_estimate_bytes": 44_040_192,
            "activation_bytes": 600_000_000,
        },
    )
    make_crash(folder)
    cold = plain | {"activation_bytes": 650_000_000}
    servers = {"crash": plain, "grow": cold, "reserved-grow": plain | reserved}
    for name, memory in servers.items():
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "memory.json").write_text(json.dumps([memory]))
    (folder / "grow" / "reserve.json").write_text(json.dumps({"kv_cost": {"bytes": cost}}))
    rows = [c for c in table_of(folder)[0] if c.claim.startswith("reserved-grow: ")]
    return {c.claim.removeprefix("reserved-grow: "): c.ok for c in rows}


def test_calls_are_asked_for_in_eager_mode_only(tmp_path: Path) -> None:
    graphs = overhead(tmp_path)
    (tmp_path / "graphs").rename(tmp_path / "eager")
    eager, _ = table_of(tmp_path)
    wanted = "manager calls counted while the hooks were on, and off"
    assert [(c.found, c.ok) for c in eager if c.claim == wanted] == [("400, 0", True)]
    assert [c for c in graphs if c.claim == wanted] == []


def test_calls_with_the_hooks_off_fail_in_eager_mode(tmp_path: Path) -> None:
    overhead(tmp_path, off_calls=8)
    (tmp_path / "graphs").rename(tmp_path / "eager")
    failed = [c.claim for c in table_of(tmp_path)[0] if c.ok is False]
    assert failed == ["manager calls counted while the hooks were on, and off"]


def test_a_prompt_that_time_cut_short_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "grow").mkdir()
    row = {"event": "prompt", "tokens": 1000, "status": 0}
    (tmp_path / "grow" / "prompts.jsonl").write_text(json.dumps(row))
    (tmp_path / "grow" / "gate.exit").write_text("0")
    (tmp_path / "scenario.json").write_text(
        json.dumps({"scenario": "d", "turbo": TURBO, "tensor_parallel": 2})
    )
    claims = {c.claim: c for c in table_of(tmp_path)[0]}
    for text in ("every prompt answered", "gate exits 1"):
        assert claims[f"growing: {text}"].ok is None
        assert "0 of 3 prompts had been answered" in claims[f"growing: {text}"].found


def judged_server(folder: Path, code: int, codes: list[str], *prompts: tuple[int, int]) -> None:
    """A server's prompts with their statuses, and its verdict."""
    folder.mkdir(parents=True)
    rows = [{"event": "prompt", "tokens": n, "status": status} for n, status in prompts]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "gate.exit").write_text(f"{code}\n")
    (folder / "gate.json").write_text(json.dumps({"findings": [{"code": c} for c in codes]}))


def builder_rows(folder: Path) -> dict[str, Claim]:
    (folder / "scenario.json").write_text(
        json.dumps(
            {"scenario": "b", "prefixes": [1000, 9000, 11000, 14000], "token_bytes": 2048}
        )
    )
    return {c.claim: c for c in table_of(folder)[0]}


PREFIXES = [(1000, 200), (9000, 200), (11000, 200), (14000, 200)]


def test_what_an_inconclusive_run_lacks_is_not_gone(tmp_path: Path) -> None:
    judged_server(tmp_path / "reserved-prefix", 3, ["WS401"], *PREFIXES)
    rows = builder_rows(tmp_path)
    for text in ("WS301 gone", "WS202 gone", "no growth in serving"):
        assert rows[f"reserved: {text}"].ok is None
        assert "inconclusive" in rows[f"reserved: {text}"].found


@pytest.mark.parametrize(
    ("sent", "ok"),
    [
        (PREFIXES, True),
        (PREFIXES[:2], None),
        ([*PREFIXES[:3], (14000, 0)], None),
        ([*PREFIXES[:3], (14000, 500)], False),
        ([*PREFIXES[:1], (9000, 500)], False),
    ],
)
def test_every_planned_prompt_counts(
    tmp_path: Path, sent: list[tuple[int, int]], ok: bool | None
) -> None:
    judged_server(tmp_path / "prefix", 1, ["WS301"], *sent)
    assert builder_rows(tmp_path)["prefix caching: every prompt answered"].ok is ok


FALLS = "KV memory falls by the stated cost"
NET = "the same, vLLM's graph-memory estimate set aside"
PEAK = "profiling's peak rises by the stated cost"


def test_the_price_to_the_byte(tmp_path: Path) -> None:
    rows = price(
        tmp_path, available_kv_bytes=15_000_000_000 - 67_108_864, activation_bytes=667_108_864
    )
    assert (rows[FALLS], rows[NET], rows[PEAK]) == (True, True, True)


def test_a_segment_less_in_the_graph_estimate_is_set_aside(tmp_path: Path) -> None:
    rows = price(
        tmp_path,
        available_kv_bytes=15_000_000_000 - 67_108_864 + 20_971_520,
        graph_estimate_bytes=44_040_192 - 20_971_520,
        activation_bytes=667_108_864,
    )
    assert (rows[FALLS], rows[NET], rows[PEAK]) == (True, True, True)


def test_a_reserve_that_nobody_paid_for_fails_all(tmp_path: Path) -> None:
    rows = price(tmp_path)
    assert (rows[FALLS], rows[NET], rows[PEAK]) == (False, False, False)
