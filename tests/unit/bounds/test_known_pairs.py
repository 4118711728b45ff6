"""The known formulas against sizes that people saw: public reports and two H100 runs."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from wstrace.bounds.by_rule import rule_bound, with_defaults
from wstrace.expr.expression import parse
from wstrace.known_sites.known import known_sites, require

DATA = tomllib.loads((Path(__file__).parents[2] / "data/cases/pairs.toml").read_text("utf-8"))
PAIRS: list[dict[str, Any]] = DATA["pair"]


def _bytes(pair: dict[str, Any]) -> int | None:
    site = require(pair["site"]).at(pair.get("version"))
    if pair["form"] == "worst":
        return rule_bound(site, pair["numbers"]).bytes
    return parse(site.request_formula).evaluate(with_defaults(site, pair["numbers"]))


@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: f"{p['case']}-{p['side']}-{p['printed']}")
def test_known_formula_gives_the_printed_size(pair: dict[str, Any]) -> None:
    total = _bytes(pair)
    assert total is not None
    assert f"{total / 2**20:.2f}" == pair["printed"]
    assert total == pair.get("bytes", total)


def test_every_report_is_reproduced_or_has_a_reason() -> None:
    reproduced = {pair["case"] for pair in PAIRS if not pair["case"].startswith("h100-")}
    assert not reproduced & DATA["unknown"].keys()
    assert len(reproduced | DATA["unknown"].keys()) == 37
    assert all(reason for reason in DATA["unknown"].values())


def test_sites_name_only_reports_that_exist() -> None:
    reports = {pair["case"] for pair in PAIRS} | DATA["unknown"].keys()
    assert {case for site in known_sites() for case in site.cases} <= reports


def test_every_reproduced_report_is_named_by_its_site() -> None:
    named = {(site.id, case) for site in known_sites() for case in site.cases}
    required = [p for p in PAIRS if p["side"] == "required" and p["case"][:4] != "h100"]
    assert {(p["site"], p["case"]) for p in required} <= named


def test_the_h100_bound_is_the_reserve_that_survived() -> None:
    numbers = {"max_model_len": 32768, "num_kv_heads": 4, "head_size": 128, "block_size": 16}
    worst = rule_bound(require("turboquant.continuation_prefill").at("0.21.0"), numbers)
    assert (worst.bytes, worst.grade, worst.needs) == (67_108_864, "proved", ())
