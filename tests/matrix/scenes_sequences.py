"""Random sequences of manager calls, with and without the hooks: the same answers.

A sequence is drawn once and played twice, each time on a manager of its own. An answer has
what a layer can tell: shapes, dtypes, strides, where in which arena a view lies, whether an
object is one that was given before, an error's type and text. Arenas are numbered as they
are first seen and all are kept alive, so that no address comes twice.
`WSTRACE_SEQUENCES` is how many are drawn (default 60).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.matrix.harness import recorded, ubatch, workspace
from tests.matrix.kit import Facts, scenario
from wstrace.recorder.hooks.manager import hook_manager

Call = tuple[Any, ...]
DTYPES = (torch.uint8, torch.float16, torch.float32, torch.int64, torch.bool)
ODD: tuple[Any, ...] = (
    (),
    (None,),
    (((4,),),),
    (((-1, 4), torch.uint8),),
    (((0, 8), torch.float16),),
    (((), torch.float32),),
    (((3, "a"), torch.uint8),),
    (((2.5,), torch.uint8),),
    (((4,), "float16"),),
    ([(16, 2), torch.uint8],),
    (((np.int64(16), 2), torch.float16),),
    (((torch.tensor(3), 4), torch.uint8),),
    (((float("nan"),), torch.uint8),),
    (((1 << 62,), torch.float32),),
)


def drawn(chance: random.Random) -> list[Call]:
    """The calls of one sequence; the first makes the manager."""
    calls: list[Call] = [("init", chance.choice(((), (1,), (2,), (2, 2))))]
    for _ in range(chance.randint(5, 30)):
        kind = chance.choices(
            ("ask", "again", "odd", "lock", "unlock", "resource", "locked", "init", "reset"),
            (40, 15, 6, 6, 5, 10, 4, 2, 2),
        )[0]
        where = (chance.choice((0, 0, 0, 1)), chance.choice((0, 0, 0, 1)))
        calls.append((kind, *_arguments(kind, chance), where))
    return calls


def _arguments(kind: str, chance: random.Random) -> Call:
    if kind == "ask":
        return (tuple(_spec(chance) for _ in range(chance.randint(1, 3))),)
    if kind == "odd":
        return (chance.choice(ODD),)
    if kind == "resource":
        return (chance.choice(("a", ("b", 1), 3, ["unhashable"])), chance.choice((0, 0, 1)))
    return (chance.choice(((), (1,), (2,))),) if kind == "init" else ()


def _spec(chance: random.Random) -> Call:
    dims = chance.randint(1, 3)
    shape = tuple(chance.choice((1, 2, 7, 16, 64, 200)) for _ in range(dims))
    return shape, chance.choice(DTYPES)


class Player:
    """Plays a sequence and notes its answers."""

    def __init__(self) -> None:
        self.answers: list[str] = []
        self.errors = 0
        self._kept: list[Any] = []
        self._arenas: dict[int, int] = {}
        self._objects: dict[int, int] = {}
        self._last: Any = ()

    def play(self, calls: list[Call]) -> Player:
        for call in calls:
            try:
                told = self._answer(*call)
            except Exception as error:
                self.errors += 1
                # PyTorch may append its C++ frames, which count those of Python above them
                first = str(error).partition("\n")[0]
                told = f"{type(error).__name__}: {first} {error.__cause__!r}"
            self.answers.append(f"{call[0]}: {told}")
        workspace().reset_workspace_manager()
        return self

    def _answer(self, kind: str, *rest: Any) -> str:
        if kind == "init":
            return repr(workspace().init_workspace_manager(torch.device("cpu"), *rest[0]))
        if kind == "reset":
            return repr(workspace().reset_workspace_manager())
        with place(*rest[-1]):
            return self._in_place(kind, *rest[:-1])

    def _in_place(self, kind: str, *rest: Any) -> str:
        if kind in ("lock", "unlock"):
            return repr(getattr(workspace(), f"{kind}_workspace")())
        manager = workspace().current_workspace_manager()
        if kind == "locked":
            return repr(manager.is_locked())
        if kind == "resource":
            return self._object(manager.get_persistent_resource(rest[0], _maker(rest[1])))
        if kind in ("ask", "odd"):
            self._last = rest[0]
        views = manager.get_simultaneous(*self._last)
        return f"{type(views).__name__} {[self._view(view) for view in views]}"

    def _view(self, view: torch.Tensor) -> str:
        storage = view.untyped_storage()
        self._kept.append(view)
        arena = self._arenas.setdefault(storage.data_ptr(), len(self._arenas))
        at = view.data_ptr() - storage.data_ptr() if view.numel() else None
        return (
            f"{tuple(view.shape)} {view.dtype} {view.stride()} "
            f"arena {arena} of {storage.nbytes()} at {at}"
        )

    def _object(self, made: Any) -> str:
        self._kept.append(made)
        return f"object {self._objects.setdefault(id(made), len(self._objects))}"


def _maker(raises: int) -> Callable[[], Any]:
    def factory() -> Any:
        if raises:
            raise KeyError("the factory's own")
        return torch.zeros(4)

    return factory


@contextmanager
def place(index: int, lane: int) -> Iterator[None]:
    """Stand on this ubatch, in this lane where the release has lanes."""
    lanes = getattr(workspace(), "use_workspace_lane", None)
    in_lane: AbstractContextManager[Any] = lanes(lane) if lanes else nullcontext()
    with ubatch(index) if index else nullcontext(), in_lane:
        yield


@scenario
def random_sequences(folder: Path) -> Facts:
    """Every sequence without the hooks, then with them; the first answers that differ."""
    chance = random.Random(2026)
    sequences = [drawn(chance) for _ in range(int(os.environ.get("WSTRACE_SEQUENCES", "60")))]
    plain = [Player().play(calls) for calls in sequences]
    with recorded(folder) as live:
        hook_manager(live, workspace())
        hooked = [Player().play(calls) for calls in sequences]
    differ = [
        (one, other)
        for before, after in zip(plain, hooked, strict=True)
        for one, other in zip(before.answers, after.answers, strict=True)
        if one != other
    ]
    return {
        "calls": sum(len(calls) for calls in sequences),
        "errors": sum(player.errors for player in plain),
        "differ": differ[:5],
    }
