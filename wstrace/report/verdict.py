"""The verdict of a run in at most 12 lines, and the next command to type."""

from __future__ import annotations

from pathlib import Path

from wstrace.bounds.bound import Bound
from wstrace.findings.finding import Finding
from wstrace.report.safe import clean
from wstrace.runs.run import Run
from wstrace.units import exact, human, plural

MAX_LINES = 12
WIDTH = 100


def sentence(run: Run) -> str:
    """The verdict in one sentence; vLLM's own caller string first, people search for it."""
    worst = next((f for f in run.findings if f.severity == "error"), None)
    if worst is not None:
        caller = worst.caller or worst.site or "a request"
        joint = ": " if worst.code == "WS301" else " "
        return f"'{clean(caller)}'{joint}{worst.detail} ({worst.code})."
    if run.inconclusive:
        return f"Inconclusive: {run.inconclusive[0]}."
    sites = plural(len(run.sites), "site")
    return f"Clean: {sites}, no request above what warm-up had made room for."


def verdict_lines(run: Run, folder: Path) -> list[str]:
    """At most 12 lines for a terminal: the verdict, the worst findings, what to type next."""
    errors = [f for f in run.findings if f.severity == "error"]
    lines = ["", f"wstrace: {sentence(run)}"]
    if errors:
        lines += _explain(errors[0])
        lines += [_row(f) for f in errors[1:4]]
        if len(errors) > 4:
            lines.append(f"  and {len(errors) - 4} more.")
    elif run.inconclusive[1:]:
        lines += [f"  also: {reason}" for reason in run.inconclusive[1:3]]
    lines += _next(run, folder, bool(errors))
    return [_fitted(line) for line in lines[:MAX_LINES]]


def _fitted(line: str) -> str:
    """At most two lines of a terminal, cut between two words."""
    if len(line) <= WIDTH * 2:
        return line
    return f"{line[: WIDTH * 2 - 3].rpartition(' ')[0]} ..."


def _explain(finding: Finding) -> list[str]:
    bound = finding.bound
    lines = []
    if finding.layers:
        more = f" and {len(finding.layers) - 1} more" if len(finding.layers) > 1 else ""
        lines.append(f"  layer: {clean(finding.layers[0])}{more}")
    if bound is not None and bound.drivers:
        lines.append(f"  why:   {why(bound)}")
    if bound is not None and bound.bytes is not None:
        lines.append(
            f"  bound: {exact(bound.bytes)}, {bound.grade}: {bound.formula or bound.why}"
        )
    return lines


def why(bound: Bound) -> str:
    """`it grows with num_computed_tokens (at most max_model_len - 1)`."""
    drivers = [f"{name} (at most {limit})" for name, limit in bound.drivers.items()]
    return "it grows with " + " and ".join(drivers) if drivers else bound.why


def _row(finding: Finding) -> str:
    size = human(finding.serving_bytes)
    return f"  {finding.code} {clean(finding.caller or finding.site)}: {size}, {finding.title}"


def _next(run: Run, folder: Path, failed: bool) -> list[str]:
    lines = [f"trace: {folder}"]
    if failed:
        lines.append(f"next:  wstrace reserve {folder} -o reserve.yaml")
        lines.append("       wstrace run --reserve reserve.yaml -- YOUR COMMAND")
    else:
        lines.append(f"next:  wstrace report {folder}")
    return lines
