"""What got worse between two vLLM versions: the same model and the same settings."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from wstrace.trace.records import Limit
from wstrace.versions import release_of

if TYPE_CHECKING:
    import pandas as pd

Worsening = Literal["escapes", "smaller arena", "larger arena", "larger bound"]
ORDER: Final[tuple[Worsening, ...]] = (
    "escapes", "smaller arena", "larger bound", "larger arena",
)  # fmt: skip


@dataclass(frozen=True)
class Regression:
    """One change of a site (of a slot, where `file` is empty) from `old` to `new`.

    `before` and `after` are bytes, of `escapes` runs that escaped; `old_runs` and `new_runs`
    how many runs stand behind them. `example` is a run of the new version.
    """

    change: Worsening
    model: str
    old: str
    new: str
    file: str
    function: str
    ubatch: int
    lane: int
    before: int
    after: int
    old_runs: int
    new_runs: int
    example: str


def setting_text(setting: Mapping[str, Limit]) -> str:
    """A setting as one text, equal for equal ones."""
    return json.dumps(dict(sorted(setting.items())), separators=(",", ":"))


def regressions(groups: pd.DataFrame, sites: pd.DataFrame) -> list[Regression]:
    """Every change for the worse from a version to the next later one that ran the same.

    Settings are the same where every number that both have is: a version may not know one of
    them. Two groups of one version are not compared, nor those of several versions or of none.
    """
    found: list[Regression] = []
    named = [_named(row) for row in groups.to_dict("records")]
    rows = sorted(filter(_is_of_one_version, named), key=lambda r: (r["vllm"], r["setting"]))
    by_group: dict[tuple[str, str, str], dict[tuple[Any, ...], dict[str, Any]]] = {}
    for site in sites.to_dict("records"):
        group = (site["model"], site["setting"], site["vllm"])
        key = (site["file"], site["function"], site["ubatch"], site["lane"])
        by_group.setdefault(group, {})[key] = _named(site)
    for old, new in _pairs(rows):
        before = by_group.get((old["model"], old["setting"], old["vllm"]), {})
        after = by_group.get((new["model"], new["setting"], new["vllm"]), {})
        found += _changes(old, new, before, after)
    return sorted(found, key=lambda r: (ORDER.index(r.change), r.model, r.new, r.file))


def _named(row: Mapping[Hashable, Any]) -> dict[str, Any]:
    return {str(name): value for name, value in row.items()}


def _pairs(rows: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each group with that of the newest older version whose settings agree.

    Settings that name the same numbers are looked up, not compared one with the other: a fleet
    has thousands, and few kinds of them.
    """
    kinds = _by_kind(rows)
    for new in rows:
        wanted = json.loads(new["setting"])
        found = [
            newest
            for (release, names), groups in kinds[new["model"]].items()
            if release < _release(new) and names & wanted.keys()
            if (newest := groups.newest_like(wanted))
        ]
        if found:
            yield max(found, key=_release), new


class _Kind:
    """Groups of one model and release whose settings name the same numbers."""

    def __init__(self) -> None:
        self._groups: list[tuple[dict[str, Limit], dict[str, Any]]] = []
        self._by_values: dict[frozenset[str], dict[str, dict[str, Any]]] = {}

    def add(self, setting: dict[str, Limit], row: dict[str, Any]) -> None:
        self._groups.append((setting, row))

    def newest_like(self, wanted: Mapping[str, Limit]) -> dict[str, Any] | None:
        """The first group that has the values of `wanted` in every number of both."""
        common = frozenset(self._groups[0][0].keys() & wanted.keys())
        if common not in self._by_values:
            found: dict[str, dict[str, Any]] = {}
            for setting, row in self._groups:
                found.setdefault(_values(setting, common), row)
            self._by_values[common] = found
        return self._by_values[common].get(_values(wanted, common))


def _values(setting: Mapping[str, Limit], names: Iterable[str]) -> str:
    return setting_text({name: setting[name] for name in names})


def _by_kind(
    rows: list[dict[str, Any]],
) -> dict[str, dict[tuple[tuple[int, ...], frozenset[str]], _Kind]]:
    """By model, then by release and the names of numbers."""
    found: dict[str, dict[tuple[tuple[int, ...], frozenset[str]], _Kind]] = {}
    for row in rows:
        setting = json.loads(row["setting"])
        key = (_release(row), frozenset(setting))
        found.setdefault(row["model"], {}).setdefault(key, _Kind()).add(setting, row)
    return found


def _release(row: Mapping[str, Any]) -> tuple[int, ...]:
    return release_of(row["vllm"]).order


def _is_of_one_version(row: Mapping[str, Any]) -> bool:
    """Not of several, not of a log or a worker that says none: nobody knows which is older."""
    return "," not in row["vllm"] and row["vllm"] not in ("", "?")


def _changes(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    before: Mapping[tuple[Any, ...], Mapping[str, Any]],
    after: Mapping[tuple[Any, ...], Mapping[str, Any]],
) -> Iterator[Regression]:
    slots: set[tuple[str, Any, Any]] = set()
    for key, site in after.items():
        seen = before.get(key)
        escaped_before = int(seen["escaped"]) if seen else 0
        if site["escaped"] and not escaped_before:
            yield _change("escapes", old, new, key, 0, int(site["escaped"]))
        if seen is None:
            continue
        if _above(site["bound_low"], seen["bound_high"]):
            low, high = int(seen["bound_high"]), int(site["bound_low"])
            yield _change("larger bound", old, new, key, low, high)
        for change, was, now in _of_slot(seen, site):
            if (change, key[2], key[3]) not in slots:
                slots.add((change, key[2], key[3]))
                yield _change(change, old, new, ("", "", key[2], key[3]), was, now)


def _of_slot(
    seen: Mapping[str, Any], site: Mapping[str, Any]
) -> Iterator[tuple[Worsening, int, int]]:
    """The arena's change, where every run of one version is beyond every run of the other."""
    if _above(seen["arena_low"], site["arena_high"]):
        yield "smaller arena", int(seen["arena_low"]), int(site["arena_high"])
    if _above(site["arena_low"], seen["arena_high"]):
        yield "larger arena", int(seen["arena_high"]), int(site["arena_low"])


def _above(one: Any, other: Any) -> bool:
    """Whether both are known and the first is larger."""
    import pandas as pd

    return not pd.isna(one) and not pd.isna(other) and int(one) > int(other)


def _change(
    change: Worsening,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    key: tuple[Any, ...],
    before: int,
    after: int,
) -> Regression:
    file, function, ubatch, lane = key
    return Regression(
        change=change,
        model=new["model"],
        old=old["vllm"],
        new=new["vllm"],
        file=file,
        function=function,
        ubatch=int(ubatch),
        lane=int(lane),
        before=before,
        after=after,
        old_runs=int(old["runs"]),
        new_runs=int(new["runs"]),
        example=new["example"],
    )
