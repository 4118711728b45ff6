"""Calls that reach a function through an object: what a call's expression holds in its frame.

`layer(x)` runs torch's `Module.__call__` and then `forward`; a custom op runs torch's
dispatcher and then the registered function; a bound method or a partial may be kept on an
attribute. The frames between are torch's or C code: the call above them is followed only when
the object that it calls is seen to lead to the function that runs. Objects are read, never run.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Final

from wstrace.slicer.live.objects import MISSING, stored

# PyTorch 2.13 has this class and the names below as well.
_MODULE: Final = ("torch.nn.modules.module", "Module")
_RELAYS: Final = {
    "torch.nn.modules.module": ("Module._call_impl", "Module._wrapped_call_impl"),
    "torch._ops": ("OpOverloadPacket.__call__", "OpOverload.__call__"),
}
"""Functions of torch 2.4 to 2.11 that pass all their arguments on, by module."""
_INNER: Final = "Module._call_impl.<locals>.inner"
"""What `_call_impl` runs where any hook is registered: hooks may change the arguments."""
_MAX_UP: Final = 8
_OPS: Final = ("OpOverloadPacket", "OpOverload")


def is_relay(frame: FrameType) -> bool:
    """Whether this is torch's own code between a call and what it runs."""
    module = frame.f_globals.get("__name__")
    return isinstance(module, str) and frame.f_code.co_qualname in _RELAYS.get(module, ())


def runs_hooks(frame: FrameType) -> bool:
    """Whether torch runs a module here with the hooks that are registered on it."""
    module = frame.f_globals.get("__name__")
    return module == _MODULE[0] and frame.f_code.co_qualname == _INNER


def held(node: ast.expr, frame: FrameType) -> object:
    """What a name or a chain of attributes holds in `frame`, or `MISSING`; nothing is run."""
    if isinstance(node, ast.Name):
        local = frame.f_locals
        return local[node.id] if node.id in local else frame.f_globals.get(node.id, MISSING)
    if isinstance(node, ast.Attribute):
        owner = held(node.value, frame)
        if isinstance(owner, ModuleType):  # torch.ops and its namespaces are modules too
            return vars(owner).get(node.attr, MISSING)
        return MISSING if owner is MISSING else stored(owner, node.attr)
    return MISSING


def leads_to(value: object, codes: list[CodeType]) -> bool:
    """Whether calling `value` runs one of these functions."""
    return any(_runs(target, codes) for target in _targets(value))


def is_bound(value: object) -> bool:
    """Whether a call of `value` gives the callee its first argument."""
    if isinstance(value, functools.partial):
        return is_bound(value.func)
    return isinstance(value, MethodType) or is_module(value)


def is_module(value: object) -> bool:
    """Whether `value` is a torch.nn.Module."""
    return any((c.__module__, c.__name__) == _MODULE for c in type(value).__mro__)


def _targets(value: object) -> Iterator[object]:
    yield value
    if isinstance(value, MethodType):
        yield value.__func__
    elif isinstance(value, functools.partial):
        yield from _targets(value.func)
    elif is_module(value):
        for cls in type(value).__mro__:
            if "forward" in vars(cls):
                yield vars(cls)["forward"]
                break
        instance = stored(value, "forward")
        if instance is not MISSING:
            yield from _targets(instance)


def _runs(target: object, codes: list[CodeType]) -> bool:
    if isinstance(target, FunctionType):
        # A decorator such as torch.no_grad() keeps what it wraps in `__wrapped__`.
        inner = vars(target).get("__wrapped__")
        mine = _among(target.__code__, codes)
        return mine or (inner is not None and _runs(inner, codes))
    if type(target).__name__ in _OPS and type(target).__module__ == "torch._ops":
        return _op_name(target) in {code.co_name.lstrip("_") for code in codes}
    return False


def _among(code: CodeType, several: Iterable[object]) -> bool:
    """Whether it is one of them itself: equal functions of two files are equal code objects."""
    return any(other is code for other in several)


def _op_name(op: object) -> str:
    """`sparse_attn_indexer` of `vllm::sparse_attn_indexer`; '' where it is not known.

    vLLM registers an op under the name of its function, or of the function less its underscore.
    """
    name = stored(op, "_qualified_op_name")
    name = stored(op, "_name") if name is MISSING else name
    return name.partition("::")[2].partition(".")[0] if isinstance(name, str) else ""


def enclosing(frame: FrameType, name: str) -> FrameType | None:
    """The frame of the function around `frame`'s, where it still runs further up the stack.

    So it does where a helper that takes callables (vLLM's `execute_in_parallel`) runs a local
    function of its caller.
    """
    code, value, outer = frame.f_code, frame.f_locals.get(name, MISSING), frame.f_back
    for _ in range(_MAX_UP):
        if outer is None:
            return None
        if _among(code, outer.f_code.co_consts) and outer.f_locals.get(name, MISSING) is value:
            return outer
        outer = outer.f_back
    return None
