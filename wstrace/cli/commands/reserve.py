"""`wstrace reserve TRACE -o reserve.yaml`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wstrace.findings.analysed_run import AnalysedRun
    from wstrace.planning.plan import ReservePlan

TRACES = Annotated[
    list[Path],
    typer.Argument(
        metavar="TRACE...",
        help="Folders of `wstrace run`, or trace files; several must be of one engine.",
    ),
]
MERGE = Annotated[
    list[Path] | None,
    typer.Option("--merge", metavar="FILE", help="Keep the sites of this older reserve."),
]
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
    traces: TRACES,
    output: OUTPUT = None,
    set_: SET = None,
    cover: COVER = None,
    budget: BUDGET = None,
    fmt: FORMAT = "yaml",
    run: RUN = None,
    force: FORCE = False,
    merge: MERGE = None,
) -> None:
    """A reserve config from traces, and what it costs.

    Bytes that keep the sites seen from outgrowing a locked arena, and what can still fail.
    Sites of a reserve that a run had are kept.

    Example: wstrace reserve wstrace-20260101-abc/ -o reserve.yaml
    """
    from wstrace.cli import outlet
    from wstrace.cli.reading import read_runs
    from wstrace.cli.settings import pairs, settings
    from wstrace.files import write_output
    from wstrace.planning.from_run import plan_runs
    from wstrace.planning.plan import Earlier, Wishes, refuse_empty_reserve
    from wstrace.reserve.config import dumps, load_reserve
    from wstrace.units import parse_bytes

    wishes = Wishes(
        cover=pairs(cover or (), "--cover", "SITE=observed"),
        budget=parse_bytes(budget) if budget is not None else None,
        limits=settings(set_ or (), "max_model_len=65536"),
    )
    earlier = [Earlier(path.name, load_reserve(path)) for path in merge or ()]
    analysed = read_runs(traces, run)
    made = plan_runs(analysed, wishes, earlier)
    refuse_empty_reserve(made)
    text = json.dumps(made.payload(), indent=2) if fmt == "json" else dumps(made.config)
    write_output(text, output, force=force)
    for line in [*_summary(made, output), *_doubts(analysed)]:
        outlet.say(line)


def _doubts(analysed: Sequence[AnalysedRun]) -> list[str]:
    """Which run of a folder of several it is, and why a trace may not show all."""
    return [
        f"Trace: {why}" for run in analysed for why in (*run.trace.notes, *run.inconclusive)
    ]


def _summary(made: ReservePlan, output: Path | None) -> list[str]:
    """What a person wants to know before using the file."""
    from wstrace.units import human, plural

    config = made.config
    slots = len(config.slots)
    size = config.slots[0].bytes if slots else 0
    lines = [f"Reserve: {human(size)} in each of {plural(slots, 'slot')}."]
    cost = config.cost
    if cost.tokens is not None:
        lines.append(
            f"Cost: {cost.tokens:,} KV-cache tokens ({cost.blocks:,} blocks) per rank."
        )
    lines += [cost.note] if cost.note else []
    lines += [f"Can still fail: {told}" for told in made.can_fail]
    lines += [f"Not covered: {told}" for told in made.beyond_bytes]
    lines += [f"Kept: {site.site}: {site.why}" for site in made.kept]
    for site, rungs in made.ladders.items():
        lines.append(f"Cheaper choices for {site} (--cover SITE=CHOICE):")
        lines += [
            f"  {rung.choice}: {human(rung.bytes)}, covers {rung.covers}" for rung in rungs
        ]
    if output is not None and size:
        lines.append(f"Use it: wstrace run --reserve {output} -- vllm serve ...")
    return lines
