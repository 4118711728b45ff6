"""`wstrace run [options] -- CMD...`."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from wstrace.cli import outlet
from wstrace.errors import WstraceError

if TYPE_CHECKING:
    from wstrace.trace.run_file import RunFile

OUT = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="Trace folder (default: ./wstrace-UTC-ID, new)."),
]
GROWTH = Annotated[
    Literal["raise", "grow"],
    typer.Option(
        help="raise: vLLM's behaviour. grow: let a locked arena grow, to find all escapes."
    ),
]
RESERVE = Annotated[
    Path | None, typer.Option("--reserve", help="Reserve config to apply before profiling.")
]
POLICY = Annotated[
    Literal["fail", "skip"],
    typer.Option(help="What a worker does when the reserve config does not fit."),
]
MAX_RESERVE = Annotated[
    str | None, typer.Option("--max-reserve", help="Refuse a larger reserve, such as 2GiB.")
]
VIEWS = Annotated[
    bool, typer.Option("--check-views", help="Find views that outlive a growth (slower).")
]
WARN_AT = Annotated[
    str | None,
    typer.Option(
        "--warn-at",
        metavar="SHARE",
        help="Say so once when a step brings a site to this share of its arena: 0.9 or 90%.",
    ),
]
REPORT = Annotated[
    Path | None, typer.Option("--report", help="Also write a report when the command ends.")
]
RUN_ID = Annotated[
    str | None,
    typer.Option(
        "--run-id", help="One id for all commands of a launch, each with its own -o folder."
    ),
]
QUIET = Annotated[bool, typer.Option("-q", "--quiet", help="No verdict at the end.")]
COMMAND = Annotated[list[str] | None, typer.Argument(metavar="-- CMD...", show_default=False)]


def command(
    cmd: COMMAND = None,
    output: OUT = None,
    on_growth: GROWTH = "raise",
    reserve: RESERVE = None,
    reserve_policy: POLICY = "fail",
    max_reserve: MAX_RESERVE = None,
    check_views: VIEWS = False,
    warn_at: WARN_AT = None,
    report: REPORT = None,
    run_id: RUN_ID = None,
    quiet: QUIET = False,
) -> None:
    """Run a vLLM command with the recorder; exit with its exit code.

    Example: wstrace run -- vllm serve MODEL --max-model-len 32768
    """
    if not cmd:
        raise WstraceError(
            "No command to run.", "Write it after `--`: wstrace run -- vllm serve MODEL"
        )
    from wstrace.cli import recorded
    from wstrace.cli.launch import run_child
    from wstrace.cli.misspelt import refuse_unknown_option
    from wstrace.recorder.record import environment, make_trace_folder, new_run_id

    refuse_unknown_option(cmd, "run")
    largest = None if max_reserve is None else _bytes(max_reserve)
    nearness = None if warn_at is None else _share(warn_at)
    _check_reserve(reserve, reserve_policy, largest)
    recorded.require_program(cmd[0])
    if report is not None:
        _check_report(report)
    run = new_run_id() if run_id is None else recorded.given_run_id(run_id)
    folder = make_trace_folder(output or Path(f"wstrace-{run}"))
    if run_id is not None:
        recorded.refuse_other_command(folder, run)
    values = environment(
        folder,
        run,
        on_growth=on_growth,
        reserve=reserve,
        reserve_policy=reserve_policy,
        max_reserve=largest,
        check_views=check_views,
        warn_at=nearness,
    )
    started = recorded.begin(folder, run, cmd, on_growth, reserve)
    code = run_child(cmd, {**os.environ, **recorded.plugins(), **values})
    with suppress(KeyboardInterrupt):
        _after_the_command(folder, started, code, quiet, report)
    raise typer.Exit(code)


def _after_the_command(
    folder: Path, started: RunFile, code: int, quiet: bool, report: Path | None
) -> None:
    """Nothing that fails from here on may take the place of the command's exit code."""
    from wstrace.cli import recorded
    from wstrace.file_names import RUN_FILE

    living = _left_behind(started.run)
    try:
        recorded.finish(folder, started, code, living)
    except OSError as error:
        outlet.say(
            f"wstrace: cannot write {RUN_FILE} in {folder}: {error.strerror or error}.\n"
            f"The trace does not say how the command ended; its exit code was {code}."
        )
    _conclude(folder, started.run, quiet, report)


def _left_behind(run: str) -> list[str]:
    """The command's processes that still live after it ended, told if there are any."""
    from wstrace.cli import recorded

    living = recorded.left_behind(run)
    if living:
        outlet.say(
            f"wstrace: the command ended, and of its processes these still live: "
            f"{', '.join(living[:8])}{' ...' if len(living) > 8 else ''}.\n"
            "What they record from now on is not in this verdict; end them if they hang."
        )
    return living


def _check_reserve(reserve: Path | None, policy: str, largest: int | None) -> None:
    """A broken file is told before the command starts, and so is an option without effect."""
    if reserve is not None:
        from wstrace.reserve import config as reserve_config

        reserve_config.load_reserve(reserve)
    elif policy != "fail" or (largest is not None and not _inherited_reserve()):
        option = "--reserve-policy" if policy != "fail" else "--max-reserve"
        raise WstraceError(
            f"{option} goes with --reserve FILE.",
            "Make the file with `wstrace reserve TRACE -o reserve.yaml`, or leave it out.",
        )


def _inherited_reserve() -> bool:
    from wstrace.recorder.settings import text_of

    return bool(text_of(os.environ, "RESERVE"))


def _check_report(target: Path) -> None:
    """What would fail after hours of serving fails now."""
    from wstrace.report.choose import format_of

    format_of(target, None)
    if not os.access(target.parent, os.W_OK):
        raise WstraceError(
            f"No folder {target.parent} to write --report in.", "Make it, or name another."
        )


def _bytes(text: str) -> int:
    from wstrace.units import parse_bytes

    return parse_bytes(text)


def _share(text: str) -> float:
    from wstrace.recorder.settings import share_of

    share = share_of(text)
    if share is None:
        raise WstraceError(
            f"Not a share of an arena: {text!r}.", "Write it as 0.9 or 90%: above 0, at most 1."
        )
    return share


def _conclude(folder: Path, run: str, quiet: bool, report: Path | None) -> None:
    """The verdict on stderr (stdout is the command's), and the report if asked for."""
    if quiet and report is None:
        return
    try:
        from wstrace.findings.analysed_run import load_run
        from wstrace.report.verdict import verdict_lines

        analysed = load_run(folder, run)
        if not quiet:
            outlet.say("\n".join(verdict_lines(analysed, folder)))
        if report is not None:
            from wstrace.report.choose import write_report

            write_report([analysed], report)
    except WstraceError as error:
        outlet.say(outlet.two_lines(error))
    except OSError as error:
        outlet.say(
            f"wstrace: cannot read or write {error.filename or folder}: "
            f"{error.strerror or error}.\nSee `wstrace report {folder}`."
        )
    except Exception as error:  # the exit code stays the command's
        outlet.say(
            f"wstrace: internal error: {type(error).__name__}: {error}\n"
            f"This is a bug: report what `wstrace --debug report {folder}` prints."
        )
