"""Tell a failure from talk about it: source code, a diff, a test, a search command."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from wstrace.triage.squeeze import Squeezed

_CODE: Final = re.compile(
    r"(?:(?:^|[\s(=,\[{+])(?:[rfbu]{1,2})[\"']"
    r"|\bmatch\s*=\s*[rf]?[\"']"
    r"|\b(?:grep|rg|ag|assert\w*|pytest\.raises|re\.\w+)\b.{0,80}[\"']"
    r"|[\"']\s*(?:in|==)\s.{0,60})$"
)
_HUNK: Final = re.compile(r"@@ -\d+(?:,\d+)? \+\d+")
_IN_DIFF: Final = re.compile(r"[+\- ]|$|\\ No newline")
_WORKSPACE: Final = re.compile(r"[Ww]\s*orkspace is locked|[Ww]orkspace\s")
HUNK_REACH: Final = 400


def is_talk(squeezed: Squeezed, position: int) -> bool:
    """True where the message at `position` stands in source code or in a diff."""
    index = squeezed.index(position)
    line = squeezed.lines[index]
    if line.label or line.error:
        return False
    found = _WORKSPACE.search(line.text)
    lead = line.text[max(0, found.start() - 200) : found.start()] if found else ""
    return bool(_CODE.search(lead)) or _in_diff(squeezed, index)


def _in_diff(squeezed: Squeezed, index: int) -> bool:
    """True inside a hunk: the lines back to its header all have a diff's first column."""
    for line in reversed(squeezed.lines[max(0, index - HUNK_REACH) : index + 1]):
        if _HUNK.match(line.text):
            return True
        if line.label or not _IN_DIFF.match(line.text):
            return False
    return False
