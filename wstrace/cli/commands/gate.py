"""`wstrace gate TRACE...`."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wstrace.cli import outlet
from wstrace.errors import WstraceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wstrace.gate.gate_config import Config
    from wstrace.gate.judge import Judgement, Policy

TRACES = Annotated[
    list[Path],
    typer.Argument(metavar="TRACE...", help="Trace folders (hosts of a run are one), or logs."),
]
RUN = Annotated[
    str | None, typer.Option("--run", help="Which run of a folder (default: each).")
]
FAIL_ON = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-on", help="error (default), warning, all, none, escapes, or codes by comma."
    ),
]
UNLOCKED = Annotated[
    bool, typer.Option("--allow-unlocked", help="A run that never locks is no reason for 3.")
]
FORMAT = Annotated[
    list[str] | None,
    typer.Option(
        "--format", help="text, json, junit, github, markdown, sarif; NAME or NAME:PATH."
    ),
]
OUTPUT = Annotated[
    list[Path] | None,
    typer.Option("-o", "--output", help="A file; its extension can choose the format."),
]
BASELINE = Annotated[
    Path | None, typer.Option("--baseline", help="Findings that are accepted (docs/gate.md).")
]
WRITE = Annotated[
    Path | None, typer.Option("--write-baseline", help="Accept what fails now, in this file.")
]
REASON = Annotated[
    str, typer.Option("--reason", help="With --write-baseline: why it is accepted.")
]
EXPIRES = Annotated[
    str | None,
    typer.Option("--expires", metavar="YYYY-MM-DD", help="With --write-baseline: until when."),
]
TOLERANCE = Annotated[
    str | None,
    typer.Option("--tolerance", help="How far an accepted finding may grow: 10%, 1MiB."),
]
EXERCISE = Annotated[
    str | None,
    typer.Option(
        "--min-exercise",
        help="Below it the run is inconclusive: reqs=8,continued=50%,share=80%.",
    ),
]
CONFIG = Annotated[
    Path | None,
    typer.Option(
        "--config", help="The file with tool.wstrace (default: nearest pyproject.toml)."
    ),
]


def command(
    traces: TRACES,
    run: RUN = None,
    fail_on: FAIL_ON = None,
    allow_unlocked: UNLOCKED = False,
    formats: FORMAT = None,
    output: OUTPUT = None,
    baseline: BASELINE = None,
    write_baseline: WRITE = None,
    reason: REASON = "",
    expires: EXPIRES = None,
    tolerance: TOLERANCE = None,
    min_exercise: EXERCISE = None,
    config: CONFIG = None,
) -> None:
    """Judge traces in CI: exit 0 clean, 1 findings, 2 or 3 neither.

    2 is unusable input, 3 inconclusive; 1 wins over 3.
    Example: wstrace gate ./wstrace-* --format github --format junit:junit.xml
    """
    from wstrace.gate.gate_config import find_config, read_config
    from wstrace.gate.judge import judge
    from wstrace.gate.runs import load_runs
    from wstrace.report.ci.gate_formats import pair

    today = datetime.now(UTC).date()
    until = _until(expires, today)
    _check_uses(write_baseline, reason, expires)
    settings = read_config(config or find_config(Path.cwd()))
    targets = pair(formats or [], output or [])
    known = _known(baseline or settings.baseline, write_baseline)
    policy = _policy(settings, fail_on, known, tolerance, min_exercise)
    analysed = load_runs(traces, run, allow_unlocked=allow_unlocked or settings.allow_unlocked)
    judgement = judge(analysed, policy, today)
    if write_baseline is not None:
        policy = _accept(write_baseline, judgement, policy, reason, until)
        judgement = judge(analysed, policy, today)
    _report(judgement, targets)
    raise typer.Exit(judgement.exit_code)


def _known(baseline: Path | None, written: Path | None) -> Path | None:
    """The baseline to read: the one named, else the one that is about to be rewritten."""
    known = baseline or written
    if known is None or written is None or known.exists():
        return known
    return None if known.absolute() == written.absolute() else known


def _policy(
    settings: Config,
    fail_on: Sequence[str] | None,
    baseline: Path | None,
    tolerance: str | None,
    min_exercise: str | None,
) -> Policy:
    """The command line's choices, else those of [tool.wstrace]."""
    from wstrace.amounts import parse_amount
    from wstrace.gate.baseline import read_baseline
    from wstrace.gate.judge import Policy
    from wstrace.gate.selection import parse_selection
    from wstrace.runs.exercised import parse_minimum

    least = _first("--min-exercise", min_exercise, settings.min_exercise)
    chosen = ",".join(fail_on) if fail_on else None
    return Policy(
        selection=parse_selection(_first("--fail-on", chosen, settings.fail_on) or "error"),
        baseline=read_baseline(baseline) if baseline else {},
        tolerance=parse_amount(_first("--tolerance", tolerance, settings.tolerance) or "0"),
        limits=settings.limits,
        minimum=parse_minimum(least) if least is not None else {},
    )


def _first(option: str, given: str | None, configured: str | None) -> str | None:
    """The command line's value before the file's; an empty one is a mistake in either."""
    value = configured if given is None else given
    if value is not None and not value.strip():
        raise WstraceError(
            f"{option} is empty.",
            f"Give a value, or leave it (or {option[2:]} in [tool.wstrace]) out.",
        )
    return value


def _until(text: str | None, today: date) -> date | None:
    """The last day of the new entries. One that is over would accept nothing: an error."""
    if text is None:
        return None
    try:
        until = date.fromisoformat(text)
    except ValueError as error:
        raise WstraceError(f"Not a date: {text!r}.", "Write it as 2027-01-31.") from error
    if until < today:
        raise WstraceError(
            f"--expires {until} is over: today is {today} (UTC).",
            "Give today or a later day, the last one on which the findings are accepted.",
        )
    return until


def _check_uses(write_baseline: Path | None, reason: str, expires: str | None) -> None:
    for option, given in (("--reason", reason), ("--expires", expires)):
        if given and write_baseline is None:
            raise WstraceError(
                f"{option} goes with --write-baseline FILE.",
                "To change an entry that exists, edit its line in the baseline.",
            )


def _accept(
    target: Path, judgement: Judgement, policy: Policy, reason: str, until: date | None
) -> Policy:
    """Write the baseline that accepts what fails now; returns the policy with it."""
    from dataclasses import replace

    from wstrace.files import write_output
    from wstrace.gate.baseline import format_baseline
    from wstrace.gate.judge import accept
    from wstrace.units import plural

    accepted = accept(judgement, reason, until)
    write_output(format_baseline(accepted.values()), target)
    outlet.say(f"wstrace: {plural(len(accepted), 'finding')} accepted in {target}")
    return replace(policy, baseline=accepted)


def _report(judgement: Judgement, targets: list[tuple[str, Path | None]]) -> None:
    """Write every format; the verdict goes to stderr when no format of lines is on stdout."""
    from wstrace.files import write_output
    from wstrace.report.ci.gate_formats import LINES, reporter
    from wstrace.report.ci.gate_lines import headline
    from wstrace.report.ci.github import append_summary

    for name, path in targets:
        write_output(reporter(name)(judgement), path)
        if name == "github":
            append_summary(judgement)
    if not any(path is None and name in LINES for name, path in targets):
        outlet.say(f"wstrace gate: {headline(judgement)}")
