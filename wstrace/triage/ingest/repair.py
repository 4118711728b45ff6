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
    from collections.abc import Sequence

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


def without_shared_prefix(lines: Sequence[Line]) -> list[Line]:
    """Each line without the beginning that it shares with a neighbour."""
    shared = shared_prefixes(lines)
    before = ["", *shared]
    after = [*shared, ""]
    return [
        replace(line, text=line.text[len(max(one, other, key=len)) :])
        for line, one, other in zip(lines, before, after, strict=True)
    ]


def _shared(one: str, other: str) -> str:
    """The common beginning up to its last separator; nothing where it is only blanks."""
    pairs = zip(one[:WIDEST], other[:WIDEST], strict=False)
    length = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    found = _SEPARATOR.match(one[:length])
    return found.group() if found and found.group().strip() else ""
