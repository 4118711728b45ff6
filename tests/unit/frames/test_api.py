"""`wstrace.load`: its names, bounds, reserves and figures; and what loads pandas or plotly."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import wstrace
from tests.unit.report_html import runs
from wstrace.api import Trace
from wstrace.trace.site_key import SiteKey

CRASH = Path(__file__).resolve().parents[2] / "data" / "docs" / "crash"
PREFILL = "wstrace/testbed/patterns.py:Continuation._continuation_prefill"


@pytest.fixture(scope="module")
def trace() -> Trace:
    return wstrace.load(CRASH)


def test_the_public_names_are_few_and_all_there() -> None:
    assert wstrace.__all__ == ["Trace", "WstraceError", "__version__", "load", "record"]
    assert all(getattr(wstrace, name) for name in wstrace.__all__)
    assert set(wstrace.__all__) <= set(dir(wstrace))
    with pytest.raises(AttributeError, match="nothing"):
        _ = wstrace.nothing


def test_load_gives_the_run_and_its_verdict(trace: Trace) -> None:
    assert isinstance(trace, wstrace.Trace)
    assert (trace.verdict, trace.inconclusive) == ("findings", [])
    assert re.search(r": findings, 1 rank, 2 sites, \d+ findings>$", repr(trace))


@pytest.mark.parametrize("path", ["nowhere", "."])
def test_a_path_without_a_trace_is_an_error(path: str, tmp_path: Path) -> None:
    with pytest.raises(wstrace.WstraceError):
        wstrace.load(tmp_path / path)


@pytest.mark.parametrize(
    "name",
    [
        PREFILL,
        "Continuation._continuation_prefill",
        "_continuation_prefill",
        "patterns.py:Continuation._continuation_prefill",
        "patterns.py:64:_continuation_prefill",
    ],
)
def test_a_site_has_many_names_and_one_bound(trace: Trace, name: str) -> None:
    bound = trace.bound(name)
    assert (bound.bytes, bound.grade) == (2097152, "proved")  # as the README works out


@pytest.mark.parametrize(
    "name", ["_prefill", "patterns.py", "", "other.py:1:_decode_attention"]
)
def test_a_site_that_is_not_there_is_an_error_that_names_those_that_are(
    trace: Trace, name: str
) -> None:
    with pytest.raises(wstrace.WstraceError, match="No site is called") as told:
        trace.bound(name)
    assert PREFILL in told.value.hint


def test_two_sites_of_one_name_are_an_error() -> None:
    run = runs.crashed()
    for site in run.sites:
        site.key = SiteKey(site.key.file, "same")
    with pytest.raises(wstrace.WstraceError, match="Several sites are"):
        Trace(run).bound("same")


def test_a_reserve_with_a_what_if_leaves_the_trace_as_it_was(trace: Trace) -> None:
    before = trace.sites()
    one = trace.reserve().config.slots[0].bytes
    two = trace.reserve(limits={"max_model_len": 16384}).config.slots[0].bytes
    assert (one, two) == (2 << 20, 16 << 20)  # 8 times the length, 8 times the bytes
    assert trace.sites().equals(before)
    assert trace.reserve(budget=1 << 20).can_fail


def test_figures_have_the_theme_and_no_names_of_css(trace: Trace) -> None:
    assert trace.figures == ("timeline-0", "sites", "driver-0", "driver-1", "memory")
    assert trace.figure("timeline") == trace.figure("timeline-0")
    for name in trace.figures:
        for theme, panel in (("light", "#ffffff"), ("dark", "#1a1c20")):
            figure = trace.figure(name, theme=theme)  # type: ignore[arg-type]
            assert "var(" not in figure.to_json()
            assert figure.layout.paper_bgcolor == panel


def test_a_figure_is_the_pages(trace: Trace) -> None:
    from wstrace.report.html import render

    page = render([trace._run])
    start = page.index('id="figures"')
    specs = json.loads(page[page.index("{", start) : page.index("</script>", start)])
    assert tuple(specs) == trace.figures
    sites = trace.figure("sites")
    assert [each["name"] for each in specs["sites"]["data"]] == [t.name for t in sites.data]
    assert specs["sites"]["layout"]["height"] == sites.layout.height


def test_an_unknown_figure_is_an_error_that_names_the_known(trace: Trace) -> None:
    with pytest.raises(wstrace.WstraceError, match="No figure is called 'pie'") as told:
        trace.figure("pie")
    assert "timeline-0, sites" in told.value.hint


@pytest.fixture(scope="module")
def log() -> Trace:
    """vLLM's message as a log has it: 9.94 MB wanted, 2.05 MB there."""
    return wstrace.load(CRASH.parent / "pasted.log")


