"""The known sites: worst-case formulas read from vLLM's source by hand, one file a family.

The data lie in `*.toml` beside this, their schema in `known_site.py`. A site is found by file
and function, never by line: the same call stood at nine lines in nine builds. A formula may
differ between versions, so a site has variants; a version outside their range takes the
nearest one.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING

import msgspec

from wstrace.errors import WstraceError, did_you_mean
from wstrace.known_sites.known_site import (
    Cover,
    Family,
    Flag,
    KnownSite,
    LogClass,
    Variant,
)
from wstrace.vllm.limits import NUMBERS
from wstrace.vllm.number import Number

__all__ = [
    "Cover",
    "Flag",
    "KnownSite",
    "LogClass",
    "Variant",
    "known_names",
    "known_sites",
    "match",
    "matches",
    "require",
    "siblings",
    "site_with_id",
]

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@cache
def known_sites() -> tuple[KnownSite, ...]:
    """Every known site with its newest formula, in the order of the data files."""
    entries = sorted(files("wstrace.known_sites").iterdir(), key=lambda entry: entry.name)
    data = [entry for entry in entries if entry.name.endswith(".toml")]
    return tuple(
        site for entry in data for site in _read(entry.name, entry.read_bytes()).sites()
    )


@cache
def known_names() -> Mapping[str, tuple[Number, ...]]:
    """Every number that a formula or a reserve may name, with what each site says of it."""
    found: dict[str, list[Number]] = {
        name: [row] for name, row in NUMBERS.items() if row.kind in ("size", "count", "switch")
    }
    for site in known_sites():
        for name in site.own_names:
            found.setdefault(name, []).append(site.vocabulary[name])
    return {name: tuple(several) for name, several in found.items()}


def site_with_id(site_id: str) -> KnownSite | None:
    """The site with this id, with its newest formula."""
    return next((site for site in known_sites() if site.id == site_id), None)


def require(site_id: str) -> KnownSite:
    """The site with this id; raises `WstraceError` with the nearest ids otherwise."""
    site = site_with_id(site_id)
    if site is None:
        ids = {each.id for each in known_sites()}
        hint = did_you_mean(site_id, ids, most=3, cutoff=0.3) or "`wstrace sites` lists them."
        raise WstraceError(f"No known site is called '{site_id}'.", hint)
    return site


def match(file: str, function: str, version: str | None = None) -> KnownSite | None:
    """The known site of a call, by path suffix or base name and by function name.

    `function` may be plain (as vLLM's message has it) or qualified. None also where the
    base name alone fits sites of different formulas: a guess would be a wrong number.
    """
    found = matches(file, function, version)
    first = found[0] if found else None
    if first is None or any(s.formula != first.formula and not s.choice for s in found[1:]):
        return None
    return first


@lru_cache(maxsize=1 << 12)
def matches(file: str, function: str, version: str | None = None) -> tuple[KnownSite, ...]:
    """Every site and alternative that a call may be, those with the longest path fit first."""
    scored = [
        (_file_fit(file, site), site)
        for site in known_sites()
        if _function_fits(function, site)
    ]
    best = max((fit for fit, _ in scored), default=0)
    if best == 0:
        return tuple(site.at(version) for site in _renamed(file, function))
    return tuple(site.at(version) for fit, site in scored if fit == best)


def siblings(site: KnownSite) -> tuple[KnownSite, ...]:
    """The other arena sites of the same backend: of the same file, but not alternatives of the
    same function, and those that the data name beside it."""
    return tuple(
        other
        for other in known_sites()
        if other.kind == "arena"
        and not set(site.functions) & set(other.functions)
        and (set(site.files) & set(other.files) or _beside(site, other))
    )


def _beside(one: KnownSite, other: KnownSite) -> bool:
    return other.id in one.beside or one.id in other.beside


def _renamed(file: str, function: str) -> Iterator[KnownSite]:
    """Sites whose class has another name here: the same file, and a method of the same name.

    DeepSeek-V4's `_forward_prefill` stood in three classes from 0.20 to 0.24, two of them in
    one file. Whether the rule is this function's is told by its requests.
    """
    cls, _, method = function.rpartition(".")
    asked = _parts(file)
    for site in known_sites() if cls else ():
        named = {known.rpartition(".")[2] for known in site.functions if "." in known}
        whole = any(asked[-len(own) :] == own for own in map(_parts, site.files))
        if whole and method in named:
            how = f"found by its file and the name {method}: the rule does not know {cls}"
            yield msgspec.structs.replace(site, found_by=how)


def _file_fit(file: str, site: KnownSite) -> int:
    """How many trailing path parts agree; 0 unless one path is the end of the other."""
    asked = _parts(file)
    return max((_suffix_fit(asked, _parts(known)) for known in site.files), default=0)


def _suffix_fit(asked: tuple[str, ...], known: tuple[str, ...]) -> int:
    shorter = min(len(asked), len(known))
    return shorter if asked[-shorter:] == known[-shorter:] else 0


@lru_cache(maxsize=1 << 10)
def _parts(path: str) -> tuple[str, ...]:
    # matches: "vllm/v1/worker.py"
    return tuple(part for part in re.split(r"[/\\]+", path) if part)


def _function_fits(function: str, site: KnownSite) -> bool:
    if "." in function:
        return function in site.functions
    return any(known.rsplit(".", 1)[-1] == function for known in site.functions)


def _read(name: str, content: bytes) -> Family:
    """One data file; raises `WstraceError` that names the file and the field."""
    try:
        return msgspec.toml.decode(content, type=Family)
    except msgspec.MsgspecError as error:
        raise WstraceError(
            f"wstrace/known_sites/{name}: {error}.", "CONTRIBUTING.md says what a site has."
        ) from error
