"""How many of vLLM's workspace requests have a bound that follows from the source.

Slices every get_simultaneous call of released vLLM wheels (those of tests/matrix/wheels.py)
or of source trees at hand, and prints for each: closed or where the
slice stopped, its drivers and their limits, and the grade. A formula is closed when each of
its names is a constant or a driver; else the open name is given with its reason. The call of
an abstract class's method is sliced once for each class and counts with its share. Proved is a
site that slicing closes, or one with a rule that the differential run (tests/matrix) holds
against the release's own function: it is run here, in short.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.matrix.wheels import UnavailableError, python_files
from wstrace.audit.request_roles import SERVING
from wstrace.audit.whole import reading
from wstrace.bounds.limits import role_limits
from wstrace.known_sites.known import matches
from wstrace.slicer.static import Surveyed, survey
from wstrace.trace.site_key import SiteKey

VERSIONS = ("0.21.0", "0.33.0")
FORMULAS, PROVED = 0.9, 0.85
"""What --check asks: the shares of sites with a formula, and proved."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    given = dict(text.split("=", 1) for text in options.source)
    failed = False
    for version in options.versions or tuple(given) or VERSIONS:
        root = Path(given[version]) if version in given else downloaded(version)
        failed |= not report(version, package(root), options)
    return int(failed and options.check)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("versions", nargs="*", help=f"releases (default: {' '.join(VERSIONS)})")
    made.add_argument("--source", action="append", default=[], metavar="VERSION=DIR")
    made.add_argument("--all", action="store_true", help="reservations and warm-up calls too")
    made.add_argument("--formulas", action="store_true", help="print the formulas")
    asked = f"exit 1 below {FORMULAS:.0%} formulas, {PROVED:.0%} proved"
    made.add_argument("--check", action="store_true", help=asked.replace("%", "%%"))
    return made


def package(root: Path) -> Path:
    """The vllm package in or at `root`."""
    inner = root / "vllm"
    return inner if inner.is_dir() else root


def downloaded(version: str) -> Path:
    """The release's Python files: those of the matrix."""
    try:
        return python_files(version)
    except UnavailableError as error:
        sys.exit(f"vLLM {version} cannot be had, give its source with --source: {error}")


@dataclass(frozen=True)
class Shares:
    """One release: its call sites, and which share of them has what. `open_sites` are those
    that are not proved, or not in all classes, with the reason."""

    sites: int
    formula: float
    closed: float
    ruled: float
    proved: float
    open_sites: tuple[tuple[str, str], ...]


def measured(
    version: str, root: Path, *, every: bool = False, formulas: bool = False
) -> tuple[Shares, list[str]]:
    """The shares of the release whose vllm package is `root`, and a line for each site."""
    of_steps = serving_calls(root, version)
    sites = [s for s in survey(root) if every or (s.file, s.line) in of_steps]
    held = played(root.parent, version)
    total = max(1, len(sites))
    proved = [proved_share(s, version, held) for s in sites]
    shares = Shares(
        sites=len(sites),
        formula=sum(s.share for s in sites) / total,
        closed=sum(s.closed_share for s in sites) / total,
        ruled=sum(ruled_share(s, version) for s in sites) / total,
        proved=sum(proved) / total,
        open_sites=tuple(found for site in sites for found in opened(site, version, held)),
    )
    return shares, [row(s, version, held, formulas=formulas) for s in sites]


def serving_calls(root: Path, version: str) -> frozenset[tuple[str, int]]:
    """File and first line of every request that a step makes, as the audit tells it."""
    read = reading(root, version)
    calls = (p.site for p in read.placed if read.role(p) in SERVING)
    return frozenset((site.file, site.place.call.lineno) for site in calls)


def report(version: str, root: Path, options: argparse.Namespace) -> bool:
    """Print one release's table; True with formulas for 90% and 85% proved."""
    shares, rows = measured(version, root, every=options.all, formulas=options.formulas)
    print(f"vLLM {version}: {shares.sites} {'' if options.all else 'serving '}call sites")
    print("\n".join(rows))
    alone = f"closed by slicing alone {shares.closed:.1%}"
    ruled = f"closed or by rule {shares.ruled:.1%}"
    print(f"formula {shares.formula:.1%}, {alone}, {ruled}, proved {shares.proved:.1%}\n")
    return shares.formula >= FORMULAS and shares.proved >= PROVED


