"""What log stores, launchers and pages export: the same facts through each of their forms."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.unit.triage.generator import Failure, expected, facts, log_lines, read, wrapped

Form = Callable[[Sequence[str]], list[str]]
FAILURE = Failure()
TIME = "2026-05-05T14:02:37.123Z"


def _csv(header: list[str], row: list[str], **how: Any) -> Form:
    """A line a row; LINE stands where it goes."""

    def form(lines: Sequence[str]) -> list[str]:
        out = io.StringIO()
        writer = csv.writer(out, **how)
        writer.writerow(header)
        for line in lines:
            writer.writerow([line if cell == "LINE" else cell for cell in row])
        return out.getvalue().split("\r\n")

    return form


def _one_cell(lines: Sequence[str]) -> list[str]:
    return _csv(["id", "text"], ["7", "LINE"])(["\n".join(lines)])


def _record(make: Callable[[Sequence[str]], object], indent: int | None = None) -> Form:
    return lambda lines: json.dumps(make(lines), indent=indent).split("\n")


def _records(make: Callable[[str], object]) -> Form:
    return lambda lines: [json.dumps(make(line)) for line in lines]


def _each(*form: str) -> Form:
    return lambda lines: [part.format(line) for line in lines for part in form]


def _loki(lines: Sequence[str]) -> object:
    values = [[str(1747000000000000000 + n), line] for n, line in enumerate(lines)]
    return {"data": {"resultType": "streams", "result": [{"stream": {}, "values": values}]}}


def _cloudwatch(lines: Sequence[str]) -> object:
    return {"events": [{"timestamp": 1747000000000, "message": line} for line in lines]}


def _datadog(lines: Sequence[str]) -> object:
    return {"data": [{"id": "A", "attributes": {"message": line}} for line in lines]}


def _misread(page: str) -> Form:
    """Typographic quotes in UTF-8 that a program read as another code page."""

    def form(lines: Sequence[str]) -> list[str]:
        quoted = (line.replace("from '", "from ‘").replace("' req", "’ req") for line in lines)
        return [line.encode().decode(page, "replace") for line in quoted]

    return form


QUOTED = {"quoting": csv.QUOTE_ALL}
FORMS: dict[str, Form] = {
    "60 columns": lambda lines: wrapped(lines, 60),
    "csv": _csv(["timestamp", "message"], ["1747000000000", "LINE"]),
    "csv, all quoted": _csv(
        ["Date", "Host", "Service", "Message"], [TIME, "gpu01", "vllm", "LINE"], **QUOTED
    ),
    "csv, line first": _csv(["Line", "Time"], ["LINE", TIME], **QUOTED),
    "csv, semicolons": _csv(["Time", "Line"], [TIME, "LINE"], delimiter=";", **QUOTED),
    "csv, tabs": _csv(["Time", "Line"], [TIME, "LINE"], delimiter="\t"),
    "csv, one cell": _one_cell,
    "csv, newest first": lambda lines: _csv(["Date", "Message"], [TIME, "LINE"])(lines[::-1]),
    "loki, logcli": _each('2026-05-05T14:02:37Z {{app="vllm", pod="vllm-0"}} {}'),
    "loki, jsonl": _records(lambda line: {"labels": {"pod": "vllm-0"}, "line": line}),
    "loki, api": _record(_loki),
    "loki, api, indented": _record(_loki, 2),
    "loki, api, newest first": lambda lines: _record(_loki)(lines[::-1]),
    "cloudwatch": _record(_cloudwatch),
    "cloudwatch, indented": _record(_cloudwatch, 4),
    "cloudwatch, tail": _each("2026-05-05T14:02:37.123000+00:00 vllm/server/0123abcd {}"),
    "datadog": _record(_datadog),
    "datadog, one event": _record(lambda lines: _datadog(["\n".join(lines)]), 1),
    "google, jsonl": _records(lambda line: {"textPayload": line, "severity": "ERROR"}),
    "google, list": _record(lambda lines: [{"textPayload": line} for line in lines], 2),
    "elastic": _record(
        lambda lines: {"hits": {"hits": [{"_source": {"message": line}} for line in lines]}}
    ),
    "journald, export": _each("__CURSOR=s=1;i=2", "_HOSTNAME=gpu01", "MESSAGE={}", ""),
    "journald, verbose": _each(
        "Tue 2026-05-05 14:02:37.123456 UTC [s=1;i=2]", "    _HOSTNAME=gpu01", "    MESSAGE={}"
    ),
    "kubectl, times": _each("2026-05-05T14:02:37.123456789Z {}"),
    "kubectl, pod and time": _each("[pod/vllm-0/server] 2026-05-05T14:02:37.123456789Z {}"),
    "docker": _records(lambda line: {"log": line + "\n", "stream": "stderr", "time": TIME}),
    "syslog": _each("<11>1 2026-05-05T14:02:37.123Z gpu01 vllm 4242 - - {}"),
    "logfmt": lambda lines: [f"ts={TIME} level=error msg={json.dumps(x)}" for x in lines],
    "srun": _each("3: {}"),
    "mpirun": _each("[1,3]<stderr>:{}"),
    "ansi inside": lambda lines: [f"\x1b[31m{x[:30]}\x1b[0m{x[30:]}\x1b[0m" for x in lines],
    "two returns": _each("{}\r\r"),
    "returns alone": lambda lines: ["\r".join(lines)],
    "misread cp1252": _misread("cp1252"),
    "misread latin-1": _misread("latin-1"),
    "github actions": _each("2026-05-05T14:02:37.1234567Z {}"),
    "github actions, gh": _each("serve\tRun vllm\t2026-05-05T14:02:37.1234567Z {}"),
    "buildkite": _each("\x1b_bk;t=1747000000000\x07{}"),
    "chat": lambda lines: ["alice  2:02 PM", "```" + lines[0], *lines[1:], "```"],
    "markdown table": lambda lines: ["| t | line |", *(f"| 14:02 | {x} |" for x in lines)],
    "python list": lambda lines: [repr(list(lines))],
    "yaml block": lambda lines: ["log: |", *("  " + line for line in lines)],
    "yaml string": lambda lines: ["log: " + json.dumps("\n".join(lines))],
    "xml": lambda lines: ["<system-err><![CDATA[", *lines, "]]></system-err>"],
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("label", [True, False])
def test_an_export(form: str, label: bool) -> None:
    lines = FAILURE.traceback()
    if label:
        lines = log_lines(lines, "Worker_TP1 pid=101")
    found = read("\n".join(FORMS[form](lines)))
    assert facts(found) == {expected(FAILURE)}
    (finding,) = found.findings
    assert not label or [ranks.tp for ranks in finding.ranks] == [1]


@pytest.mark.parametrize(
    "encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252"]
)
def test_an_encoding(encoding: str) -> None:
    text = "\r\n".join(log_lines(FAILURE.traceback(), "Worker_TP1 pid=101"))
    assert facts(read(text.encode(encoding))) == {expected(FAILURE)}


@pytest.mark.parametrize("form", FORMS)
def test_a_relative_through_an_export(form: str) -> None:
    line = (
        "RuntimeError: Buffer overflow when allocating memory for batch_prefill_tmp_v with "
        "size 536870912 and alignment 16, but only 394264576 bytes available in "
        "AlignedAllocator."
    )
    found = read("\n".join(FORMS[form](log_lines([line], "Worker_TP1 pid=101"))))
    (relative,) = found.relatives
    assert (relative.asked, relative.had) == (536870912, 394264576)
