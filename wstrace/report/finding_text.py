"""Findings as lines of text: what every report of people says, from a trace or from a log."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Final

from wstrace.bounds.bound import Bound, CallerWay
from wstrace.errors import with_stop
from wstrace.findings.finding import UNNUMBERED, Finding, FromLog, Sibling
from wstrace.report.pages import page_url
from wstrace.report.safe import clean
from wstrace.runs.lock_epochs import Outcome
from wstrace.runs.run import RunSite
from wstrace.runs.worker import NAMED_BY, Worker, rank_name
from wstrace.trace.records import Ranks, ScheduledRequest, Slot, Step
from wstrace.triage.diagnose.advice import is_older
from wstrace.triage.redaction import redact
from wstrace.units import exact, human, plural

# matches: 'config.json num_kv_heads or n_head_kv'
_FURTHER_KEYS = re.compile(r"(config\.json [\w.]+)(?: or [\w.]+)+")
MAX_LINE = 600
MAX_WAYS = 8


REPLAYED = "unknown (replayed)"
"""What every output says of serving, of a site whose requests stand in captured graphs."""


def asked_text(size: int | None, nothing: str = "-") -> str:
    """The largest request of a time; `nothing` (in a table a dash) where none was made."""
    return human(size) if size else nothing


def serving_text(site: RunSite) -> str:
    """What a site asked from the lock on; REPLAYED where that cannot be known."""
    return asked_text(site.serving_bytes, REPLAYED if site.replayed else "-")


def slot_text(slot: Slot | None) -> str:
    """`ubatch 0, lane 1`; empty for the only slot there usually is."""
    return "" if slot is None or slot == Slot() else slot.text


def locked_text(workers: Iterable[Worker], written: Callable[[int], str]) -> str:
    """`locked at 64.00 KiB, 1.00 MiB`, each size once over slots and ranks."""
    workers = list(workers)
    sizes = sorted({s for worker in workers for s in worker.once_locked_sizes.values()})
    if not sizes:
        return "never locked"
    # one rank that is locked still says more than those that are not
    let_go = "" if any(worker.locked_sizes for worker in workers) else ", unlocked since"
    return f"locked at {', '.join(map(written, sizes))}{let_go}"


OUTGREW = "grew the arena, which nothing locked"
OUTCOMES: Final[dict[Outcome, str]] = {
    "escaped": "escaped",
    "outgrew": OUTGREW,
    "latent": "latent escape",
    "warmed": "warmed",
    "before": "warm-up only",
}
"""What became of a site, in words."""
"""A request that outgrew an arena in serving and is no escape."""


def layers_text(finding: Finding) -> str:
    """`layers.0.attn and 3 more`; empty where no layer is known."""
    if not finding.layers:
        return ""
    more = f" and {len(finding.layers) - 1} more" if len(finding.layers) > 1 else ""
    return clean(finding.layers[0]) + more


def why(bound: Bound) -> str:
    """`it grows with num_computed_tokens (at most max_model_len - 1)`."""
    drivers = [f"{name} (at most {limit})" for name, limit in bound.drivers.items()]
    return "it grows with " + " and ".join(drivers) if drivers else bound.why


def ranks_text(ranks: Sequence[Ranks], world: Ranks | None = None) -> str:
    """The first eight ranks by name, and how many more there are; without the sizes of the
    groups in `world`, by what tells them apart."""
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    groups = [group for group in NAMED_BY if any(getattr(r, group) for r in ranks)]
    named = [rank_name(r, world) or _named(r, groups) for r in ranks[:8]]
    return ", ".join(named) + more


def ranks_line(finding: Finding) -> str:
    """`ranks: tp0, tp1`, `rank: tp1`; empty where one rank is all there is."""
    if len(finding.ranks) > 1:
        return f"ranks: {ranks_text(finding.ranks, finding.world)}"
    alone = "".join(rank_name(ranks, finding.world) for ranks in finding.ranks)
    return f"rank: {alone}" if alone else ""


def _named(ranks: Ranks, groups: Sequence[str]) -> str:
    named = [(group, getattr(ranks, group)) for group in groups]
    told = " ".join(f"{g}{value}" for g, value in named if value is not None)
    return told or _numbered(ranks)


def _numbered(ranks: Ranks) -> str:
    """`node 1 rank 0`, of a text that has no more; of a trace there is one rank then."""
    if any(getattr(ranks, group) is not None for group in NAMED_BY):
        return "rank 0"
    numbers = (("node", ranks.node), ("rank", ranks.rank))
    return " ".join(f"{name} {n}" for name, n in numbers if n is not None) or "rank 0"


def step_text(step: Step | None) -> str:
    """What the scheduler had in the step: `step 12: 256 tokens of 1 request, 3840 computed`."""
    if step is None:
        return ""
    name = "" if step.index == UNNUMBERED else f"step {step.index}"
    if not step.requests:
        return f"{name or 'a step'} ({step.kind}): {step.total_tokens} tokens"
    longest = max(step.requests, key=lambda r: r.computed)
    count = plural(step.num_reqs, "request")
    return (
        f"{name and name + ': '}{step.total_tokens} tokens of {count}, "
        f"longest {_request_text(longest)}"
    )


def _request_text(request: ScheduledRequest) -> str:
    return f"{request.computed} computed + {request.scheduled} scheduled"


def evidence(finding: Finding) -> list[str]:
    """The facts of a finding, one a line, without its title; safe for a terminal.

    The last is the address of the code's page, where one is set.
    """
    page = page_url(finding.code)
    told = [*_facts(finding), *([f"see: {page}"] if page else [])]
    return [clean(line, MAX_LINE) for line in told]


def _facts(finding: Finding) -> list[str]:
    lines = [with_stop(finding.detail[:1].upper() + finding.detail[1:])]
    if layers := layers_text(finding):
        lines.append(f"layer: {layers}")
    if slot_text(finding.slot):
        lines.append(f"slot: {slot_text(finding.slot)}")
    if ranks := ranks_line(finding):
        lines.append(ranks)
    if finding.step is not None:
        lines.append(f"when: {finding.phase}, {step_text(finding.step)}")
    if finding.log is not None:
        return lines + [f"{name}: {value}" for name, value in of_log(finding, finding.log)]
    bound = finding.bound
    if bound is not None and bound.drivers:
        lines.append(f"why: {why(bound)}")
    lines += [f"made by: {statement}" for statement in finding.statements[1:4]]
    if bound is not None and bound.bytes is not None:
        lines.append(f"can need: {exact(bound.bytes)}, {bound.grade}")
        lines.append(f"formula: {bound.formula}" if bound.formula else f"because: {bound.why}")
        lines += [f"way: {way_text(way)}" for way in bound.ways[:MAX_WAYS]]
    return lines


def way_text(way: CallerWay) -> str:
    """`from impl.py:18:Impl.decode: 64.00 KiB with num_reqs * 1024, asked 8.00 KiB`."""
    where = way.callers[0].rpartition("/")[2] if way.callers else ", ".join(way.types)
    asked = f"asked {human(way.observed)}"
    return f"from {where}: {human(way.bytes)} with {way.formula}, {asked}"


def sizes(finding: Finding) -> str:
    """`warm-up 66.25 KiB, serving 512.00 KiB, arena 66.25 KiB`."""
    pairs = (
        ("warm-up", finding.warmup_bytes, "nothing"),
        ("serving", finding.serving_bytes, "nothing"),
        ("arena", finding.arena_bytes, "0 B"),
    )
    told = [(name, asked_text(size, none)) for name, size, none in pairs if size is not None]
    return ", ".join(f"{name} {text}" for name, text in told)


def of_log(finding: Finding, log: FromLog) -> Iterator[tuple[str, str]]:
    """What a text and the site's rule add to a finding, as names and values."""
    sure = "" if log.confidence == "certain" else f"({log.confidence}) "
    yield "why", f"{sure}{log.why}"
    yield "seen", _seen(finding, log)
    yield "can need", need_text(finding)
    if log.rule is not None:
        if log.rule.lever.flag:
            yield "moved by", f"{log.rule.lever.flag}: {log.rule.lever.effect}"
        yield from (("not by", f"{flag.flag}: {flag.why}") for flag in log.rule.not_levers)
    yield from (("fails next", _next(sibling)) for sibling in log.siblings)
    if log.fixed_in:
        yield "fixed in", fixed_text(log)
    yield from (("evidence", told) for told in log.evidence)
    yield from (("see", link) for link in (log.rule.links[:1] if log.rule else ()))


