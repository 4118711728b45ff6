"""`wstrace sites`: the call sites whose worst case is known."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from wstrace.cli.outlet import Format

if TYPE_CHECKING:
    from wstrace.known_sites.known import KnownSite, Variant


def command(
    output: Annotated[Format, typer.Option("--format", help="Output format.")] = "text",
) -> None:
    """The call sites whose worst case is known; what moves it."""
    from wstrace.known_sites.known import known_sites

    if output == "json":
        sites = [_as_json(site) for site in known_sites()]
        typer.echo(json.dumps({"version": 1, "sites": sites}, indent=2))
    else:
        _print_text(known_sites())


def _as_json(site: KnownSite) -> dict[str, object]:
    return {
        "id": site.id,
        "family": site.family,
        "title": site.title,
        "kind": site.kind,
        "choice": site.choice or None,
        "files": list(site.files),
        "functions": list(site.functions),
        "versions": [_variant(variant) for variant in site.variants],
        "first_bad": site.first_bad or None,
        "first_fixed": site.first_fixed or None,
        "formula": site.formula,
        "names": {name.name: name.where() for name in site.names},
        "lever": {"flag": site.lever.flag, "effect": site.lever.effect},
        "links": list(site.links),
        "cases": list(site.cases),
    }


def _variant(variant: Variant) -> dict[str, object]:
    return {"since": variant.since, "formula": variant.formula, "note": variant.note or None}


def _print_text(sites: tuple[KnownSite, ...]) -> None:
    from rich.table import Table

    from wstrace.report.console import plain_console

    console = plain_console()
    if not console.is_terminal:
        for site in sites:
            typer.echo("\t".join(_row(site)))
        return
    table = Table("site", "file", "seen in", "lever", box=None, padding=(0, 2, 0, 0))
    for site in sites:
        table.add_row(*_row(site))
    console.print(table)
    console.print("\n`wstrace bound SITE` gives the formula and the numbers that it needs.")


def _row(site: KnownSite) -> tuple[str, str, str, str]:
    file = site.files[0].rsplit("/", 1)[-1]
    return site.id, file, f"{site.first_seen} on", site.lever.flag