def opened(site: Surveyed, version: str, held: frozenset[str]) -> Iterator[tuple[str, str]]:
    """What is not proved of a site, and why: itself, or each class of an abstract class's."""
    name = f"{site.file.rpartition('/')[2]} {site.function}"
    if proved_share(site, version, held) == 1:
        return
    if not site.classes:
        yield name, why(site.stopped, site.assumed, bool(rule(site, version)))
    named = experts(site, version)
    for found in site.classes:
        if found.of_class not in named & held and not _alone(found):
            known = found.of_class in named
            yield f"{name}, {found.of_class}", why(found.stopped, found.assumed, known)


def why(stopped: str | None, assumed: Sequence[str], known: bool) -> str:
    """Why a slice proves nothing, and why no rule does."""
    reason = stopped or f"assumes {', '.join(assumed)}"
    return f"{reason}; {'its rule is not held by a run' if known else 'no rule'}"


def rule(site: Surveyed, version: str) -> str:
    """Ids of the known-site rules of this call."""
    found = matches(site.file, site.function, version)
    return "|".join(known.id for known in found)


def played(root: Path, version: str) -> frozenset[str]:
    """What the differential run holds of this release: FILE:FUNCTION, and experts' classes."""
    from tests.matrix.differential.harness import held
    from tests.matrix.differential.released import Release

    return held(Release(root, version))


def ruled_share(site: Surveyed, version: str) -> float:
    """1 where the site is closed or has a rule; of an abstract class's site, the share of the
    classes that are, or that a rule names."""
    if site.classes:
        named = experts(site, version)
        closed = [c.of_class in named or c.closed for c in site.classes]
        return sum(closed) / len(closed)
    return float(bool(rule(site, version)) or site.closed)


def proved_share(site: Surveyed, version: str, held: frozenset[str]) -> float:
    """As `ruled_share`: closed without an assumed constant, or a rule that was held."""
    if site.classes:
        named = experts(site, version) & held
        proved = [c.of_class in named or _alone(c) for c in site.classes]
        return sum(proved) / len(proved)
    return float(_held(site, version, held) or _alone(site))


def experts(site: Surveyed, version: str) -> frozenset[str]:
    """The classes of experts that a rule names."""
    found = matches(site.file, site.function, version)
    return frozenset(name for known in found for name in known.experts)


def _held(site: Surveyed, version: str, held: frozenset[str]) -> bool:
    return bool(rule(site, version)) and str(SiteKey(site.file, site.function)) in held


def _alone(site: Surveyed) -> bool:
    return site.closed and not site.assumed


def grade(site: Surveyed, version: str, held: frozenset[str]) -> str:
    known = rule(site, version)
    if known and (site.classes or _held(site, version, held)):
        share = f" {proved_share(site, version, held):.0%} held" if site.classes else ""
        return f"proved by rule {known}{share}"
    if _alone(site):
        return "proved"
    if known:
        return f"rule {known}, not held by a run"
    return f"assumes {', '.join(site.assumed)}" if site.closed else "observed"


def state_of(site: Surveyed) -> str:
    if site.closed:
        return "closed"
    if site.classes:
        formulas = sum(c.formula is not None for c in site.classes)
        return f"formula for {formulas} of {len(site.classes)} classes; {site.stopped}"
    if site.formula is not None:
        return f"formula, not closed: {site.stopped}"
    return f"stopped: {site.stopped}"


def row(site: Surveyed, version: str, held: frozenset[str], *, formulas: bool = False) -> str:
    """A site in a few lines."""
    limits = role_limits({})
    drivers = [f"{role} <= {limits[role].expression}" for role in site.drivers]
    state = state_of(site)
    lines = [f"{site.file}:{site.line} {site.function}", f"    {state}"]
    if site.closed:
        lines.append(f"    drivers: {'; '.join(drivers) or 'none, constants only'}")
    lines.append(f"    grade: {grade(site, version, held)}")
    if formulas and site.formula:
        lines.append(f"    = {site.formula}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
