"""What a generator of pages is."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

Pages = Iterator[tuple[Path, str]]


@dataclass(frozen=True)
class Generator:
    """`pages` yields each file with the whole text that it should have.

    `same(made, kept)`: whether a kept text is as good as a new one.
    """

    name: str
    pages: Callable[[], Pages]
    same: Callable[[str, str], bool] = operator.eq

    def stale(self) -> Pages:
        """The files that are not what they should be."""
        for path, text in self.pages():
            if not path.is_file() or not self.same(text, path.read_text("utf-8")):
                yield path, text


def between(text: str, begin: str, end: str, body: str) -> str:
    """`text` with `body` between two marks. Raises ValueError where a mark is missing."""
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"no {begin} ... {end}")
    return f"{before}{begin}\n{body}\n{end}{after}"
