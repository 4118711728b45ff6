"""Scenario a's claims: the crash, what growing finds, the reserve, the cure, the price."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from tools.gpu.evidence import Evidence, MissingError, continuation_bytes
from tools.gpu.outcomes import shown
from tools.gpu.table import Claim, Outcome, claim, equal

MIB: Final = 1 << 20
GRANULE: Final = 2 * MIB
SEGMENT: Final = 20 * MIB
TOLERANCE: Final = SEGMENT + 2 * GRANULE
SOURCES: Final = ("grow", "grow-6000")
Row = tuple[str, Callable[[], Outcome]]


def crash_claims(folder: Path, setting: dict[str, Any]) -> list[Claim]:
    """All rows of scenario a."""
    turbo = setting["turbo"]
    crash = Evidence(folder / "crash")
    rows = _crash(crash, turbo) + _grow(Evidence(folder / "grow"), turbo)
    for name in SOURCES:
        source = Evidence(folder / name)
        reserved = Evidence(folder / f"reserved-{name}")
        rows += _reserve(source, turbo) + _cure(reserved, turbo)
        rows += _price(crash, reserved, source)
    return [claim("a", text, check) for text, check in rows]


def expected(turbo: dict[str, Any], prompts: list[int]) -> int:
    """The largest continuation request of these prompts, bytes."""
    return continuation_bytes(
        prompts,
        chunk=turbo["chunk"],
        block=turbo["block"],
        heads=turbo["num_kv_heads"],
        size=turbo["head_size"],
        threshold=turbo["threshold"],
    )


def _crash(crash: Evidence, turbo: dict[str, Any]) -> list[Row]:
    def statuses() -> Outcome:
        return equal([f"{turbo['short']}: 200", f"{turbo['deadly']}: 500"], shown(crash))

    def size_in_log() -> Outcome:
        first = expected(turbo, [turbo["chunk"] + turbo["chunk"] // 2])
        return equal(f"{first / MIB:.2f} MB", f"{crash.locked_error()['required']} MB")

    def finding() -> Outcome:
        return equal(crash.locked_error()["caller"], _worst(crash)["caller"])

    def size() -> Outcome:
        first = expected(turbo, [turbo["chunk"] + turbo["chunk"] // 2])
        return equal(first, _worst(crash)["serving_bytes"])

    def arena() -> Outcome:
        told = f"{_worst(crash)['arena_bytes'] / MIB:.2f} MB"
        return equal(f"{crash.locked_error()['current']} MB", told)

    return [
        ("crash: prompts answered", statuses),
        ("crash: vLLM's error names 2*Hk*cached*D*2 of the second chunk", size_in_log),
        ("crash: wstrace names the caller that vLLM's log names", finding),
        ("crash: wstrace's bytes", size),
        ("crash: the arena that vLLM's log names", arena),
        ("crash: gate exits 1", lambda: equal(1, crash.gate_exit)),
    ]


def _worst(ev: Evidence) -> dict[str, Any]:
    found = [f for f in ev.gate["findings"] if f["code"] in ("WS101", "WS102", "WS104")]
    if not found:
        raise MissingError(f"{ev.folder.name}: no escape among {ev.codes()}")
    worst: dict[str, Any] = max(found, key=lambda f: f["serving_bytes"])
    return worst


def _grow(grow: Evidence, turbo: dict[str, Any]) -> list[Row]:
    def answered() -> Outcome:
        prompts = (turbo["short"], turbo["deadly"], turbo["longest_of_grow"])
        return equal([f"{n}: 200" for n in prompts], shown(grow))

    def every() -> Outcome:
        """Sites whose largest request in serving is above the arena at the lock."""
        arena = min(v.locks[0].sizes[0] for v in grow.workers)
        above = sorted(s.caller for s in grow.analysed.sites if s.serving_bytes > arena)
        escapes = [f for f in grow.gate["findings"] if f["code"] in ("WS101", "WS102")]
        return equal(above, sorted(f["caller"] for f in escapes))

    def largest() -> Outcome:
        wanted = expected(turbo, [tokens for tokens, _ in grow.prompts])
        return equal(wanted, _worst(grow)["serving_bytes"])

    return [
        ("grow: prompts answered", answered),
        ("grow: one finding for each site that outgrew the locked arena", every),
        ("grow: largest escape = 2*Hk*round_up(cached, block)*D*2", largest),
        ("grow: gate exits 1", lambda: equal(1, grow.gate_exit)),
    ]


def _reserve(source: Evidence, turbo: dict[str, Any]) -> list[Row]:
    name = source.folder.name

    def size() -> Outcome:
        rounded = -(-(turbo["max_model_len"] - 1) // turbo["block"]) * turbo["block"]
        wanted = 2 * turbo["num_kv_heads"] * rounded * turbo["head_size"] * 2
        return equal([wanted], [s["bytes"] for s in source.json("reserve.json")["slots"]])

    def grade() -> Outcome:
        sites = source.json("reserve.json")["sites"]
        found = [s["grade"] for s in sites if s["function"].endswith("_continuation_prefill")]
        return equal(["proved"], found)

    def longest() -> Outcome:
        wanted = turbo["longest_of_six" if name.endswith("6000") else "longest_of_grow"]
        return equal([wanted, 200], list(max(source.prompts)))

    return [
        (f"reserve from {name}: longest prompt of that run, and its answer", longest),
        (f"reserve from {name} = 2*Hk*round_up(max_model_len-1, block)*D*2", size),
        (f"reserve from {name}: grade of the continuation's bound", grade),
    ]


def _cure(reserved: Evidence, turbo: dict[str, Any]) -> list[Row]:
    name = reserved.folder.name

    def answered() -> Outcome:
        longest = turbo["max_model_len"] - 8
        prompts = (turbo["deadly"], turbo["middle"], longest)
        return equal([f"{n}: 200" for n in prompts], shown(reserved))

    def growth() -> Outcome:
        reserved.judged()
        late = [g.after for v in reserved.workers for g in v.growths if not g.reserve]
        return equal([], late)

    return [
        (f"{name}: prompts answered", answered),
        (f"{name}: no growth but the reserve's own", growth),
        (f"{name}: gate exits 0", lambda: equal(0, reserved.gate_exit)),
    ]


def _price(plain: Evidence, reserved: Evidence, source: Evidence) -> list[Row]:
    """What KV sizing paid: the stated cost, by wstrace's record and by the witness.

    `plain` must have been sized with warm compile caches, as the reserved server was: in
    a cold start the compilation itself raises the peak that profiling sees. The first
    server of the scenario, `grow`, is cold.
    """
    name = reserved.folder.name

    def stated() -> int:
        return int(source.json("reserve.json")["kv_cost"]["bytes"])

    def fell(of: str) -> int:
        return plain.bytes_of(of) - reserved.bytes_of(of)

    def activation() -> Outcome:
        return equal(stated(), -fell("activation_bytes"))

    def available() -> Outcome:
        found, cost = fell("available_kv_bytes"), stated()
        ok = abs(found - cost) <= TOLERANCE
        return f"{cost:,} within {TOLERANCE:,}", found, ok

    def net() -> Outcome:
        """Without the graph estimate, which reads device memory in segments of 20 MiB."""
        found = fell("available_kv_bytes") + fell("graph_estimate_bytes")
        cost = stated()
        return f"{cost:,} within {GRANULE:,}", found, abs(found - cost) <= GRANULE

    def agree(ev: Evidence) -> Outcome:
        own = [v.memory.available_kv_bytes for v in ev.workers]
        return equal([ev.bytes_of("available_kv_bytes")], own)

    return [
        (f"{name}: KV memory falls by the stated cost", available),
        (f"{name}: the same, vLLM's graph-memory estimate set aside", net),
        (f"{name}: profiling's peak rises by the stated cost", activation),
        (f"{name}: wstrace's KV bytes are the worker's", partial(agree, reserved)),
    ]
