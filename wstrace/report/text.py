"""The terminal report: one screen, as wide as the terminal, plain when piped."""

from __future__ import annotations

from io import StringIO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from wstrace.findings.analysed_run import AnalysedRun
from wstrace.findings.finding import Finding
from wstrace.gate.limits import model_of
from wstrace.report.console import plain_console
from wstrace.report.finding_text import (
    MAX_WAYS,
    asked_text,
    evidence,
    locked_text,
    serving_text,
    slot_text,
    way_text,
)
from wstrace.report.safe import clean
from wstrace.report.verdict import sentence
from wstrace.runs.accounting import accounting_line
from wstrace.runs.run import RunSite
from wstrace.triage.log_run import LogRun
from wstrace.units import human, plural
from wstrace.versions import vllm_text

MAX_FINDINGS = 6
MAX_SITES = 12
NARROW = 78
STYLES = {"error": "bold red", "warning": "yellow", "inconclusive": "magenta", "note": "dim"}


def render(run: AnalysedRun, console: Console) -> None:
    """Print the report on `console`; rich decides on colour (NO_COLOR, a pipe)."""
    console.print(Text(sentence(run), style="bold"))
    console.print(Text(" · ".join(facts(run)), style="dim"))
    if line := accounting_line(run.workers):
        console.print(Text(line, style="dim"))
    if run.sites or run.workers:
        console.print(sites_table(run, narrow=console.width < NARROW))
    for finding in run.findings[:MAX_FINDINGS]:
        console.print(finding_block(finding))
    left = len(run.findings) - MAX_FINDINGS
    if left > 0:
        console.print(Text(f"{left} more findings: --format json", style="dim"))
    for line in run.rests_on.shown():
        console.print(Text(f"rests on: {clean(line)}", style="dim"))
    for note in [*run.inconclusive, *run.notes]:
        console.print(Text(f"note: {note}", style="dim"))


def render_text(run: AnalysedRun, width: int = 100) -> str:
    """The report as plain text of a given width (golden files, pasting)."""
    out = StringIO()
    render(run, plain_console(file=out, width=width, no_color=True))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def facts(run: AnalysedRun) -> list[str]:
    """Versions, ranks, lock and arena: the line below the verdict."""
    if isinstance(run, LogRun):
        return [f"log {clean(run.trace.run)}", vllm_text(run.vllm_version)]
    if not run.workers:
        return [f"run {run.trace.run or '-'}", "no worker"]
    first = run.workers[0]
    steps = max((v.counts.steps_real for v in run.workers if v.counts), default=0)
    ranks = plural(len(run.workers), "rank")
    model = clean(model_of(run) or "model ?")
    real = plural(steps, "real step")
    locked = locked_text(run.workers, human)
    return [vllm_text(first.header.vllm), model, ranks, locked, real]


def sites_table(run: AnalysedRun, *, narrow: bool = False) -> RenderableType:
    """Warm-up against serving, a row a site; the bound with its grade.

    A narrow terminal keeps the site, what serving asked, and the arena.
    """
    table = Table(box=None, pad_edge=False, header_style="dim", show_edge=False)
    table.add_column("site", overflow="fold", ratio=1, min_width=16)
    shown = ("serving", "arena") if narrow else ("warm-up", "serving", "arena", "can need")
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    if not narrow:
        table.add_column("grade", no_wrap=True)
    worst = run.worst_of_site
    for site in run.sites[:MAX_SITES]:
        finding = worst.get((site.key, site.slot))
        style = STYLES.get(finding.severity, "") if finding and finding.row.outgrows else ""
        cells = _cells(site)
        table.add_row(*((cells[0], cells[2], cells[3]) if narrow else cells), style=style)
    left = len(run.sites) - MAX_SITES
    parts: list[RenderableType] = [Padding(table, (1, 0, 1, 0))]
    if left > 0:
        parts.append(Text(f"{left} smaller sites left out: --format json", style="dim"))
    silent = (s for s in run.sites[:MAX_SITES] if (s.key, s.slot) not in worst)
    parts += [_ways(site) for site in silent if site.bound.ways]
    return Group(*parts)


def _ways(site: RunSite) -> RenderableType:
    """Who asks at one site, where the formula depends on it."""
    lines = [clean(way_text(way), 600) for way in site.bound.ways[:MAX_WAYS]]
    head = f"{clean(site.named)} is reached on {len(site.bound.ways)} ways:"
    return Group(Text(head), Padding(Text("\n".join(lines)), (0, 0, 1, 2)))


def _cells(site: RunSite) -> tuple[str, str, str, str, str, str]:
    where = slot_text(site.slot)
    name = clean(site.named)
    return (
        f"{name} ({where})" if where else name,
        asked_text(site.warmup_bytes),
        serving_text(site),
        human(site.arena_bytes),
        human(site.bound.bytes),
        site.bound.grade,
    )


def finding_block(finding: Finding) -> RenderableType:
    """Code, title, evidence, advice."""
    head = Text(f"{finding.code} {finding.severity}: ", style=STYLES[finding.severity])
    head.append(f"{clean(finding.named or 'run')}: {finding.title}")
    body = "\n".join(evidence(finding))
    typed = finding.log.commands if finding.log else filter(None, (finding.advice,))
    advice = Text("\n".join(f"do: {line}" for line in typed), style="green")
    return Group(head, Padding(Group(Text(body), advice), (0, 0, 1, 2)))
