"""Messages that a line break cut while several processes wrote: which piece is whose.

A piece without prefix goes on with the message of the one process that has one open. Where
several have, the pieces are taken in the order of their messages, and nothing says which rank
the result is of.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from wstrace.triage.ingest.prefixes import Line

STREAM: Final = "\0interleaved"
"""The key of the stream that holds messages of no known process."""
REACH: Final = 40  # lines: a piece further away belongs to something else
MOST: Final = 256  # processes
_LEAST: Final = len("Workspace is")
_MESSAGE: Final = "Workspace is locked but allocation"
# matches: "Workspace is locked but allocation from 'mla.py:7:"
_BEGUN: Final = re.compile(r"orkspace is locked but alloc")
# matches: 'currentsizeis2.05MB'
_ENDED: Final = re.compile(r"currentsizeis[\d.,]+[KMGT]i?B|afterlocking")
# matches: "_prefill' requires 8.06 MB, current size is 0.76 MB."
_GOES_ON: Final = re.compile(r"\brequires\b|current size|\d [KMGT]i?B\b|after locking|\.py:")


class CutMessages:
    """The messages that are open, by process, in the order in which they began."""

    def __init__(self) -> None:
        self.mixed = False
        self._open: dict[str, list[Line]] = {}
        self._unsure: set[str] = set()

    def labelled(self, key: str, line: Line) -> None:
        """A line with its process's prefix: what that process had open goes on no more."""
        if self._open:
            self._open.pop(key, None)
            self._unsure.discard(key)
        if "orkspace" in line.text and _is_cut(line.text):
            self._open[key] = [line]
            if len(self._open) > MOST:
                del self._open[next(iter(self._open))]

    def owner(self, line: Line) -> str | None:
        """The one process whose message `line` goes on with; None where that is unknown."""
        keys = self._near(line)
        if len(keys) != 1 or keys[0] in self._unsure or not _GOES_ON.search(line.text):
            return None
        return keys[0]

    def several(self, line: Line) -> bool:
        """True where `line` may be a piece of more than one message."""
        keys = self._near(line)
        return len(keys) > 1 or any(key in self._unsure for key in keys)

    def take(self, line: Line) -> tuple[str, Line, list[Line]]:
        """Give `line` to the message whose turn it is.

        The process and its line with the beginning, which is no longer that process's, and the
        message's lines without a prefix once it is whole, else none.
        """
        self.mixed = True
        keys = self._near(line)
        self._unsure.update(keys)
        key = keys[0]
        lines = [*self._open.pop(key), line]
        first = lines[0]
        if _ENDED.search("".join("".join(part.text for part in lines).split())):
            return key, first, _anonymous(lines)
        self._open[key] = lines
        return key, first, []

    def rest(self) -> list[Line]:
        """The pieces of messages that never became whole."""
        lines = [line for lines in self._open.values() if len(lines) > 1 for line in lines]
        self._open.clear()
        self._unsure.clear()
        return _anonymous(lines)

    def _near(self, line: Line) -> list[str]:
        """The processes below the same collector that have a message open not far above."""
        if not self._open:
            return []
        return [
            key
            for key, lines in self._open.items()
            if lines[-1].outer == line.outer and line.number - lines[-1].number <= REACH
        ]


def _is_cut(text: str) -> bool:
    """Whether the line ends inside vLLM's message."""
    begun = list(_BEGUN.finditer(text))
    if begun:
        return not _ENDED.search("".join(text[begun[-1].start() :].split()))
    end = text.rstrip()
    return any(end.endswith(_MESSAGE[:n]) for n in range(_LEAST, len(_MESSAGE)))


def _anonymous(lines: list[Line]) -> list[Line]:
    return [replace(line, outer="", label="") for line in lines]
