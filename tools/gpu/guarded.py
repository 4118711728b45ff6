"""Scenarios h and h-prefix: the guard on a GPU, and their claims.

A guarded server (nothing recorded) and one that was reserved from the start answer the same
prompts, greedily, with log probabilities: text and numbers must be the same. The twin is the
guarded server recorded; the reserve is made from its trace, and the gate judges it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from tools.gpu import prompts
from tools.gpu.evidence import Evidence, MissingError
from tools.gpu.outcomes import answers, lacks, no_growth
from tools.gpu.runner import Runner, asks
from tools.gpu.servers import GpuServer
from tools.gpu.table import Claim, Outcome, claim, equal
from tools.gpu.turbo import H100, UNCHUNKED, Turbo

GUARD: Final = {"WSTRACE_GUARD": "1"}
GREW: Final = "The arena grew and the request is served"
LINE: Final = '- {"site": '
TOKENS_OUT: Final = 32
"""Long enough that most of an answer is replayed decode graphs."""


def turbo_prompts(turbo: Turbo) -> list[int]:
    """A short prompt before, between and after those that outgrow the arena."""
    grown = (turbo.deadly, turbo.middle, turbo.longest - TOKENS_OUT)
    return [turbo.short, *(n for long in grown for n in (long, turbo.short)), turbo.deadly]


def drawn(tokens: int, seed: int) -> list[int]:
    """So many token ids, drawn: in a prompt that repeats itself attention averages out."""
    return random.Random(seed).choices(range(256), k=tokens)


def guard_turbo(run: Runner, turbo: Turbo = H100) -> None:
    """h: TurboQuant's continuation prefill, locked: guarded, recorded, reserved."""
    sent = turbo_prompts(turbo)
    run.setting(scenario="h", turbo=vars(turbo), sent=sent, **run.host.facts())
    _three(run, turbo.model, turbo.arguments, [drawn(tokens, tokens) for tokens in sent])


def guard_prefix(run: Runner) -> None:
    """h-prefix: prefix caching on 0.26, whose V2 runner captures graphs and does not lock."""
    every = [*prompts.PREFIXES, prompts.PREFIXES[0], prompts.PREFIXES[-1]]
    run.setting(scenario="h-prefix", sent=every, **run.host.facts())
    longest = drawn(max(every), 0)
    sent = [longest[:tokens] for tokens in every]
    _three(run, "qwen3", UNCHUNKED, sent, "--allow-unlocked")


def _three(
    run: Runner,
    model: str,
    arguments: Sequence[str],
    sent: Sequence[Sequence[int]],
    *gate: str,
) -> None:
    guard = run.server("guard", model, arguments)
    guard.recorded = False
    twin = run.server("twin", model, arguments)
    for server in (guard, twin):
        server.env = server.env | GUARD
    run.together(*(_asks(server, sent) for server in (guard, twin)))
    run.stop()
    cured = run.reserved(twin, arguments, model)
    run.together(*(_asks(server, sent) for server in cured))
    run.stop()
    for server in (twin, *cured):
        run.attempt(f"judging {server.name}", partial(run.judge, server, *gate))


def _asks(server: GpuServer, sent: Sequence[Sequence[int]]) -> Any:
    server.tokens_out, server.log_probabilities = TOKENS_OUT, True
    return asks(server, sent)


def claims(folder: Path, setting: dict[str, Any]) -> list[Claim]:
    """All rows of scenario h or h-prefix."""
    guard, twin = Evidence(folder / "guard"), Evidence(folder / "twin")
    reserved, sent = Evidence(folder / "reserved-twin"), setting["sent"]
    rows: list[tuple[str, Callable[[], Outcome]]] = [
        (f"{ev.folder.name}: every prompt answered", partial(answers, ev, sent))
        for ev in (guard, twin, reserved)
    ]
    rows += [
        ("guard: nothing was recorded", partial(_unrecorded, guard)),
        ("guard: sites that its log tells of, once each", partial(_told, guard)),
        ("twin: arenas grew, and what captured graphs hold was kept", partial(_kept, twin)),
        _verdict(twin, setting["scenario"]),
        ("reserved: no arena grew in serving", partial(no_growth, reserved)),
        ("reserved: different prompts, different answers", partial(_differ, reserved, sent)),
        ("guard's answers are the reserved server's", partial(_same, guard, reserved, sent)),
        ("twin's answers are the reserved server's", partial(_same, twin, reserved, sent)),
    ]
    return [claim(setting["scenario"], text, check) for text, check in rows]


def _verdict(twin: Evidence, scenario: str) -> tuple[str, Callable[[], Outcome]]:
    """A growth after the lock is an escape; without one what graphs hold must have stayed."""
    if scenario == "h":
        return "twin: the gate calls it an escape", lambda: equal(1, twin.gate_exit)
    return "twin: no graph points at a freed arena (WS301)", partial(lacks, twin, "WS301")


def _unrecorded(guard: Evidence) -> Outcome:
    return equal(False, (guard.folder / "trace").exists())


def _told(guard: Evidence) -> Outcome:
    log = (guard.folder / "server.log").read_text(errors="replace")
    grown = [line for line in log.splitlines() if GREW in line]
    names = [line.partition("'")[2].partition("'")[0] for line in grown]
    once = len(set(names)) == len(names) and log.count(LINE) == len(names)
    return "each once, each with its line", sorted(names), bool(names) and once


def _kept(twin: Evidence) -> Outcome:
    growths = [g for v in twin.workers for g in v.growths if g.forced]
    captures = sum(not c.throwaway for v in twin.workers for c in v.captures)
    kept = max((g.kept_bytes for g in growths), default=0)
    found = f"{len(growths)} growths, {captures} captures, {kept:,} bytes kept"
    held = kept > 0 if captures else kept == 0
    return "growths; bytes kept where graphs were captured", found, bool(growths) and held


def _same(one: Evidence, other: Evidence, sent: Sequence[int]) -> Outcome:
    """The same text, and log probabilities equal in every printed digit, prompt by prompt."""
    found, wanted = answers_of(one), answers_of(other)
    if len(found) < len(sent) or len(wanted) < len(sent):
        raise MissingError("not every prompt had an answer on both")
    equal_ones = [a == b for a, b in zip(found, wanted, strict=True)]
    numbers = sum(len(json.dumps(answer).split("-")) - 1 for answer in wanted)
    told = f"{sum(equal_ones)} of {len(sent)} answers, {numbers:,} log probabilities"
    return "all of them, to the last digit", told, all(equal_ones)


def _differ(ev: Evidence, sent: Sequence[int]) -> Outcome:
    """Else equal answers would say nothing."""
    found = len({json.dumps(answer) for answer in answers_of(ev)})
    return f"at least {len(set(sent))}", found, found >= len(set(sent))


def answers_of(ev: Evidence) -> list[Any]:
    """The choices of every answered prompt, in the order sent."""
    path = ev.folder / "answers.jsonl"
    if not path.exists():
        raise MissingError(f"{ev.folder.name} left no answers")
    return [json.loads(line) for line in path.read_text().splitlines()]
