"""The other sites of the same backend that vLLM does not reserve either: they fail next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wstrace.bounds.by_rule import rule_bound
from wstrace.findings.finding import Sibling
from wstrace.known_sites import known

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wstrace.known_sites.known import Cover, KnownSite


def siblings(
    site: KnownSite | None, version: str | None, numbers: Mapping[str, int]
) -> tuple[Sibling, ...]:
    """The sites beside `site` that a lock refuses in `version`, with their worst cases.

    A build that is older than what was read of the site is taken for the oldest of it. Without
    a version the release before the fix is meant: it has just failed there. Numbers
    that only their product is known of are left out.
    """
    if site is None or site.kind != "arena":
        return ()
    release = version or site.first_bad or None
    older = site.cover(release) is None
    found = []
    for other in known.siblings(site):
        cover = other.cover(release) or (_first(other) if older else None)
        if cover is None or cover.covers == "full":
            continue
        rule = other.at(version)
        found.append(Sibling(rule, cover, rule_bound(rule, numbers)))
    return tuple(found)


def _first(site: KnownSite) -> Cover | None:
    return site.covers[0] if site.covers else None
