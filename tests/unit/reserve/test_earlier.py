"""A reserve only grows: what an earlier one covered is kept, what is dropped is in the file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.unit.reserve.examples import LIMITS
from tests.unit.reserve.test_plan import ENGINE, LENGTH, SEEN, SITES
from wstrace.bounds.bound import Bound
from wstrace.errors import WstraceError
from wstrace.planning.earlier import BEHIND, Earlier, applied_config
from wstrace.planning.plan import Engine, SiteBound, Wishes, plan, refuse_empty_reserve
from wstrace.reserve.config import ReserveConfig, dumps, load_reserve
from wstrace.reserve.schema import NotCovered
from wstrace.trace.records import Limit

ATTENTION, MOE = (site.name for site in SITES)
FULL = plan(SITES, ENGINE).config


def _sizes(config: ReserveConfig) -> dict[str, int]:
    return {site.site: site.bytes for site in config.sites}


def test_a_site_that_this_run_did_not_reach_is_kept_with_its_formula() -> None:
    made = plan(SITES[1:], ENGINE, earlier=[Earlier("old.yaml", FULL)])
    assert _sizes(made.config) == {ATTENTION: 4096 * 1024, MOE: 70000}
    kept = next(site for site in made.config.sites if site.site == ATTENTION)
    assert kept.why.startswith("kept from old.yaml, not reached in this run")
    assert kept.grade == "proved"
    assert kept.follows_limits
    assert [site.site for site in made.kept] == [ATTENTION]


def test_a_kept_site_follows_the_limits_of_the_engine_that_runs_now() -> None:
    longer = Engine(limits={**LIMITS, "max_model_len": 8192})
    made = plan(SITES[1:], longer, earlier=[Earlier("old.yaml", FULL)])
    assert _sizes(made.config)[ATTENTION] == 8192 * 1024


def test_of_one_site_the_larger_need_counts_whichever_is_newer() -> None:
    small = replace(SITES[1], bound=replace(SEEN, bytes=512, observed=512), largest=512)
    large = replace(SITES[1], bound=replace(SEEN, bytes=1 << 20), largest=1 << 20)
    for new, size in ((small, 70000), (large, 1 << 20)):
        made = plan([SITES[0], new], ENGINE, earlier=[Earlier("old.yaml", FULL)])
        assert _sizes(made.config)[MOE] == size


def test_kept_many_times_it_says_so_once() -> None:
    config = FULL
    for _ in range(3):
        config = plan(SITES[1:], ENGINE, earlier=[Earlier("old.yaml", config)]).config
    why = next(site.why for site in config.sites if site.site == ATTENTION)
    assert why.count("kept from") == 1


def test_a_size_given_by_hand_is_kept_as_given_and_is_not_proved(tmp_path: Path) -> None:
    wishes = Wishes(cover={ATTENTION: "512KiB"})
    old = plan(SITES, ENGINE, wishes).config
    path = tmp_path / "old.yaml"
    path.write_text(dumps(old), "utf-8")
    new = plan(SITES[1:], ENGINE, earlier=[Earlier("old.yaml", load_reserve(path))]).config
    for config in (old, new):
        site = next(site for site in config.sites if site.site == ATTENTION)
        assert (site.bytes, site.cover, site.grade) == (512 << 10, "given", "observed")
        assert ATTENTION in {item.site for item in config.not_covered}


def test_what_the_budget_leaves_open_stands_in_the_file(tmp_path: Path) -> None:
    made = plan(SITES[:1], ENGINE, Wishes(budget=1 << 20))
    path = tmp_path / "reserve.yaml"
    path.write_text(dumps(made.config), "utf-8")
    (item,) = load_reserve(path).not_covered
    assert item.site == ATTENTION
    assert "gets 512.00 KiB, can need 4.00 MiB (proved)" in item.why
    assert made.can_fail == (f"{item.site}: {item.why}",)
    assert made.beyond_bytes == []


def test_what_an_earlier_reserve_left_open_is_told_until_it_is_covered() -> None:
    cut = plan(SITES[:1], ENGINE, Wishes(budget=1 << 20)).config
    other = plan(SITES[1:], ENGINE, earlier=[Earlier("old.yaml", cut)]).config
    assert ATTENTION in {item.site for item in other.not_covered}
    whole = plan(SITES[:1], ENGINE, earlier=[Earlier("old.yaml", cut)]).config
    assert whole.not_covered == []


def test_a_death_before_the_reserve_is_not_told_of_the_run_that_has_it() -> None:
    died = NotCovered(site=BEHIND, why="The run died at step 23.", what_helps="x")
    old = msgspec.structs.replace(FULL, not_covered=[died])
    then = plan(SITES, ENGINE, earlier=[Earlier("old.yaml", old)]).config
    told = "Of the run from which old.yaml was made: The run died at step 23."
    assert [item.why for item in then.not_covered if item.site == BEHIND] == [told]
    again = plan(SITES, ENGINE, earlier=[Earlier("new.yaml", then)]).config
    assert [item.why for item in again.not_covered if item.site == BEHIND] == [told]


def test_a_reserve_of_another_engine_is_refused() -> None:
    other = Engine(limits={**LIMITS, "num_kv_heads": 64})
    with pytest.raises(WstraceError, match=r"old\.yaml is for another engine"):
        plan(SITES, other, earlier=[Earlier("old.yaml", FULL)])


@pytest.mark.parametrize("wishes", [Wishes(budget=10), Wishes(cover={ATTENTION: "0"})])
def test_a_reserve_of_no_bytes_is_refused(wishes: Wishes) -> None:
    with pytest.raises(WstraceError, match="would have 0 bytes"):
        refuse_empty_reserve(plan(SITES[:1], ENGINE, wishes))


def test_the_config_that_a_trace_recorded_comes_back() -> None:
    text = msgspec.json.encode(FULL).decode()
    assert applied_config(text) == FULL
    assert applied_config("") is None
    assert applied_config("{") is None


def test_an_engine_known_from_a_log_has_no_digest_and_only_numbers(tmp_path: Path) -> None:
    limits: dict[str, Limit] = {"num_kv_heads": 4, "block_size": 16, "dtype": "half"}
    limits["max_model_len"] = 4096
    unknown = SiteBound("moe.py", "f", Bound(grade="proved", needs=("top_k",), why="the rule"))
    engine = Engine(limits=dict(limits), complete=False)
    config = plan([SiteBound("a.py", "f", LENGTH), unknown], engine).config
    path = tmp_path / "reserve.yaml"
    path.write_text(dumps(config), "utf-8")
    assert load_reserve(path) == config
    assert (config.model.digest, config.model.layout) == ("", {"num_kv_heads": 4})
    assert config.made_by.endswith(" triage")
    assert "not known" in config.cost.note
    assert [item.site for item in config.not_covered] == ["moe.py:f"]
