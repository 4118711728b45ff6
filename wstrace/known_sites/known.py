"""The known sites: worst-case formulas read from vLLM's source by hand, one file a family.

The data lie in `known/*.toml`. A site is found by file and function, never by line: the
same call stood at nine lines in nine builds. A formula may differ between versions, so a
site has variants; a version outside their range takes the nearest one.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from wstrace.errors import WstraceError
from wstrace.known_sites.known_site import (
    Cover,
    Flag,
    KnownSite,
    Name,
    Variant,
    release_of,
)

__all__ = [
    "Cover",
    "Flag",
    "KnownSite",
    "Name",
    "Variant",
    "find",
    "known_sites",
    "match",
    "matches",
    "release_of",
    "require",
    "shared_names",
]

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@cache
def known_sites() -> tuple[KnownSite, ...]:
    """Every known site with its newest formula, in the order of the data files."""
    return tuple(site for family in _families() for site in _sites_of(family))


@cache
def shared_names() -> Mapping[str, Name]:
    """The names that formulas of any family may use."""
    data = tomllib.loads((_folder() / "names.toml").read_text("utf-8"))
    return {name: _name(name, entry) for name, entry in data.items()}


def find(site_id: str) -> KnownSite | None:
    """The site with this id, with its newest formula."""
    return next((site for site in known_sites() if site.id == site_id), None)


def require(site_id: str) -> KnownSite:
    """The site with this id; raises `WstraceError` with the nearest ids otherwise."""
    site = find(site_id)
    if site is None:
        near = get_close_matches(site_id, [s.id for s in known_sites()], n=3, cutoff=0.3)
        hint = f"Did you mean {', '.join(near)}?" if near else "`wstrace sites` lists them."
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


def _renamed(file: str, function: str) -> Iterator[KnownSite]:
    """Sites whose class has another name here: the same file, and a method of the same name.

    DeepSeek-V4's `_forward_prefill` stood in three classes from 0.20 to 0.24, two of them in
    one file. Whether the rule is this function's is told by its requests.
    """
    cls, _, method = function.rpartition(".")
    asked = _parts(file)
    for site in known_sites():
        named = {known.rpartition(".")[2] for known in site.functions if "." in known}
        whole = any(asked[-len(own) :] == own for own in map(_parts, site.files))
        if cls and whole and method in named:
            how = f"found by its file and the name {method}: the rule does not know {cls}"
            yield replace(site, found_by=how)


def _file_fit(file: str, site: KnownSite) -> int:
    """How many trailing path parts agree; 0 unless one path is the end of the other."""
    asked = _parts(file)
    return max((_suffix_fit(asked, _parts(known)) for known in site.files), default=0)


def _suffix_fit(asked: list[str], known: list[str]) -> int:
    shorter = min(len(asked), len(known))
    return shorter if asked[-shorter:] == known[-shorter:] else 0


def _parts(path: str) -> list[str]:
    return [part for part in re.split(r"[/\\]+", path) if part]


def _function_fits(function: str, site: KnownSite) -> bool:
    if "." in function:
        return function in site.functions
    return any(known.rsplit(".", 1)[-1] == function for known in site.functions)


def _folder() -> Any:
    return files("wstrace.known_sites")


def _families() -> Iterator[dict[str, Any]]:
    for entry in sorted(_folder().iterdir(), key=lambda item: item.name):
        if entry.name.endswith(".toml") and entry.name != "names.toml":
            yield tomllib.loads(entry.read_text("utf-8"))


def _sites_of(family: dict[str, Any]) -> Iterator[KnownSite]:
    shared = {"family": family["family"], "links": family.get("links", [])}
    for entry in family["site"]:
        yield _site({**shared, **entry})


def _variant(entry: dict[str, Any]) -> Variant:
    return Variant(**{key: _frozen(value) for key, value in entry.items()})


_NESTED = {"lever", "not_levers", "covers"}


def _site(entry: dict[str, Any]) -> KnownSite:
    variants = tuple(_variant(variant) for variant in entry.pop("variant"))
    names = entry.pop("names", {})
    return KnownSite(
        **{key: _frozen(value) for key, value in entry.items() if key not in _NESTED},
        variants=variants,
        variant=variants[-1],
        lever=Flag(**entry["lever"]),
        not_levers=tuple(Flag(**flag) for flag in entry.get("not_levers", ())),
        covers=tuple(Cover(**cover) for cover in entry.get("covers", ())),
        vocabulary={**shared_names(), **{name: _name(name, names[name]) for name in names}},
    )


def _name(name: str, entry: dict[str, Any]) -> Name:
    return Name(name, **{key: _frozen(value) for key, value in entry.items()})


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
