"""Log texts from a table of facts: messages, tracebacks and the many ways logs are wrapped.

The texts are made here, from the forms that vLLM and log collectors have; no report is
copied.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO

from wstrace.bounds.bound import Bound
from wstrace.findings.finding import Finding, FromLog
from wstrace.known_sites.known import KnownSite
from wstrace.triage.diagnose.diagnose import Diagnosis, diagnose
from wstrace.triage.diagnose.numbers import Given
from wstrace.triage.extract.parser import parse

SITE_PACKAGES = "/usr/local/lib/python3.12/dist-packages"


@dataclass(frozen=True)
class Failure:
    """One refusal as vLLM words it. Sizes are in MB as printed."""

    file: str = "turboquant_attn.py"
    line: int = 747
    function: str = "_continuation_prefill"
    required: float = 16.00
    current: float = 1.02
    folder: str = "vllm/v1/attention/backends"

    @property
    def message(self) -> str:
        return (
            f"Workspace is locked but allocation from "
            f"'{self.file}:{self.line}:{self.function}' requires {self.required:.2f} MB, "
            f"current size is {self.current:.2f} MB. "
            "Workspace growth is not allowed after locking."
        )

    def traceback(self, root: str = SITE_PACKAGES, separator: str = "/") -> list[str]:
        path = separator.join([root, *self.folder.split("/"), self.file])
        manager = separator.join([root, "vllm", "v1", "worker", "workspace.py"])
        return [
            "Traceback (most recent call last):",
            f'  File "{path}", line {self.line}, in {self.function}',
            "    buffers = current_workspace_manager().get_simultaneous(",
            "              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
            f'  File "{manager}", line 110, in get_simultaneous',
            "    current_workspace = self._ensure_workspace_size(total_bytes)",
            f'  File "{manager}", line 157, in _ensure_workspace_size',
            "    raise AssertionError(",
            f"AssertionError: {self.message}",
        ]


ASSIGNED = (
    "INFO 05-05 14:00:00 [parallel_state.py:1700] rank {tp} in world size 8 is assigned as "
    "DP rank 0, PP rank 0, PCP rank 0, TP rank {tp}, EP rank N/A"
)
# How a process says who it is, by who writes it: {tp} is its rank. All but Ray's are vLLM's.
LABELS: dict[str, str] = {
    "tp": "(Worker_TP{tp} pid=10{tp})",
    "pp and tp": "(Worker_PP0_TP{tp} pid=10{tp})",
    "dp, tp and ep": "(Worker_DP1_TP{tp}_EP{tp} pid=10{tp})",
    "tp, dcp and ep": "(Worker_TP{tp}_DCP{tp}_EP{tp} pid=10{tp})",
    "ray": "(RayWorkerWrapper pid=10{tp})",
    "ray, other host": "(RayWorkerWrapper pid=101, ip=192.0.2.{tp})",
    "ray, no name": "(pid=10{tp})",
    "ray and vLLM": "(RayWorkerWrapper pid=10{tp}) (Worker_TP{tp} pid=10{tp})",
    "vLLM and ray": "(Worker_TP{tp} pid=10{tp}) (RayWorkerWrapper pid=10{tp})",
}
# Level, time, file and line as vLLM writes them (logger.py; the date's form and the path can be
# set), and whether the V2 runner's file is the one that speaks.
HEADS: dict[str, tuple[str, bool]] = {
    "time": ("ERROR 05-05 14:02:37 [core.py:1138] ", False),
    "year": ("ERROR 2026-05-05 14:02:37 [core.py:1138] ", False),
    "milliseconds": ("ERROR 05-05 14:02:37.123 [core.py:1138] ", False),
    "path": ("CRITICAL 05-05 14:02:37 [v1/engine/core.py:1138] ", False),
    "V1 runner": ("ERROR 05-05 14:02:37 [gpu_model_runner.py:520] ", False),
    "V2 runner": ("ERROR 05-05 14:02:37 [model_runner.py:520] ", True),
    "V2 runner's path": ("ERROR 05-05 14:02:37 [v1/worker/gpu/model_runner.py:520] ", True),
}


def log_lines(lines: Sequence[str], label: str, place: str = "core.py:1138") -> list[str]:
    """vLLM's own prefix on every line."""
    return [f"({label}) ERROR 05-05 14:02:37 [{place}] {line}" for line in lines]


def wrapped(lines: Sequence[str], width: int) -> list[str]:
    """A terminal's hard wrap: anywhere, also inside words."""
    return [
        line[start : start + width]
        for line in lines
        for start in range(0, max(1, len(line)), width)
    ]


