"""Tell a failure from talk about it: source code, a diff, a test, a search command."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from wstrace.triage.ingest.squeeze import TRIPLE

if TYPE_CHECKING:
    from wstrace.triage.ingest.squeeze import Squeezed

# matches: 'raise AssertionError(f"'
_CODE: Final = re.compile(
    r"(?:(?:^|[\s(=,\[{+])(?:[rfbu]{1,2})[\"']"
    r"|\bmatch\s*=\s*[rf]?[\"']"
    r"|\b(?:grep|rg|ag|assert\w*|pytest\.raises|re\.\w+)\b.{0,80}[\"']"
    r"|[\"']\s*(?:in|==)\s.{0,60})$"
)
# matches: 'msg = ("'
_LITERAL: Final = re.compile(
    r"^(?:[+\-]?\s*\w[\w.]*(?:\s*:\s*\w+)? \+?= \(\s*|[+\-]\s{4,}\(?)"
    r"[rfbu]{0,2}[\"'][^\"']{0,60}$"
)
# matches: '+   # a comment'
_COMMENT: Final = re.compile(r"(?:[+\-]\s*|\s{4,})#\s")
# matches: '# a comment'
_HASH: Final = re.compile(r"\s*#\s")
# matches: 'def test_it(self):'
_SOURCE: Final = re.compile(
    r"(?:\+\+\+|---) [ab]/|diff --git |@@ -\d|\+\s{2,}\S"
    r"|\s*(?:async )?def \w+\(.*:\s*$|(?:from [\w.]+ )?import \w|\s*\w+ = \($"
)
# matches: '@@ -1,7 +1,9 @@'
_HUNK: Final = re.compile(r"@@ -\d+(?:,\d+)? \+\d+")
# matches: '+ added'
_IN_DIFF: Final = re.compile(r"[+\- ]|$|\\ No newline")
# matches: 'Workspace is locked'
_WORKSPACE: Final = re.compile(r"[Ww]\s*orkspace is locked|[Ww]orkspace\s")
# matches: '    """Retry once.'
_DOCSTRING: Final = re.compile(
    r"\s+[rfbuRFBU]{0,2}(?:\"{3}|'{3})|[rfbuRFBU]{0,2}(?:\"{3}|'{3})\s*\S"
)
# a comment, a catalogue of translations, an added or removed line: no log begins so
# matches: 'msgid "'
_MARKED: Final = re.compile(
    r"\s*(?:/\*|//|msg(?:id|str)\b|#\s*(?:raises?|throws?|e\.g\.)(?!\w)|[+\-]\s{4,}$)",
    re.IGNORECASE,
)
# matches: 'If you ever see "'
_ABOUT: Final = re.compile(
    r"(?:\bif (?:you|someone|anyone|users?) (?:\w+ )?(?:sees?|gets?|hits?|encounters?|finds?)"
    r"\b[^.!?]{0,40}"
    r"|\b(?:PR|MR|patch|change|commit|pull request)\b[^.!?]{0,60}"
    r"\b(?:fix(?:es|ed)|avoids?|prevents?|resolve[sd]?|solve[sd]?|removes?)"
    r"(?: (?:the|this|an?|error|crash|failure|message))*"
    r"|\b(?:no longer|never|(?:do|does|did)(?: not|n't)) (?:see|sees|get|gets|hit|hits)"
    r"(?: (?:the|this|an?|error|crash|failure|message|any ?more))*"
    r"|(?<!not )(?<!never )(?<!n't )\b(?:fixed|fixes|resolved|resolves)\b"
    r"(?: (?:the|this|an?|error|crash|failure|message|bug|issue))*"
    r"|\bunlike\b[^.!?]{0,80})"
    r"[\s:\"'`(\u201c]*(?:[\w.]*Error:\s*)?[\"'`]*$",
    re.IGNORECASE,
)
ABOVE_REACH: Final = 2
DOCSTRING_REACH: Final = 80
HUNK_REACH: Final = 400
SOURCE_REACH: Final = 5


def is_talk(squeezed: Squeezed, position: int) -> bool:
    """True where the message at `position` stands in source code or in a diff."""
    index = squeezed.index(position)
    line = squeezed.lines[index]
    if line.label or line.error:
        return False
    found = _WORKSPACE.search(line.text)
    lead = line.text[max(0, found.start() - 200) : found.start()] if found else ""
    if _CODE.search(lead) or _LITERAL.search(lead) or _COMMENT.match(lead):
        return True
    return _in_diff(squeezed, index) or _is_comment(squeezed, index)


def is_quoted(squeezed: Squeezed, position: int) -> bool:
    """True where the message at `position` is quoted: in a docstring, a comment, a catalogue of
    messages, or a sentence that says what it means or that it is gone."""
    return _is_spoken_of(squeezed, position) or in_docstring(squeezed, position)


def _is_spoken_of(squeezed: Squeezed, position: int) -> bool:
    index = squeezed.index(position)
    line = squeezed.lines[index]
    found = _WORKSPACE.search(line.text)
    if line.label or line.error or found is None:
        return False
    lead = line.text[: found.start()]
    return bool(_MARKED.match(lead) or _ABOUT.search(_introduced(squeezed, index, lead)[-200:]))


def _introduced(squeezed: Squeezed, index: int, lead: str) -> str:
    """The words before a message; where its line has none, those right above that end in a
    colon."""
    # matches: "AssertionError: "
    if not re.fullmatch(r"[\s\"'`]*(?:[\w.]*Error:\s*)?[\"'`]*", lead):
        return lead
    for line in reversed(squeezed.lines[max(0, index - ABOVE_REACH) : index]):
        text = line.text.strip()
        if text:
            return f"{text} {lead}" if text.endswith(":") and not line.label else lead
    return lead


def in_docstring(squeezed: Squeezed, position: int) -> bool:
    """True where the message at `position` stands in a Python docstring: it is quoted there.

    A line of nothing but quotes at the margin is how some people fence a log.
    """
    index = squeezed.index(position)
    opening: str | None = None
    for number in range(max(0, index - DOCSTRING_REACH), index + 1):
        line = squeezed.lines[number]
        if line.label or line.error:
            opening = None
            continue
        found = _WORKSPACE.search(line.text) if number == index else None
        quotes = squeezed.quotes[number]
        if found is not None and quotes:
            quotes = len(TRIPLE.findall(line.text, 0, found.start()))
        if quotes:
            is_open = (opening is not None) != bool(quotes % 2)
            opening = line.text if is_open else None
    return opening is not None and bool(_DOCSTRING.match(opening))


def _is_comment(squeezed: Squeezed, index: int) -> bool:
    """True for `# ...` below source or a diff; alone it may be a heading of an issue."""
    if not _HASH.match(squeezed.lines[index].text):
        return False
    before = squeezed.lines[max(0, index - SOURCE_REACH) : index]
    return any(_SOURCE.match(line.text) and not line.label for line in before)


def _in_diff(squeezed: Squeezed, index: int) -> bool:
    """True inside a hunk: the lines back to its header all have a diff's first column."""
    for line in reversed(squeezed.lines[max(0, index - HUNK_REACH) : index + 1]):
        if _HUNK.match(line.text):
            return True
        if line.label or not _IN_DIFF.match(line.text):
            return False
    return False
