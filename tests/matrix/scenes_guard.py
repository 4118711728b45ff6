"""Scenarios of `WSTRACE_GUARD`: a server in production, nothing recorded."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.matrix.harness import MIB, Engine, ask, call, other_ask, ubatch, workspace
from tests.matrix.kit import Facts, Kit, addresses, arenas, caught, graphs, scenario
from wstrace.recorder import install
from wstrace.recorder.hooks import growth
from wstrace.recorder.settings import Settings
from wstrace.recorder.state.process import Live


class Told(logging.Handler):
    """The lines that the guard wrote into vLLM's log."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextlib.contextmanager
def guarded(**settings: Any) -> Iterator[tuple[Live, list[str]]]:
    """The guard for the engines started inside, and what it says; nothing is recorded."""
    logger, told = logging.getLogger("vllm.wstrace"), Told()
    logger.addHandler(told)
    logger.setLevel(logging.INFO)
    growth._kept.clear()
    try:
        yield install.install(Settings(None, "guard", guard=True, **settings)), told.lines
    finally:
        install.uninstall()
        workspace().reset_workspace_manager()
        logger.removeHandler(told)
        growth._kept.clear()


def warm_both() -> None:
    """Both micro-batches ask 1 MiB."""
    ask(MIB)
    with ubatch(1):
        ask(MIB)


def step(engine: Engine, script: Callable[[], Any]) -> str:
    """What vLLM's error says of a step that runs the script, "" where there was none."""
    texts: list[str] = []
    engine.script["execute_model"] = lambda: texts.append(caught(script))
    engine.step(a=3)
    return texts[0]


@scenario
def guard(folder: Path) -> Facts:
    """A locked arena, one captured graph: within it, above it twice, and below again."""
    with guarded() as (live, told):
        kit = Kit(live)
        engine = kit.engine((2,), profile_run=warm_both, capture_model=kit.capture_model)
        least, before, old = live.guard.least, arenas()[:2], addresses()[0]
        view = ask(MIB)
        view.fill_(7)
        texts = [step(engine, partial(other_ask, size)) for size in (2 * MIB, 4 * MIB)]
        after, moved, kept = arenas()[:2], addresses()[0] != old, growth.kept_bytes()
        texts.append(step(engine, lambda: ask(MIB)))
        return {
            "least": [least, live.guard.least],
            "before": before,
            "after": after,
            "moved": moved,
            "kept": kept,
            "view": [int(view[0]), int(view[-1])],
            "texts": texts,
            "locked": workspace().current_workspace_manager().is_locked(),
            "told": told,
            "tallies": [[t.growths, t.refused, t.bytes] for t in live.guard.by_site.values()],
            "files": [path.name for path in folder.iterdir()],
            "wrapped": sorted(live.hooks.states),
        }


@scenario
def guard_limits(folder: Path) -> Facts:
    """At most so many bytes; no memory; while capturing: vLLM's own error each time."""
    with guarded(guard_max=3 * MIB) as (live, told):
        kit = Kit(live)
        engine = kit.engine(capture_model=kit.capture_model)
        texts = {"served": step(engine, lambda: ask(2 * MIB))}  # the captured MiB is kept
        texts["beyond"] = step(engine, lambda: ask(8 * MIB))
        within = arenas()[0]

        empty = torch.empty

        def starve() -> None:
            def no_memory(*args: Any, **kwargs: Any) -> Any:
                raise torch.OutOfMemoryError("no memory, says the test")

            torch.empty = no_memory
            try:
                ask(2 * MIB + 256)
            finally:
                torch.empty = empty

        texts["starved"] = step(engine, starve)

        def while_capturing() -> None:
            graph = torch.cuda.CUDAGraph()
            graphs.append(graph)
            call(graph, "capture_begin")
            try:
                ask(3 * MIB)
            finally:
                call(graph, "capture_end")

        texts["capturing"] = step(engine, while_capturing)
    workspace().init_workspace_manager(torch.device("cpu"))
    ask(2 * MIB)
    workspace().lock_workspace()
    plain = {"beyond": caught(lambda: ask(8 * MIB)), "capturing": caught(lambda: ask(3 * MIB))}
    return {"texts": texts, "plain": plain, "within": within, "left": arenas()[0], "told": told}


@scenario
def guard_unlocked(folder: Path) -> Facts:
    """V2 up to 0.28 does not lock: vLLM would free what its graphs point at."""
    with guarded() as (live, _told):
        kit = Kit(live, locks=False)
        engine = kit.engine(capture_model=kit.capture_model)
        old = workspace().current_workspace_manager()._current_workspaces[0]
        text = step(engine, lambda: ask(2 * MIB))
        return {
            "text": text,
            "arena": arenas()[0],
            "kept": growth.kept_bytes(),
            "same": bool(growth._kept) and growth._kept[0] is old,
        }


@scenario
def guard_context(folder: Path) -> Facts:
    """The growth is made in the manager's own allocation context, where it has one."""
    entered: list[str] = []

    @contextlib.contextmanager
    def pool() -> Iterator[None]:
        entered.append("in")
        yield
        entered.append("out")

    with guarded() as (live, _told):
        kit = Kit(live)
        engine = kit.engine(capture_model=kit.capture_model)
        manager = workspace().current_workspace_manager()
        has = hasattr(manager, "_alloc_context")
        if has:
            manager._alloc_context = pool
        text = step(engine, lambda: ask(2 * MIB))
        return {"has": has, "entered": entered, "text": text, "arena": arenas()[0]}


@scenario
def guard_resource(folder: Path) -> Facts:
    """A keyed resource that warm-up did not make."""
    if not hasattr(workspace().WorkspaceManager, "get_persistent_resource"):
        return {"supported": False}

    def late() -> Any:
        manager = workspace().current_workspace_manager()
        return manager.get_persistent_resource(("late", 4), lambda: torch.zeros(4))

    with guarded() as (live, told):
        kit = Kit(live)
        engine = kit.engine(capture_model=kit.capture_model)
        text = step(engine, late)
        return {"text": text, "made": list(late().shape), "told": told}


@scenario
def reserve_alone(folder: Path) -> Facts:
    """`WSTRACE_RESERVE` alone: no wrapper of the recorder's is on a request or a step."""
    settings = Settings(None, "none", reserve="none.yaml", reserve_policy="skip")
    live = install.install(settings)
    try:
        Kit(live).engine()
        return {"wrapped": sorted(live.hooks.states)}
    finally:
        install.uninstall()
        workspace().reset_workspace_manager()
