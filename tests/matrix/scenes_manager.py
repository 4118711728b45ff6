"""Scenarios of the manager itself: growth, slots, errors, grow, keyed resources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.matrix.harness import MIB, ask, module, other_ask, recorded, ubatch, workspace
from tests.matrix.kit import Facts, Kit, addresses, arenas, caught, lock, scenario
from wstrace.recorder.hooks import growth


@scenario
def two_growths(folder: Path) -> Facts:
    """Two growths with their addresses, then a request that fits."""
    with recorded(folder) as live:
        sizes = []

        def profile() -> None:
            for size in (MIB, 3 * MIB, 2 * MIB):
                ask(size)
                sizes.append((arenas()[0], addresses()[0]))

        Kit(live).engine(profile_run=profile)
        return {"seen": sizes}


@scenario
def ubatches(folder: Path) -> Facts:
    """Which slots a growth of ubatch 1 resizes."""
    with recorded(folder) as live:

        def profile() -> None:
            with ubatch(1):
                ask(MIB)

        Kit(live).engine((2,), profile_run=profile, capture_model=lock)
        return {"sizes": arenas()[:2]}


@scenario
def lanes(folder: Path) -> Facts:
    """Two lanes: the main one warmed, the draft lane first asked while serving."""
    if not hasattr(workspace(), "use_workspace_lane"):
        return {"supported": False}
    with recorded(folder) as live:
        engine = Kit(live).engine((1, 2))
        error = ""

        def draft() -> None:
            nonlocal error
            with workspace().use_workspace_lane(1):
                error = caught(lambda: other_ask(512))

        engine.script |= {"execute_model": lambda: ask(512), "sample_tokens": draft}
        engine.step(a=3)
        engine.wrapper.worker.sample_tokens(None)
        return {"supported": True, "error": error, "sizes": arenas()}


@scenario
def dbo(folder: Path) -> Facts:
    """Ubatch 1 is never warmed where a growth resizes its own slot only (from 0.20)."""
    with recorded(folder) as live:
        engine = Kit(live).engine((2,))

        def both() -> None:
            with ubatch(0):
                ask(512)
            with ubatch(1):
                errors.append(caught(lambda: ask(512)))

        errors: list[str] = []
        engine.script["execute_model"] = both
        engine.step(a=3)
        return {"error": errors[0]}


def warm_both() -> None:
    """A request on each of two ubatches."""
    for index in (0, 1):
        with ubatch(index):
            ask(MIB)


@scenario
def error_text(folder: Path) -> Facts:
    """vLLM's message from one and the same line, without and with the recorder."""
    manager = workspace()

    def refused() -> str:
        manager.init_workspace_manager(torch.device("cpu"))
        lock()
        return caught(lambda: ask(2 * MIB))

    texts = []
    for attach in (False, True):
        if attach:
            with recorded(folder) as live:
                Kit(live).engine()
                texts.append(refused())
        else:
            texts.append(refused())
    return {"texts": texts, "line": ask.__code__.co_firstlineno + 2}


@scenario
def grow(folder: Path) -> Facts:
    """`--on-growth grow`: the captured generation stays alive; no memory, vLLM's error."""
    with recorded(folder, on_growth="grow") as live:
        engine = Kit(live).engine(
            (2,), profile_run=warm_both, capture_model=lambda: Kit(live).capture_model()
        )
        before, old = arenas()[:2], addresses()[0]
        engine.script["execute_model"] = lambda: other_ask(2 * MIB)
        engine.step(a=3)
        after, moved = arenas()[:2], addresses()[0]
        kept = growth.kept_bytes()
        empty = torch.empty

        def no_memory(*args: Any, **kwargs: Any) -> Any:
            raise torch.OutOfMemoryError("no memory, says the test")

        def starve() -> None:
            torch.empty = no_memory
            try:
                texts.append(caught(lambda: ask(8 * MIB)))
            finally:
                torch.empty = empty

        texts: list[str] = []
        engine.script["execute_model"] = starve
        engine.step(a=3)
        return {
            "before": before,
            "after": after,
            "moved": moved != old,
            "kept": kept,
            "text": texts[0],
            "left": arenas()[:2],
        }


@scenario
def persistent(folder: Path) -> Facts:
    """A keyed resource: made in warm-up, then another one refused after the lock."""
    if not hasattr(workspace().WorkspaceManager, "get_persistent_resource"):
        return {"supported": False}

    def resource(key: str) -> Any:
        manager = workspace().current_workspace_manager()
        return manager.get_persistent_resource((key, 4), lambda: torch.zeros(4))

    texts: dict[str, str] = {}
    with recorded(folder / "raise") as live:
        engine = Kit(live).engine(profile_run=lambda: resource("known"))
        engine.script["execute_model"] = lambda: (
            resource("known"),
            texts.update(wrapped=caught(lambda: resource("missing"))),
        )
        engine.step(a=3)
    workspace().init_workspace_manager(torch.device("cpu"))
    lock()
    texts["plain"] = caught(lambda: resource("missing"))
    with recorded(folder / "grow", on_growth="grow") as live:
        engine = Kit(live).engine(profile_run=lambda: resource("known"))
        made: list[Any] = []
        engine.script["execute_model"] = lambda: made.append(resource("missing"))
        engine.step(a=3)
    return {"supported": True, "texts": texts, "grown": list(made[0].shape)}


@scenario
def scratch(folder: Path) -> Facts:
    """MoEPermuteScratch: its own check of the lock."""
    owner = module("model_executor.layers.fused_moe.moe_permute_unpermute")
    if not hasattr(getattr(owner, "MoEPermuteScratch", None), "reserve"):
        return {"supported": False}
    if not hasattr(torch.ops._moe_C, "moe_permute_sort_workspace_size"):
        torch.library.define("_moe_C::moe_permute_sort_workspace_size", "(int a, int b) -> int")
        torch.library.impl(
            "_moe_C::moe_permute_sort_workspace_size", "default", lambda rows, experts: 64
        )

    def made() -> Any:
        return owner.MoEPermuteScratch(4, 4, torch.device("cpu"))

    texts: dict[str, str] = {}
    with recorded(folder / "raise") as live:
        buffers = made()
        engine = Kit(live).engine(profile_run=lambda: buffers.reserve(8))
        engine.script["execute_model"] = lambda: (
            buffers.reserve(8),
            texts.update(wrapped=caught(lambda: buffers.reserve(32))),
        )
        engine.step(a=3)
    plain = made()
    workspace().init_workspace_manager(torch.device("cpu"))
    plain.reserve(8)
    lock()
    texts["plain"] = caught(lambda: plain.reserve(32))
    with recorded(folder / "grow", on_growth="grow") as live:
        grown = made()
        engine = Kit(live).engine(profile_run=lambda: grown.reserve(8))
        engine.script["execute_model"] = lambda: grown.reserve(32)
        engine.step(a=3)
        locked = workspace().current_workspace_manager().is_locked()
    return {
        "supported": True,
        "texts": texts,
        "grown": grown.max_expanded_rows,
        "locked": locked,
    }