def _json_lines(lines: Sequence[str]) -> list[str]:
    return [json.dumps({"level": "error", "message": line, "pod": "vllm-0"}) for line in lines]


def _json_block(lines: Sequence[str]) -> list[str]:
    text = "\n".join(lines)
    return [json.dumps({"event": "engine died", "level": "error", "exception": text})]


def _numbered(lines: Sequence[str]) -> list[str]:
    return [f"{number:6}\t{line}" for number, line in enumerate(lines, 98)]


def _grepped(lines: Sequence[str]) -> list[str]:
    return [f"logs/serve.log:{number}:{line}" for number, line in enumerate(lines, 98)]


def _journal_bytes(lines: Sequence[str]) -> list[str]:
    return [
        json.dumps({"_HOSTNAME": "gpu01", "MESSAGE": list(line.encode())}) for line in lines
    ]


def _each(form: str) -> Callable[[Sequence[str]], list[str]]:
    return lambda lines: [form.format(line) for line in lines]


def _rich_box(lines: Sequence[str]) -> list[str]:
    width = max(len(line) for line in lines)
    return [f"│ {line:<{width}} │" for line in lines]


def _html(lines: Sequence[str]) -> list[str]:
    escaped = [
        line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        .replace("'", "&#x27;").replace('"', "&quot;")
        for line in lines
    ]  # fmt: skip
    return ['<pre><code class="language-text">', *escaped, "</code></pre>"]


LAUNCHERS = ("torchrun", "mpirun", "srun")
"""Formats that name rank 3."""
FORMATS: dict[str, Callable[[Sequence[str]], list[str]]] = {
    "plain": list,
    "quoted": _each("> {}"),
    "quoted twice": _each("> > {}"),
    "indented": _each("      {}"),
    "ansi": _each("\x1b[0;36m{}\x1b[0;0m"),
    "caret ansi": _each("^[[1;31m{}^[[0m"),
    "compose": _each("vllm-1  | {}"),
    "kubectl": _each("[pod/vllm-0/server] {}"),
    "stern": _each("vllm-0 server {}"),
    "cri": _each("2026-05-05T14:02:37.123456789Z stderr F {}"),
    "journald": _each("May 05 14:02:37 gpu01 vllm[4242]: {}"),
    "journald iso": _each("2026-05-05T14:02:37+0000 gpu01 vllm[4242]: {}"),
    "compose and time": _each("vllm-1  | 2026-05-05T14:02:37.123Z {}"),
    "torchrun": _each("[rank3]: {}"),
    "crlf": _each("{}\r"),
    "numbered": _numbered,
    "json lines": _json_lines,
    "json block": _json_block,
    "journald bytes": _journal_bytes,
    "html": _html,
    "rich box": _rich_box,
    "exception group": _each("  | {}"),
}
# Forms of whole lines: what the mutations do to a text would be taken for another text here.
WHOLE_LINES: dict[str, Callable[[Sequence[str]], list[str]]] = FORMATS | {
    "mpirun": _each("[1,3]<stderr>:{}"),
    "srun": _each("3: {}"),
    "grep": _grepped,
    "tail": lambda lines: ["==> logs/serve.log <==", *lines],
}


LEARNT = ("stern",)
"""Prefixes of words that any line may begin with: a labelled line has to show them first."""


def read(text: str | bytes, given: Given | None = None, name: str = "test.log") -> Diagnosis:
    """Triage a text from memory."""
    data = text if isinstance(text, bytes) else text.encode()
    return diagnose(*parse(BytesIO(data), name), given or Given())


def log_of(finding: Finding) -> FromLog:
    """What the text adds to a finding; every finding of a text has it."""
    assert finding.log is not None
    return finding.log


def rule_of(finding: Finding) -> KnownSite:
    """The rule of a finding at a known site."""
    rule = log_of(finding).rule
    assert rule is not None
    return rule


def bound_of(finding: Finding) -> Bound:
    """The bound of a finding at a known site."""
    assert finding.bound is not None
    return finding.bound


def facts(found: Diagnosis) -> set[tuple[object, ...]]:
    """What a reader of the message would write down."""
    return {
        (f.file, log_of(f).line, f.function, log_of(f).required_text, log_of(f).current_text)
        for f in found.findings
    }


def expected(failure: Failure) -> tuple[object, ...]:
    """The same for the table's entry."""
    return (
        failure.file,
        failure.line,
        failure.function,
        f"{failure.required:.2f} MB",
        f"{failure.current:.2f} MB",
    )
