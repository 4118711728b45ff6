"""A scene: one call site of a release, and what plays it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tests.matrix.differential.engines import Engine, State
from tests.matrix.differential.released import Release, Spec
from wstrace.trace.records import ScheduledRequest

BF16 = torch.bfloat16
Play = Callable[[Release, Engine, State], tuple[Spec, ...] | None]


@dataclass(frozen=True)
class Scene:
    """A call site in one release. `play` gives a request's specs, None where this engine or
    step does not come there. `numbers` are the layer's own, as the recorder reads them or a
    person tells them with --set; `experts` is the class that a fused MoE kernel asks for,
    `caller` the class of the object that asks, `dispatch` gives the class that hands it its
    rows ("" where it has none)."""

    name: str
    file: str
    function: str
    play: Play
    numbers: Callable[[Engine], dict[str, int]] = lambda _: {}
    experts: str = ""
    caller: str = ""
    dispatch: Callable[[Release, Engine], str] = lambda *_: ""


def has(release: Release, file: str, name: str) -> bool:
    """True where the release has this function or class."""
    try:
        return release.get(file, name) is not None
    except LookupError:
        return False


def taken(function: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments that this release's function has."""
    names = function.__code__.co_varnames
    count = function.__code__.co_argcount + function.__code__.co_kwonlyargcount
    return {name: value for name, value in given.items() if name in names[:count]}


def meta(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    """A tensor without memory."""
    return torch.empty(shape, dtype=dtype, device="meta")


def decodes_of(state: State, engine: Engine) -> list[ScheduledRequest]:
    """The requests of a step that a backend which verifies drafts decodes."""
    most = 1 + engine.numbers.get("num_speculative_tokens", 0)
    return [r for r in state.requests if r.computed and r.scheduled <= most]
