"""Take the wrapping off a log line: who wrote it, and what is left as text.

Collectors put their own prefix before vLLM's (docker compose, kubectl, journald, CRI),
people quote, colour and escape; `vllm_prefix` knows vLLM's own. Two lines belong together when
their outer prefix and vLLM's process label agree.
"""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from wstrace.triage.ingest.vllm_prefix import LEVEL, without_head, without_labels

if TYPE_CHECKING:
    from collections.abc import Iterator

JSON_LIMIT: Final = 1 << 20
LEADS: Final = 16
_DEEPEST: Final = 12  # OpenTelemetry's records have seven
# matches: '&quot;'
_ENTITY: Final = re.compile(r"&(?:#\d{1,6}|#[xX][0-9a-fA-F]{1,5}|[A-Za-z]{2,8});")
# matches: '2026-05-05T14:02:37.123Z '
_TIME: Final = re.compile(
    r"\s*\[?(?:\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?"
    r"(?: ?Z| ?[+-]\d\d:?\d\d| UTC)?"
    r"|(?:[A-Z][a-z]{2} )?[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?"
    r"|\d\d:\d\d:\d\d(?:[.,]\d+)?)\]?[,:]?\s+"
)
# matches: 'gpu01 vllm[4242]: '
_UNIT: Final = re.compile(rf"(?!{LEVEL}\b)(?P<key>[\w.-]+ [\w./@:-]+(?:\[\d+\])?): ?")
# matches: 'stderr F '
_CRI: Final = re.compile(r"std(?:out|err) [FP] ")
# matches: 'vllm-1  | '
_COMPOSE: Final = re.compile(r"(?P<key>[A-Za-z0-9][\w.-]{0,80})\s*\|(?: |$)")
# matches: '[pod/vllm-0/server] '
_POD: Final = re.compile(r"\[(?P<key>(?=[^\]]*[/-])[\w./-]{3,200})\] ?")
# matches: '   12\tTraceback'
_NUMBERED: Final = re.compile(r"\s{0,8}\d{1,8}(?:\t|\s*[│|] )")
# matches: '[rank3]: '
_TORCHRUN: Final = re.compile(r"\[(?P<key>(?:rank|default|trainer)\d+)\]: ?")
# matches: '[1,3]<stderr>:'
_MPIRUN: Final = re.compile(r"\[\d+,(?P<rank>\d+)\]<std(?:out|err)>: ?")
# srun --label: a task's number before each of its lines; one that begins a line of a log tells
# it from a numbered list
# matches: '3: Traceback (most recent call last):'
_SRUN: Final = re.compile(
    r" {0,5}(?P<rank>\d{1,5}): (?P<log>(?=\(\w[\w ]{0,60}pid=|Traceback \(|  File \""
    rf"|\[rank\d|{LEVEL} \d\d))?"
)
# matches: 'logs/rank3.log:181:'
_GREP: Final = re.compile(
    r"(?P<key>[\w./-]{0,200}[\w-]\.(?:log|txt|out|err)(?:\.\d{1,4})?)[:-]\d{1,9}[:-]"
)
# matches: '==> logs/rank3.log <=='
_TAIL: Final = re.compile(r"==> (?P<key>\S.{0,200}?) <==\s*$")
# matches: '> > '
_QUOTE: Final = re.compile(r"(?:\s*(?:>|[│┃|](?=\s|$)))+ ?")
# matches: 'root - ERROR - '
_LOGGER: Final = re.compile(rf"[-:| ]*(?:[\w.]+ ?[-:|] ?)?\[?{LEVEL}\]? ?[-:|] ?(?!\d\d-)")
# matches: '\x1b[31m'
_ANSI: Final = re.compile(
    r"(?:\x1b|\\x1b|\\u001[bB]|\\033|\\e|\^\[|#033|\ufffd(?=\[\d))"
    r"(?:\[[0-9;?]*[A-Za-z]|\][^\x07\x1b]{0,200}\x07)"
)
# matches: '<code>'
_TAG: Final = re.compile(
    r"</?(?:pre|code|span|p|div|strong|em|b|i|a|li|ul|ol|td|tr|th|table|tbody|details|summary"
    r"|blockquote|font|tt|samp|h[1-6])(?:\s[^<>]{0,300})?>",
    re.IGNORECASE,
)
# matches: '<br/>'
_BREAK: Final = re.compile(r"<br\s*/?>", re.IGNORECASE)
# matches: '\\n  File'
_ESCAPED_NEWLINE: Final = re.compile(r"\\{1,4}r?\\{0,4}n(?=[\s'\"A-Z0-9^\\(\[]|$)")
# matches: '\\n'
_ANY_ESCAPED_NEWLINE: Final = re.compile(r"\\{1,4}n")
# matches: 'C:\\vllm'
_WINDOWS_PATH: Final = re.compile(r"[A-Za-z]:\\|\\site-packages\\|\\vllm\\|\w\\\w+\\\w")
# matches: '\\u0027'
_ESCAPED_CHARACTER: Final = re.compile(r"\\{1,8}(?:u00([0-7][0-9a-fA-F])|x([2-7][0-9a-fA-F]))")
# matches: "\\'"
_ESCAPED_QUOTE: Final = re.compile(r"\\{1,8}(?=['\"])")
# matches: '[repeated 7x across cluster] (Ray)'
_REPEATED: Final = re.compile(r"\[repeated \d+x across cluster\].*$")
# matches: '```python'
_FENCE: Final = re.compile(r"\s*(?:```.*|~~~.*)?$")
# another process's prefix inside a message that was not at its end
# matches: 'orkspace is locked but allocation requires 8.06 MB, curr(Worker_TP1 pid=2) '
_GLUED: Final = re.compile(
    r"orkspace is locked but alloc(?:(?!after locking).){0,600}?(?=\(\w[\w ]{0,60}pid=\d+\) )"
)
# a message that somebody's tool wrote in capitals: vLLM's own words have none but the first
# matches: "WORKSPACE IS LOCKED BUT ALLOCATION FROM 'MLA.PY:7:FORWARD' REQUIRES 16.00 MB"
_SHOUTED: Final = re.compile(
    r"\b(?:WORKSPACE (?:IS|GROWTH)|REQUIRES|CURRENT SIZE|LOCKING|WAS NOT ALLOCATED)\b"
)
_JSON_OUTER: Final = (
    "pod", "pod_name", "container", "container_name", "service", "host", "hostname",
    "_HOSTNAME", "_SYSTEMD_UNIT", "rank", "processName", "process",
)  # fmt: skip

