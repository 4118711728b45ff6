"""The plan: what slots get, what it costs, what is said to be left uncovered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.reserve.examples import LIMITS
from wstrace.bounds.bound import Bound
from wstrace.bounds.ways import bound_site
from wstrace.errors import WstraceError
from wstrace.expr.expression import parse
from wstrace.known_sites.known import require
from wstrace.planning.plan import Engine, SiteBound, Wishes, p99, plan
from wstrace.reserve.config import dumps, evaluate, load_reserve
from wstrace.trace.records import Limit, Memory, Request, Slot

LENGTH = Bound(
    bytes=4096 * 1024,
    grade="proved",
    formula="256 * 4 * round_up(max_model_len - 1, block_size)",
    driver_formula="256 * 4 * round_up(num_computed_tokens, block_size)",
    drivers={"num_computed_tokens": "max_model_len - 1"},
    lever={"flag": "--max-model-len", "effect": "the bytes follow it"},
    observed=100 * 1024,
)
SEEN = Bound(bytes=70000, grade="observed", observed=70000, why="seen")
SITES = [
    SiteBound("a/attention.py", "Attention.forward", LENGTH, 100 * 1024, p99=90 * 1024),
    SiteBound("a/moe.py", "Moe.forward", SEEN, 70000),
]
ENGINE = Engine(limits=LIMITS, slots=(Slot(0, 0), Slot(0, 1)))
MEMORY = Memory(
    available_kv_bytes=1 << 30, num_gpu_blocks=1024, bytes_per_block=1 << 20, block_size=16
)


def test_every_slot_gets_the_maximum_and_not_the_sum() -> None:
    slots = plan(SITES, ENGINE).config.slots
    assert [(s.ubatch, s.lane, s.bytes) for s in slots] == [(0, 0, 4194304), (0, 1, 4194304)]


def test_the_plan_survives_the_file_and_grows_with_the_live_limits(tmp_path: Path) -> None:
    config = plan(SITES, ENGINE).config
    path = tmp_path / "reserve.yaml"
    path.write_text(dumps(config), "utf-8")
    assert load_reserve(path) == config
    live = evaluate(load_reserve(path), {**LIMITS, "max_model_len": 8192})
    assert [slot.bytes for slot in live] == [8192 * 1024, 8192 * 1024]


def test_the_cost_is_what_profiling_had_not_counted() -> None:
    engine = replace(
        ENGINE, memory=MEMORY, counted={Slot(0, 0): 3 << 20, Slot(0, 1): 9 << 20}, pinned=5
    )
    cost = plan(SITES, engine).config.cost
    assert cost.bytes == (1 << 20) + 5
    assert (cost.blocks, cost.tokens, cost.counted) == (2, 32, True)


def test_a_fixed_kv_size_is_not_counted_and_says_what_to_lower() -> None:
    for fixed, told in (
        ("kv_cache_memory_bytes", "8,388,608 bytes"),
        ("num_gpu_blocks_override", "8 blocks"),
    ):
        memory = Memory(bytes_per_block=1 << 20, block_size=16, fixed_kv=fixed)
        cost = plan(SITES, replace(ENGINE, memory=memory)).config.cost
        assert cost.counted is False
        assert fixed in cost.note
        assert told in cost.note


def test_without_memory_tokens_are_unknown_and_not_zero() -> None:
    payload = plan(SITES, ENGINE).payload()
    assert payload["kv_cost"] == {
        "bytes": 8388608, "tokens": None, "blocks": None, "counted": True, "note": "",
    }  # fmt: skip


def test_the_payload_is_the_contract() -> None:
    payload = plan(SITES, ENGINE).payload()
    assert payload["version"] == 1
    assert payload["slots"] == [
        {"ubatch": 0, "lane": 0, "bytes": 4194304},
        {"ubatch": 0, "lane": 1, "bytes": 4194304},
    ]
    first, second = payload["sites"]
    assert (first["file"], first["function"]) == ("a/attention.py", "Attention.forward")
    assert (first["grade"], first["bytes"], first["bound"]) == ("proved", 4194304, 4194304)
    assert first["lever"]["flag"] == "--max-model-len"
    assert (second["grade"], second["bytes"], second["bound"]) == ("observed", 70000, None)


def test_what_if_a_longer_model_len() -> None:
    found = plan(SITES, ENGINE, Wishes(limits={"max_model_len": 65536})).config
    assert found.slots[0].bytes == 65536 * 1024
    assert found.limits["max_model_len"] == 65536


def test_a_what_if_under_a_budget_says_the_what_ifs_need() -> None:
    wishes = Wishes(limits={"max_model_len": 65536}, budget=1 << 20)
    found = plan(SITES, ENGINE, wishes)
    assert "can need 64.00 MiB" in found.can_fail[0]
    assert found.payload()["sites"][0]["bound"] == 64 << 20


def test_the_curve_is_in_the_payload() -> None:
    points = plan(SITES, ENGINE).payload()["sites"][0]["curve"]
    assert points[-1] == {
        "name": "max_model_len", "value": 8192, "bytes": 8 << 20,
        "tokens": None, "blocks": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("max_model_length", 1, "max_model_len"),
        ("num_kv_heads", 8, "decides shapes"),
        ("dtype", 2, "no number"),
        ("max_model_len", -1, "out of range"),
        ("max_model_len", 1 << 41, "out of range"),
    ],
)
def test_what_ifs_that_cannot_be(name: str, value: int, told: str) -> None:
    with pytest.raises(WstraceError) as caught:
        plan(SITES, ENGINE, Wishes(limits={name: value}))
    assert told in str(caught.value)


@pytest.mark.parametrize("key", ["a/attention.py:Attention.forward", "Attention.forward"])
def test_cover_observed_says_what_can_fail(key: str) -> None:
    found = plan(SITES, ENGINE, Wishes(cover={key: "observed"}))
    assert found.config.slots[0].bytes == 102400
    told = next(t for t in found.can_fail if "attention" in t)
    assert "can need 4.00 MiB (proved)" in told
    assert "num_computed_tokens above 96" in told  # 112 rows of 1024 bytes exceed 100 KiB


def test_cover_takes_p99_and_plain_sizes() -> None:
    cover = {"Attention.forward": "p99", "Moe.forward": "1MiB"}
    sizes = {s.site: s.bytes for s in plan(SITES, ENGINE, Wishes(cover=cover)).config.sites}
    assert sizes == {"a/attention.py:Attention.forward": 92160, "a/moe.py:Moe.forward": 1 << 20}


def test_cover_of_an_unknown_site_lists_the_known_ones() -> None:
    with pytest.raises(WstraceError, match=r"a/moe\.py:Moe\.forward"):
        plan(SITES, ENGINE, Wishes(cover={"Attn": "observed"}))


def test_a_budget_is_for_all_slots_together_and_names_what_still_fails() -> None:
    found = plan(SITES, ENGINE, Wishes(budget=1 << 20))
    assert [slot.bytes for slot in found.config.slots] == [1 << 19, 1 << 19]
    assert "gets 512.00 KiB, can need 4.00 MiB" in found.can_fail[0]
    assert not plan(SITES[:1], ENGINE, Wishes(budget=8 << 20)).can_fail


ROWS = Bound(
    bytes=8 * 65536,
    grade="proved",
    formula="65536 * max_num_seqs",
    driver_formula="65536 * num_reqs",
    drivers={"num_reqs": "max_num_seqs"},
    lowest={"num_reqs": 1},
    observed=65536,
)


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        (0, "gets 0 B, its smallest request needs 64.00 KiB: nothing fits, no request"),
        (2 * 65280, "gets 63.75 KiB, its smallest request needs 64.00 KiB: nothing fits"),
        (2 * 65536, "a request above that still fails, num_reqs above 1."),
        (2 * 3 * 65536, "a request above that still fails, num_reqs above 3."),
    ],
)
def test_a_budget_below_one_request_says_that_nothing_fits(budget: int, says: str) -> None:
    site = SiteBound("a/attention.py", "Attention.decode", ROWS, 65536)
    (told,) = plan([site], ENGINE, Wishes(budget=budget)).can_fail
    assert says in told
    assert ("above" in told) == (budget >= 2 * 65536)


def _by_rule(site_id: str, limits: dict[str, Limit]) -> SiteBound:
    """A site that its known rule bounds, from one request without a step."""
    rule = require(site_id).at("0.21.0")
    numbers = {name: value for name, value in limits.items() if isinstance(value, int)}
    ends = {name: parse(text).evaluate(numbers) for name, text in rule.drivers.items()}
    size = parse(rule.request_formula).evaluate({**numbers, **ends})
    request = Request(site=1, slot=Slot(), bytes=size, arena=0, phase="capture")
    file, function = rule.files[0], rule.functions[0]
    bound = bound_site([request], limits, file=file, function=function, vllm_version="0.21.0")
    assert (bound.known_site, bound.closed) == (site_id, True)
    return SiteBound(file, function, bound, size)


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        (1 << 20, "a request above that still fails, num_computed_tokens above 2048."),
        (8192, "gets 8.00 KiB, its smallest request needs 16.00 KiB: nothing fits"),
    ],
)
def test_a_rule_with_one_driver_names_it(budget: int, says: str) -> None:
    """K and V of 2 heads, 64 wide, 2 bytes: 512 a token, 16 KiB a block of 32."""
    limits = {**LIMITS, "block_size": 32}
    site = _by_rule("turboquant.continuation_prefill", limits)
    engine = Engine(limits=limits)
    (told,) = plan([site], engine, Wishes(budget=budget)).can_fail
    assert says in told


def test_a_rule_of_several_calls_names_no_driver() -> None:
    limits = {**LIMITS, "decode_context_parallel_size": 2, "dtype_size": 2}
    site = _by_rule("dcp.flash_attention", limits)
    (told,) = plan([site], Engine(limits=limits), Wishes(budget=1 << 16)).can_fail
    assert told.endswith("a request above that still fails.")


def test_a_cover_cut_by_the_budget_and_short_says_both() -> None:
    wishes = Wishes(cover={"Attention.forward": "1TiB"}, budget=1 << 20)
    told = next(t for t in plan(SITES, ENGINE, wishes).can_fail if "attention" in t)
    assert "--cover asks for 1.00 TiB, --budget cuts it to 512.00 KiB. gets 512.00 KiB," in told


def test_a_site_left_out_by_hand_is_said_to_fail() -> None:
    cover = {"Attention.forward": "0", "Moe.forward": "0"}
    found = plan(SITES, ENGINE, Wishes(cover=cover))
    assert [slot.bytes for slot in found.config.slots] == [0, 0]
    assert [t.partition(": ")[2].split(",")[0] for t in found.can_fail] == [
        "gets 0 B",
        "gets 0 B: nothing fits",
    ]


def test_an_arena_that_another_site_makes_large_covers_more() -> None:
    found = plan(SITES, ENGINE, Wishes(cover={"Attention.forward": "0", "Moe.forward": "1MiB"}))
    told = next(t for t in found.can_fail if "attention" in t)
    assert "a request above the arena's 1.00 MiB still fails" in told
    assert "num_computed_tokens above 1024." in told  # a KiB a token


@pytest.mark.parametrize(
    ("cover", "says"),
    [
        ({"Moe.forward": "most"}, "no such choice"),
        ({"Moe.forward": "9" * 400}, "no such choice"),
        ({"Moe.forward": "p99", "a/moe.py:Moe.forward": "observed"}, "given twice"),
    ],
)
def test_a_cover_that_cannot_be(cover: dict[str, str], says: str) -> None:
    with pytest.raises(WstraceError, match=says):
        plan(SITES, ENGINE, Wishes(cover=cover))


def test_an_observed_site_is_always_said_to_be_able_to_fail() -> None:
    assert any("moe.py" in told for told in plan(SITES, ENGINE).can_fail)


def test_a_site_without_a_number_is_not_covered_and_names_it() -> None:
    unknown = SiteBound("x.py", "f", Bound(None, "observed", needs=("top_k",), why="the rule"))
    found = plan([unknown], ENGINE).config
    assert found.sites == []
    assert found.not_covered[0].what_helps == "Give top_k with --set."


def test_an_absurd_bound_comes_with_cheaper_choices() -> None:
    engine = replace(ENGINE, memory=Memory(available_kv_bytes=8 << 20))
    steps = plan(SITES, engine).payload()["sites"][0]["ladder"]
    assert steps[0] == {
        "choice": "bound", "bytes": 4194304, "covers": "every request under these limits",
        "fails": "nothing", "tokens": None,
    }  # fmt: skip
    sizes = [step["bytes"] for step in steps]
    assert sizes == sorted(set(sizes), reverse=True)
    assert {"observed", "p99", "--max-model-len 2048"} <= {step["choice"] for step in steps}
    assert plan(SITES, ENGINE).payload()["sites"][0]["ladder"] == []


def test_p99_of_few_sizes_is_the_largest() -> None:
    requests = [
        Request(site=1, slot=Slot(), bytes=n, arena=0, phase="serving") for n in range(1, 201)
    ]
    assert p99(requests[:5]) == 5
    assert p99(requests) == 198
    assert p99([]) is None