def test_a_log_has_findings_and_empty_tables_of_what_was_measured(log: Trace) -> None:
    assert log.verdict == "findings"
    (finding,) = log.findings().to_dict("records")
    assert finding["function"] == "_continuation_prefill"
    assert finding["serving_bytes"] == round(9.94 * 2**20)
    assert finding["arena_bytes"] == round(2.05 * 2**20)
    assert [len(log.requests()), len(log.sites()), len(log.steps())] == [0, 0, 0]
    assert log.figures == ()


def test_a_logs_site_has_a_bound_that_says_what_it_needs(log: Trace) -> None:
    bound = log.bound("turboquant_attn.py:747:_continuation_prefill")
    assert bound.bytes is None
    assert bound.needs == ("block_size", "head_size", "num_kv_heads")  # the log has the rest


def test_a_logs_reserve_takes_the_numbers_it_lacks(log: Trace) -> None:
    needs = log.bound("_continuation_prefill").needs
    with pytest.raises(wstrace.WstraceError):
        log.reserve()
    numbers = {"max_model_len": 4097, "num_kv_heads": 8, "head_size": 128, "block_size": 16}
    assert set(needs) <= numbers.keys()
    made = log.reserve(limits=numbers)
    # K and V of 4096 tokens, 8 heads, 128 wide, in two bytes
    assert made.config.slots[0].bytes == 2 * 4096 * 8 * 128 * 2
    with pytest.raises(wstrace.WstraceError, match="says too little"):
        log.reserve(budget=1)
    with pytest.raises(wstrace.WstraceError, match="num_kv_head"):
        log.reserve(limits={"num_kv_head": 8})


# Of a trace's commands; the last one reads logs.
HEAVY = {"pandas", "plotly", "numpy", "jinja2", "wstrace.triage.report"}


def loaded(code: str) -> list[set[str]]:
    """The heavy packages that Python has loaded at each `told()` of `code`."""
    tells = f"def told(): print('HEAVY', *{HEAVY} & sys.modules.keys())"
    script = f"import sys\n{tells}\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=CRASH.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = (line.split() for line in done.stdout.splitlines())
    return [set(words[1:]) for words in lines if words[:1] == ["HEAVY"]]


CLI = """
from wstrace.cli import app
for words in {commands!r}:
    sys.argv[1:] = words.split()
    try:
        app.main()
    except SystemExit:
        pass
    told()
"""
COMMANDS = ["--help", "export --help", "report crash", "gate crash --format json"]


def test_what_prints_text_loads_no_heavy_package() -> None:
    commands = [*COMMANDS, "reserve crash"]
    found = dict(zip(commands, loaded(CLI.format(commands=commands)), strict=True))
    assert found == {words: set() for words in commands}


def test_loading_a_trace_is_light_until_a_table_or_a_figure_is_asked_for() -> None:
    bound, table, figure = loaded("""
import wstrace
trace = wstrace.load("crash")
trace.bound("_continuation_prefill"); told()
trace.sites(); told()
trace.figure("sites"); told()
""")
    assert bound == set()
    assert "plotly" not in table
    assert "plotly" in figure
