"""All inputs of one call together: what every output of a text is made from."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING

from wstrace.errors import WstraceError
from wstrace.findings.finding import Finding, merge, ordered
from wstrace.triage.diagnose import what_worked
from wstrace.triage.diagnose.diagnose import Diagnosis, diagnose
from wstrace.triage.extract.parser import parse
from wstrace.triage.ingest import texts, thread
from wstrace.triage.ingest.ranks import ranks_of_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wstrace.triage.diagnose.numbers import Given
    from wstrace.triage.diagnose.relatives import NotTheArena
    from wstrace.triage.diagnose.what_worked import Worked
    from wstrace.triage.extract.engine_settings import Settings, Value
    from wstrace.triage.extract.facts import Text
    from wstrace.triage.ingest.texts import Input
    from wstrace.triage.ingest.thread import Post


@dataclass(frozen=True)
class Report:
    """The findings of one or more texts, with the configuration they show."""

    paths: tuple[str, ...]
    findings: tuple[Finding, ...]
    config: dict[str, Value]
    skipped: int
    notes: tuple[str, ...]
    relatives: tuple[NotTheArena, ...] = ()
    worked: tuple[Worked, ...] = ()

    @cached_property
    def incidents(self) -> list[Finding]:
        """One finding for each incident, the worst first: the ranks of a text together, and
        those of several texts where each has its own (a log a worker)."""
        return incidents(self.findings)

    @property
    def only_relatives(self) -> bool:
        """True where the text shows no failure of the arena, but something beside it."""
        return bool(self.relatives) and not self.findings


def read(paths: Sequence[str], given: Given) -> Report:
    """Read every input once: files, folders, archives, an issue with its comments.

    WstraceError: a path that cannot be read as text, or a folder without a text.
    """
    notes: list[str] = []
    diagnoses = []
    for source in texts.texts(paths, notes):
        try:
            diagnoses += _diagnosed(source, given)
        except WstraceError as error:
            if source.alone or given.told:
                raise
            notes.append(_left_out(source, error))
    if not diagnoses:
        raise WstraceError(
            f"{', '.join(paths)} is a directory or an archive without a log.",
            "Give the server's logs.",
        )
    report = one_report(diagnoses)
    return replace(report, notes=(*report.notes, *notes))


def _left_out(source: Input, error: WstraceError) -> str:
    """Why one of many was not read, on one line: a member goes by its own name."""
    why = error.message.replace(source.path, source.name, 1) if source.part else error.message
    return f"{why.rstrip('.')}: left out"


def _diagnosed(source: Input, given: Given) -> list[Diagnosis]:
    """The diagnosis of one text; a thread's parts are read apart and told as one, and several
    issues apart from each other."""
    threads, stream = thread.threads_of(source.stream, source.path)
    if not threads:
        ranks = ranks_of_file(source.part or source.path)
        return [_of(*parse(stream, source.path, ranks), source.part, given)]
    told = [_of_thread(parts, source.path, given) for parts in threads]
    return [_in_member(one, source.part) for one in told] if source.part else told


def _in_member(told: Diagnosis, member: str) -> Diagnosis:
    """A thread that is a member of an archive: its parts are named below the member."""
    found = [
        replace(f, log=replace(f.log, part=": ".join(filter(None, (member, f.log.part)))))
        for f in told.findings
        if f.log
    ]
    worked = told.worked and replace(told.worked, part=f"{member}: {told.worked.part}")
    return replace(told, findings=found, worked=worked)


def _of_thread(parts: list[Post], path: str, given: Given) -> Diagnosis:
    told = [(part, _of_part(part, parts[0], path, given)) for part in parts]
    chosen = what_worked.one_finding(told)
    first = next((d for _, d in told if d.config), told[0][1])
    notes = dict.fromkeys(note for _, diagnosis in told for note in diagnosis.notes)
    return Diagnosis(
        path,
        chosen,
        first.config,
        sum(diagnosis.skipped for _, diagnosis in told),
        [*notes, *what_worked.others(told, chosen)],
        [] if chosen else [relative for _, d in told for relative in d.relatives],
        what_worked.what_worked(parts),
    )


def _of_part(part: Post, issue: Post, path: str, given: Given) -> Diagnosis:
    """One part. The issue's own settings hold for a comment that names none."""
    if not part.text.strip():
        return Diagnosis(path, [], {}, 0, [])
    text, settings = parse(io.BytesIO(part.text.encode()), path)
    if part.name and issue.text.strip():
        settings.before(parse(io.BytesIO(issue.text.encode()), path)[1])
    return _of(text, settings, part.label, given)


def _of(text: Text, settings: Settings, part: str, given: Given) -> Diagnosis:
    return diagnose(replace(text, part=part), settings, given)


def incidents(findings: Iterable[Finding]) -> list[Finding]:
    """Findings of several texts as incidents: a text's own are merged over ranks, and joined
    with another text's where that repeats it, or is of other ranks."""
    found: list[tuple[set[object], Finding]] = []
    texts: dict[object, list[Finding]] = {}
    for finding in findings:
        texts.setdefault(_text_of(finding), []).append(finding)
    for text, own in texts.items():
        for finding in merge(own):
            joined = next((p for p in found if text not in p[0] and _same(p[1], finding)), None)
            if joined is None:
                found.append(({text}, finding))
                continue
            texts_of, other = joined
            both = merge([other, finding])[0]
            found[found.index(joined)] = ({*texts_of, text}, both)
    return ordered(finding for _, finding in found)


def _text_of(finding: Finding) -> object:
    """A text, and the engine of it: of another one it is another incident."""
    log = finding.log
    return (log.path, log.part, log.model, log.version) if log else None


def _same(one: Finding, other: Finding) -> bool:
    """Whether two texts tell of one incident."""
    first, second = one.log, other.log
    place = (one.code, one.file, one.function, one.slot)
    if place != (other.code, other.file, other.function, other.slot):
        return False
    if first is None or second is None:
        return False
    if first.version and second.version and first.version != second.version:
        return False
    if first.model and second.model and first.model != second.model:
        return False
    if (first.required_text, first.current_text) == (
        second.required_text,
        second.current_text,
    ):
        return True
    if thread.is_issue(first.part) and thread.is_issue(second.part):
        return False
    several = bool(one.ranks and other.ranks)
    return several and set(one.ranks).isdisjoint(other.ranks)


def one_report(diagnoses: Sequence[Diagnosis]) -> Report:
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
        tuple(_once(relative for d in diagnoses for relative in d.relatives)),
        tuple(d.worked for d in diagnoses if d.worked),
    )


def _once(relatives: Iterable[NotTheArena]) -> Iterable[NotTheArena]:
    """What several ranks or texts say alike, told of all their ranks."""
    found: dict[object, NotTheArena] = {}
    for one in relatives:
        key = one.kind, one.asked, one.had, one.function, one.knob
        first = found.setdefault(key, one)
        ranks = tuple(dict.fromkeys((*first.ranks, *one.ranks)))
        found[key] = replace(first, ranks=ranks)
    return found.values()
