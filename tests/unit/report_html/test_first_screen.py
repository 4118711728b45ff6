"""The first screen, and what a figure's lines look like."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.report_html import runs
from wstrace.findings.analysed_run import AnalysedRun, load_run
from wstrace.report.html import figures, render
from wstrace.report.html.drivers import _line
from wstrace.report.html.memory import MemoryView, Part
from wstrace.report.html.verdict_view import verdict_view

SAMPLES = Path(__file__).resolve().parents[3] / "sample_traces"


@pytest.mark.parametrize(
    ("run", "outcome"),
    [
        (runs.crashed(), "died"),
        (runs.grown(), "survived"),
        (runs.reserved(), ""),
        (runs.empty(), ""),
    ],
)
def test_it_says_what_an_escape_did_to_the_engine(run: AnalysedRun, outcome: str) -> None:
    assert verdict_view(run).outcome == outcome
    badge = f'<p class="pill {outcome}">engine {outcome}</p>'
    assert (badge in render([run])) == bool(outcome)


def test_it_names_every_escape_and_the_worst_once() -> None:
    """demo-grow has three escapes: 8 MiB, 1.25 MiB and 128 KiB in an arena of 66.25 KiB."""
    view = verdict_view(load_run(SAMPLES / "demo-grow"))
    assert view.caller == "patterns.py:160:_get_workspace_buffer"
    assert view.also == (
        ("patterns.py:64:_continuation_prefill", "1.25 MiB in 66.25 KiB (WS101)"),
        ("patterns.py:111:_gather", "128.00 KiB in 66.25 KiB (WS102)"),
    )


def test_a_caller_is_set_apart_whatever_the_sentence_goes_on_with() -> None:
    """WS301's sentence has a colon after it: unbroken, it ran off a narrow screen."""
    view = verdict_view(load_run(SAMPLES / "h100-vllm-0.26.0-turboquant-prefix"))
    assert view.caller == "turboquant_attn.py:792:_continuation_prefill"
    assert view.sentence.startswith("4 captured graphs hold")
    page = render([load_run(SAMPLES / "h100-vllm-0.26.0-turboquant-prefix")])
    assert view.sentence in page  # no place to break inside 2.05 MiB


def test_two_runs_begin_with_the_news_and_the_worst_finding() -> None:
    page = render([runs.crashed(), runs.reserved()])
    title = page.partition('<h1 class="pair-title">')[2].partition("</h1>")[0]
    assert title.startswith("Escaped → Clean: ")
    table = page.partition('<section id="findings"')[2]
    assert re.findall(r"WS\d+", table)[0] == "WS101"


def test_stairs_have_their_corners_and_a_slope_only_its_ends() -> None:
    """16 tokens a block: bytes stay for 16 values and jump within one."""
    assert _line(0, 40, lambda tokens: -(-tokens // 16) * 16) == [
        (0, 0),
        (1, 16),
        (16, 16),
        (17, 32),
        (32, 32),
        (33, 48),
        (40, 48),
    ]
    assert _line(3, 4000, lambda tokens: 2 * tokens) == [(3, 6), (4000, 8000)]
    assert len(_line(0, 10**6, lambda tokens: tokens)) == 160


def test_the_device_is_drawn_only_where_the_memory_is_half_full() -> None:
    """14 of 80 GiB left the chart four fifths empty."""
    used = Part("KV cache", "kv", 14 << 30, None)
    drawn = {}
    for total in (80 << 30, 20 << 30):
        figure = figures.memory(MemoryView("rank 0", 0, (used,), total, "", None))
        drawn[total >> 30] = (
            figure["layout"]["xaxis"]["range"][1],
            figure["layout"].get("shapes"),
        )
    assert drawn[80] == ((14 << 30) * 1.12, None)
    assert drawn[20][0] == (20 << 30) * 1.12
    assert len(drawn[20][1]) == 1


def test_a_proved_site_without_a_line_is_not_said_to_have_no_formula() -> None:
    """The sparse-MLA sample's row says proved; its chart has points only."""
    page = render([load_run(SAMPLES / "h200-vllm-0.26.0-sparse-mla")])
    assert "is proved, but no line over this quantity." in page
    assert "No formula is known for it" not in page
