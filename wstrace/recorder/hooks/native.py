"""The hot path with its look-up in C, where the optional distribution `wstrace-native` is.

Its `seen` (tools/native/wstrace_native.c) says whether a request is one that was seen, and
counts it. Everything else goes to the wrapper in Python, which also is all there is where the
distribution is missing or of another version, where `WSTRACE_NATIVE=0` says so, and where
PyTorch cannot be told what to trace in the place of a function in C.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import wstrace
from wstrace.recorder.guard import guarded
from wstrace.recorder.hooks.posing import CODE_NAME, Ensure, pose_as
from wstrace.recorder.hooks.requests import depth_of_caller, refused, wrap_ensure
from wstrace.recorder.state.counters import Entry
from wstrace.recorder.state.process import Live

MODULE = "wstrace_native"


class NotUsedError(Exception):
    """Why the look-up is Python's."""


def extension() -> ModuleType:
    """The module in C, known to Dynamo; raises NotUsedError where there is none to be used."""
    try:
        module = import_module(MODULE)
    except ModuleNotFoundError:
        raise NotUsedError("wstrace-native is not installed") from None
    except Exception as error:
        raise NotUsedError(f"wstrace-native cannot be loaded: {error}") from error
    found = vars(module).get("__version__")
    if found != wstrace.__version__:
        raise NotUsedError(f"wstrace-native is {found}, wstrace {wstrace.__version__}")
    try:
        _tell_dynamo(module.seen)
    except Exception as error:
        why = f"PyTorch cannot trace past it: {type(error).__name__}: {error}"
        raise NotUsedError(why) from error
    return module


@functools.cache
def _tell_dynamo(seen: Callable[..., bool]) -> None:
    """Where Dynamo traces, a request counts as seen: vLLM's method is traced and nothing else.

    Once a process: PyTorch refuses a second time.
    """
    from torch.compiler import substitute_in_graph

    def traced(table: Any, manager: Any, required_bytes: Any, /) -> bool:
        return True

    substitute_in_graph(seen, skip_signature_check=True)(traced)


def wrap_seen(live: Live) -> Callable[[Ensure], Ensure]:
    """The maker of the hot wrapper: in C where it can be, else `wrap_ensure`."""
    if not live.settings.native:
        return wrap_ensure(live)
    made: Callable[[Ensure], Ensure] | None = guarded(live, "native", _in_c, live)
    return made or wrap_ensure(live)


def _in_c(live: Live) -> Callable[[Ensure], Ensure] | None:
    try:
        module = extension()
    except NotUsedError:
        return None
    seen = module.seen
    depth, getframe = depth_of_caller(live), sys._getframe
    table = module.Table(Entry, live.manager, depth)
    live.counters.table = table
    in_python = wrap_ensure(live, below=1)

    def make(original: Ensure) -> Ensure:
        other = in_python(original)

        def _ensure_workspace_size(self: Any, required_bytes: int) -> Any:
            if seen(table, self, required_bytes):
                try:
                    return original(self, required_bytes)
                except Exception as error:
                    known = (self, required_bytes, getframe(depth), error)
                    guarded(live, "failure", refused, live, *known)
                    raise
            return other(self, required_bytes)

        pose_as(_ensure_workspace_size, CODE_NAME)
        return _ensure_workspace_size

    return make
