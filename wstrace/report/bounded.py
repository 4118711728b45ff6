"""The answer of `wstrace bound`, as text and as JSON."""

from __future__ import annotations

import json

from wstrace.bounds.bound import Bound
from wstrace.bounds.by_rule import RULE_ALONE
from wstrace.known_sites.known import KnownSite, known_sites
from wstrace.units import exact
from wstrace.versions import release_of


def as_json(worst: Bound, site: KnownSite | None) -> str:
    """The answer in version 1 of its format; `site` is None for an expression."""
    document = {
        "version": 1,
        "bytes": worst.bytes,
        "formula": worst.formula,
        "grade": RULE_ALONE if site else None,
        "needs": list(worst.needs),
        "lever": worst.lever,
        "confirmed": False,
        "assumed": list(worst.assumed),
        "holds_for": site.choice or None if site else None,
        "holds_only": [condition.when for condition in site.valid_when] if site else [],
        "holds_anywhere": site.anywhere or None if site else None,
        "taken_for": _taken_for(site),
    }
    return json.dumps(document)


def _taken_for(site: KnownSite | None) -> str | None:
    """What `--vllm` was taken for, where that release was not checked, or is older than the
    rule's first formula."""
    if site is None or site.version is None:
        return None
    release = release_of(site.version)
    told = [release.taken_for] if release.taken_for else []
    if not release.has(site.first_seen):
        told.append(
            f"the rule has no formula of vLLM {site.version}: "
            f"that of {site.first_seen} was taken"
        )
    return "; ".join(told) or None


def lines(worst: Bound, site: KnownSite | None) -> list[tuple[str, str]]:
    """Labels and texts, in the order of the text output."""
    found = [("worst case", _size(worst, site)), ("formula", worst.formula or "")]
    if site is None:
        return found + [("needs", f"{name}: --set {name}=N") for name in worst.needs]
    found.insert(0, ("site", f"{site.id}: {site.title}"))
    if told := _taken_for(site):
        found.append(("vLLM", told))
    if site.choice:
        found.append(("holds for", site.choice))
    found += [("holds only", condition.when) for condition in site.valid_when]
    found += [("holds anywhere", site.anywhere)] if site.anywhere else []
    found += [("needs", f"{name}: {site.number(name).where()}") for name in worst.needs]
    found += [("taken", default) for default in worst.assumed]
    found.append(("lever", f"{site.lever.flag}: {site.lever.effect}"))
    found += [("no lever", f"{flag.flag}: {flag.why}") for flag in site.not_levers]
    found += [("or", f"{other.id}: {other.choice}") for other in _alternatives(site)]
    return found


def _size(worst: Bound, site: KnownSite | None) -> str:
    if worst.bytes is None:
        return f"unknown: needs {', '.join(worst.needs)}"
    return f"{exact(worst.bytes)}, {RULE_ALONE}" if site else exact(worst.bytes)


def _alternatives(site: KnownSite) -> list[KnownSite]:
    return [
        other
        for other in known_sites()
        if other.id != site.id
        and other.choice
        and set(other.functions) & set(site.functions)
        and set(other.files) & set(site.files)
    ]
