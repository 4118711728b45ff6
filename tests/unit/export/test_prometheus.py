"""Prometheus text, read back by Prometheus's own parser."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.report_html import runs
from wstrace.findings.analysed_run import AnalysedRun
from wstrace.recorder.state.guard_file import HELP
from wstrace.report.assets import dashboards
from wstrace.report.export.prometheus import METRICS, render_prometheus
from wstrace.trace.records import Site

parser = pytest.importorskip("prometheus_client.parser")
NAMES = {metric.name for metric in METRICS} | HELP.keys()
DOCS = Path(__file__).parents[3] / "docs" / "dashboards.md"


def _parsed(session: AnalysedRun) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = render_prometheus(session)
    families = parser.text_string_to_metric_families(text)
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in families:
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in samples, f"the series {key} appears twice"
            samples[key] = sample.value
    return samples


def _of(samples: dict[Any, float], name: str, **labels: str) -> list[float]:
    wanted = set(labels.items())
    return [v for (n, pairs), v in samples.items() if n == name and wanted <= set(pairs)]


def test_sizes_are_those_of_the_records() -> None:
    samples = _parsed(runs.crashed())
    slot = {"ubatch": "0", "lane": "0"}
    assert _of(samples, "wstrace_arena_warmup_bytes", tp="1", **slot) == [24 * 2**20]
    assert _of(samples, "wstrace_arena_warmup_bytes", tp="1", ubatch="1") == [6 * 2**20]
    site = f"{runs.ATTENTION}:{runs.CONTINUATION}"
    assert _of(samples, "wstrace_site_serving_bytes", site=site, tp="0") == [32 * 2**20]
    assert _of(samples, "wstrace_site_warmup_bytes", site=site, tp="0") == [0]
    assert _of(samples, "wstrace_refused_total", kind="arena") == [1, 1]
    assert _of(samples, "wstrace_locked") == [1, 1]
    assert _of(samples, "wstrace_steps_total", tp="0") == [39]
    assert _of(samples, "wstrace_findings", code="WS101") == [1]
    assert _of(samples, "wstrace_site_requests_total", phase="serving", tp="0") == [72]


def test_one_verdict_holds() -> None:
    samples = _parsed(runs.cut())
    held = [pairs for (n, pairs), v in samples.items() if n == "wstrace_verdict" and v]
    assert held == [(("verdict", "inconclusive"),)]


def test_reserve_and_growths_of_a_slot() -> None:
    reserve = _parsed(runs.reserved())
    assert _of(reserve, "wstrace_reserve_bytes") == [runs.attention_bytes(16383)]
    grown = _parsed(runs.grown())
    assert _of(grown, "wstrace_growths_total", when="after_lock") == [2]
    assert _of(grown, "wstrace_arena_bytes", ubatch="0") == [runs.attention_bytes(15000)]


def test_headroom_escapes_and_what_the_guard_met() -> None:
    grown = runs.grown()
    samples = _parsed(grown)
    site = f"{runs.ATTENTION}:{runs.CONTINUATION}"
    (arena,) = _of(samples, "wstrace_arena_bytes", ubatch="0")
    (bound,) = _of(samples, "wstrace_site_bound_bytes", site=site, ubatch="0")
    assert _of(samples, "wstrace_site_headroom_bytes", site=site) == [arena - bound]
    forced = [g for w in grown.workers for g in w.growths if g.forced]
    assert len(forced) == 2
    assert sum(_of(samples, "wstrace_guard_growths_total")) == 2
    assert max(_of(samples, "wstrace_guard_site_bytes")) == max(g.after for g in forced)
    escaped = [a for w in grown.workers for s in w.sites.values() for a in s.seen]
    wanted = sum(seen.outcome == "escaped" for seen in escaped)
    assert sum(_of(samples, "wstrace_escapes_total")) == wanted > 0


def test_a_metric_has_at_most_so_many_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wstrace.report.export.prometheus.MOST_SAMPLES", 1)
    assert len(_of(_parsed(runs.crashed()), "wstrace_site_serving_bytes")) == 1


def test_time_of_the_newest_record() -> None:
    session = runs.grown()
    view = session.workers[0]
    last = view.process.records[-1].ns
    expected = (1_780_000_000_000_000_000 + last - 1_000_000_000) / 1e9
    (got,) = _of(_parsed(session), "wstrace_last_record_timestamp_seconds")
    assert got == pytest.approx(expected, abs=0.001)


@pytest.mark.parametrize(
    "hostile", ['a"b', "a\\b", "a\nb", "</script>", "x" * 5000, "\u202ertl"]
)
def test_hostile_names_stay_labels(hostile: str) -> None:
    session = runs.crashed()
    sites = [r for v in session.workers for r in v.process.records if isinstance(r, Site)]
    for site in sites:
        site.function = hostile if site.id == 1 else hostile + "2"
    samples = _parsed(runs.session(*(v.process for v in session.workers)))
    names = {
        dict(p)["site"] for (n, p), _ in samples.items() if n == "wstrace_site_serving_bytes"
    }
    assert len(names) == 2
    assert all(len(name) < 300 for name in names)


def test_empty_session_renders() -> None:
    samples = _parsed(runs.empty())
    assert _of(samples, "wstrace_verdict", verdict="inconclusive") == [1]


def _dashboard() -> dict[str, Any]:
    text = (dashboards() / "grafana" / "wstrace.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def test_the_alerts_use_only_exported_metrics() -> None:
    rules = yaml.safe_load((dashboards() / "prometheus" / "rules.yml").read_text())
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    assert [rule["alert"] for rule in alerts] == ["WstraceOutgrown", "WstraceWillOutgrow"]
    for rule in alerts:
        used = set(re.findall(r"\bwstrace_\w+", rule["expr"]))
        assert used
        assert used <= NAMES


def test_grafana_uses_only_exported_metrics_and_labels() -> None:
    names = NAMES
    text = json.dumps(_dashboard())
    used = set(re.findall(r"\bwstrace_\w+", text))
    assert used
    assert used <= names
    labels = {key for _, pairs in _parsed(runs.crashed()) for key, _ in pairs} | {"instance"}
    for panel in _dashboard()["panels"]:
        for target in panel["targets"]:
            grouped = re.findall(r"by \(([^)]*)\)", target["expr"])
            shown = re.findall(r"{{(\w+)}}", target["legendFormat"])
            assert {w.strip() for g in grouped for w in g.split(",")} | set(shown) <= labels


def test_grafana_panels_do_not_overlap() -> None:
    panels = _dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_every_metric_is_documented() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert set(re.findall(r"`(wstrace_\w+)`", text)) == NAMES
