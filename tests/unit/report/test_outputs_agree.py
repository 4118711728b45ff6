"""Every output says the same of every site: escaped, outgrew, latent or warmed.

Each real output is rendered and parsed; nothing here asks the program for the outcome but the
JSON report, which the others are held to. The made runs carry their expected outcomes, worked
out by hand.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from datetime import date
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tests.unit.findings.build import CONTINUATION, MOE, ask, grown, process, session
from wstrace.cli.watch.state import ProcessState, _apply
from wstrace.findings.analysed_run import AnalysedRun, load_run
from wstrace.findings.codes import ESCAPES
from wstrace.frames import frames
from wstrace.gate.judge import Policy, judge
from wstrace.gate.selection import parse_selection
from wstrace.pytest_marker import Marker
from wstrace.pytest_plugin import Recorder, _properties
from wstrace.report.ci import gate_json, gate_markdown, gate_text, junit
from wstrace.report.diff import as_json, phase_rows
from wstrace.report.export.perfetto import render_perfetto
from wstrace.report.export.table_export import render_csv, render_parquet
from wstrace.report.html import render
from wstrace.report.html.names import rank_label
from wstrace.report.json import render_json
from wstrace.report.markdown import render_markdown
from wstrace.report.text import render_text
from wstrace.trace.records import Capture, Lock, PhaseChange, Ranks, Record, Slot
from wstrace.triage.log_run import log_run

SAMPLES = Path(__file__).resolve().parents[3] / "sample_traces"
KIB = 1024


def lock(size: int, event: str = "lock") -> list[Record]:
    """lock() or unlock() of the one slot."""
    assert event in ("lock", "unlock")
    after = "post-lock-warmup" if event == "lock" else "unlocked"
    return [
        Lock(event=event, slots=[Slot()], sizes=[size], phase=after),  # type: ignore[arg-type]
        PhaseChange(phase=after),  # type: ignore[arg-type]
    ]


def served(size: int, *records: Record) -> list[Record]:
    """Locked at `size`, then serving."""
    return [*lock(size), PhaseChange(phase="serving"), *records]


WARM: list[Record] = [grown(64 * KIB, "profile"), ask(MOE, 64 * KIB, "profile", 0)]


def relocked() -> AnalysedRun:
    """Refused by the first lock, nothing before it; 4.88 KiB asked after the unlock only."""
    return session(
        process(
            *WARM,
            *served(64 * KIB, ask(CONTINUATION, 128 * KIB, "serving", 64 * KIB)),
            *lock(64 * KIB, "unlock"),
            ask(CONTINUATION, 5_000, "unlocked", 64 * KIB, locked=False),
            *served(64 * KIB, ask(MOE, 64 * KIB, "serving", 64 * KIB)),
        )
    )


def grew_for_the_second_lock() -> AnalysedRun:
    """Unlocked, grown and locked again: what the first lock would refuse fits in the second."""
    return session(
        process(
            *WARM,
            *served(64 * KIB, ask(MOE, 64 * KIB, "serving", 64 * KIB)),
            *lock(64 * KIB, "unlock"),
            grown(128 * KIB, "unlocked", before=64 * KIB),
            ask(MOE, 128 * KIB, "unlocked", 64 * KIB, locked=False),
            *served(128 * KIB, ask(CONTINUATION, 96 * KIB, "serving", 128 * KIB)),
        )
    )


def never_locked() -> AnalysedRun:
    """No lock: one site outgrew the arena that graphs were captured with."""
    return session(
        process(
            *WARM,
            Capture(graph=1, slots=[Slot()], generations=[1]),
            PhaseChange(phase="serving"),
            grown(96 * KIB, "serving", before=64 * KIB, site=CONTINUATION, generation=2),
            ask(CONTINUATION, 96 * KIB, "serving", 64 * KIB, locked=False),
            ask(MOE, 64 * KIB, "serving", 96 * KIB, locked=False),
        )
    )


def grown_past_the_lock() -> AnalysedRun:
    """`--on-growth grow`: the second, smaller request fits in what the first one made."""
    past = grown(
        256 * KIB, "serving", before=64 * KIB, site=CONTINUATION, forced=True, locked=True
    )
    return session(
        process(
            *WARM,
            *served(
                64 * KIB,
                past,
                ask(CONTINUATION, 256 * KIB, "serving", 64 * KIB),
                ask(MOE, 128 * KIB, "serving", 256 * KIB),
            ),
        )
    )


def masked() -> AnalysedRun:
    """More than before the lock, within what a neighbour had made: at the exact byte."""
    return session(
        process(*WARM, *served(64 * KIB, ask(CONTINUATION, 64 * KIB, "serving", 64 * KIB)))
    )


def on_ranks(*arenas: int) -> Callable[[], AnalysedRun]:
    """Ranks with these arenas in bytes, each asked for 96 KiB: the smaller ones refuse it."""

    def ranks_of_unlike_arenas() -> AnalysedRun:
        """The rank that has most is the one that has it best."""
        world = Ranks(dp=1, tp=len(arenas), pp=1)
        return session(
            *(
                process(
                    grown(size, "profile"),
                    ask(MOE, size, "profile", 0),
                    *served(size, ask(CONTINUATION, 96 * KIB, "serving", size)),
                    ranks=Ranks(dp=0, tp=tp, pp=0, rank=tp),
                    world=world,
                )
                for tp, size in enumerate(arenas)
            )
        )

    return ranks_of_unlike_arenas


def many_slots() -> AnalysedRun:
    """The escape is in the slot with the smallest arena, of more slots than have a picture."""
    slots = [Slot(0, lane) for lane in range(10)]
    sizes = [(lane + 1) * 64 * KIB for lane in range(10)]
    return session(
        process(
            *(grown(size, "profile", slot=s) for s, size in zip(slots, sizes, strict=True)),
            *(ask(MOE, n, "profile", 0, slot=s) for s, n in zip(slots, sizes, strict=True)),
            Lock(event="lock", slots=slots, sizes=sizes, phase="capture"),
            PhaseChange(phase="serving"),
            ask(CONTINUATION, 96 * KIB, "serving", 64 * KIB, slot=slots[0], locked=True),
        )
    )


def served_before_the_relock() -> AnalysedRun:
    """One site asked after the first lock alone: it was served."""
    return session(
        process(
            *WARM,
            *served(64 * KIB, ask(MOE, 64 * KIB, "serving", 64 * KIB)),
            *lock(64 * KIB, "unlock"),
            ask(CONTINUATION, 32 * KIB, "unlocked", 64 * KIB, locked=False),
            *served(64 * KIB, ask(CONTINUATION, 48 * KIB, "serving", 64 * KIB)),
        )
    )


MADE: dict[Callable[[], AnalysedRun], dict[str, str]] = {
    relocked: {"continuation": "escaped", "moe": "warmed"},
    grew_for_the_second_lock: {"continuation": "latent", "moe": "warmed"},
    never_locked: {"continuation": "outgrew", "moe": "warmed"},
    grown_past_the_lock: {"continuation": "escaped", "moe": "escaped"},
    masked: {"continuation": "latent", "moe": "before"},
    on_ranks(64 * KIB, 128 * KIB): {"continuation": "escaped", "moe": "before"},
    on_ranks(256 * KIB, 64 * KIB, 128 * KIB): {"continuation": "escaped", "moe": "before"},
    many_slots: {"continuation": "escaped", "moe": "before"},
    served_before_the_relock: {"continuation": "latent", "moe": "warmed"},
}
FILES = {CONTINUATION.file: "continuation", MOE.file: "moe"}
WORDS = {
    "escaped": "escaped",
    "grew the arena, which nothing locked": "outgrew",
    "masked": "latent",
    "masked, never asked in warm-up": "latent",
    "warmed": "warmed",
    "warm-up only": "before",
    "unknown (replayed)": "replayed",
}


def captured() -> AnalysedRun:
    """Asked while a graph was captured, and in serving, where it is replayed, seen no more."""
    return session(
        process(
            *WARM,
            ask(CONTINUATION, 32 * KIB, "capture", 64 * KIB, capturing=True),
            *served(64 * KIB, ask(MOE, 64 * KIB, "serving", 64 * KIB)),
        )
    )


def test_what_a_graph_replays_is_unknown_in_every_output() -> None:
    """A replay runs no Python: such a site was not "not reached"."""
    run = captured()
    judgement = judge([run], Policy(), date(2026, 1, 1))
    outputs = {
        "text": render_text(run),
        "narrow": render_text(run, width=60),
        "Markdown": render_markdown(run),
        "HTML": render([run]),
        "diff": as_json(phase_rows(run), [run]),
        **{f.__name__: f.render(judgement) for f in (gate_text, junit, gate_markdown)},
    }
    assert [name for name, text in outputs.items() if "unknown (replayed)" not in text] == []
    assert [name for name, text in outputs.items() if "not reached in serving" in text] == []
    by_site = {s["function"]: s["replayed"] for s in json.loads(render_json(run))["sites"]}
    assert by_site == {CONTINUATION.function: True, MOE.function: False}
    table = frames.sites(run)
    assert dict(zip(table["function"], table["replayed"], strict=True)) == by_site
    (gated,) = json.loads(gate_json.render(judgement))["runs"]
    of_gate = {s["site"]: s for s in gated["exercised"]["by_site"]}
    of_site = of_gate[f"{CONTINUATION.file}:{CONTINUATION.function}"]
    assert (of_site["captured"], of_site["in_serving"]) == (True, False)


def test_a_throwaway_graph_of_the_estimate_replays_nothing() -> None:
    estimate = ask(CONTINUATION, 32 * KIB, "graph-estimate", 64 * KIB, capturing=True)
    run = session(process(*WARM, estimate, *served(64 * KIB)))
    assert not any(site.replayed for site in run.sites)


@pytest.mark.parametrize("made", MADE, ids=lambda made: made.__name__)
def test_what_the_made_runs_show_is_known(made: Callable[[], AnalysedRun]) -> None:
    sites = json.loads(render_json(made()))["sites"]
    assert {FILES[s["file"]]: s["outcome"] for s in sites} == MADE[made]


def test_before_the_lock_means_before_that_lock() -> None:
    """WS102 with "before the lock it asked 4.88 KiB" was said of a request after the unlock."""
    run = relocked()
    (finding,) = run.escapes
    assert finding.code == "WS101"
    assert "before the lock it asked nothing" in finding.detail
    (site,) = [s for s in run.sites if s.key.file == CONTINUATION.file]
    assert (site.warmup_bytes, site.serving_bytes, site.arena_bytes) == (0, 131_072, 65_536)


def runs() -> Sequence[tuple[str, Callable[[], AnalysedRun]]]:
    kept = sorted(path.parent for path in SAMPLES.rglob("run.json"))
    samples = [(p.name, lambda p=p: load_run(p)) for p in kept]
    return [(made.__name__, made) for made in MADE] + samples


@pytest.mark.parametrize(("name", "load"), runs(), ids=[name for name, _ in runs()])
def test_every_output_says_the_same_of_every_site(
    name: str, load: Callable[[], AnalysedRun]
) -> None:
    run = load()
    report = json.loads(render_json(run))
    said = {_place(s): s["outcome"] for s in report["sites"]}
    escaped = {place for place, outcome in said.items() if outcome == "escaped"}

    assert _of_findings(report) == escaped
    page = render([run])
    assert _of_html(page) == sorted((s["caller"], s["outcome"]) for s in report["sites"])
    unseen = {_place(s) for s in report["sites"] if s["replayed"]}
    assert _of_diff(run) == {
        place: "replayed" if place in unseen and told in ("before", "warmed") else told
        for place, told in said.items()
    }
    assert _of_table(csv.DictReader(io.StringIO(render_csv(run))), "True") == escaped
    assert _of_table(_parquet(run), True) == escaped
    for table in (frames.requests(run), frames.sites(run)):  # as `wstrace.load` gives them
        assert _of_table(table.to_dict("records"), True) == escaped
    callers = {s["caller"] for s in report["sites"] if s["outcome"] == "escaped"}
    assert _of_timelines(page) == callers
    assert _of_perfetto(render_perfetto(run)) == callers
    assert _of_watch(run) == callers
    assert _of_gate(run) == escaped
    told = [f for f in report["findings"] if f["code"] in ESCAPES]
    assert _of_rank_grid(page) == {_rank(r, run) for f in told for r in f["ranks"]}
    assert _of_pytest(run) == {(f["code"], f"{f['file']}:{f['function']}") for f in told}
    assert {(f.file, f.function) for f in run.escapes if _arena(f.code)} == {
        place[:2] for place in escaped
    }


Place = tuple[str, str, int, int]


def _place(row: dict[str, Any]) -> Place:
    return row["file"], row["function"], row["slot"]["ubatch"], row["slot"]["lane"]


def _arena(code: str) -> bool:
    """WS105 and WS106 are of no arena: no request record stands behind them."""
    return code in ("WS101", "WS102", "WS104")


def _of_findings(report: dict[str, Any]) -> set[Place]:
    return {_place(f) for f in report["findings"] if _arena(f["code"])}


def _of_html(page: str) -> list[tuple[str, str]]:
    """(caller, state) of every row of the Sites table."""
    name = r'<tr id="row-\d+">\s*<th[^>]*data-sort="([^"]*)"'
    row = name + r'.*?data-label="state" data-sort="(\w+)"'
    return sorted((unescape(c), s) for c, s in re.findall(row, page, re.DOTALL))


def _of_timelines(page: str) -> set[str]:
    """Callers that the pictures show above the lock, escaped or refused."""
    text = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page)
    figures = json.loads(text[1]) if text else {}
    drawn = [
        trace
        for name, figure in figures.items()
        if name.startswith("timeline-")
        for trace in figure["data"]
        if trace["name"] in ("escaped the lock", "refused")
    ]
    hovers = [str(point) for trace in drawn for point in trace["customdata"]]
    return {unescape(hover.split("<br>")[1]) for hover in hovers}


def _of_diff(run: AnalysedRun) -> dict[Place, str]:
    rows = json.loads(as_json(phase_rows(run), [run]))["rows"]
    sites = {(str(s.key), r["slot"]): s for s, r in zip(run.sites, rows, strict=True)}
    found = {}
    for row in rows:
        site = sites[row["site"], row["slot"]]
        place = (site.key.file, site.key.function, site.slot.ubatch, site.slot.lane)
        if row["change"] in WORDS:
            found[place] = WORDS[row["change"]]
    return found


def _of_table(rows: Any, true: object) -> set[Place]:
    return {
        (r["file"], r["function"], int(r["ubatch"]), int(r["lane"]))
        for r in rows
        if r["escaped"] == true
    }


def _parquet(run: AnalysedRun) -> list[dict[str, Any]]:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows: list[dict[str, Any]] = parquet.read_table(io.BytesIO(render_parquet(run))).to_pylist()
    return rows


def _of_perfetto(text: str) -> set[str]:
    events = json.loads(text)["traceEvents"]
    return {e["args"]["caller"] for e in events if e["name"].startswith("escape ")}


def _of_watch(run: AnalysedRun) -> set[str]:
    told = set()
    for worker in run.workers:
        state = ProcessState()
        for record in worker.process.records:
            text = _apply(state, record)
            if text.startswith("escape: "):
                told.add(text.removeprefix("escape: ").partition(" asked ")[0])
    return told


def _of_gate(run: AnalysedRun) -> set[Place]:
    judgement = judge([run], Policy(selection=parse_selection("escapes")), date(2026, 1, 1))
    found = json.loads(gate_json.render(judgement))["findings"]
    assert {f["code"] for f in found if f["fails"]} <= ESCAPES
    return {_place(f) for f in found if f["fails"] and _arena(f["code"])}


def _rank(ranks: dict[str, int | None], run: AnalysedRun) -> str:
    return rank_label(Ranks(**ranks), run.workers[0].init.world)


def _of_rank_grid(page: str) -> set[str]:
    """Names of the escaped cells: `title="rank 0: a request escaped, ..."`."""
    cells = re.findall(r'<li class="(\w+)(?: odd)?" title="([^":]*): ', page)
    return {unescape(name) for state, name in cells if state == "escaped"}


def _of_pytest(run: AnalysedRun) -> set[tuple[str, str]]:
    """What the plugin says of a test, for JUnit and the terminal: `WS101 FILE:FUNCTION`."""
    marker = Marker(fail_on="escapes")
    judgement = judge([run], marker.policy(), date(2026, 1, 1))
    recorder = Recorder(run.trace.path, run.trace.run, marker)
    said = str(dict(_properties(judgement, recorder))["wstrace.findings"])
    pairs = (text.partition(" ") for text in said.split("; ") if text)
    return {(code, site) for code, _, site in pairs}


def test_a_log_that_names_no_layer_is_called_the_same_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(
        "ERROR AssertionError: Workspace is locked but allocation requires 9.94 MB, current "
        "size is 2.05 MB. Workspace growth is not allowed after locking.\n"
    )
    run = log_run(path)
    assert [f.named for f in run.findings] == ["unknown site"]
    assert "WS102 error: unknown site: asked for" in render_text(run)
    assert "`unknown site`" in render_markdown(run)
    assert render([run]).count("<bdi>unknown site</bdi>") == 2  # the headline and the card
