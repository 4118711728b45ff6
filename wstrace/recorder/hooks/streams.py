"""Whether streams that ask in one slot are ordered: looked at for a few steps, then let go.

Following events costs a wrapper around each, so nothing is wrapped while one stream asks in
each slot. The first request from a second one starts a watch: `torch.cuda.Event`'s and
`Stream`'s methods are wrapped, every request takes the novel path, and each pair of requests
from two streams is judged by `wstrace.recorder.state.stream_order`. After some real steps the
wrappers come off again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from wstrace.recorder.guard import guarded
from wstrace.recorder.state.process import Live
from wstrace.recorder.state.stream_order import Pair, StreamOrder
from wstrace.recorder.vllm_state import frames
from wstrace.trace.records import Ordering, Slot
from wstrace.vllm import methods

Method = Callable[..., Any]

WATCHED_STEPS: Final = 3  # real steps; warm-up and capture before them are watched as well
MOST_WATCHES: Final = 16
STACK: Final = 8


def asked(live: Live, slot: Slot, site: int, caller: FrameType) -> None:
    """A request on the novel path: judge it while watching, else see whether to start."""
    watch, stream = live.streams, current_stream()
    if watch.on:
        _judge(live, slot, stream, site, caller)
        return
    before = watch.last.setdefault(slot, stream)
    watch.last[slot] = stream
    new = before != stream and (slot, site, stream) not in watch.judged
    if new and watch.watches < MOST_WATCHES:
        _begin(live)


def current_stream() -> int:
    """The CUDA stream that is current, 0 where there is none (a CPU) or it is the default."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.current_stream().cuda_stream)


def _begin(live: Live) -> None:
    watch = live.streams
    watch.on, watch.watches = True, watch.watches + 1
    watch.steps.clear()
    watch.order = StreamOrder()
    _hook(live)
    live.forget_hot()  # every request is novel again, and stays so while watching


def _judge(live: Live, slot: Slot, stream: int, site: int, caller: FrameType) -> None:
    watch = live.streams
    stack = tuple(frames.stack_of(caller)[:STACK])
    graph = live.capture.graph if live.capture.active else 0
    for pair in watch.order.asked(slot, stream, site, stack, graph):
        _write(live, pair)
        watch.judged |= {(slot, one.site, one.stream) for one in (pair.first, pair.second)}
    if live.phases.current == "serving":
        watch.steps.add(live.steps.real)
        if len(watch.steps) > WATCHED_STEPS:
            _end(live)


def _write(live: Live, pair: Pair) -> None:
    key = (pair.slot, pair.first.site, pair.second.site, pair.ordered)
    if key in live.streams.written:
        return
    live.streams.written.add(key)
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


def _end(live: Live) -> None:
    live.streams.on = False
    live.streams.last.clear()
    for known, owner in _owners():
        live.hooks.unwrap(owner, known)


def _hook(live: Live) -> None:
    """Wrap what orders streams; PyTorch's generic `torch.Event` cannot be wrapped."""
    makers: dict[str, Callable[[Method], Method]] = {
        "Event.record": _on_stream(live, StreamOrder.recorded),
        "Event.wait": _on_stream(live, StreamOrder.waited),
        "Event.synchronize": _after(live, StreamOrder.host_waited),
        "Stream.synchronize": _after(live, _stream_joined),
        "cuda.synchronize": _after_all(live),
    }
    for known, owner in _owners():
        live.hooks.wrap(owner, known, makers[known.label])


def _owners() -> list[tuple[methods.Known, Any]]:
    import torch

    owners = {"Event": torch.cuda.Event, "Stream": torch.cuda.Stream, "cuda": torch.cuda}
    return [(known, owners[known.owner]) for known in methods.STREAMS]


def _on_stream(live: Live, note: Callable[[StreamOrder, Any, int], None]) -> Any:
    """Around `event.METHOD(stream=None)`; the event is noted before what it orders."""

    def make(original: Method) -> Method:
        def method(self: Any, stream: Any = None, *args: Any, **kwargs: Any) -> Any:
            result = original(self, stream, *args, **kwargs)
            guarded(live, "streams", _note, live, note, self, stream)
            return result

        return method

    return make


def _note(live: Live, note: Any, event: Any, stream: Any) -> None:
    number = current_stream() if stream is None else int(stream.cuda_stream)
    note(live.streams.order, event, number)


def _after(live: Live, note: Callable[[StreamOrder, Any], None]) -> Any:
    def make(original: Method) -> Method:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            guarded(live, "streams", note, live.streams.order, self)
            return result

        return method

    return make


def _stream_joined(order: StreamOrder, stream: Any) -> None:
    order.host_joined(int(stream.cuda_stream))


def _after_all(live: Live) -> Any:
    def make(original: Method) -> Method:
        def synchronize(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            guarded(live, "streams", live.streams.order.host_joined)
            return result

        return synchronize

    return make
