"""`wstrace triage [FILE...]`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from wstrace.cli import outlet
from wstrace.errors import INCONCLUSIVE, WstraceError

if TYPE_CHECKING:
    from wstrace.triage.report import Report

FILES = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE]...",
        help="Logs, pasted texts, folders, archives, issues; - or nothing: stdin.",
    ),
]
FORMAT = Annotated[
    Literal["text", "json", "markdown"] | None,
    typer.Option("--format", help="Output form (default: by the extension of -o, else text)."),
]
OUTPUT = Annotated[Path | None, typer.Option("-o", "--output", help="Write to this file.")]
SET = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=N",
        help="A number the log lacks, per rank: --set num_kv_heads=4. May be repeated.",
    ),
]
MODEL = Annotated[
    Path | None,
    typer.Option("--model-config", help="The model's config.json: heads, widths, experts."),
]
RESERVE = Annotated[
    Path | None,
    typer.Option("--reserve", help="Also write a reserve config, when the bound is complete."),
]


def command(
    files: FILES = None,
    form: FORMAT = None,
    output: OUTPUT = None,
    numbers: SET = None,
    model_config: MODEL = None,
    reserve: RESERVE = None,
) -> None:
    """Read a vLLM log or report: which layer, why, what to do.

    Exit 0 whether or not the text has a failure of the arena, 2 for input that cannot be read,
    3 where all that failed is not the arena.
    """
    from wstrace.cli.settings import settings
    from wstrace.files import write_output
    from wstrace.known_sites.given import numbers_of, words_of
    from wstrace.triage import report as reports
    from wstrace.triage.diagnose.numbers import Given, refuse_unknown

    told = settings(numbers or (), "num_kv_heads=4")
    given = Given(numbers_of(told), model_config, words=words_of(told))
    refuse_unknown(given)
    _check_files(model_config, output, reserve)
    report = reports.read(_inputs(files), given)
    if reserve is not None:
        from wstrace.reserve.writer import dumps
        from wstrace.triage.reserve_plan import plan_report

        write_output(dumps(plan_report(report).config), reserve)
        if str(reserve) != "-":
            outlet.say(f"Wrote {reserve}: WSTRACE_RESERVE={reserve} vllm serve ...")
    write_output(_rendered(report, form, output), output)
    if report.only_relatives:
        raise typer.Exit(INCONCLUSIVE)


def _check_files(model_config: Path | None, output: Path | None, reserve: Path | None) -> None:
    if model_config is not None and not model_config.is_file():
        raise WstraceError(
            f"The model config '{model_config}' is no file.",
            "Give the config.json that lies beside the model's weights.",
        )
    if reserve is not None and output is not None and reserve.absolute() == output.absolute():
        raise WstraceError(
            f"--reserve and -o both write {output}.", "Give each a file of its own."
        )


def _inputs(files: list[str] | None) -> list[str]:
    """The files as given, each once: twice the same one would count its failures twice."""
    if files:
        return list(dict.fromkeys(files))
    if sys.stdin.isatty():
        raise WstraceError(
            "There is nothing to read.", "Give a log: wstrace triage FILE, or pipe one in."
        )
    return ["-"]


def _rendered(report: Report, form: str | None, output: Path | None) -> str:
    from wstrace.report import triage
    from wstrace.report.formats import by_extension

    renderers = {
        "json": triage.render_json,
        "markdown": triage.render_markdown,
        "text": triage.render_text,
    }
    known = by_extension(output, renderers) if output else None
    return renderers[form or known or "text"](report)
