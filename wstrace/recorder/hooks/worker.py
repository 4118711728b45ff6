"""Hooks on vLLM's worker and model runner: phases, steps, KV sizing, and where to reserve."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from typing import Any

from wstrace.errors import WstraceError, one_line
from wstrace.recorder.guard import guarded
from wstrace.recorder.state.counters import COUNTS_EVERY_NS
from wstrace.recorder.state.memory_records import blocks_record, kv_record
from wstrace.recorder.state.process import Live
from wstrace.recorder.state.steps import StepKind
from wstrace.safe_texts.redact import redact_text
from wstrace.trace.records import Limits, ReserveEvent
from wstrace.vllm.methods import PHASES, RESERVE_AT, RUNNER, WORKER, Known

MAX_ERROR = 400  # characters of an error that ended a start
Method = Callable[..., Any]
Maker = Callable[[Method], Method]
Begin = Callable[[Live, tuple[Any, ...], dict[str, Any]], Any]
End = Callable[[Live, Any, BaseException | None], None]


def around(live: Live, what: str, begin: Begin, end: End, reserve: str = "") -> Maker:
    """A wrapper that passes everything through, between `begin` and `end`.

    `begin(live, args, kwargs)` gives a token, and `end(live, token, error)` gets it back,
    with what vLLM raised; both are guarded. `reserve`: how a reserve may be applied
    (RESERVE_AT, or "unlocked": only then), the one thing here that may raise into vLLM.
    """

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            token = guarded(live, what, begin, live, args, kwargs)
            try:
                if reserve and live.settings.reserve is not None:
                    _reserve_at(live, reserve)
                result = original(self, *args, **kwargs)
            except BaseException as error:
                guarded(live, what, end, live, token, error)
                raise
            guarded(live, what, end, live, token, None)
            return result

        return method

    return make


def after(live: Live, what: str, note: Callable[..., None], start: str = "") -> Maker:
    """A wrapper that calls `note(live, self, result, args, kwargs)` once vLLM returned.

    `start`: the method's name where it belongs to a start, whose error is then recorded.
    """

    def make(original: Method) -> Method:
        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                result = original(self, *args, **kwargs)
            except BaseException as error:
                if start:
                    guarded(live, what, _raised, live, start, error)
                raise
            guarded(live, what, note, live, self, result, args, kwargs)
            return result

        return method

    return make


def _argument(name: str, args: Any, kwargs: dict[str, Any], default: Any = None) -> Any:
    """The first argument of a call, by position or by name."""
    return args[0] if args else kwargs.get(name, default)


# -- phases ----------------------------------------------------------------------------------


def _phase(live: Live, name: str) -> Maker:
    """The method is a phase; a reserve is applied at its start where it is one that may."""
    profiling = PHASES[name] == "profile"

    def begin(live: Live, args: Any, kwargs: Any) -> None:
        live.phases.enter(name)
        if profiling:
            guarded(live, "KV sizing", live.memory.profiling, live.worker.current)

    def end(live: Live, token: Any, error: BaseException | None) -> None:
        text = "" if error is None else guarded(live, "error text", _told, error, default="?")
        live.phases.leave(name, text)
        if profiling and error is None:
            live.memory.profiled()
        if name == "shutdown":
            live.flush_counts()

    return around(live, f"phase {name}", begin, end, RESERVE_AT.get(name, ""))


def _raised(live: Live, method: str, error: BaseException) -> None:
    live.phases.raised(method, _told(error))


def _told(error: BaseException) -> str:
    """`ImportError: vLLM's message`, on one line and without credentials."""
    text = redact_text(str(error)) or "no message"
    return f"{type(error).__name__}: {one_line(text)}"[:MAX_ERROR]


def _reserve_at(live: Live, place: str) -> None:
    if place != "unlocked" or live.phases.current == "unlocked":
        reserve_if_due(live, again=place in ("again", "unlocked"))


def reserve_if_due(live: Live, again: bool) -> None:
    """Apply the reserve; `again` only where this manager has none yet.

    Raises WstraceError under policy `fail`, as `wstrace.recorder.apply_reserve` says. That
    module is imported here: most runs have no reserve, and start-up should not pay for one.
    """
    guarded(live, "limits", refresh_limits, live)
    if again and live.manager.reserve_mark is not None:
        return
    from wstrace.recorder import apply_reserve

    try:
        apply_reserve.apply_reserve(live)
    except WstraceError:
        raise
    except Exception as error:
        if live.settings.reserve_policy == "fail":
            raise
        live.output.complain("reserve", error)
        live.output.write(
            ReserveEvent(event="refused", phase=live.phases.current, why=repr(error))
        )


def refresh_limits(live: Live) -> None:
    """Write the limits that vLLM changed since they were read."""
    changed = live.worker.changed_limits()
    if changed:
        live.output.write(Limits(limits=changed))


def _asleep(live: Live, *call: Any) -> None:
    live.phases.asleep(True)


def _awake(live: Live, *call: Any) -> None:
    live.phases.asleep(False)


# -- steps -----------------------------------------------------------------------------------


def _execute_model(live: Live) -> Maker:
    """Every step passes here, so it is written out: no generator, few calls."""

    def make(original: Method) -> Method:
        steps, active, now = live.steps, live.phases.active, time.monotonic_ns
        counters = live.counters

        @functools.wraps(original)
        def execute_model(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                output = args[0] if args else kwargs.get("scheduler_output")
                steps.begin(output, "warmup" in active)
            except Exception as error:  # guarded, without its call
                guarded(live, "step", _reraise, error)
            try:
                return original(self, *args, **kwargs)
            finally:
                steps.output, steps.paused, steps.running = None, steps.output, False
                if now() - counters.flushed_at >= COUNTS_EVERY_NS:
                    guarded(live, "counts", live.flush_counts)

        return execute_model

    return make


def _reraise(error: Exception) -> None:
    raise error


def _sample_tokens(live: Live) -> Maker:
    """V2 samples, and drafts are proposed, in a call of its own: it is the same step."""

    def make(original: Method) -> Method:
        steps = live.steps

        @functools.wraps(original)
        def sample_tokens(self: Any, *args: Any, **kwargs: Any) -> Any:
            steps.output, steps.running = steps.paused, True
            try:
                return original(self, *args, **kwargs)
            finally:
                steps.output = steps.paused = None
                steps.running = False

        return sample_tokens

    return make


def ray_step(live: Live) -> Maker:
    """A whole step, sampling too, of vLLM's older Ray executor.

    Nothing of it may be kept: what Ray's channels handed over blocks the next read of theirs.
    """

    def begin(live: Live, args: Any, kwargs: Any) -> None:
        handed = _argument("execute_model_input", args, kwargs)
        live.steps.begin(handed[0], "warmup" in live.phases.active)

    def end(live: Live, token: Any, error: BaseException | None) -> None:
        live.steps.end()
        if time.monotonic_ns() - live.counters.flushed_at >= COUNTS_EVERY_NS:
            live.flush_counts()

    return around(live, "step", begin, end)


def _dummy(live: Live, kind: StepKind) -> Maker:
    """A step without a scheduler; one that another step makes belongs to that step."""

    def begin(live: Live, args: Any, kwargs: Any) -> bool:
        if live.steps.running:
            return False
        tokens = _argument("num_tokens", args, kwargs, 0)
        live.steps.begin_dummy(tokens if isinstance(tokens, int) else 0, kind)
        return True

    def end(live: Live, began: Any, error: BaseException | None) -> None:
        if began:
            live.steps.end()

    return around(live, f"{kind} step", begin, end, "unlocked")


# -- KV sizing -------------------------------------------------------------------------------


def _sized(live: Live, worker: Any, result: Any, args: Any, kwargs: Any) -> None:
    live.memory.sized()
    live.output.write(kv_record(worker, result, live.memory.measures()))


def _blocks(live: Live, worker: Any, result: Any, args: Any, kwargs: Any) -> None:
    record = blocks_record(worker, _argument("kv_cache_config", args, kwargs))
    if record is not None:
        live.output.write(record)
    refresh_limits(live)


def worker_makers(live: Live) -> dict[str, Maker]:
    """The wrappers of the worker's methods, by name."""
    return _phases(live, WORKER) | {
        "determine_available_memory": after(
            live, "KV sizing", _sized, "determine_available_memory"
        ),
        "initialize_from_config": after(live, "KV blocks", _blocks, "initialize_from_config"),
        "execute_model": _execute_model(live),
        "sample_tokens": _sample_tokens(live),
        "execute_dummy_batch": _dummy(live, "idle"),
        "sleep": after(live, "sleep", _asleep),
        "wake_up": after(live, "wake_up", _awake),
        "shutdown": _phase(live, "shutdown"),
    }


def _phases(live: Live, hooks: Iterable[Known]) -> dict[str, Maker]:
    """The wrappers of the methods that are a phase and nothing else."""
    return {k.name: _phase(live, k.name) for k in hooks if k.phase is not None}


def runner_makers(live: Live) -> dict[str, Maker]:
    """The wrappers of the model runner's methods, by name."""
    return _phases(live, RUNNER) | {"_dummy_run": _dummy(live, "dummy")}
