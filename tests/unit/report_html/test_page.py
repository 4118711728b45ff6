"""The page as text: sections, escaping, secrets, sizes, what is left out."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.unit.report_html import runs
from wstrace.bounds.bound import Bound
from wstrace.findings.analysed_run import AnalysedRun
from wstrace.report.assets import read_bytes
from wstrace.report.html import render
from wstrace.report.html.page import PLOTLY
from wstrace.reserve import config as reserve_config
from wstrace.trace.records import Note, Request, Site
from wstrace.trace.run_file import RunFile

ALL = (
    runs.crashed,
    runs.grown,
    runs.reserved,
    runs.refused_reserve,
    runs.unlocked,
    runs.cut,
    runs.empty,
)
SECRETS = ("hf_Planted0000Token", "sk-planted-key-1234", "planted-password", "planted-login")


class _Page(HTMLParser):
    """Ids, links, and text by element id of the nearest section."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.scripts = 0
        self.handlers: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open.append(tag)
        self.scripts += tag == "script"
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src"):
                self.links.append(value or "")
            if name.startswith("on"):
                self.handlers.append(name)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self._open):
            self.text += data


def _figures(text: str) -> dict[str, Any]:
    found = re.search(r'id="figures">(.*?)</script>', text, re.DOTALL)
    assert found
    loaded: dict[str, Any] = json.loads(found[1])
    return loaded


def _words(text: str) -> str:
    return " ".join(_Page(text).text.split())


@pytest.mark.parametrize("make", ALL, ids=lambda f: f.__name__)
def test_every_kind_of_run_renders(make: Callable[[], AnalysedRun]) -> None:
    text = render([make()])
    page = _Page(text)
    assert len(page.ids) == len(set(page.ids))
    inner = [link[1:] for link in page.links if link.startswith("#")]
    assert set(inner) <= set(page.ids)
    assert len(text) < 1_000_000


@pytest.mark.parametrize("make", ALL, ids=lambda f: f.__name__)
def test_nothing_is_loaded_from_anywhere(make: Callable[[], AnalysedRun]) -> None:
    page = _Page(render([make()]))
    for link in page.links:
        assert link.startswith(
            ("#", "data:application/yaml", "https://github.com/vllm-project/")
        )


def test_verdict_starts_with_the_caller_that_people_search_for() -> None:
    words = _words(render([runs.crashed()]))
    caller = "turboquant_attn.py:812:_continuation_prefill"
    assert f"{caller} asked 32.00\u00a0MiB" in _Page(render([runs.crashed()])).text
    assert f"allocation from '{caller}' requires 32.00 MB" in words
    assert words.index(caller) < words.index("The fix")


def test_reserve_yaml_downloads_and_loads(tmp_path: Path) -> None:
    (link,) = [u for u in _Page(render([runs.crashed()])).links if u.startswith("data:")]
    path = tmp_path / "reserve.yaml"
    path.write_bytes(base64.b64decode(link.split(",", 1)[1]))
    config = reserve_config.load_reserve(path)
    assert {slot.bytes for slot in config.slots} == {runs.attention_bytes(16383)}
    assert len(config.slots) == 2


def test_figures_are_drawn_from_the_records() -> None:
    figures = _figures(render([runs.crashed()]))
    assert set(figures) == {
        "timeline-0",
        "timeline-1",
        "sites",
        "driver-0",
        "driver-1",
        "memory",
    }
    bars = {t["name"]: t for t in figures["sites"]["data"]}
    assert bars["serving"]["x"] == [0, 12 * 2**20, 32 * 2**20]
    assert bars["warm-up"]["x"] == [6 * 2**20, 24 * 2**20, 0]
    driver = {t["name"]: t for t in figures["driver-0"]["data"]}
    assert driver["asked in serving"]["x"] == [2048, 8192]
    line = dict(zip(driver["formula"]["x"], driver["formula"]["y"], strict=True))
    assert line[16383] == runs.attention_bytes(16383)
    parts = {t["name"]: t["x"] for t in figures["memory"]["data"]}
    assert parts["weights"] == [16 << 30, 16 << 30]


def test_figures_carry_no_plotly_template() -> None:
    text = render([runs.crashed()])
    assert "plotly.com" not in json.dumps(_figures(text))
    assert all("template" not in spec["layout"] for spec in _figures(text).values())


def test_policy_allows_exactly_our_two_scripts() -> None:
    text = render([runs.crashed()])
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    rule = policy[1].replace("&#39;", "'")
    assert "default-src 'none'" in rule
    assert "connect-src 'none'" in rule
    own = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert len(own) == 1
    packed = re.search(r'id="plotly-gz">([^<]*)<', text)
    assert packed
    plotly = gzip.decompress(base64.b64decode(packed[1]))
    hashes = [
        base64.b64encode(hashlib.sha256(s).digest()).decode() for s in (own[0].encode(), plotly)
    ]
    scripts = rule.split("script-src ")[1].split(";")[0].split()
    assert scripts == [f"'sha256-{digest}'" for digest in hashes]
    assert plotly == gzip.decompress(read_bytes(PLOTLY))


