"""What the frames of a novel request tell: site, stack, layer name, specs.

Only integers, dtypes and names are read, on the slow path only. The identity of a site is
(file, qualified function), never the line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from math import prod
from types import CodeType, FrameType, GetSetDescriptorType
from typing import Any

from wstrace.trace.records import Spec
from wstrace.vllm.arena import aligned

STACK_DEPTH = 16
LAYER_DEPTH = 12
MAX_NAME = 300
_OWN_FOLDER = os.path.join("wstrace", "recorder") + os.sep
# vLLM 0.13.0 to 0.33.0: locals that hold a layer's name (attention's custom ops,
# k_cache_prefix in indexers).
_LAYER_LOCALS = ("layer_name", "k_cache_prefix", "prefix")


def stable_path(file: str) -> str:
    """The part of a source path that is the same on every machine.

    Below the last site-packages (or dist-packages), else from the last folder that is a
    package root by name (`vllm/`), else the base name.
    """
    file = file.replace("\\", "/")
    for marker in ("/site-packages/", "/dist-packages/"):
        if marker in file:
            return file.rsplit(marker, 1)[1]
    head, found, tail = file.rpartition("/vllm/")
    return "vllm/" + tail if found and head else file.rsplit("/", 1)[-1]


def file_of(frame: FrameType) -> str:
    """The caller's file, named by its module, so that every way of installing agrees."""
    path = stable_path(frame.f_code.co_filename)
    module = frame.f_globals.get("__name__", "")
    guess = str(module).replace(".", "/")
    base = path.rsplit("/", 1)[-1]
    for candidate in (f"{guess}.py", f"{guess}/__init__.py"):
        if "." in str(module) and candidate.endswith("/" + base):
            return candidate
    return path


def is_manager_frame(code: CodeType) -> bool:
    """True for vLLM's WorkspaceManager methods and the wrappers that pose as them."""
    return code.co_qualname.startswith("WorkspaceManager.")


def calling_frame(frame: FrameType | None) -> FrameType | None:
    """The first frame outside WorkspaceManager and the recorder: who asked."""
    while frame is not None and (
        is_manager_frame(frame.f_code) or _OWN_FOLDER in frame.f_code.co_filename
    ):
        frame = frame.f_back
    return frame


def outermost(frame: FrameType) -> FrameType:
    """The first function of this thread."""
    while frame.f_back is not None:
        frame = frame.f_back
    return frame


def outward(frame: FrameType | None, limit: int) -> Iterator[FrameType]:
    """At most `limit` frames from `frame` to its callers, without the recorder's own."""
    while frame is not None and limit > 0:
        if _OWN_FOLDER not in frame.f_code.co_filename:
            yield frame
            limit -= 1
        frame = frame.f_back


def caller_text(frame: FrameType) -> str:
    """FILE:LINE:FUNC, as vLLM's own error names the caller."""
    code = frame.f_code
    return f"{os.path.basename(code.co_filename)}:{frame.f_lineno}:{code.co_name}"


def stack_of(frame: FrameType) -> list[str]:
    """Up to 16 frames, innermost first, as `file:line:qualified name`."""
    return [
        f"{file_of(f)}:{f.f_lineno}:{f.f_code.co_qualname}" for f in outward(frame, STACK_DEPTH)
    ]


def layer_of(frame: FrameType) -> str:
    """The layer's name in the model, looked up in the locals of up to 12 frames."""
    for outer in outward(frame, LAYER_DEPTH):
        local = outer.f_locals
        for name in _LAYER_LOCALS:
            text = _plain_text(local.get(name))
            if text:
                return text[:MAX_NAME]
        for holder in ("layer", "self"):
            text = _attribute(local.get(holder), ("layer_name", "prefix"))
            if text:
                return text[:MAX_NAME]
    return ""


def _attribute(holder: Any, names: Sequence[str]) -> str:
    values = own_attributes(holder)
    return next(filter(None, (_plain_text(values.get(name)) for name in names)), "")


def _plain_text(value: Any) -> str:
    """A text as it is; "" for all else. `isinstance` would ask the object for its class."""
    return str.__str__(value) if issubclass(type(value), str) else ""


def own_attributes(holder: Any) -> dict[str, Any]:
    """The instance's attributes, without running any code of its class.

    Empty for slots, and where the class has made `__dict__` something of its own.
    """
    for kind in type(holder).__mro__:
        if "__dict__" in vars(kind):
            if type(vars(kind)["__dict__"]) is not GetSetDescriptorType:
                return {}
            found = object.__getattribute__(holder, "__dict__")
            return found if type(found) is dict else {}
    return {}


def raw_specs(frame: FrameType) -> tuple[Any, ...]:
    """The arguments of the get_simultaneous call that `frame` is; () when it is another."""
    if frame.f_code.co_name != "get_simultaneous":
        return ()
    found = frame.f_locals.get("shapes_and_dtypes", ())
    return tuple(found) if isinstance(found, tuple) else ()


def spec_records(specs: tuple[Any, ...]) -> list[Spec]:
    """Shapes, dtype names and bytes (rounded up to 256) of each buffer."""
    records = []
    for shape, dtype in specs:
        size = aligned(prod(int(n) for n in shape) * dtype.itemsize)
        name = str(dtype).removeprefix("torch.")
        records.append(Spec(shape=[int(n) for n in shape], dtype=name, bytes=size))
    return records
