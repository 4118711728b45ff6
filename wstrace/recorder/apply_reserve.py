"""Applying a reserve config: at the start of profile_run, in every slot, once a config.

profile_run is the one place where every vLLM version counts the bytes in KV sizing. All
ranks decide alike: from the config, and from the smallest free memory among them.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from wstrace.errors import WstraceError, with_stop
from wstrace.recorder.state.process import Live
from wstrace.recorder.vllm_state import workspace
from wstrace.recorder.vllm_state.config_limits import limits_now
from wstrace.recorder.vllm_state.kv_cache import free_memory
from wstrace.trace.records import Growth, ReserveEvent

if TYPE_CHECKING:
    from wstrace.reserve.config import SlotBytes

logger = logging.getLogger("vllm.wstrace")


def apply_reserve(live: Live) -> None:
    """Put the reserve into every slot of the current manager.

    A no-op without a reserve config, without a manager, or when this manager already has the
    reserve for the current limits. Raises WstraceError under policy `fail` when the config
    does not fit this engine; under `skip` it writes a `reserve` record and serves on.
    """
    path = live.settings.reserve
    if path is None or live.manager.current is None:
        return
    limits = limits_now(live.worker.current)
    mark = (live.arenas.manager_id, sorted((k, str(v)) for k, v in limits.items()))
    if not live.manager.reserve_is_new(mark):
        return
    config, wanted, why = _wanted(live, path, limits)
    room = _smallest_room(live)
    why = why or _too_much(live, wanted, room)
    if why:
        _refuse(live, path, why)
        return
    _fill(live, path, wanted, config)


def _wanted(live: Live, path: str, limits: dict[str, Any]) -> tuple[str, list[SlotBytes], str]:
    """(the config as JSON, bytes by slot, why the config is not for this engine)."""
    from wstrace.reserve.config import evaluate, load_reserve, mismatch, model_digest

    try:
        config = load_reserve(path)
        wrong = mismatch(config, limits, model_digest(limits))
        if wrong:
            return "", [], wrong
        if live.near is not None:
            live.near.add(config.sites)
        slots, _ = live.arenas.sizes(live.manager.current)
        return msgspec.json.encode(config).decode(), evaluate(config, limits, slots), ""
    except WstraceError as error:
        return "", [], error.message


def _growth(live: Live, wanted: Sequence[SlotBytes]) -> int:
    """Bytes that the reserve would add to this manager's arenas."""
    slots, sizes = live.arenas.sizes(live.manager.current)
    now = dict(zip(slots, sizes, strict=True))
    return sum(max(0, s.bytes - now[s.slot]) for s in wanted if s.slot in now)


def _too_much(live: Live, wanted: Sequence[SlotBytes], room: int | None) -> str:
    total = sum(s.bytes for s in wanted)
    cap = live.settings.max_reserve
    if cap is not None and total > cap:
        return f"the reserve is {total} bytes, --max-reserve allows {cap}"
    if room is not None and _growth(live, wanted) > room:
        return f"the reserve is {total} bytes, the emptiest rank has {room} bytes free"
    return ""


def _smallest_room(live: Live) -> int | None:
    """Free device bytes, the minimum over the ranks of this engine."""
    free = free_memory(live.worker.current)
    own = free[0] if free else None
    try:
        return _minimum_over_ranks(own)
    except Exception as error:
        live.output.complain("free memory over ranks", error)
        return own


def _minimum_over_ranks(own: int | None) -> int | None:
    import torch

    groups = sys.modules.get("vllm.distributed.parallel_state")
    group = groups.get_world_group() if groups else None
    if group is None or group.world_size == 1:
        return own
    value = torch.tensor([2**62 if own is None else own], dtype=torch.int64)
    torch.distributed.all_reduce(
        value, op=torch.distributed.ReduceOp.MIN, group=group.cpu_group
    )
    smallest = int(value.item())
    return None if smallest == 2**62 else smallest


def _refuse(live: Live, path: str, why: str) -> None:
    policy = live.settings.reserve_policy
    live.output.write(
        ReserveEvent(
            event="refused", phase=live.phases.current, why=why, path=_name(path), policy=policy
        )
    )
    error = WstraceError(
        with_stop(f"wstrace: reserve config {_name(path)} does not fit this engine: {why}"),
        "Make a new one with `wstrace reserve TRACE`, or start with --reserve-policy skip "
        "(WSTRACE_RESERVE_POLICY=skip).",
    )
    logger.error("%s", error.message)
    logger.error("%s", error.hint)
    if policy == "fail":
        raise error


def _name(path: str) -> str:
    return path.replace("\\", "/").rsplit("/", 1)[-1]


def _fill(live: Live, path: str, wanted: Sequence[SlotBytes], config: str) -> None:
    manager, ensure = live.manager.current, live.manager.ensure
    by_slot = {s.slot: s.bytes for s in wanted}
    slots, before = live.arenas.sizes(manager)
    live.arenas.changes(manager)
    for index, slot in enumerate(slots):
        if by_slot.get(slot, 0) > before[index]:
            with workspace.acting_as(manager, index):
                ensure(manager, by_slot[slot])
            _write_growths(live, manager)
    _, sizes = live.arenas.sizes(manager)
    applied = sizes != before
    live.output.write(
        ReserveEvent(
            event="applied" if applied else "satisfied",
            slots=slots,
            sizes=sizes,
            phase=live.phases.current,
            path=_name(path),
            policy=live.settings.reserve_policy,
            config=config,
        )
    )
    logger.info("wstrace: reserve %s: %s bytes by slot", _name(path), sizes)


def _write_growths(live: Live, manager: Any) -> None:
    for index, before, after in live.arenas.changes(manager):
        live.output.write(
            Growth(
                slot=workspace.slot_at(manager, index),
                before=before.bytes,
                after=after.bytes,
                phase=live.phases.current,
                generation=live.arenas.generation(index),
                address=after.address,
                reserve=True,
                window=live.window(),
                manager=live.arenas.manager_id,
            )
        )
