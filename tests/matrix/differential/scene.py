"""A scene: one call site of a release, and what plays it."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
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
    rows ("" where it has none). `backend` is the file of the attention backend where that is
    another one than `file`: it decides which graphs there are."""

    name: str
    file: str
    function: str
    play: Play
    numbers: Callable[[Engine], dict[str, int]] = lambda _: {}
    experts: str = ""
    caller: str = ""
    dispatch: Callable[[Release, Engine], str] = lambda *_: ""
    backend: str = ""


def has(release: Release, file: str, name: str) -> bool:
    """True where the release has this function or class."""
    try:
        return release.get(file, name) is not None
    except LookupError:
        return False


def resolved(release: Release, scene: Scene, engine: Engine) -> Engine:
    """The engine with the graphs that vLLM makes for the scene's backend.

    Where a backend takes uniform batches alone, FULL is resolved to FULL_AND_PIECEWISE in the
    config itself, before graphs are captured (0.13.0 to 0.33.0: the support of the runner's
    backends is not ALWAYS).
    """
    if engine.words["cudagraph_mode"] != "FULL" or _takes_mixed(release, scene):
        return engine
    return replace(engine, words={**engine.words, "cudagraph_mode": "FULL_AND_PIECEWISE"})


def _takes_mixed(release: Release, scene: Scene) -> bool:
    """Whether a full graph may hold a mixed step; so where no builder says it may not."""
    file = scene.backend or scene.file
    module = release.module(file.removesuffix(".py").replace("/", "."))
    made = module.made if module else {}
    own = [name for name, statement in made.items() if isinstance(statement, ast.ClassDef)]
    names = [name for name in own if name.endswith("MetadataBuilder")]
    told = [_support(release, file, name) for name in names]
    return not told or "ALWAYS" in told or "" in told


def _support(release: Release, file: str, name: str) -> str:
    """What a builder says of full graphs; "" where it decides that by the engine."""
    try:
        builder = release.get(file, name)
    except LookupError:  # its class body asks for the platform
        return ""
    support = getattr(builder, "_cudagraph_support", None)
    decides = "get_cudagraph_support" in vars(builder)
    return support.name if isinstance(support, Enum) and not decides else ""


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
