"""torch.compile around a request: vLLM's own manager first, then with the recorder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from tests.matrix.harness import MIB, ask, recorded, workspace
from tests.matrix.kit import Facts, Kit, scenario
from wstrace.recorder.wrapping import original_of

ROWS = 16


class FixedLane:
    """In the place of vLLM's ContextVar of the lane, which Dynamo cannot trace."""

    def get(self) -> int:
        return 0


@contextmanager
def fixed_lane() -> Iterator[None]:
    """Take the lane look-up out of what is traced; nothing where there are no lanes."""
    module = workspace()
    before = getattr(module, "_workspace_lane", None)
    if before is not None:
        module._workspace_lane = FixedLane()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if before is not None:
            module._workspace_lane = before  # type: ignore[attr-defined]


def compiled(fullgraph: bool) -> Facts:
    """Compile and call a function that makes a request: its error, or what it returned."""
    torch._dynamo.reset()
    manager = workspace().current_workspace_manager()

    def forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (view,) = manager.get_simultaneous(((ROWS,), torch.float32))
        return x + view.zero_(), view

    run: Callable[..., Any] = torch.compile(forward, fullgraph=fullgraph, backend="eager")
    try:
        total, view = run(torch.ones(ROWS))
    except Exception as error:
        return {"error": type(error).__name__, "contextvar": "ContextVar" in str(error)}
    arena = manager._current_workspaces[0]
    return {
        "error": "",
        "sum": float(total.sum()),
        "in_arena": view.data_ptr() == arena.data_ptr(),
        "shape": list(view.shape),
        "dtype": str(view.dtype),
    }


def every_way() -> Facts:
    """With and without fullgraph, and with fullgraph where the lane is fixed."""
    manager = workspace().WorkspaceManager
    facts = {"fullgraph": compiled(True), "with breaks": compiled(False)}
    with fixed_lane():
        facts["fixed lane"] = compiled(True)
    return facts | {"wrapped": original_of(manager._ensure_workspace_size) is not None}


@scenario
def traced(folder: Path) -> Facts:
    """The same attempts on the manager unwrapped, wrapped, and wrapped for --check-views."""
    workspace().init_workspace_manager(torch.device("cpu"))
    ask(MIB)
    facts = {"plain": every_way()}
    for name, views in (("wrapped", False), ("views", True)):
        with recorded(folder / name, check_views=views) as live:
            Kit(live).engine()
            facts[name] = every_way()
    return facts


@scenario
def custom_op(folder: Path) -> Facts:
    """A request inside a custom op, as vLLM's attention layers make theirs, in a full graph."""

    @torch.library.custom_op("wstrace_matrix::attention", mutates_args=())  # type: ignore[untyped-decorator]
    def attention(x: torch.Tensor) -> torch.Tensor:
        return x + ask(1024).view(torch.float32)[: x.numel()].zero_()

    attention.register_fake(lambda x: torch.empty_like(x))
    with recorded(folder) as live:
        engine = Kit(live).engine()
        torch._dynamo.reset()
        run = torch.compile(lambda x: attention(x) * 2, fullgraph=True, backend="eager")
        sums: list[float] = []
        engine.script["execute_model"] = lambda: sums.append(float(run(torch.ones(ROWS)).sum()))
        for _ in range(3):
            engine.step(a=3)
        return {"sums": sums}
