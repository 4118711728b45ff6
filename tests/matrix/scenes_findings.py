"""Scenarios with something wrong in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.matrix.harness import MIB, ask, other_ask, recorded, ubatch, workspace
from tests.matrix.kit import Facts, Kit, addresses, captured, caught, lock, scenario


@scenario
def escapes(folder: Path) -> Facts:
    """WS101, WS102 and WS103, each refused by vLLM or masked by the arena."""
    with recorded(folder) as live:
        engine = Kit(live).engine(warmup_kernels=lambda: small_ask(256))
        texts: list[str] = []

        def serve() -> None:
            small_ask(1024)
            texts.append(caught(lambda: other_ask(2 * MIB)))
            texts.append(caught(lambda: ask(3 * MIB)))

        engine.script["execute_model"] = serve
        engine.step(a=3)
        return {"texts": texts}


def small_ask(size: int) -> torch.Tensor:
    """A third site."""
    (view,) = workspace().current_workspace_manager().get_simultaneous(((size,), torch.uint8))
    return view


@scenario
def unlocked(folder: Path) -> Facts:
    """No lock, a graph captured, then a growth while serving: WS202, WS201 and WS301."""
    with recorded(folder) as live:
        engine = Kit(live, locks=False).engine(v2=True)
        old = addresses()[0]
        engine.script["execute_model"] = lambda: other_ask(2 * MIB)
        engine.step(a=3)
        return {"moved": addresses()[0] != old}


@scenario
def in_capture(folder: Path) -> Facts:
    """A growth while a graph is being captured: WS303."""
    with recorded(folder) as live:
        Kit(live).engine(capture_model=lambda: (captured(lambda: ask(2 * MIB)), lock()))
        return {}


@scenario
def uneven(folder: Path) -> Facts:
    """Two ubatches, warmed with different sizes."""
    with recorded(folder) as live:

        def profile() -> None:
            for index in (0, 1):
                with ubatch(index):
                    ask((2 - index) * MIB)

        Kit(live).engine((2,), profile_run=profile, capture_model=lock)
        return {}


@scenario
def views(folder: Path) -> Facts:
    """`--check-views`: a view taken in warm-up outlives a growth, another does not."""
    kept: list[Any] = []
    with recorded(folder, check_views=True) as live:

        def warm_up() -> None:
            kept.append(ask(1024))
            other_ask(2 * MIB)

        Kit(live).engine(warmup_kernels=warm_up)
        return {"kept": len(kept)}
