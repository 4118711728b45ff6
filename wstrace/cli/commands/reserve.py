"""`wstrace reserve TRACE -o reserve.yaml`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from wstrace.planning.plan import ReservePlan

TRACE = Annotated[Path, typer.Argument(help="Folder of `wstrace run`, or one trace file.")]
OUTPUT = Annotated[Path | None, typer.Option("-o", "--output", help="File; else stdout.")]
SET = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="What if a limit were another; or a number that the trace lacks.",
    ),
]
COVER = Annotated[
    list[str] | None,
    typer.Option(
        "--cover",
        metavar="SITE=CHOICE",
        help="For one site: bound, observed, p99 or a size.",
    ),
]
BUDGET = Annotated[
    str | None,
    typer.Option(
        "--budget", metavar="SIZE", help="Most for all slots of a rank together, as 2GiB."
    ),
]
FORMAT = Annotated[Literal["yaml", "json"], typer.Option("--format", help="yaml or json.")]
RUN = Annotated[str | None, typer.Option("--run", help="Which run of a folder of several.")]
FORCE = Annotated[bool, typer.Option("--force", help="Overwrite the output file.")]


def command(
    trace: TRACE,
    output: OUTPUT = None,
    set_: SET = None,
    cover: COVER = None,
    budget: BUDGET = None,
    fmt: FORMAT = "yaml",
    run: RUN = None,
    force: FORCE = False,
) -> None:
    """A reserve config from a trace: bytes that make arena crashes impossible, and their cost.

    Example: wstrace reserve wstrace-20260101-abc/ -o reserve.yaml
    """
    from wstrace.bounds.least import refuse_below_least
    from wstrace.cli.reading import read_sessions
    from wstrace.cli.settings import integers, pairs
    from wstrace.files import write_output
    from wstrace.planning.from_run import plan_session
    from wstrace.planning.plan import Wishes
    from wstrace.reserve.config import dumps
    from wstrace.units import parse_bytes

    wishes = Wishes(
        cover=pairs(cover or (), "--cover", "SITE=observed"),
        budget=parse_bytes(budget) if budget is not None else None,
        limits=integers(set_ or (), "max_model_len=65536"),
    )
    refuse_below_least(wishes.limits or {})
    session = read_sessions([trace], run)[0]
    made = plan_session(session, wishes)
    text = json.dumps(made.payload(), indent=2) if fmt == "json" else dumps(made.config)
    write_output(text, output, force=force)
    for line in [*_summary(made, output), *(f"Trace: {why}" for why in session.inconclusive)]:
        print(line, file=sys.stderr)


def _summary(made: ReservePlan, output: Path | None) -> list[str]:
    """What a person wants to know before using the file."""
    from wstrace.units import human

    config = made.config
    slots = len(config.slots)
    size = config.slots[0].bytes if slots else 0
    lines = [f"Reserve: {human(size)} in each of {slots} slot{'s' * (slots != 1)}."]
    cost = config.cost
    if cost.tokens is not None:
        lines.append(
            f"Cost: {cost.tokens:,} KV-cache tokens ({cost.blocks:,} blocks) per rank."
        )
    lines += [cost.note] if cost.note else []
    lines += [f"Can still fail: {told}" for told in made.can_fail]
    lines += [f"Not covered: {item.site}: {item.why}" for item in config.not_covered]
    for site, rungs in made.ladders.items():
        lines.append(f"Cheaper choices for {site} (--cover SITE=CHOICE):")
        lines += [
            f"  {rung.choice}: {human(rung.bytes)}, covers {rung.covers}" for rung in rungs
        ]
    if output is not None and size:
        lines.append(f"Use it: wstrace run --reserve {output} -- vllm serve ...")
    return lines
