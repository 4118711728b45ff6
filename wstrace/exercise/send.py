"""Send the corners' requests to a running server, until one kills it or time is up."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from wstrace.errors import FOUND
from wstrace.exercise.client import Answer, Client, Model
from wstrace.exercise.corners import Call, Corner

Clock = Callable[[], float]
FIRST_ANSWER_SECONDS: Final = 10.0


@dataclass(frozen=True)
class Sent:
    """A corner with its answers, in the order of its calls; fewer when time was up."""

    corner: Corner
    answers: tuple[Answer, ...]

    @property
    def failed(self) -> bool:
        """True when an answer was 5xx or did not come."""
        return any(a.status == 0 or a.status >= 500 for a in self.answers)

    @property
    def complete(self) -> bool:
        """True when every call of the corner was answered with 200."""
        return len(self.answers) == len(self.corner.calls) and all(a.ok for a in self.answers)

    @property
    def statuses(self) -> str:
        """`24 x 200`, `3 x 200, 1 x 500`, `1 x none`, `not sent`."""
        seen = Counter(a.status for a in self.answers)
        parts = [f"{n} x {status or 'none'}" for status, n in sorted(seen.items())]
        missing = len(self.corner.calls) - len(self.answers)
        return ", ".join(parts + ([f"{missing} not sent"] if missing else []))


@dataclass(frozen=True)
class Outcome:
    """What was sent, and how it ended."""

    model: Model
    sent: tuple[Sent, ...]
    died: bool = False
    out_of_time: bool = False

    @property
    def exit_code(self) -> int:
        """0 when every call was answered with 200, else 1."""
        return 0 if all(sent.complete for sent in self.sent) else FOUND

    @property
    def sentence(self) -> str:
        """How it ended, in one line."""
        calls = sum(len(s.answers) for s in self.sent)
        if self.exit_code == 0:
            return f"all {calls} requests were answered"
        bad = next((s for s in self.sent if s.failed), None)
        if bad is not None and not self.out_of_time:
            how = "the server died" if self.died else "the server failed"
            return f"{how} in corner {bad.corner.name!r}: {_first_text(bad)}"
        if self.out_of_time:
            return f"time was up after {calls} requests: --max-seconds"
        refused = next(s for s in self.sent if not s.complete)
        return f"corner {refused.corner.name!r} was refused: {_first_text(refused)}"


def _first_text(sent: Sent) -> str:
    worst = max(sent.answers, key=lambda a: (a.status == 0, a.status))
    return f"HTTP {worst.status or 'none'} {worst.text}".rstrip()


def exercise(
    client: Client,
    model: Model,
    corners: list[Corner],
    max_seconds: float,
    clock: Clock = time.monotonic,
    told: Callable[[Sent], None] = lambda sent: None,
) -> Outcome:
    """Send the corners in order; stop at the first failure and when `max_seconds` are over.

    `told` is called with each corner that was sent.
    """
    end = clock() + max_seconds
    sent: list[Sent] = []
    for corner in corners:
        answers = tuple(_send(client, model, corner, end, clock))
        sent.append(Sent(corner, answers))
        told(sent[-1])
        if sent[-1].failed:
            break
    rest = [Sent(corner, ()) for corner in corners[len(sent) :]]
    failed = any(s.failed for s in sent)
    died = failed and not client.healthy()
    late = clock() >= end and not died
    return Outcome(model, (*sent, *rest), died, late)


def _send(
    client: Client, model: Model, corner: Corner, end: float, clock: Clock
) -> Iterator[Answer]:
    def ask(call: Call) -> Answer:
        return client.complete(model, call, max(end - clock(), 0.1))

    if corner.together:
        if clock() < end:
            with ThreadPoolExecutor(len(corner.calls)) as pool:
                yield from pool.map(ask, corner.calls)
        return
    for call in corner.calls:
        if clock() >= end:
            return
        answer = ask(call)
        yield answer
        if not answer.ok:
            return
