"""The recorder holds nothing of a caller's: a view that it kept would pin an old arena."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from wstrace.recorder.hooks.provenance import provenance_of

torch = pytest.importorskip("torch")


class Manager:
    """Slices its caller's source, as the recorder does on a novel request."""

    formula: str | None = None

    def get_simultaneous(self, *specs: Any) -> None:
        self.formula = provenance_of(sys._getframe(1), specs)[0].formula


class Held:
    """What a caller has in a variable."""


def caller(manager: Manager, size: int, held: Held) -> None:
    width = 2 * size
    manager.get_simultaneous(((width, 4), torch.float32), ((size,), torch.uint8))


def unknown(manager: Manager, size: int, held: Held) -> None:
    if held is not None:
        manager.get_simultaneous(((size * len(vars(held)) + 1, 4), torch.float32))


def outer(manager: Manager, ask: Callable[..., None], size: int) -> weakref.ref[Held]:
    held = Held()
    ask(manager, size + 1, held)
    return weakref.ref(held)


@pytest.mark.parametrize(("ask", "closed"), [(caller, True), (unknown, False)])
def test_a_callers_variables_die_with_its_frame_and_not_at_the_next_collection(
    ask: Callable[..., None], closed: bool
) -> None:
    manager = Manager()
    gc.collect()
    gc.disable()
    try:
        assert outer(manager, ask, 7)() is None
    finally:
        gc.enable()
    assert bool(manager.formula) == closed
