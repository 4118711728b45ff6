"""vLLM's own prefix of a log line: its process label, then level, time, file and line.

The one place that knows how they are spelt. Text meets a label as it stands in a line; the
prefilter meets it in bytes without blanks.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from wstrace.triage.ingest.ranks import NOWHERE, ranks_of

if TYPE_CHECKING:
    from collections.abc import Iterator

LEVEL: Final = r"(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL|EXCEPTION)"
LABEL_REACH: Final = 200
_DIGITS: Final = b"0123456789"
_WITHIN: Final = 400  # characters of a line's beginning in which a label may stand
_NAME: Final = r"[A-Za-z_][\w.:\-]{0,80}(?: [A-Za-z_]\w*(?:=\w+)?){0,4} "


def _spelt(name: str, blank: str) -> str:
    """A label, with `name` before its pid and `blank` wherever a blank may stand."""
    return rf"\((?P<name>{name})?pid=(?P<pid>\d+)(?:,{blank}ip=(?P<ip>[^)\s]{{1,64}}))?\)"


# vLLM 0.13.0 (_add_prefix) to 0.33.0 (logger.py's format): the process; Ray adds the address
# matches: '(Worker_TP0 pid=77, ip=192.0.2.7) '
_LABEL: Final = re.compile(_spelt(_NAME, " ?") + " ?")
# matches: b'(RayWorkerWrapperpid=77,ip=192.0.2.7)'
_SQUEEZED: Final = re.compile(_spelt(r"[\w.:=\-]{1,160}", "").encode())
# vLLM 0.13.0 to 0.33.0: logger.py's format, level, time, file and line
# matches: 'ERROR 05-05 14:02:37 [workspace.py:90] '
_HEAD: Final = re.compile(
    rf"\s*\[?{LEVEL}\]?:?\s+"
    r"(?:\d{2,4}[-/]\d\d(?:[-/]\d\d)?[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?\s*)?"
    r"(?:\[?[\w./\\<>-]{1,120}:\d+\]?:?(?:\s|$))?"
)
# vLLM 0.13.0 to 0.33.0: the V2 runner's file is model_runner.py, V1's gpu_model_runner.py
# matches: 'INFO 08-12 10:00:00 [model_runner.py:520] '
_V2_LINE: Final = re.compile(r"\[(?:[\w./]*/)?model_runner\.py:\d+\]")


def of_v2_runner(text: str) -> bool:
    """Whether vLLM's V2 runner wrote a line of this text, by the file in its prefix."""
    return _V2_LINE.search(text) is not None


def without_labels(text: str) -> tuple[str, str, str] | None:
    """What stands before the labels of a line, the label, and what follows them.

    None where the line has none. Ray's label and vLLM's can stand on one line: the label is
    the one that names ranks. It reads `NAME pid=PID`, of Ray's other hosts with their address.
    """
    found = _LABEL.search(text, 0, _WITHIN) if "pid=" in text[:_WITHIN] else None
    if found is None or ("{" in text[: found.start()] and text.rstrip().endswith("}")):
        return None
    lead, label = text[: found.start()], ""
    while found:
        label = _better(label, _in_words(found))
        text = text[found.end() :]
        found = _LABEL.match(text)
    return lead, label, text


def _in_words(found: re.Match[str]) -> str:
    address = f", ip={found['ip']}" if found["ip"] else ""
    return f"{(found['name'] or '').strip()} pid={found['pid']}{address}"


def _better(old: str, new: str) -> str:
    return old if old and ranks_of(new) == NOWHERE and ranks_of(old) != NOWHERE else new


def without_head(text: str) -> tuple[str, bool]:
    """The text after level, time, file and line; and whether its level is an error."""
    head = _HEAD.match(text)
    if head is None:
        return text, False
    return text[head.end() :], "ERROR" in head.group() or "CRITICAL" in head.group()


def process_before(squeezed: bytes, position: int) -> bytes:
    """Which process speaks at `position` of bytes without blanks; empty where none is near.

    A name with a rank is enough, so that a process that restarts stays the same. One without
    (Ray's) is told from its siblings by pid and address.
    """
    process = b""
    for label in _labels(squeezed[max(0, position - LABEL_REACH) : position]):
        name = label["name"] or b""
        process = name if name.translate(None, _DIGITS) != name else label[0]
    return process


def _labels(near: bytes) -> Iterator[re.Match[bytes]]:
    return _SQUEEZED.finditer(near) if b"pid=" in near else iter(())
