"""Sentences of the gate that its text, Markdown and annotations share."""

from __future__ import annotations

from wstrace.findings.finding import Finding
from wstrace.gate.baseline import Entry
from wstrace.gate.judge import Judged, Judgement, RunJudgement
from wstrace.gate.limits import Violation, model_of
from wstrace.gate.place import slot_kind
from wstrace.report.finding_text import REPLAYED, sizes
from wstrace.runs.exercised import Measure, Reach
from wstrace.triage.log_run import LogRun
from wstrace.units import exact, human, plural
from wstrace.versions import vllm_text


def headline(judgement: Judgement) -> str:
    """The verdict in one sentence, with its exit code."""
    failing = sum(judged.fails for _, judged in judgement.findings)
    broken = sum(len(run.violations) for run in judgement.runs)
    if judgement.verdict == "findings":
        parts = [plural(failing, "finding")] if failing else []
        parts += [f"{plural(broken, 'limit')} not kept"] if broken else []
        return f"{' and '.join(parts)} (exit 1)"
    if judgement.verdict == "inconclusive":
        reason = next(reason for run in judgement.runs for reason in run.reasons)
        return f"inconclusive: {reason} (exit 3)"
    sites = sum(run.reach.measure("sites").most for run in judgement.runs)
    return f"clean: {plural(sites, 'site')} reached in serving (exit 0)"


def run_line(run: RunJudgement) -> str:
    """Which run this was: id, version, model, ranks."""
    analysed = run.analysed
    if isinstance(analysed, LogRun):
        return f"log {analysed.trace.run}: {vllm_text(analysed.vllm_version)}"
    if not analysed.workers:
        return f"run {analysed.trace.run or '-'}: no worker"
    version = vllm_text(analysed.workers[0].header.vllm)
    ranks = plural(len(analysed.workers), "rank")
    return f"run {analysed.trace.run}: {version}, {model_of(analysed) or 'model ?'}, {ranks}"


def where(judged: Judged) -> str:
    """The site, or the slot's kind, or the run."""
    finding = judged.finding
    kind = slot_kind(finding.slot)
    slot = "" if kind in ("", "main") else f" ({kind} slot)"
    place = finding.where if finding.log else finding.site or "the run"
    return place + slot


def line_of(run: RunJudgement, finding: Finding) -> int:
    """The line where the site stood in this build, 0 if unknown: a hint, no identity."""
    if finding.log is not None:
        return finding.log.line or 0
    lines = (
        use.line
        for site in run.analysed.sites
        if str(site.key) == finding.site
        for _, use in site.uses
    )
    return max(lines, default=0)


def explain(judged: Judged) -> str:
    """One sentence of evidence, with what the baseline has to do with it."""
    log = judged.finding.log
    detail = judged.finding.detail + (f". {log.why}" if log else "")
    entry = judged.entry
    if judged.status == "grown" and entry is not None:
        return f"{detail}; the baseline accepts {exact(entry.bytes)}"
    if judged.status == "expired" and entry is not None:
        return f"{detail}; accepted until {entry.expires}: {entry.reason or 'no reason given'}"
    return detail


def numbers(judged: Judged) -> str:
    """Sizes and the bound, on one line; empty where there are none."""
    bound = judged.finding.bound
    parts = [sizes(judged.finding)] if sizes(judged.finding) else []
    if bound is not None and bound.bytes is not None:
        parts.append(f"can need {human(bound.bytes)} ({bound.grade})")
    return ", ".join(parts)


def violation_line(violation: Violation) -> str:
    """`limit/arena: the arena is ...`."""
    site = f"{violation.site}: " if violation.site else ""
    return f"{violation.rule}: {site}{violation.detail}"


def accepted_line(judged: Judged) -> str:
    """What the baseline lets pass, and why."""
    entry = judged.entry
    assert entry is not None
    until = f", until {entry.expires}" if entry.expires else ""
    reason = entry.reason or "no reason given"
    return f"{entry.code} {where(judged)}: {reason}{until}"


def entry_line(entry: Entry) -> str:
    """A baseline entry by its place."""
    return f"{entry.code} {entry.site or 'the run'}"


def grounds(run: RunJudgement) -> list[str]:
    """What the verdict rests on; of a log its text, which the findings name."""
    return [] if isinstance(run.analysed, LogRun) else run.analysed.rests_on.shown()


def exercised(run: RunJudgement) -> list[str]:
    """What was exercised: one line for the scheduler, one for each site reached.

    Nothing for a log, which does not tell.
    """
    return [] if isinstance(run.analysed, LogRun) else _reached(run.reach)


def _reached(reach: Reach) -> list[str]:
    shown = [m for m in reach.measures if m.name != "computed"]
    lines = [", ".join(map(_measure, shown))]
    for site in reach.sites:
        if site.in_serving:
            share = site.share
            of = (
                "no bound but this"
                if share is None
                else f"{share:.0%} of its {site.grade} bound"
            )
            lines.append(f"{site.site}: {human(site.most)}, {of}")
    unseen = [site for site in reach.sites if not site.in_serving]
    lines += _missed("not reached in serving", [s.site for s in unseen if not s.captured])
    lines += _missed(f"in serving {REPLAYED}", [s.site for s in unseen if s.captured])
    return lines


def _missed(what: str, sites: list[str]) -> list[str]:
    more = f" and {len(sites) - 3} more" if len(sites) > 3 else ""
    return [f"{what}: {', '.join(sites[:3])}{more}"] if sites else []


def _measure(measure: Measure) -> str:
    of = f" of {measure.limit:,}" if measure.limit is not None else ""
    return f"{measure.what} {measure.most:,}{of}"
