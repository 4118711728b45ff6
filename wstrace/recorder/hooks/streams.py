"""Whether streams that ask in one slot are ordered: looked at for a few steps, then let go.

Following events costs a wrapper around each, so nothing is wrapped while one stream asks in
each slot. The first request from a second one starts a watch: `torch.cuda.Event`'s and
`Stream`'s methods are wrapped, every request takes the novel path, and each pair of requests
from two streams is judged by `wstrace.recorder.state.stream_order`. After some real steps the
wrappers come off again. Which streams asked, and when a watch ends, is `StreamWatch`'s.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, Final

from wstrace.recorder.guard import guarded
from wstrace.recorder.state.process import Live
from wstrace.recorder.state.stream_order import Pair, StreamOrder
from wstrace.recorder.vllm_state import frames
from wstrace.trace.records import Ordering, Slot
from wstrace.vllm import methods

Method = Callable[..., Any]
Note = Callable[..., None]

STACK: Final = 8


def asked(live: Live, slot: Slot, site: int, caller: FrameType) -> None:
    """A request on the novel path: judge it while watching, else see whether to start."""
    watch, stream = live.streams, current_stream()
    if watch.on:
        _judge(live, slot, stream, site, caller)
    elif watch.begins(slot, stream, site):
        _hook(live)
        live.forget_hot()  # every request is novel again, and stays so while watching


def current_stream() -> int:
    """The CUDA stream that is current, 0 where there is none (a CPU) or it is the default."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.current_stream().cuda_stream)


def _judge(live: Live, slot: Slot, stream: int, site: int, caller: FrameType) -> None:
    stack = tuple(frames.stack_of(caller)[:STACK])
    graph = live.capture.graph if live.capture.active else 0
    for pair in live.streams.judged_now(slot, stream, site, stack, graph):
        _write(live, pair)
    if live.phases.current == "serving" and live.streams.ends(live.steps.real):
        for known, owner in _owners():
            live.hooks.unwrap(owner, known)


def _write(live: Live, pair: Pair) -> None:
    live.output.write(
        Ordering(
            slot=pair.slot,
            first=pair.first.site,
            second=pair.second.site,
            ordered=pair.ordered,
            streams=[pair.first.stream, pair.second.stream],
            first_stack=list(pair.first.stack),
            second_stack=list(pair.second.stack),
            phase=live.phases.current,
            step=live.steps.index,
            capturing=live.capture.active,
        )
    )


def _hook(live: Live) -> None:
    """Wrap what orders streams; PyTorch's generic `torch.Event` cannot be wrapped."""
    for known, owner in _owners():
        live.hooks.wrap(owner, known, partial(_after, live, NOTES[known.label]))


def _owners() -> list[tuple[methods.Known, Any]]:
    import torch

    owners = {"Event": torch.cuda.Event, "Stream": torch.cuda.Stream, "cuda": torch.cuda}
    return [(known, owners[known.owner]) for known in methods.STREAMS]


def _after(live: Live, note: Note, original: Method) -> Method:
    """`original`, and once it returned `note(order, ...)` with the same arguments."""

    def method(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        guarded(live, "streams", partial(note, live.streams.order, *args, **kwargs))
        return result

    return method


def _recorded(order: StreamOrder, event: Any, stream: Any = None) -> None:
    order.recorded(event, _number(stream))


def _waited(order: StreamOrder, event: Any, stream: Any = None) -> None:
    order.waited(event, _number(stream))


def _number(stream: Any) -> int:
    """The stream that an event's method means: the current one where none is given."""
    return current_stream() if stream is None else int(stream.cuda_stream)


def _stream_joined(order: StreamOrder, stream: Any) -> None:
    order.host_joined(int(stream.cuda_stream))


def _device_joined(order: StreamOrder, device: Any = None) -> None:
    order.host_joined()


NOTES: Final[dict[str, Note]] = {
    "Event.record": _recorded,
    "Event.wait": _waited,
    "Event.synchronize": StreamOrder.host_waited,
    "Stream.synchronize": _stream_joined,
    "cuda.synchronize": _device_joined,
}
