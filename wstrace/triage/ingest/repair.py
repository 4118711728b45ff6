"""Take off a prefix that no rule knows, where it breaks a wrapped message apart.

Tried when a text has the words of the message and no complete one, or one whose caller holds
such a prefix; kept only when a complete one comes out.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wstrace.triage.ingest.prefixes import Line

WIDEST: Final = 120
# matches: 'allocationfrom'
_WORDS: Final = re.compile(
    r"orkspaceis|islocked|allocationfrom|currentsize|growthisnot|locking"
)
# matches: 'gpu01 | '
_SEPARATOR: Final = re.compile(r".*[\s|:>\])-]", re.DOTALL)


def worth_trying(squeezed: str) -> bool:
    """True where words of the message stand in the text."""
    return bool(_WORDS.search(squeezed))


def shared_prefixes(lines: Sequence[Line]) -> list[str]:
    """What each line and the next begin with, up to a separator; '' where that is nothing."""
    return [_shared(one.text, other.text) for one, other in pairwise(lines)]


def without_shared_prefix(lines: Sequence[Line]) -> Iterator[list[Line]]:
    """Each line without the beginning that it shares: with all its neighbours, then with one.

    Two wrapped lines may go on alike behind their prefix; and neighbours may have prefixes
    that begin alike.
    """
    shared = [len(prefix) for prefix in shared_prefixes(lines)]
    pairs = zip([0, *shared], [*shared, 0], strict=True)
    for lengths in (_of_all(shared), [max(pair) for pair in pairs]):
        yield [
            replace(line, text=line.text[length:])
            for line, length in zip(lines, lengths, strict=True)
        ]


def _of_all(shared: Sequence[int]) -> Iterator[int]:
    """For each line the least that lines in a row share; a row ends where one shares nothing
    with the next."""
    row: list[int] = []
    for length in (*shared, 0):
        row.append(length)
        if length == 0:
            yield from [min(row[:-1], default=0)] * len(row)
            row.clear()


def _shared(one: str, other: str) -> str:
    """The common beginning up to its last separator; nothing where it is only blanks."""
    pairs = zip(one[:WIDEST], other[:WIDEST], strict=False)
    length = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    found = _SEPARATOR.match(one[:length])
    return found.group() if found and found.group().strip() else ""
