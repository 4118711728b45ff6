"""An audit of vLLM's source, as text and as JSON."""

from __future__ import annotations

import json
from typing import Final

from wstrace.audit.whole import Audit, AuditedSite
from wstrace.report.markdown import escape

WORST_FIRST: Final = ("none", "partial", "incidental", "self", "full", "na")
TOLD: Final = {
    "none": "nothing is reserved",
    "partial": "reserved under a condition, or not shown to be enough",
    "incidental": "only a warm-up step that passes there",
    "self": "the profile run passes there",
    "full": "reserved",
    "na": "not reached",
}


def as_json(audit: Audit) -> str:
    """The audit in version 1 of its format."""
    document = {
        "version": 1,
        "vllm": audit.version or None,
        "unread": list(audit.unread),
        "sites": [_site(site) for site in audit.sites],
    }
    return json.dumps(document, indent=2)


def _site(site: AuditedSite) -> dict[str, object]:
    return {
        "file": site.file,
        "line": site.line,
        "enclosing": site.enclosing,
        "method": site.method,
        "role": site.role,
        "match": site.match,
        "reason": site.reason,
        "matched_by": list(site.matched_by),
        "formula": site.formula,
        "drivers": list(site.drivers),
        "condition": site.condition or None,
        "example": site.example or None,
        "stopped": site.stopped,
        "phases": list(site.phases),
        "unreached": list(site.unreached),
        "through": site.through or None,
    }


def as_text(audit: Audit) -> str:
    """Serving requests, those without a reservation first; then what is reserved."""
    serving = sorted(audit.serving, key=lambda s: (WORST_FIRST.index(s.match), s.file, s.line))
    named = f"vLLM {audit.version}" if audit.version else "this vLLM"
    lines = [f"{named}: {len(audit.sites)} requests, {len(serving)} of them made by steps", ""]
    for match in WORST_FIRST:
        group = [s for s in serving if s.match == match]
        if group:
            lines += [f"{match}: {TOLD[match]} ({len(group)})"]
            lines += [line for site in group for line in _lines(site)] + [""]
    others = [s for s in audit.sites if s not in audit.serving]
    lines.append(f"not made by steps ({len(others)})")
    lines += [f"  {s.at} {s.enclosing}: {s.role}, {s.reason}" for s in others]
    if audit.unread:
        lines += ["", _unread(audit)]
    return "\n".join(lines)


def _unread(audit: Audit) -> str:
    named = ", ".join(audit.unread)
    return f"not read, no Python of today: {named}"


def _lines(site: AuditedSite) -> list[str]:
    found = [f"  {site.at} {site.enclosing}", f"    {site.reason}"]
    if site.matched_by:
        found.append(f"    by {', '.join(site.matched_by)}")
    if site.example:
        found.append(f"    for example: {site.example}")
    if site.drivers:
        found.append(f"    its bytes follow {', '.join(site.drivers)}")
    if site.unreached and site.match not in ("full", "self"):
        found.append(f"    not in the profile run: {', '.join(site.unreached)}")
    return found


def as_markdown(audit: Audit) -> str:
    """Serving requests as a table, those without a reservation first."""
    serving = sorted(audit.serving, key=lambda s: (WORST_FIRST.index(s.match), s.file, s.line))
    lines = [f"## Workspace requests of vLLM {audit.version}".rstrip(), ""]
    lines += ["| match | line | function | reason |", "|---|---|---|---|"]
    lines += [
        f"| {s.match} | {escape(s.at)} | {escape(s.enclosing)} | {escape(s.reason)} |"
        for s in serving
    ]
    if audit.unread:
        lines += ["", escape(_unread(audit))]
    return "\n".join(lines)