def _next(sibling: Sibling) -> str:
    """`turboquant_attn.py:_decode_attention: vLLM reserves nothing ...; at most 18 MiB`."""
    bound, choice = sibling.bound, sibling.rule.choice
    where = f", with {choice}" if choice else ""
    if bound.bytes is not None:
        need = f"it can need at most {exact(bound.bytes)}"
    else:
        need = bound.contradiction or f"its bound needs {', '.join(bound.needs)}"
    return f"{sibling.site}{where}: {sibling.why}; {need}"


def _seen(finding: Finding, log: FromLog) -> str:
    """`line 181 of server.log, vllm/v1/attention/backends/mla.py, tp1, 3 times`."""
    name = "stdin" if log.path == "-" else PurePath(log.path).name
    place = redact(f"{log.part} of {name}" if log.part else name)
    ranks = ranks_text(finding.ranks) if len(finding.ranks) == 1 else ""
    times = f"{log.times} times" if log.times > 1 else ""
    return ", ".join(filter(None, (f"line {log.at} of {place}", log.module, ranks, times)))


def need_text(finding: Finding) -> str:
    """The worst case in words: bytes and grade, or what is missing, or that none is known."""
    bound = finding.bound
    if bound is not None and bound.bytes is not None:
        assumed = f"; {'; '.join(bound.assumed)}" if bound.assumed else ""
        return f"at most {exact(bound.bytes)}, {bound.grade}{assumed}"
    if finding.row.resource:
        return "no bytes of the arena: an object made before the lock, once in each slot"
    if not finding.file and finding.serving_bytes is None:
        return "not known: the text names no layer"
    if bound is None:
        return (
            "not known: no rule for this site. It may grow with --max-num-batched-tokens, "
            "--max-num-seqs or --max-model-len; a trace tells which and how far"
        )
    if bound.contradiction:
        return f"not known: {bound.contradiction}"
    return _missing(finding, bound.needs)


