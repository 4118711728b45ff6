"""A prediction for one deployment, and an audit joined with a run, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from wstrace.audit.joined import STATES, Joined
from wstrace.audit.prediction import WORST_FIRST, Predicted, Prediction
from wstrace.units import human


def as_text(found: Prediction, version: str) -> str:
    """The arena, then each request, those that escape first."""
    named = f"vLLM {version}" if version else "this vLLM"
    most = "" if found.least == found.most else f" to {human(found.most)}"
    lines = [f"{named}: warm-up leaves an arena of {human(found.least)}{most} by formula"]
    if found.made_by:
        lines.append(f"  made by {found.made_by}")
    if found.unknown:
        lines.append(f"  not counted, its bytes are not known: {', '.join(found.unknown)}")
    for outcome in WORST_FIRST:
        group = [p for p in found.sites if p.outcome == outcome]
        if group:
            lines += ["", f"{outcome} ({len(group)})", *(_line(p) for p in group)]
    return "\n".join(lines)


def _line(predicted: Predicted) -> str:
    needed = predicted.needed
    size = "size unknown" if needed.bytes is None else human(needed.bytes)
    by = f" ({needed.by})" if needed.by and needed.bytes is not None else ""
    name = f"{predicted.site.at} {predicted.site.enclosing}"
    return f"  {size}{by}  {name}\n    {predicted.why}"


def as_json(found: Prediction, version: str) -> str:
    """Version 1 of the prediction."""
    document = {
        "version": 1,
        "vllm": version or None,
        "arena": {"least": found.least, "most": found.most, "made_by": found.made_by or None},
        "unknown": list(found.unknown),
        "sites": [_site(predicted) for predicted in found.sites],
    }
    return json.dumps(document, indent=2)


def _site(predicted: Predicted) -> dict[str, object]:
    site, needed = predicted.site, predicted.needed
    return {
        "file": site.file,
        "line": site.line,
        "enclosing": site.enclosing,
        "match": site.match,
        "loaded": predicted.loaded.loads,
        "loaded_why": predicted.loaded.why,
        "bytes": needed.bytes,
        "by": needed.by or None,
        "needs": list(needed.needs),
        "outcome": predicted.outcome,
        "why": predicted.why,
    }


def joined_text(found: Sequence[Joined]) -> str:
    """An audit joined with a run: each function, the worst state first."""
    lines: list[str] = []
    for state in STATES:
        group = [j for j in found if j.state == state]
        if group:
            lines += [f"{state} ({len(group)})", *(_joined_line(j) for j in group), ""]
    return "\n".join(lines)


def _joined_line(one: Joined) -> str:
    size = f"{human(one.largest)}  " if one.largest else ""
    return f"  {size}{one.site.at} {one.site.enclosing} ({one.site.match})\n    {one.why}"


def joined_json(found: Sequence[Joined], version: str) -> str:
    """Version 1 of the join."""
    sites = [
        {
            "file": j.site.file,
            "line": j.site.line,
            "enclosing": j.site.enclosing,
            "match": j.site.match,
            "state": j.state,
            "bytes": j.largest or None,
            "why": j.why,
        }
        for j in found
    ]
    return json.dumps({"version": 1, "vllm": version or None, "sites": sites}, indent=2)
