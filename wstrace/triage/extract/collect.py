"""Gather facts in bounded space: the same fact again only counts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from wstrace.triage.extract.facts import (
    Captured,
    Fault,
    KvMemory,
    LockState,
    Mention,
    Refusal,
    Relative,
    Resize,
    Stage,
    StepDump,
    Text,
)

if TYPE_CHECKING:
    from collections.abc import Hashable

    from wstrace.triage.extract.facts import Fact

MOST: Final = 2000
STEPS: Final = 100


class Collector:
    """Facts by kind; each distinct one once, where it was first seen."""

    def __init__(self, path: str) -> None:
        self.v2_runner = False
        self._path = path
        self._facts: dict[type, dict[Hashable, Any]] = {}
        self._steps: list[StepDump] = []
        self._stages: list[Stage] = []
        self._mentions = 0
        self._capped = False

    def add(self, fact: Fact) -> None:
        """Take in a fact. Past MOST distinct ones of a kind further ones are dropped."""
        if isinstance(fact, Mention):
            self._mentions += 1
            return
        if isinstance(fact, StepDump):
            _keep(self._steps, fact)
            return
        if isinstance(fact, Stage):
            _keep(self._stages, fact)
            return
        known = self._facts.setdefault(type(fact), {})
        key = _key(fact)
        if key in known:
            if isinstance(fact, Refusal):
                known[key] = replace(known[key], times=known[key].times + 1)
        elif len(known) < MOST:
            known[key] = fact
        else:
            self._capped = True

    def text(self) -> Text:
        """All facts, each kind in the order of its lines."""
        notes = []
        if self._capped:
            notes.append(f"more than {MOST} different facts of one kind: the rest is left out")
        return Text(
            self._path,
            refusals=self._sorted(Refusal),
            resizes=self._sorted(Resize),
            locks=self._sorted(LockState),
            kv=self._sorted(KvMemory),
            faults=self._sorted(Fault),
            captured=self._sorted(Captured),
            stages=sorted(self._stages, key=lambda stage: stage.origin.at),
            relatives=self._sorted(Relative),
            steps=sorted(self._steps, key=lambda step: step.origin.at),
            mentions=self._mentions,
            v2_runner=self.v2_runner,
            notes=notes,
        )

    def _sorted(self, kind: type[Any]) -> list[Any]:
        return sorted(self._facts.get(kind, {}).values(), key=lambda fact: fact.origin.at)


def _keep(kept: list[Any], fact: Fact) -> None:
    """The first and the last ones are kept: a failure is beside one of them."""
    kept.append(fact)
    if len(kept) > 2 * STEPS:
        del kept[STEPS]


def _key(fact: Fact) -> Hashable:
    stream = fact.origin.stream
    if isinstance(fact, Refusal):
        return fact.identity, fact.origin.ranks, fact.lane
    if isinstance(fact, Resize):
        sizes = fact.before.text, fact.after.text
        return fact.file, fact.function, sizes, fact.ubatch, fact.lane, stream
    if isinstance(fact, LockState):
        return stream, fact.locked, fact.sizes
    if isinstance(fact, KvMemory):
        return stream, fact.text
    if isinstance(fact, Relative):
        return stream, fact.kind, fact.name, fact.first, fact.second
    if isinstance(fact, Fault):
        return stream, fact.kind
    return stream