def _missing(finding: Finding, needs: Sequence[str]) -> str:
    if not needs:
        return "not known for this site"
    names = finding.log.rule.names if finding.log and finding.log.rule else ()
    places = {name.name: _FURTHER_KEYS.sub(r"\1", name.where()) for name in names}
    told = [f"{name} ({places.get(name, f'--set {name}=N')})" for name in needs[:4]]
    more = f" and {len(needs) - 4} more" if len(needs) > 4 else ""
    return f"a number that takes {'; '.join(told)}{more}"


def fixed_text(log: FromLog) -> str:
    """The fixed version, and what it leaves open for one that has it."""
    rule, version = log.rule, log.version
    if is_older(version, log.fixed_in) or rule is None:
        here = f" (this is {version})" if version else ""
        cover = rule.cover(log.fixed_in) if rule else None
        gap = f"; it leaves open: {cover.gap}" if cover and cover.gap else ""
        return f"{log.fixed_in}{here}{gap}"
    cover = rule.cover(version)
    left = f"what it leaves open is {cover.gap}" if cover and cover.gap else ""
    return f"{log.fixed_in}, and this is {version}: {left or 'a trace tells what is left open'}"


def block(finding: Finding, width: int) -> list[str]:
    """A finding as plain lines of at most `width` columns; commands and links stay whole."""
    place = clean(finding.named or finding.where)
    head = f"{finding.code} {finding.severity}: {place}: {finding.title}"
    lines = textwrap.wrap(head, width, subsequent_indent="  ", break_long_words=False)
    for line in evidence(finding):
        whole = line.startswith("see: ")
        lines += [f"  {line}"] if whole else _wrapped(line, width)
    commands = finding.log.commands if finding.log else (finding.advice,)
    return [*lines, *(f"  do: {command}" for command in commands if command)]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent="  ",
        subsequent_indent="      ",
        break_long_words=False,
        break_on_hyphens=False,
    )
