"""`wstrace bound`: evaluate an expression, or a known site's worst case."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wstrace.cli.outlet import Format
from wstrace.errors import WstraceError

if TYPE_CHECKING:
    from wstrace.bounds.bound import Bound
    from wstrace.known_sites.known import KnownSite


def command(
    what: Annotated[
        str,
        typer.Argument(
            metavar="EXPR|KNOWN_SITE",
            help="A formula, a site's id (`wstrace sites`), or FILE:FUNCTION from an error.",
        ),
    ],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A number.")
    ] = None,
    model_config: Annotated[
        Path | None,
        typer.Option(
            help="The model's config.json; --set tensor_parallel_size=N goes with it."
        ),
    ] = None,
    vllm: Annotated[
        str | None, typer.Option(metavar="VERSION", help="The vLLM version; newest if absent.")
    ] = None,
    output: Annotated[Format, typer.Option("--format", help="Output format.")] = "text",
) -> None:
    """What a call site can ever ask of the workspace, in bytes.

    A number that is missing is named and never guessed: the bytes are then null, and the
    exit code is 0, because the question was understood. Mistakes in the input exit 2.
    """
    from wstrace.cli.rule_numbers import given_numbers
    from wstrace.report import bounded

    site = _site_called(what, vllm)
    values = given_numbers(settings or [], site, what, model_config)
    worst = _site_bound(site, values) if site else _bare_bound(what, values)
    if worst.bytes is not None and worst.bytes < 0:
        raise WstraceError(
            f"{what} gives {worst.bytes}, which is no number of bytes.",
            "Check the --set values.",
        )
    if output == "json":
        typer.echo(bounded.as_json(worst, site))
    else:
        _print_text(worst, site)


def _site_called(what: str, vllm: str | None) -> KnownSite | None:
    """The known site that `what` names; None where it is an expression."""
    from wstrace.known_sites.known import match, require, site_with_id
    from wstrace.trace.site_key import SiteKey
    from wstrace.versions import release_of

    if vllm is not None and not release_of(vllm).is_build:
        raise WstraceError(
            f"'{vllm}' names no release of vLLM.", "For example --vllm 0.21.0, or leave it out."
        )
    site = site_with_id(what)
    call = SiteKey.called(what.strip("'"))
    if site is None and call.file.endswith(".py"):
        site = match(call.file, call.function, vllm)
        if site is None:
            raise WstraceError(
                f"No known site is {call.function} in {call.file}.",
                "`wstrace sites` lists them.",
            )
    # matches: "turboquant.prefill"
    if site is None and re.fullmatch(r"[a-z]\w*(\.\w+)+", what):
        site = require(what)
    return site.at(vllm) if site else None


def _site_bound(site: KnownSite, values: dict[str, int]) -> Bound:
    from wstrace.bounds.by_rule import rule_bound

    found = rule_bound(site, values)
    if found.contradiction:
        raise WstraceError(
            f"{found.contradiction[0].upper()}{found.contradiction[1:]}.",
            "Record a trace of such an engine: wstrace run -- vllm serve ...",
        )
    return found


def _bare_bound(text: str, values: dict[str, int]) -> Bound:
    from wstrace.bounds.bound import Bound
    from wstrace.expr.expression import parse

    expression = parse(text)
    needs = tuple(sorted(expression.names - values.keys()))
    total = None if needs else expression.evaluate(values)
    return Bound(total, formula=text.strip(), needs=needs)


def _print_text(worst: Bound, site: KnownSite | None) -> None:
    from rich.table import Table

    from wstrace.report.bounded import lines
    from wstrace.report.console import plain_console

    console = plain_console()
    if not console.is_terminal:
        for label, text in lines(worst, site):
            typer.echo(f"{label}\t{text}")
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in lines(worst, site):
        table.add_row(label, text)
    console.print(table)