_JSON_TEXT: Final = frozenset(
    ("message", "msg", "log", "event", "text", "body", "line", "@message", "textpayload",
     "exception", "exc_info", "error", "reason", "detail", "stack", "stacktrace", "stringvalue")
)  # fmt: skip
# matches: 'Traceback (most recent call last):'
_TELLS: Final = re.compile(r"\n|Traceback|Error|orkspace|requires|current size|locking")


def unescape(text: str) -> str:
    """HTML entities resolved, complete ones only: half of one may be on the next line."""
    return _ENTITY.sub(lambda match: html.unescape(match.group()), text)


@dataclass(frozen=True)
class Line:
    """One physical line, or a part of one, without its wrapping.

    `outer` is the collector's key, `label` vLLM's process label with its pid ('' where the
    line has none), `error` says that its level is ERROR or above. `part` counts the lines that
    one physical line holds: a record may have a whole log in it.
    """

    number: int
    outer: str
    label: str
    text: str
    error: bool = False
    part: int = 0

    @property
    def ends_stream(self) -> bool:
        """A blank line or a code fence: what follows is no continuation."""
        return not self.label and bool(_FENCE.match(self.text))


class Unwrapper:
    """Lines without their wrapping; remembers the prefixes that stood before labels, and the
    file that `tail` says follows."""

    def __init__(self) -> None:
        self._leads: dict[str, str] = {}
        self._file = ""
        self._tasks = False

    def lines(self, text: str, first: int) -> Iterator[Line]:
        """All lines of `text`; `first` is the number of the first one."""
        number = part = -1
        for line in self._physical(text, first):
            number, part = line.number, part + 1 if line.number == number else 0
            yield replace(line, part=part) if part else line

    def _physical(self, text: str, first: int) -> Iterator[Line]:
        for number, raw in enumerate(text.split("\n"), first):
            if raw.startswith("==> ") and (header := _TAIL.match(raw)):
                self._file = header["key"][:100]
                yield Line(number, self._file, "", "")
            elif "\r" not in raw:
                for part in _unglued(raw):
                    yield from self._unwrap(part, number, self._file, 0)
            else:
                for part in raw.removesuffix("\r").split("\r"):
                    yield from self._unwrap(part, number, self._file, 0)

    def _unwrap(self, raw: str, number: int, outer: str, depth: int) -> Iterator[Line]:
        outer, label, text, error = self._peel(_plain(raw), outer)
        stripped = text.strip()
        if stripped[:1] == "{" and stripped[-1:] == "}" and depth < 3:
            inner = _from_json(stripped, outer)
            if inner is not None:
                for part in inner[1]:
                    yield from self._unwrap(part, number, inner[0], depth + 1)
                return
        for part in _unescape(text) if "\\" in text else (text,):
            yield Line(number, outer, label, _lowered(part), error)

    def _without_task(self, outer: str, text: str) -> tuple[str, str]:
        """A line without the number that srun gives its task, once the text shows that it is
        one."""
        found = _SRUN.match(text) if text[:6].lstrip()[:1].isdecimal() else None
        if found is None or (found["log"] is None and not self._tasks):
            return outer, text
        self._tasks = True
        return _strip_outer(text[found.end() :], f"{outer} rank{found['rank']}".strip())

    def _peel(self, text: str, outer: str) -> tuple[str, str, str, bool]:
        """The collector's key, vLLM's label, the text, and whether its level is an error."""
        labelled = without_labels(text)
        if labelled is None:
            label = ""
            outer, text = self._without_lead(*self._without_task(*_strip_outer(text, outer)))
        else:
            lead, label, text = labelled
            outer = self._outer_of(lead, outer)
        text, error = without_head(text)
        return outer, label, text, error

    def _outer_of(self, lead: str, outer: str) -> str:
        """The key of what stands before a label. What no rule knows there is remembered."""
        if not lead.strip():
            return outer
        outer, rest = _strip_outer(lead, outer)
        task = _SRUN.fullmatch(rest)
        if task:
            self._tasks = True
            return f"{outer} rank{task['rank']}".strip()
        key = f"{outer} {' '.join(rest.split())[:60]}".strip()
        if rest.strip() and len(self._leads) < LEADS:
            self._leads[rest] = key
        return key

    def _without_lead(self, outer: str, text: str) -> tuple[str, str]:
        """A line without label that begins like one that had one."""
        for lead, key in self._leads.items():
            if text.startswith(lead):
                return key, text[len(lead) :]
        return outer, text


