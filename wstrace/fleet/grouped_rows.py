"""Rows grouped as they come: memory follows the number of groups, not of runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    import pandas as pd

How = Literal["sum", "max", "min", "first", "last"]
BUFFER: Final = 4_000
"""Rows that wait before they are grouped."""


class GroupedRows:
    """A table grouped by `keys`; the other columns are brought together as `how` says.

    Each of `How` gives the same for the parts as for the whole, so that rows may come in any
    number of portions. An unknown value (None) counts for nothing.
    """

    def __init__(self, keys: tuple[str, ...], how: Mapping[str, How]) -> None:
        self._keys = list(keys)
        self._how = dict(how)
        self._rows: list[Mapping[str, Any]] = []
        self._kept: pd.DataFrame | None = None

    def add(self, row: Mapping[str, Any]) -> None:
        """One row with every key and every column."""
        self._rows.append(row)
        if len(self._rows) >= BUFFER:
            self._fold()

    def frame(self) -> pd.DataFrame:
        """The groups so far, in the order of their keys."""
        self._fold()
        assert self._kept is not None
        return self._kept

    def _fold(self) -> None:
        import pandas as pd

        columns = [*self._keys, *self._how]
        rows = [[row[name] for name in columns] for row in self._rows]
        self._rows.clear()
        fresh = pd.DataFrame(rows, columns=columns).astype(object)
        for name, how in self._how.items():
            if how in ("sum", "max", "min") and not _texts(fresh[name]):
                fresh[name] = fresh[name].astype("Int64")
        if self._kept is not None:
            fresh = pd.concat([self._kept, fresh], ignore_index=True)
        grouped = fresh.groupby(self._keys, dropna=False, sort=True, as_index=False)
        self._kept = grouped.agg(self._how) if len(fresh) else fresh


def _texts(column: pd.Series[Any]) -> bool:
    return any(isinstance(value, str) for value in column)
