"""A fleet that was read: its rows in the store, its tables, and how the reading went."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from wstrace.fleet.store import Store
from wstrace.fleet.summary import RunSummary
from wstrace.fleet.tables import Tables


@dataclass
class Fleet:
    """What reporters take. `wrong` names paths that held nothing or could not be listed.

    `files` were looked at; `read` rows were made now, `cached` ones before.
    """

    store: Store
    files: int = 0
    read: int = 0
    cached: int = 0
    wrong: list[str] = field(default_factory=list)

    @cached_property
    def tables(self) -> Tables:
        """The tables over all rows, made in the order of run ids."""
        made = Tables()
        for row in self.rows():
            made.add(row)
        return made

    def rows(self) -> Iterator[RunSummary]:
        """Every row, one at a time, by run id."""
        return self.store.summaries()

    @cached_property
    def counts(self) -> dict[str, int]:
        """Runs, logs, what could not be read, and the verdicts of the runs."""
        found = dict.fromkeys(
            ("runs", "logs", "unread", "clean", "findings", "inconclusive", "died", "ranks"), 0
        )
        for row in self.rows():
            found[{"run": "runs", "log": "logs", "unread": "unread"}[row.kind]] += 1
            found["ranks"] += row.ranks
            found["died"] += row.died
            if row.kind == "run":
                found[row.verdict] += 1
        return found

    def notes(self) -> Iterator[str]:
        """What could not be read, and each word about a run behind the run's id."""
        yield from self.wrong
        for row, word in self.troubles():
            yield f"{row.run}: {word}"

    def troubles(self) -> Iterator[tuple[RunSummary, str]]:
        """Each word about a run, in the order of run ids."""
        for row in self.rows():
            for word in row.words:
                yield row, word
