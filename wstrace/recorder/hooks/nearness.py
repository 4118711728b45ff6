"""`--warn-at`: one line, one record and one number for a site that comes near its arena.

The formulas are those of the reserve config, and where requests are recorded also those that
the recorder reads from the source. `state.near` says when a step is looked at.
"""

from __future__ import annotations

import logging
from types import FrameType
from typing import Any

from wstrace.recorder.hooks.novel import NovelRequest, request_of
from wstrace.recorder.hooks.production import keep_counters
from wstrace.recorder.state.near import Near
from wstrace.recorder.state.process import Live
from wstrace.recorder.vllm_state import workspace
from wstrace.recorder.vllm_state.scheduler_output import described, requests_of
from wstrace.trace.records import NearLimit, Site, Step
from wstrace.units import exact

logger = logging.getLogger("vllm.wstrace")


def look_at_step(live: Live, output: Any) -> None:
    """A step is admitted that is larger than those before: which sites come near?"""
    manager = live.manager.current
    if live.near is None or manager is None:
        return
    if not workspace.is_locked(manager) and not live.capture.any_serving_graph:
        return  # an arena that may grow is no limit
    step = described(output, Step(index=live.steps.index, kind="real"))
    arena = min(live.arenas.sizes(manager)[1], default=0)
    every = Step(**{name: getattr(step, name) for name in Step.__struct_fields__})
    every.requests = list(requests_of(output))
    for near in live.near.found(every, live.worker.limits, arena):
        _tell(live, near, step)


def _tell(live: Live, near: Near, step: Step) -> None:
    at = ", ".join(f"{name} = {value}" for name, value in near.at.items())
    fits = near.worst <= near.arena
    level, told = (logging.INFO, "fits") if fits else (logging.WARNING, "does not fit")
    logger.log(
        level,
        "wstrace: %s comes near its limit: this step needs %s of an arena of %s (%s). "
        "Its worst case, %s, %s.",
        near.site,
        exact(near.bytes),
        exact(near.arena),
        at,
        exact(near.worst),
        told,
    )
    live.output.write(
        NearLimit(
            site=near.site, bytes=near.bytes, arena=near.arena, worst=near.worst, step=step
        )
    )
    live.guard.near[near.site] = near.bytes
    keep_counters(live)


def learn(live: Live, manager: Any, novel: NovelRequest, site: Site, caller: FrameType) -> None:
    """The first request of a site: its formula tells what later steps will need.

    Bounded here, once a site, and only with `--warn-at`.
    """
    from wstrace.bounds.ways import bound_site
    from wstrace.reserve.schema import SiteReserve

    key = str(site.key)
    if live.near is None or not live.near.is_new(key):
        return
    bound = bound_site(
        [request_of(live, manager, novel, site, caller)],
        live.worker.limits,
        file=site.file,
        function=site.function,
        vllm_version=live.hooks.vllm.text,
    )
    live.near.add(
        [
            SiteReserve(
                site=key,
                grade=bound.grade,
                bytes=bound.bytes or 0,
                formula=bound.driver_formula,
                constants=dict(bound.constants),
                drivers=dict(bound.drivers),
            )
        ]
    )