def _unglued(raw: str) -> list[str]:
    """The line, cut where another process began to write inside a message.

    A JSON object is one writer's: its line ends are spelt, and a prefix behind one is a line's.
    """
    if "pid=" not in raw or "orkspace is locked" not in raw or raw.lstrip().startswith("{"):
        return [raw]
    ends = [0, *(found.end() for found in _GLUED.finditer(raw)), len(raw)]
    return [raw[start:end] for start, end in pairwise(ends)]


def _plain(text: str) -> str:
    """Without colours and markup, entities resolved."""
    if "\x1b" in text or "[0" in text or "[3" in text or "[1" in text:
        text = _ANSI.sub("", text)
    if "<" in text:
        text = _TAG.sub("", _BREAK.sub(" ", text))
    if "&" in text:
        text = unescape(unescape(text))
    if "[repeated " in text:
        text = _REPEATED.sub("", text)
    return text


def _strip_outer(text: str, outer: str) -> tuple[str, str]:
    row = text.lstrip()[:1] == "|" and text.rstrip()[-1:] == "|"  # of a table: no collector's
    named = (*(() if row else (_COMPOSE,)), _POD, _TORCHRUN, _MPIRUN, _GREP)
    for _ in range(6):
        before = text
        timed = _TIME.match(text)
        if timed:
            text = text[timed.end() :]
        for pattern in (_UNIT,) if timed else named:
            found = pattern.match(text)
            if found:
                named_by = found.groupdict().get("key") or f"rank{found['rank']}"
                outer = f"{outer} {named_by}".strip()[:200]
                text = text[found.end() :]
        for pattern in (_NUMBERED, _CRI, _QUOTE, _LOGGER):
            found = pattern.match(text)
            text = text[found.end() :] if found else text
        if text == before:
            break
    return outer, text


def _lowered(text: str) -> str:
    """A line of the message in capitals as the lower case that vLLM's names have."""
    return text.lower() if text.isupper() and _SHOUTED.search(text) else text


def _unescape(text: str) -> list[str]:
    """The lines of a text in which newlines are written as backslash and n."""
    newline = _ESCAPED_NEWLINE if _WINDOWS_PATH.search(text) else _ANY_ESCAPED_NEWLINE
    return [_resolve(part) for part in newline.split(text)]


def _resolve(part: str) -> str:
    part = _ESCAPED_CHARACTER.sub(lambda m: chr(int(m[1] or m[2], 16)), part)
    return _ESCAPED_QUOTE.sub("", _plain(part))


def _from_json(text: str, outer: str) -> tuple[str, list[str]] | None:
    if len(text) > JSON_LIMIT:
        return None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    names = [
        f"rank{record[key]}" if key == "rank" else str(record[key])
        for key in _JSON_OUTER
        if isinstance(record.get(key), str | int)
    ]
    parts = [
        part
        for key, text in _strings(record, "", 0)
        if key in _JSON_TEXT or _TELLS.search(text)
        for part in text.split("\n")
    ]
    return f"{outer} {' '.join(names)}".strip()[:200], parts


def _strings(value: Any, key: str, depth: int) -> Iterator[tuple[str, str]]:
    """(key, text) of a JSON record, in order; journald writes some texts as bytes."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict) and depth < _DEEPEST:
        for name, item in value.items():
            if name not in _JSON_OUTER:
                yield from _strings(item, name.lower(), depth + 1)
    elif isinstance(value, list) and depth < _DEEPEST:
        numbers = all(isinstance(item, int) and 0 <= item < 256 for item in value)
        if value and numbers and (key == "message" or len(value) > 8):
            yield key, bytes(value).decode("utf-8", "replace")
            return
        for item in value:
            yield from _strings(item, key, depth + 1)
