"""What an upgrade of vLLM changes, as Markdown for a pull request, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable

from wstrace.audit.upgrade import Moved, Upgrade
from wstrace.audit.whole import AuditedSite
from wstrace.report.markdown import escape


def as_markdown(found: Upgrade) -> str:
    """Tables of what is added, lost, fixed and worse; nothing of what stayed."""
    before, after = found.before or "before", found.after or "after"
    lines = [f"## Workspace requests: {before} to {after}", ""]
    counts = [
        f"{len(found.added)} added",
        f"{len(found.lost)} gone",
        f"{len(found.fixed)} better reserved",
        f"{len(found.worse)} worse reserved",
    ]
    lines += [", ".join(counts) + ".", ""]
    lines += _table("Added", found.added)
    lines += _moves("Worse reserved", found.worse)
    lines += _moves("Better reserved", found.fixed)
    lines += _table("Gone", found.lost)
    return "\n".join(lines)


def _table(title: str, sites: Iterable[AuditedSite]) -> list[str]:
    rows = [
        f"| {escape(s.at)} | {escape(s.enclosing)} | {s.match} | {escape(s.reason)} |"
        for s in sites
    ]
    head = [f"### {title}", "", "| line | function | match | reason |", "|---|---|---|---|"]
    return [*head, *rows, ""] if rows else []


def _moves(title: str, pairs: Iterable[Moved]) -> list[str]:
    rows = []
    for pair in pairs:
        site = pair.after
        where = f"{escape(site.at)} | {escape(site.enclosing)}"
        rows.append(f"| {where} | {pair.before.match} | {site.match} | {escape(site.reason)} |")
    head = [f"### {title}", "", "| line | function | before | after | reason |"]
    return [*head, "|---|---|---|---|---|", *rows, ""] if rows else []


def as_json(found: Upgrade) -> str:
    """Version 1 of the comparison."""
    document = {
        "version": 1,
        "before": found.before or None,
        "after": found.after or None,
        "added": [_site(s) for s in found.added],
        "lost": [_site(s) for s in found.lost],
        "fixed": [_moved(m) for m in found.fixed],
        "worse": [_moved(m) for m in found.worse],
    }
    return json.dumps(document, indent=2)


def _site(site: AuditedSite) -> dict[str, object]:
    return {
        "file": site.file,
        "line": site.line,
        "enclosing": site.enclosing,
        "match": site.match,
        "reason": site.reason,
    }


def _moved(pair: Moved) -> dict[str, object]:
    return _site(pair.after) | {"before": pair.before.match}
