"""One finding for a thread, and the comment that says what worked."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from wstrace.triage.extract.stated import says_it_failed, says_it_worked
from wstrace.triage.redaction import redact

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wstrace.findings.finding import Finding
    from wstrace.triage.diagnose.diagnose import Diagnosis
    from wstrace.triage.ingest.thread import Post

_LONGEST: Final = 200
_CONFIDENCE: Final = {"certain": 2, "likely": 1, "possible": 0}
# matches: '--max-num-seqs 8'
_SETTING: Final = re.compile(
    r"(?<![\w-])--[a-z][\w-]+(?:[`\"']? (?:down |up )?to [`\"']?\d[\w.,]*"
    r"|[= ]\d[\w.,]*|=[\w./-]+| (?:[A-Z][A-Z0-9_]{2,}|auto|none|fp8\w*"
    r"|b?float16)\b)?"
    r"|\b(?:VLLM|WSTRACE)_[A-Z0-9_]+=[\w./-]+"
    r"|\bmax_[a-z_]+ ?= ?\d[\w,]*"
    r"|\b(?:gpu_memory_utilization|enforce_eager) ?= ?[\w.]+"
    r"|\bv?0\.\d{2}\.\d+[\w.+]*|\bnightly\b|(?<![\w/])\#\d{4,6}\b"
)
# matches: 'that may help'
_MAY: Final = re.compile(
    r"(?i)\b(?:should|might|may|could|would|maybe|perhaps|hopefully|try|trying|wait)\b|\?"
)
# matches: 'A did not help, but B did'
_BUT: Final = re.compile(r"(?i),?\s+\b(?:but|however|although|while)\b,?\s+|;\s+")
# matches: 'it still crashes'
_WENT_WRONG: Final = re.compile(
    r"(?i)\b(?:crash\w*|fail\w*|die[sd]?|dead|breaks?|broke|still|again|help\w*|work\w*)\b"
)
# matches: 'Fixed it. Thanks'
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+|\n+")


@dataclass(frozen=True)
class Worked:
    """What somebody says worked: where, which settings or releases, and the sentence."""

    part: str
    settings: tuple[str, ...]
    says: str
    url: str = ""


def one_finding(told: Sequence[tuple[Post, Diagnosis]]) -> list[Finding]:
    """The thread's failure: the surest with sizes, the issue's own before a comment's.

    It carries every rank of the same site and how often the thread shows it.
    """
    found = [finding for _, diagnosis in told for finding in diagnosis.findings]
    if not found:
        return []
    first = max(found, key=_weight)
    same = [f for f in found if (f.code, f.where) == (first.code, first.where)]
    assert first.log is not None
    times = sum(finding.log.times for finding in same if finding.log)
    ranks = tuple(dict.fromkeys(rank for finding in same for rank in finding.ranks))
    return [replace(first, ranks=ranks, log=replace(first.log, times=times))]


def _weight(finding: Finding) -> tuple[int, int, int]:
    log = finding.log
    sure = _CONFIDENCE[log.confidence] if log else 0
    return sure, finding.serving_bytes is not None, finding.arena_bytes is not None


def others(told: Sequence[tuple[Post, Diagnosis]], chosen: Sequence[Finding]) -> list[str]:
    """A note for each other site that the thread shows."""
    known = {(finding.code, finding.where) for finding in chosen}
    notes: dict[tuple[str, str], str] = {}
    for part, diagnosis in told:
        for finding in diagnosis.findings:
            where = finding.code, finding.where
            if where not in known:
                size = finding.log.required_text if finding.log else None
                said = (
                    f"{part.label or 'the issue'} shows {finding.code} at {finding.where} too"
                )
                notes.setdefault(where, said + (f" ({size})" if size else ""))
    return list(notes.values())


def what_worked(parts: Sequence[Post]) -> Worked | None:
    """The comment that says so with a setting or a release, the last of these; else the last
    that says so at all."""
    found = [worked for part in parts for worked in _said(part)]
    if not found:
        return None
    return max(enumerate(found), key=lambda pair: (bool(pair[1].settings), pair[0]))[1]


def _said(part: Post) -> Iterator[Worked]:
    text = "\n".join(
        line for line in part.text.split("\n") if not line.lstrip().startswith(">")
    )
    for sentence in _SENTENCE.split(text):
        sentence = _last_word(_BUT.split(sentence))
        if not says_it_worked(sentence) or _MAY.search(sentence):
            continue
        own = _settings(sentence)
        settings = own or (_not_failed(text) if part.name else ())
        if part.name or own:
            says = redact(" ".join(sentence.split()))[:_LONGEST]
            yield Worked(part.label or "the issue", settings, says, part.url)


def _not_failed(text: str) -> tuple[str, ...]:
    """The settings of a text, but for those of sentences that say that it failed with them."""
    kept = (s for s in _SENTENCE.split(text) if not says_it_failed(s))
    return _settings("\n".join(kept))


def _last_word(clauses: Sequence[str]) -> str:
    """The last clause that says how it went: `it works, but I do not know why`."""
    said = (c for c in reversed(clauses) if says_it_worked(c) or _WENT_WRONG.search(c))
    return next(said, clauses[-1])


def _plain(setting: str) -> str:
    """The setting as it is typed: `--max-model-len` to 4096 is `--max-model-len 4096`."""
    # matches: "` to 4096"
    setting = re.sub(r"[`\"']? (?:down |up )?to [`\"']?(?=\d)", " ", setting)
    return " ".join(setting.split()).rstrip(".,")


def _settings(text: str) -> tuple[str, ...]:
    found = (_plain(match.group()) for match in _SETTING.finditer(text))
    return tuple(dict.fromkeys(redact(setting) for setting in found))
