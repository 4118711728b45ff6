"""Scenarios of several owners: micro-batch threads, streams, ranks; kept views; a reserve."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.synchronize import Barrier
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from tests.matrix.harness import MIB, Engine, ask, module, other_ask, recorded, workspace
from tests.matrix.kit import Facts, Kit, caught, lock, scenario
from tests.matrix.scenes_lives import reserve_config
from tests.matrix.stand_ins import inert
from wstrace.reserve.config import dumps

Work = Callable[[], Any]


def micro_batches(*work: Work) -> list[int]:
    """Run each piece on a thread of its own, by vLLM's own contexts; their thread ids.

    As vLLM's wrapper of micro-batches does it: a barrier, then the first thread is woken, and
    `dbo_yield` hands over to the next. Streams and GPU events are inert.
    """
    ubatching, stream = module("v1.worker.ubatching"), inert("stream")
    barrier = threading.Barrier(len(work) + 1)
    modes = [SimpleNamespace(name=f"MODE_{index}") for index in range(len(work))]
    with patch.object(torch, "Event", inert("Event")), _one_stream(ubatching, stream):
        contexts = ubatching.make_ubatch_contexts(
            num_micro_batches=len(work),
            compute_stream=stream,
            comm_stream=stream,
            forward_contexts=[SimpleNamespace(cudagraph_runtime_mode=mode) for mode in modes],
            ready_barrier=barrier,
        )
        idents = [0] * len(work)

        def run(index: int) -> None:
            idents[index] = threading.get_ident()
            with contexts[index]:
                work[index]()

        threads = [threading.Thread(target=run, args=(i,)) for i in range(len(work))]
        for thread in threads:
            thread.start()
        barrier.wait()
        contexts[0].cpu_wait_event.set()
        for thread in threads:
            thread.join()
    setattr(module("forward_context"), "_forward_context", None)  # noqa: B010
    return idents


def _one_stream(ubatching: Any, stream: Any) -> Any:
    return patch.object(ubatching, "current_stream", lambda: stream)


def hand_over() -> None:
    """Let the other micro-batch run."""
    module("v1.worker.ubatching").dbo_yield()


@scenario
def threads(folder: Path) -> Facts:
    """Two micro-batches on threads, warmed alike; serving, they take turns at one site."""
    errors: list[str] = []
    with recorded(folder) as live:
        warm = lambda: micro_batches(lambda: ask(MIB), lambda: ask(MIB))  # noqa: E731
        engine = Kit(live).engine((2,), profile_run=warm, capture_model=lock)

        def first() -> None:
            for _ in range(3):
                ask(512)
                hand_over()

        def second() -> None:
            for _ in range(2):
                ask(512)
                hand_over()
            other_ask(768)
            errors.append(caught(lambda: other_ask(2 * MIB)))

        idents: list[int] = []
        engine.script["execute_model"] = lambda: idents.extend(micro_batches(first, second))
        engine.step(a=3, b=5)
        left = len(module("v1.worker.ubatching")._THREAD_ID_TO_CONTEXT)
        return {"idents": idents, "main": threading.get_ident(), "error": errors, "left": left}


@contextmanager
def on_stream(handle: int) -> Iterator[None]:
    """As if this CUDA stream were the current one; there is none on a CPU."""
    stream = SimpleNamespace(cuda_stream=handle)
    with ExitStack() as patches:
        patches.enter_context(patch.object(torch.cuda, "is_initialized", lambda: True))
        patches.enter_context(patch.object(torch.cuda, "current_stream", lambda: stream))
        yield


@scenario
def streams(folder: Path) -> Facts:
    """A side stream in one slot; one stream a step; a side stream in a lane of its own."""
    ways: dict[str, tuple[Work, ...]] = {
        "two": (lambda: (_ask_on(7), _other_on(8)),),
        "in turn": (lambda: _ask_on(7), lambda: _other_on(8)),
    }
    if hasattr(workspace(), "use_workspace_lane"):
        ways["lanes"] = (lambda: (_ask_on(7), _other_on(8, lane=1)),)
    for name, steps in ways.items():
        slots = (1, 2) if name == "lanes" else ()
        with recorded(folder / name) as live:
            engine = Kit(live).engine(slots, warmup_kernels=_warm_lanes)
            for step in steps:
                engine.script["execute_model"] = step
                engine.step(a=3)
    return {"ways": list(ways)}


def _warm_lanes() -> None:
    if getattr(workspace().current_workspace_manager(), "_num_lanes", 1) > 1:
        with workspace().use_workspace_lane(1):
            other_ask(MIB)


def _ask_on(stream: int) -> None:
    with on_stream(stream):
        ask(512)


def _other_on(stream: int, lane: int = 0) -> None:
    with ExitStack() as where:
        where.enter_context(on_stream(stream))
        if lane:
            where.enter_context(workspace().use_workspace_lane(lane))
        other_ask(768)


@scenario
def ranks(folder: Path) -> Facts:
    """Two worker processes of tensor parallel: locked at different sizes, and at the same."""
    pids = []
    for name, sizes in (("uneven", (2 * MIB, MIB)), ("even", (MIB, MIB))):
        meet = multiprocessing.get_context("fork").Barrier(2, timeout=600)
        started = []
        for rank, size in enumerate(sizes):
            started.append(os.fork())
            if not started[-1]:
                os._exit(_rank(folder / name, rank, size, meet))
        assert [os.waitpid(pid, 0)[1] for pid in started] == [0, 0]
        pids += started
    return {"pids": pids}


def _rank(folder: Path, rank: int, size: int, meet: Barrier) -> int:
    groups = module("distributed.parallel_state")
    groups.get_tp_group = lambda: SimpleNamespace(rank_in_group=rank)  # type: ignore[attr-defined]
    try:
        with recorded(folder):
            engine = Engine({"profile_run": lambda: ask(size), "capture_model": lock})
            engine.wrapper.vllm_config.parallel_config.tensor_parallel_size = 2
            engine.wrapper.worker.rank = rank
            engine.start()
            meet.wait()  # as ranks of an engine do: neither is done before the other is there
            engine.step(a=3)
    except BaseException as error:
        print(repr(error), file=sys.stderr)
        return 1
    return 0


class Keeps:
    """A layer that takes its view once, in its constructor."""

    def __init__(self) -> None:
        self.buffer = ask_for_layer(4096)

    def forward(self) -> torch.Tensor:
        return self.buffer.zero_()


class Takes:
    """A layer that takes its view anew in each step."""

    def forward(self) -> torch.Tensor:
        return ask_for_layer(4096).zero_()


def ask_for_layer(size: int) -> torch.Tensor:
    """A request of a layer."""
    (view,) = workspace().current_workspace_manager().get_simultaneous(((size,), torch.uint8))
    return view


@scenario
def constructors(folder: Path) -> Facts:
    """`--check-views`: views of constructors, over a growth, over a request, and not kept."""
    pinned: dict[str, int] = {}
    for name, layer, size in (
        ("pins", Keeps, 2 * MIB),
        ("shares", Keeps, 1024),
        ("takes anew", Takes, 2 * MIB),
    ):
        layers: list[Any] = []
        with recorded(folder / name, check_views=True) as live:
            engine = Kit(live).engine(
                load_model=lambda layer=layer, layers=layers: layers.append(layer()),
                profile_run=lambda size=size: other_ask(size),
                capture_model=lock,
                execute_model=lambda layers=layers: (other_ask(512), layers[0].forward()),
            )
            engine.step(a=1)
            engine.step(b=1)
            view = getattr(layers[0], "buffer", None)
            now = workspace().current_workspace_manager()._current_workspaces[0]
            old = view is not None and view.untyped_storage().data_ptr() != now.data_ptr()
            pinned[name] = view.untyped_storage().nbytes() if view is not None and old else 0
    return {"pinned": pinned}


@scenario
def oversized(folder: Path) -> Facts:
    """A reserve of 8 MiB where 1 MiB is used, and one of 2 MiB."""
    for name, size in (("far above", 8 * MIB), ("near", 2 * MIB)):
        path = folder / f"{name}.yaml"
        path.write_text(dumps(reserve_config(size)))
        with recorded(folder / name, reserve=str(path)) as live:
            engine = Kit(live).engine(execute_model=lambda: ask(1024))
            for _ in range(3):
                engine.step(a=3)
    return {}
