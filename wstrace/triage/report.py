"""All inputs of one call together: what every output of a text is made from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from wstrace.triage.diagnose.diagnose import Diagnosis, diagnose
from wstrace.triage.extract.parser import parse_file
from wstrace.triage.ingest import opening

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wstrace.findings.finding import Finding
    from wstrace.triage.diagnose.numbers import Given
    from wstrace.triage.diagnose.relatives import NotTheArena
    from wstrace.triage.extract.engine_settings import Value


@dataclass(frozen=True)
class Report:
    """The findings of one or more texts, with the configuration they show."""

    paths: tuple[str, ...]
    findings: tuple[Finding, ...]
    config: dict[str, Value]
    skipped: int
    notes: tuple[str, ...]
    relatives: tuple[NotTheArena, ...] = ()

    @property
    def only_relatives(self) -> bool:
        """True where the text shows no failure of the arena, but something beside it."""
        return bool(self.relatives) and not self.findings


def read(paths: Sequence[str], given: Given) -> Report:
    """Read every input once. WstraceError: a path that cannot be read as text."""
    opening.check_paths(paths)
    return combine([diagnose(*parse_file(path), given) for path in paths])


def combine(diagnoses: Sequence[Diagnosis]) -> Report:
    """One report of several texts; of one name the first text's value is shown."""
    config: dict[str, Value] = {}
    for diagnosis in diagnoses:
        config = {**diagnosis.config, **config}
    several = len(diagnoses) > 1
    notes = [
        f"{PurePath(d.path).name}: {note}" if several else note
        for d in diagnoses
        for note in d.notes
    ]
    return Report(
        tuple(d.path for d in diagnoses),
        tuple(finding for d in diagnoses for finding in d.findings),
        config,
        sum(d.skipped for d in diagnoses),
        tuple(notes),
        tuple(relative for d in diagnoses for relative in d.relatives),
    )
