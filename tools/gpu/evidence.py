"""Reading what a server left: prompts, traces, verdicts, memory numbers, its log."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from wstrace.findings.analysed_run import AnalysedRun, load_run
from wstrace.runs.worker import Worker

# matches: "Workspace is locked but allocation from 'f' requires 9 MB, current size is 2 MB"
LOCKED: Final = re.compile(
    r"Workspace is locked but allocation from '(?P<caller>[^']+)' "
    r"requires (?P<required>[\d.]+) MB, current size is (?P<current>[\d.]+) MB"
)


class MissingError(Exception):
    """A file that a claim needs is not there: the run did not come so far."""


@dataclass(frozen=True)
class Evidence:
    """The folder of one server."""

    folder: Path

    def json(self, name: str) -> Any:
        """A JSON file of this server."""
        path = self.folder / name
        if not path.exists():
            raise MissingError(f"{self.folder.name}/{name} was not made")
        return json.loads(path.read_text())

    @cached_property
    def analysed(self) -> AnalysedRun:
        """The analysed trace."""
        if not (self.folder / "trace").is_dir():
            raise MissingError(f"{self.folder.name} left no trace")
        return load_run(self.folder / "trace")

    @property
    def workers(self) -> list[Worker]:
        """The workers of the trace."""
        if not self.analysed.workers:
            raise MissingError(f"{self.folder.name}: no worker was recorded")
        return self.analysed.workers

    @cached_property
    def prompts(self) -> list[tuple[int, int]]:
        """(tokens, HTTP status) in the order sent."""
        path = self.folder / "prompts.jsonl"
        if not path.exists():
            raise MissingError(f"{self.folder.name} was sent no prompt")
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        sent = [(r["tokens"], r["status"]) for r in rows if r["event"] == "prompt"]
        if not sent:
            raise MissingError(f"{self.folder.name} was sent no prompt")
        return sent

    @property
    def gate(self) -> dict[str, Any]:
        """gate.json."""
        found: dict[str, Any] = self.json("gate.json")
        return found

    @property
    def gate_exit(self) -> int:
        """The exit code of `wstrace gate`, for a server that was asked something."""
        path = self.folder / "gate.exit"
        if not self.prompts or not path.exists():
            raise MissingError(f"{self.folder.name} was not judged")
        return int(path.read_text())

    def judged(self) -> list[str]:
        """The codes of a run that reached a verdict: what lacks there, is not there."""
        if self.gate_exit not in (0, 1):
            raise MissingError(f"{self.folder.name}: inconclusive (gate exit {self.gate_exit})")
        return self.codes()

    def codes(self) -> list[str]:
        """The finding codes of the gate, sorted, each once."""
        return sorted({f["code"] for f in self.gate["findings"]})

    def locked_error(self) -> re.Match[str]:
        """vLLM's own error in the log."""
        text = (self.folder / "server.log").read_text(errors="replace")
        found = LOCKED.search(text)
        if found is None:
            raise MissingError(f"{self.folder.name}: no locked-workspace error in its log")
        return found

    def memory(self) -> dict[str, int]:
        """The witness's numbers of the first worker, bytes."""
        rows = self.json("memory.json")
        if not rows:
            raise MissingError(f"{self.folder.name}: the worker was not asked for its memory")
        first: dict[str, int] = rows[0]
        return first

    def bytes_of(self, number: str) -> int:
        """One of the witness's numbers."""
        found = self.memory().get(number)
        if found is None:
            raise MissingError(f"{self.folder.name}: this worker has no {number}")
        return found


def continuation_bytes(
    prompts: Sequence[int], *, chunk: int, block: int, heads: int, size: int, threshold: int
) -> int:
    """The largest request of prompts sent one by one, no prefix shared: plain arithmetic.

    A prompt is scheduled in chunks; each later chunk of more than `threshold` tokens asks
    for 2 buffers of heads * round_up(tokens before it, block) * size elements of 2 bytes.
    """
    largest = 0
    for prompt in prompts:
        for cached in range(chunk, prompt, chunk):
            if min(chunk, prompt - cached) > threshold:
                rounded = -(-cached // block) * block
                largest = max(largest, 2 * heads * rounded * size * 2)
    return largest
