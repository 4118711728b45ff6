"""`wstrace.load`: its names, bounds, reserves and figures; and what loads pandas or plotly."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import wstrace
from tests.unit.gate.traces import clean
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


def test_of_several_runs_the_newest_is_read_with_a_warning(tmp_path: Path) -> None:
    for number in (1, 2):
        made = clean(tmp_path / str(number), run=f"run-{number}")
        (file,) = made.glob("*.wst.jsonl")
        file.rename(tmp_path / f"run-{number}.wst.jsonl")
    said = r"2 runs in this folder, the newest \(run-\d\) is read; run=ID picks another$"
    with pytest.warns(UserWarning, match=said) as told:
        wstrace.load(tmp_path)
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert wstrace.load(tmp_path, run="run-1").run == "run-1"


def test_a_log_has_no_run_to_pick(tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    log.write_text("INFO 05-16 10:15:00 [core.py:1] started\n")
    with pytest.raises(wstrace.WstraceError, match="a log: it has no run"):
        wstrace.load(log, run="run-1")


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


# 2 MiB at 2048 tokens: the length decides the bytes.
@pytest.mark.parametrize(
    ("asked", "size"),
    [
        ({"limits": {"max_model_len": "16384"}}, 16 << 20),
        ({"limits": {"max_model_len": "16K"}}, 16 << 20),
        ({"limits": {"max_model_len": "64k"}}, 1024 * 64_000),
        ({"limits": {"max_model_len": "25.6k"}}, 1024 * 25_600),
        ({"limits": {"max-model-len": 16384.0}}, 16 << 20),
        ({"limits": {"max-model-len": 16384, "max_model_len": "16K"}}, 16 << 20),
        ({"limits": {"enable_expert_parallel": False}}, 2 << 20),
        ({"limits": {"all2all-backend": "allgather_reducescatter"}}, 2 << 20),
        ({"budget": "1MiB"}, 1 << 20),
        ({"budget": 1 << 20}, 1 << 20),
        ({"cover": {PREFILL: 3 << 20}}, 3 << 20),
        ({"cover": {PREFILL: "3MiB"}}, 3 << 20),
    ],
)
def test_a_reserves_arguments_are_read_as_the_command_lines(
    trace: Trace, asked: dict[str, Any], size: int
) -> None:
    assert trace.reserve(**asked).config.slots[0].bytes == size


HUGE = pytest.param(10**5000, id="huge")  # more digits than Python prints
NUMBERS = [
    ({"block_size": 0}, "limits block_size=0: block_size is 1 or more"),
    ({"num_kv_heads": 0}, "num_kv_heads is 1 or more"),
    ({"head_size": -128}, "head_size is 1 or more"),
    ({"max-model-len": -1}, "max_model_len is 1 or more"),
    ({"max_model_len": True}, "limits max_model_len=True: not a whole number"),
    ({"max_model_len": 64.5}, "not a whole number"),
    ({"max_model_len": "64q"}, "not a whole number"),
    ({"all2all_backend": 3}, "not a word"),
    ({"max_model_len": None}, "not a whole number"),
    ({"max_model_len": 10**5000}, "not a whole number"),
    ({"max-model-len": 1, "max_model_len": 2}, "limits gives max_model_len twice: 1 and 2"),
    ({5: 1}, "'5'"),
    (["max_model_len"], "limits is no mapping, but list"),
]


@pytest.mark.parametrize(("limits", "told"), NUMBERS)
@pytest.mark.parametrize("kind", ["trace", "log"])
def test_what_is_no_limit_is_refused_of_a_trace_and_of_a_log(
    kind: str, limits: Any, told: str, request: pytest.FixtureRequest
) -> None:
    with pytest.raises(wstrace.WstraceError, match=told) as error:
        request.getfixturevalue(kind).reserve(limits=limits)
    assert error.value.hint


@pytest.mark.parametrize(
    ("name", "word", "told"),
    [
        ("all2all_backend", "mori", "decides shapes"),
        ("cudagraph_mode", "A_NEW_ONE", "decides shapes|is no number|Unknown limit"),
        ("quantization", "fp8", "Unknown limit"),
    ],
)
def test_another_word_than_the_engines_is_no_what_if(
    trace: Trace, name: str, word: str, told: str
) -> None:
    with pytest.raises(wstrace.WstraceError, match=told):
        trace.reserve(limits={name: word})


@pytest.mark.parametrize("budget", [-5, True, 1.5, "2 gigs", "-1", [], HUGE])
def test_what_is_no_size_is_no_budget(trace: Trace, budget: Any) -> None:
    with pytest.raises(wstrace.WstraceError, match="Not a size"):
        trace.reserve(budget=budget)


@pytest.mark.parametrize("choice", [-5, True, 1.5, None, "most", HUGE])
def test_what_is_no_size_is_no_cover(trace: Trace, choice: Any) -> None:
    with pytest.raises(wstrace.WstraceError, match="no such choice"):
        trace.reserve(cover={PREFILL: choice})


def test_a_cover_is_a_mapping_of_sites(trace: Trace) -> None:
    with pytest.raises(wstrace.WstraceError, match="cover is no mapping, but str"):
        trace.reserve(cover=PREFILL)  # type: ignore[arg-type]
    with pytest.raises(wstrace.WstraceError, match="No site is called '5'"):
        trace.reserve(cover={5: "bound"})  # type: ignore[dict-item]


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
    assert log.reserve(limits={"num-kv-heads": "8", "head-size": "128", **numbers})
    made = log.reserve(limits=numbers)
    # K and V of 4096 tokens, 8 heads, 128 wide, in two bytes
    assert made.config.slots[0].bytes == 2 * 4096 * 8 * 128 * 2
    with pytest.raises(wstrace.WstraceError, match="says too little"):
        log.reserve(budget=1)
    with pytest.raises(
        wstrace.WstraceError, match="limits knows no number called 'num_kv_head'"
    ):
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


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"cover": {PREFILL: "most"}}, "cover= "),
        ({"budget": 1}, "Leave out cover= and budget= for"),
        ({"limits": {"model": 4}}, "tried with limits=."),
    ],
)
def test_a_refusal_names_the_arguments_of_python(
    asked: dict[str, Any], says: str, trace: Trace
) -> None:
    with pytest.raises(wstrace.WstraceError) as told:
        trace.reserve(**asked)
    assert says in str(told.value)
    assert "--" not in str(told.value)


def test_what_can_fail_names_the_arguments_of_python(trace: Trace) -> None:
    made = trace.reserve(cover={PREFILL: "4MiB"}, budget="1MiB")
    assert any(
        "cover= asks for 4.00 MiB, budget= cuts it to 1.00 MiB." in f for f in made.can_fail
    )
    told = json.dumps(made.payload()["not_covered"])
    assert not re.search("--(cover|budget|set|merge)", told)


def test_a_log_that_lacks_numbers_says_how_python_gives_them(log: Trace) -> None:
    with pytest.raises(wstrace.WstraceError) as told:
        log.reserve()
    assert 'Add limits={"' in told.value.hint
    assert "--" not in told.value.hint
