"""An audit as a page, with the lines of the user's own vLLM that each verdict rests on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Final

from wstrace.audit.matching import Match
from wstrace.audit.whole import Audit, AuditedSite
from wstrace.report.audited import TOLD, WORST_FIRST
from wstrace.report.html.page import build

AROUND: Final = 3
_WIDEST: Final = 160
SEVERITIES: Final[dict[Match, str]] = {"none": "error", "partial": "warning"}


@dataclass(frozen=True)
class SourceLine:
    """One line of an excerpt; `here`: the line that the excerpt is about."""

    number: int
    text: str
    here: bool


@dataclass(frozen=True)
class Excerpt:
    """A few lines around one place."""

    title: str
    lines: tuple[SourceLine, ...]


def render_audit(audit: Audit, root: Path) -> str:
    """The page. `root` is the package's folder, from which the excerpts are read now."""
    groups = []
    for match in WORST_FIRST:
        sites = [s for s in audit.serving if s.match == match]
        if sites:
            shown = [_site(site, root) for site in sites]
            groups.append(
                {
                    "match": match,
                    "told": TOLD[match],
                    "count": len(sites),
                    "sites": shown,
                    "open": match in SEVERITIES,
                    "severity": SEVERITIES.get(match, ""),
                }
            )
    context = {"release": audit.version or "?", "total": len(audit.sites), "groups": groups}
    return build("audit.html.j2", context, {})


def _site(site: AuditedSite, root: Path) -> dict[str, object]:
    places = [("asked at", site.at), *(("reserved at", place) for place in site.matched_by)]
    return {
        "name": site.enclosing,
        "at": site.at,
        "reason": site.reason,
        "example": site.example,
        "formula": site.formula,
        "stopped": site.stopped,
        "unreached": site.unreached,
        "excerpts": [_excerpt(title, place, root) for title, place in places],
    }


def _excerpt(title: str, place: str, root: Path) -> Excerpt:
    """Lines around FILE:LINE; FILE is below the package's parent."""
    file, _, number = place.rpartition(":")
    line = int(number)
    path = root / Path(file).relative_to(root.name)
    text = path.read_text("utf-8", "replace").splitlines()
    first = max(1, line - AROUND)
    shown = dedent("\n".join(text[first - 1 : line + AROUND])).split("\n")
    lines = tuple(
        SourceLine(number, part[:_WIDEST], number == line)
        for number, part in enumerate(shown, first)
    )
    return Excerpt(f"{title} {place}", lines)
