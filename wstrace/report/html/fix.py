"""The fix: the command to copy, the reserve config to download, what it costs."""

from __future__ import annotations

import base64
import shlex
from dataclasses import dataclass
from pathlib import Path

from wstrace.findings.analysed_run import AnalysedRun
from wstrace.report.html.names import clean, clean_argv
from wstrace.report.verdict import next_commands, sentence, to_mend
from wstrace.reserve.schema import ReserveConfig
from wstrace.reserve.writer import dumps
from wstrace.safe_texts.redact import redact_text
from wstrace.trace.records import Slot
from wstrace.triage.log_run import LogRun
from wstrace.units import exact

LARGEST = 64 << 10


@dataclass(frozen=True)
class Fix:
    """What to type and what it costs.

    `unknown` is the sentence of an inconclusive run, else empty; `next` is what to type then,
    and of a log.
    `download` is a data: URL; it and `config` are empty where no config can be made or where
    it is too large for the page (`too_large`).
    """

    needed: bool
    unknown: str
    next: tuple[str, ...]
    command: str
    make: str
    config: str
    download: str
    too_large: bool
    slots: tuple[tuple[str, str], ...]
    cost: tuple[tuple[str, str], ...]
    counted: bool
    note: str
    can_fail: tuple[str, ...]
    not_covered: tuple[tuple[str, str, str], ...]


def fix(run: AnalysedRun, config: ReserveConfig | None, can_fail: tuple[str, ...] = ()) -> Fix:
    """The fix for a run; without a config only the commands that make one."""
    text = redact_text(dumps(config)) if config is not None else ""
    too_large = len(text) > LARGEST
    unknown = run.verdict() == "inconclusive"
    text = "" if too_large else text
    return Fix(
        needed=bool(run.escapes or run.verdict() == "findings" or to_mend(run)),
        unknown=clean(sentence(run), 500) if unknown else "",
        next=_next(run) if unknown or isinstance(run, LogRun) else (),
        command=f"wstrace run --reserve reserve.yaml -- {_command(run)}",
        make=_make(run),
        config=text,
        download=_data_url(text),
        too_large=too_large,
        slots=_slots(config),
        cost=_cost(config),
        counted=config is None or config.cost.counted,
        note=clean(config.cost.note, 400) if config else "",
        can_fail=tuple(clean(line, 400) for line in can_fail[:20]),
        not_covered=tuple(
            (clean(n.site), clean(n.why, 300), clean(n.what_helps, 300))
            for n in (config.not_covered[:20] if config else ())
            if f"{n.site}: {n.why}" not in can_fail
        ),
    )


def _next(run: AnalysedRun) -> tuple[str, ...]:
    """The terminal's own lines; of a log those of its worst finding."""
    if isinstance(run, LogRun):
        lines = next((f.log.commands for f in run.findings if f.log), ()) or (_make(run),)
        return tuple(clean(line, 400) for line in lines)
    return tuple(clean(line, 400) for line in next_commands(run, _named(run)))


def _named(run: AnalysedRun) -> str:
    return clean(run.trace.as_typed(Path(run.trace.path.name)), 400)


def _make(run: AnalysedRun) -> str:
    name = _named(run)
    if isinstance(run, LogRun):
        return f"wstrace triage {name} --reserve reserve.yaml"
    return f"wstrace reserve {name} -o reserve.yaml"


def _command(run: AnalysedRun) -> str:
    meta = run.trace.meta
    if meta is not None:
        return clean_argv(tuple(shlex.quote(word) for word in meta.command))
    return "YOUR COMMAND"


def _data_url(text: str) -> str:
    if not text:
        return ""
    return "data:application/yaml;base64," + base64.b64encode(text.encode()).decode()


def _slots(config: ReserveConfig | None) -> tuple[tuple[str, str], ...]:
    slots = config.slots if config else ()
    named = [(Slot(s.ubatch, s.lane).text, exact(s.bytes)) for s in slots[:8]]
    return tuple(named)


def _cost(config: ReserveConfig | None) -> tuple[tuple[str, str], ...]:
    if config is None:
        return ()
    cost = config.cost
    pairs = [("memory a rank", exact(cost.bytes) if cost.bytes else "nothing more")]
    if cost.tokens is not None:
        pairs.append(("KV-cache tokens", f"{cost.tokens:,}"))
    if cost.blocks is not None:
        pairs.append(("KV-cache blocks", f"{cost.blocks:,}"))
    pairs.append(("counted in KV sizing", "yes" if cost.counted else "no"))
    return tuple(pairs)
