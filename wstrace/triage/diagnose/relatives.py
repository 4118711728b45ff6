"""What a text shows that is not the arena: each with its own size and its own knob."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from wstrace.bounds.by_rule import rule_bound
from wstrace.known_sites import known
from wstrace.trace.records import Ranks
from wstrace.triage.diagnose.numbers import values
from wstrace.triage.diagnose.symptoms import kernel_frame
from wstrace.triage.extract import tracebacks
from wstrace.triage.extract.facts import Fault, Frame
from wstrace.triage.redaction import redact
from wstrace.units import exact
from wstrace.vllm.limits import NUMBERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from wstrace.findings.finding import Finding
    from wstrace.triage.diagnose.numbers import Given
    from wstrace.triage.extract.engine_settings import Settings
    from wstrace.triage.extract.facts import (
        Relative,
        RelativeKind,
        Resize,
        Text,
    )

TITLES: Final[dict[RelativeKind, str]] = {
    "flashinfer_buffer": "FlashInfer's own workspace buffer is too small",
    "kernel_scratch": "memory ran out in a kernel's own scratch",
    "no_manager": "a layer asked where no WorkspaceManager was made",
    "fitted_context": "a reservation was made for a longer context than the one that serves",
}
_BUFFER: Final = "flashinfer_workspace_bytes"
_MEBI: Final = 1 << 20


@dataclass(frozen=True)
class NotTheArena:
    """A failure or a loss that looks like the arena's. Sizes are bytes, None where unknown.

    `asked` is what was wanted, `had` what there was; `knob` is what to set: a flag of vLLM or
    an environment variable.
    """

    kind: RelativeKind
    path: str
    at: int
    why: str
    knob: str
    asked: int | None = None
    had: int | None = None
    file: str = ""
    function: str = ""
    ranks: tuple[Ranks, ...] = ()

    @property
    def title(self) -> str:
        """What it is, in a few words."""
        return TITLES[self.kind]


def relatives(
    text: Text, settings: Settings, given: Given, findings: Sequence[Finding]
) -> list[NotTheArena]:
    """Each relative once, in the order of the text."""
    found = [*_said(text, settings, given), *_scratch(text, findings)]
    once: dict[object, NotTheArena] = {}
    for one in sorted(found, key=lambda one: one.at):
        once.setdefault((one.kind, one.asked, one.had, one.function), one)
    return list(once.values())


def _said(text: Text, settings: Settings, given: Given) -> Iterator[NotTheArena]:
    for fact in text.relatives:
        numbers = values(settings.resolve(fact.origin.line), given, settings.model())
        if fact.kind == "flashinfer_buffer":
            yield _flashinfer(text, fact, numbers)
        elif fact.kind == "no_manager":
            yield _no_manager(text, fact)
        elif fact.kind == "fitted_context":
            yield from _fitted(text, fact, numbers)


def _flashinfer(text: Text, fact: Relative, numbers: Mapping[str, int]) -> NotTheArena:
    """FlashInfer cuts its allocations out of one buffer: what lacks is added to its size."""
    asked, left = fact.first, fact.second
    if asked is None:
        why = "FlashInfer's kernels have a buffer of their own: no lock, and no reserve helps."
        return _of(text, fact, why, f"{NUMBERS[_BUFFER].env}=BYTES")
    default = NUMBERS[_BUFFER].default
    buffer = numbers.get(_BUFFER, default if isinstance(default, int) else 0)
    need = buffer + asked - (left or 0)
    if fact.name == NUMBERS[_BUFFER].env:
        need, buffer = asked, left or buffer
    size = -(-need // _MEBI) * _MEBI
    had = f"{exact(left)} were left" if left is not None else "less was left"
    why = (
        f"FlashInfer's kernels cut their scratch out of a buffer of their own, of "
        f"{exact(buffer)}: {exact(asked)} were asked for and {had}. It is not the arena: no "
        "lock, and no reserve helps."
    )
    return _of(text, fact, why, f"{NUMBERS[_BUFFER].env}={size}", asked, left)


def _no_manager(text: Text, fact: Relative) -> NotTheArena:
    frame = tracebacks.caller(fact.frames)
    why = (
        "vLLM's worker makes the WorkspaceManager in init_device. This process made none: the "
        "layer ran outside a worker, in a worker of another kind, or after a shutdown. No size "
        "and no reserve helps."
    )
    return _of(
        text, fact, why, "init_workspace_manager(device) before the layer runs", frame=frame
    )


def _fitted(text: Text, fact: Relative, numbers: Mapping[str, int]) -> Iterator[NotTheArena]:
    """Only beside something that was reserved before: alone the line is a healthy start's."""
    before = [r for r in text.resizes if r.origin.line < fact.origin.line]
    told = fact.name.lower() == "reserved"
    if not fact.first or not fact.second or not (before or told):
        return
    largest = max(before, key=lambda r: r.after.bytes or 0, default=None)
    had = (largest.after.bytes if largest else None) or None
    need = _need(largest, {**numbers, "max_model_len": fact.second}) if largest else None
    why = (
        f"The reservation was made for {fact.first:,} tokens, before the context was fitted to "
        f"{fact.second:,}: the KV cache pays for what no request can need. Nothing fails."
    )
    knob = f"--max-model-len {fact.second}"
    yield _of(text, fact, why, knob, need, had, _frame(largest))


def _need(resize: Resize, numbers: Mapping[str, int]) -> int | None:
    site = known.match(resize.file or "", resize.function or "")
    return rule_bound(site, numbers).bytes if site else None


def _frame(resize: Resize | None) -> Frame | None:
    if resize is None or not resize.file:
        return None
    return Frame(resize.file, resize.line or 0, resize.function or "")


def _scratch(text: Text, findings: Sequence[Finding]) -> Iterator[NotTheArena]:
    for fault in text.faults:
        frame = None if findings else kernel_frame(text, fault)
        if frame is None:
            continue
        why = (
            f"Memory ran out below this layer, in a kernel's own call ({_inner(fault)}): not "
            "the arena. Its scratch grows with the tokens of a step."
        )
        knob = "--max-num-batched-tokens N   (a smaller N than now), or leave more memory free"
        yield _of(text, fault, why, knob, fault.tried_bytes, fault.free_bytes, frame)


def _inner(fault: Fault) -> str:
    frame = fault.frames[-1]
    return f"{tracebacks.base(frame.path)}:{frame.function}"


def _of(
    text: Text,
    fact: Relative | Fault,
    why: str,
    knob: str,
    asked: int | None = None,
    had: int | None = None,
    frame: Frame | None = None,
) -> NotTheArena:
    return NotTheArena(
        "kernel_scratch" if isinstance(fact, Fault) else fact.kind,
        text.path,
        fact.origin.line,
        redact(why),
        knob,
        asked,
        had,
        redact(tracebacks.base(frame.path)) if frame else "",
        redact(frame.function) if frame else "",
        (fact.origin.ranks,) if fact.origin.ranks != Ranks() else (),
    )
