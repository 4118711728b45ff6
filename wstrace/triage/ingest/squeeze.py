"""Join the lines of one process into text without blanks.

vLLM's messages are matched there: a line break, an indent or a terminal's hard wrap at any
point, also inside a word or a number, changes nothing. Offsets lead back to the lines.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from wstrace.triage.ingest.prefixes import Line, unescape

if TYPE_CHECKING:
    from collections.abc import Sequence


_SAME: Final = str.maketrans(
    {
        **dict.fromkeys('‘’‚‛“”„‟″′`´"', "'"),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\xad│┃*", None),
        "\\": "/",
        "，": ",",
        "−": "-",
        "→": "->",
    }
)
# UTF-8 that was read as a Windows or a Latin code page: what a mark became, and the mark
_MISREAD: Final = {
    mark.encode().decode(page, "replace"): mark
    for mark in "‘’‚‛“”„‟…′″→│┃"
    for page in ("cp1252", "latin-1")
}
# matches: 'â€™'
_MOJIBAKE: Final = re.compile("|".join(map(re.escape, _MISREAD)))
# matches: 'requires &#3'
_BROKEN_END: Final = re.compile(r"(?:&(?:#\w{0,8}|[a-z]{0,5})|\x1b(?:\[[0-9;]*)?)$")
# matches: '"""'
TRIPLE: Final = re.compile(r"\"{3}|'{3}")
# matches: '\x1b[0m'
_ANSI: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True)
class Squeezed:
    """`text` without blanks; `starts[i]` is where `lines[i]` begins in it."""

    text: str
    starts: tuple[int, ...]
    lines: tuple[Line, ...]

    @cached_property
    def quotes(self) -> tuple[int, ...]:
        """How many triple quotes each line has: lines are long, and asked for many times."""
        return tuple(len(TRIPLE.findall(line.text)) for line in self.lines)

    def index(self, position: int) -> int:
        """The index of the line that holds `position`."""
        return max(0, bisect_right(self.starts, position) - 1)

    def line(self, position: int) -> Line:
        """The line that holds `position`."""
        return self.lines[self.index(position)]

    def end_of_line(self, position: int) -> int:
        """Where the line that holds `position` ends in `text`."""
        following = self.index(position) + 1
        return self.starts[following] if following < len(self.starts) else len(self.text)


def squeeze(text: str) -> str:
    """Without blanks and invisible characters; one kind of quote and of slash."""
    if not text.isascii() and "\xe2" in text:
        text = _MOJIBAKE.sub(lambda found: _MISREAD[found.group()], text)
    text = "".join(text.split())
    if not text.isascii():
        return text.translate(_SAME)
    return text.replace('"', "'").replace("`", "'").replace("\\", "/").replace("*", "")


def join(lines: Sequence[Line]) -> Squeezed:
    """The squeezed text of `lines`; an entity or a colour cut by a line break is mended."""
    parts, starts, length, held = [], [], 0, ""
    for line in lines:
        part = held + squeeze(line.text)
        held = ""
        broken = _BROKEN_END.search(part, max(0, len(part) - 12)) if part else None
        if broken:
            part, held = part[: broken.start()], broken.group()
        if "&" in part:
            part = squeeze(unescape(part))
        if "\x1b" in part:
            part = _ANSI.sub("", part)
        starts.append(length)
        parts.append(part)
        length += len(part)
    return Squeezed("".join(parts) + held, tuple(starts), tuple(lines))
