"""What got worse between two vLLM versions: the same model and the same settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
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


_Row = dict[str, Any]
_GroupKey = tuple[str, str, str]
_SiteKey = tuple[str, str, int, int]
_Sites = dict[_SiteKey, _Row]


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
    them, and then several groups of the older one are together what the newer is compared
    with. Two groups of one version are not compared, nor those of several versions or of none.
    """
    found: list[Regression] = []
    named = [_named(row) for row in groups.to_dict("records")]
    rows = sorted(filter(_is_of_one_version, named), key=_by_version)
    by_group: dict[_GroupKey, _Sites] = {}
    for site in sites.to_dict("records"):
        key = (site["file"], site["function"], site["ubatch"], site["lane"])
        by_group.setdefault(_group_key(site), {})[key] = _named(site)
    together: dict[tuple[_GroupKey, ...], _Sites] = {}
    for olds, new in _pairs(rows):
        keys = tuple(map(_group_key, olds))
        if keys not in together:
            together[keys] = _together([by_group.get(key, {}) for key in keys])
        old = {**olds[0], "runs": sum(int(group["runs"]) for group in olds)}
        found += _changes(old, new, together[keys], by_group.get(_group_key(new), {}))
    return sorted(found, key=_order)


def _order(found: Regression) -> tuple[object, ...]:
    """One order for the same changes, whatever order the rows came in."""
    place = (found.file, found.function, found.ubatch, found.lane)
    worse = (ORDER.index(found.change), found.model, found.new)
    return (*worse, *place, found.old, found.example, found.before, found.after)


def _group_key(row: Mapping[Any, Any]) -> _GroupKey:
    return row["model"], row["setting"], row["vllm"]


def _together(parts: Sequence[_Sites]) -> _Sites:
    """The sites of several groups as those of one."""
    if len(parts) == 1:
        return parts[0]
    found: _Sites = {}
    for sites in parts:
        for key, site in sites.items():
            found[key] = _both(found[key], site) if key in found else site
    return found


def _both(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "escaped": int(one["escaped"]) + int(other["escaped"]),
        **{low: _known(min, one[low], other[low]) for low in ("arena_low", "bound_low")},
        **{high: _known(max, one[high], other[high]) for high in ("arena_high", "bound_high")},
    }


def _known(choose: Callable[[list[int]], int], *numbers: Any) -> int | None:
    """`choose` of the numbers that are known."""
    import pandas as pd

    found = [int(number) for number in numbers if not pd.isna(number)]
    return choose(found) if found else None


def _named(row: Mapping[Hashable, Any]) -> dict[str, Any]:
    return {str(name): value for name, value in row.items()}


def _pairs(rows: list[_Row]) -> Iterator[tuple[list[_Row], _Row]]:
    """Each group with all those of the newest older release whose settings agree, in order.

    Settings that name the same numbers are looked up, not compared one with the other: a fleet
    has thousands, and few kinds of them.
    """
    kinds = _by_kind(rows)
    for new in rows:
        wanted = json.loads(new["setting"])
        newest, found = None, []
        for (release, names), groups in kinds[new["model"]].items():
            other = release >= _release(new) or (newest is not None and release < newest)
            if other or not names & wanted.keys() or not (like := groups.like(wanted)):
                continue
            found = like if release != newest else found + like
            newest = release
        if found:
            yield sorted(found, key=_by_version), new


def _by_version(row: _Row) -> tuple[str, str]:
    return row["vllm"], row["setting"]


class _Kind:
    """Groups of one model and release whose settings name the same numbers."""

    def __init__(self) -> None:
        self._groups: list[tuple[dict[str, Limit], _Row]] = []
        self._by_values: dict[frozenset[str], dict[str, list[_Row]]] = {}

    def add(self, setting: dict[str, Limit], row: _Row) -> None:
        self._groups.append((setting, row))

    def like(self, wanted: Mapping[str, Limit]) -> list[_Row]:
        """The groups that have the values of `wanted` in every number of both."""
        common = frozenset(self._groups[0][0].keys() & wanted.keys())
        if common not in self._by_values:
            found: dict[str, list[_Row]] = {}
            for setting, row in self._groups:
                found.setdefault(_values(setting, common), []).append(row)
            self._by_values[common] = found
        return self._by_values[common].get(_values(wanted, common), [])


def _values(setting: Mapping[str, Limit], names: Iterable[str]) -> str:
    return setting_text({name: setting[name] for name in names})


def _by_kind(
    rows: list[_Row],
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


def _changes(old: _Row, new: _Row, before: _Sites, after: _Sites) -> Iterator[Regression]:
    for key, site in after.items():
        seen = before.get(key)
        escaped_before = int(seen["escaped"]) if seen else 0
        if site["escaped"] and not escaped_before:
            yield _change("escapes", old, new, key, 0, int(site["escaped"]))
        if seen is not None and _above(site["bound_low"], seen["bound_high"]):
            low, high = int(seen["bound_high"]), int(site["bound_low"])
            yield _change("larger bound", old, new, key, low, high)
    was, now = _slots(before), _slots(after)
    for ubatch, lane in dict.fromkeys((key[2], key[3]) for key in after if key in before):
        for change, low, high in _of_slot(was[ubatch, lane], now[ubatch, lane]):
            yield _change(change, old, new, ("", "", ubatch, lane), low, high)


def _slots(sites: _Sites) -> dict[tuple[int, int], _Row]:
    """The arena of each slot: not every run has every site."""
    found: dict[tuple[int, int], _Row] = {}
    for (_, _, *slot), site in sites.items():
        key = (slot[0], slot[1])
        found[key] = _both(found[key], site) if key in found else site
    return found


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
    key: _SiteKey,
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