def renamed(name: str) -> AnalysedRun:
    """The crashed run with `name` in every place that a trace fills."""
    session = runs.crashed()
    for view in session.workers:
        view.process.records.append(Note(text=name))
        for record in view.process.records:
            if isinstance(record, Site):
                record.file, record.function = f"{name}.py", f"{name}{record.id}"
                record.caller = f"{name}:{record.id}:{name}"
            elif isinstance(record, Request):
                record.layer = name
                record.stack = [name]
                record.specs = []
                if record.provenance:
                    record.provenance.statements = [name]
                    record.provenance.leaves[0].source = name
        view.init.limits["model"] = name
        view.process.header.host = name
        view.process.header.argv = ["vllm", name]
    meta = RunFile(run=f"run-{name}", command=["vllm", name], started=name, wstrace=name)
    return runs.session(
        *(v.process for v in session.workers), meta=meta, path=f"trace-{name[:40]}"
    )


HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "<b>bold</b><a href='javascript:alert(1)'>x</a>",
    "%{customdata}<extra></extra>",
    "\u202egnp.elif\u2066",
    "\ud800 lone",
    "nul\x00line\nbreak\u2028",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_neither_break_nor_inject(name: str) -> None:
    text = render([renamed(name)])
    text.encode()
    normal = _Page(render([runs.crashed()]))
    page = _Page(text)
    assert page.scripts == normal.scripts
    assert page.handlers == []
    assert not any("javascript:" in link for link in page.links)
    assert set(page.ids) == set(normal.ids)
    assert not set(text) & set("\u202a\u202b\u202d\u202e\u2066\u2067\u2068\u2028\x00")
    assert "49" not in re.findall(r"\b49\b", page.text.replace("{{ 7 * 7 }}", ""))
    for spec in _figures(text).values():
        for shown in re.findall(r"<[^>]*>", json.dumps(spec, ensure_ascii=False)):
            assert shown in ("<b>", "</b>", "<br>", "<extra>", "</extra>"), shown


def test_names_of_10_000_characters_are_elided() -> None:
    text = render([renamed("layer." * 2000)])
    assert len(text) < 1_000_000
    shown = re.sub(r'<pre class="file".*?</pre>', "", text, flags=re.DOTALL)
    assert max(len(word) for word in _Page(shown).text.split()) < 1100


def test_planted_secrets_never_appear() -> None:
    token, key, password, login = SECRETS
    name = f"x {token} --api-key {key} password={password} https://{login}:{password}@host/x"
    session = renamed(name)
    session.trace.meta = RunFile(
        run="r",
        command=[
            "vllm",
            "serve",
            "--api-key",
            key,
            f"--hf-token={token}",
            f"https://u:{login}@h",
        ],
        started="t",
        wstrace="0",
    )
    for text in (render([session]), render([session, runs.crashed()])):
        decoded = "".join(
            base64.b64decode(u.split(",", 1)[1]).decode()
            for u in _Page(text).links
            if u.startswith("data:")
        )
        for secret in SECRETS:
            assert secret not in text
            assert secret not in decoded
            assert secret not in json.dumps(_figures(text))


def bounded(session: AnalysedRun) -> AnalysedRun:
    """Bounds given, so that a test of the page does not pay for 5,000 proofs."""
    given = Bound(bytes=1 << 20, grade="observed", observed=1 << 20)
    setattr(session, "_bound", lambda view, key: given)  # noqa: B010
    return session


@pytest.mark.parametrize("sites", [1500, pytest.param(5000, marks=pytest.mark.slow)])
def test_thousands_of_sites_stay_under_3_mb_and_say_what_is_left_out(sites: int) -> None:
    text = render([bounded(runs.many_sites(sites))])
    assert len(text) < 3_000_000
    words = _words(text)
    assert f"{sites - 1000:,} smaller sites left out" in words
    assert f"big.py:{sites - 1}:forward" in words
    assert text.count('<tr id="row-') == 1000


def test_512_ranks_are_all_there_and_grouped() -> None:
    text = render([runs.many_ranks(512)])
    assert len(text) < 3_000_000
    for rank in (0, 7, 255, 511):
        assert f'<span aria-hidden="true">{rank}</span>' in text
        assert text.count(f'title="tp{rank}: locked, no escape, ') == 1
    words = _words(text)
    assert "tp0, tp1, tp2, tp3, tp4, tp5 and 442 more" in words
    assert "tp7, tp15, tp23, tp31, tp39, tp47 and 58 more" in words
    assert "The largest arena is that of tp0 with 24.00 MiB" in words
    assert "the smallest that of tp7 with 12.00 MiB" in words


def test_a_missing_rank_is_shown() -> None:
    session = runs.crashed()
    text = render([runs.session(session.workers[0].process)])
    assert '<li class="missing" title="tp1: left no trace">' in text


def test_two_runs_show_what_appeared_grew_and_went() -> None:
    old, new = runs.reserved(), runs.crashed()
    text = render([old, new])
    words = _words(text)
    assert "1 site appeared, 1 site grew" in words
    went = _words(render([new, old]))
    assert "1 site shrank, 1 site went" in went
    figures = _figures(text)
    assert set(figures) == {"changes", "timeline-a-0", "timeline-b-0", "timeline-b-1"}
    assert "tensor_parallel_size" in words


def test_two_like_runs_say_so() -> None:
    words = _words(render([runs.crashed(), runs.crashed()]))
    assert "Escaped in both: the same sites asked for the same sizes" in words


def test_other_numbers_of_runs_are_refused() -> None:
    with pytest.raises(ValueError, match="one run or two"):
        render([])


def test_text_parts_stand_without_javascript() -> None:
    text = render([runs.crashed()])
    words = _words(text)
    for part in ("The fix", "Findings", "WS101", "Sites", "Ranks", "Source lines that made it"):
        assert part in words
    assert "html:not(.js) .needs-js" in text
