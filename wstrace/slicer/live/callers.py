"""Parameters lifted to the frame that called: by the call's own arguments, nothing else."""

from __future__ import annotations

import ast
import functools
import os
import types
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from wstrace.slicer import binding
from wstrace.slicer.attributes import changes
from wstrace.slicer.live import objects, relays
from wstrace.slicer.live.objects import MISSING, Objects
from wstrace.slicer.live.way import Way, kind_of, way_of
from wstrace.slicer.scope import Evaluation, Scope
from wstrace.slicer.syntax import GLOBAL, call_at, defined, function_source, short, uses_by_name
from wstrace.slicer.values import Obj, Stop, Tensor, Value

MAX_WRAPPERS: Final = 8
_BY_ANY_NAME: Final = frozenset(("forward", "__call__"))
"""Functions that are called by the name of an object: other calls are not to be found."""


@dataclass(frozen=True)
class LiveState:
    """What a live scope knows: its frame when one runs, its globals, its closure.

    `up` is how many callers it stands above the request.
    """

    globals: dict[str, object]
    frame: types.FrameType | None = None
    closure: dict[str, object] = field(default_factory=dict)
    up: int = 0

    @staticmethod
    def of(scope: Scope) -> LiveState:
        """The state of a scope that a live world made."""
        assert isinstance(scope.state, LiveState)
        return scope.state


@dataclass(frozen=True)
class CallAbove:
    """A call that runs further up: where it stands, and what its expression holds.

    `bound`: the callee has its first argument from an object, not from the call.
    """

    scope: Scope
    call: ast.Call
    held: object
    bound: bool


class Callers:
    """Goes up the stack, from a parameter to the argument of the call that runs."""

    def __init__(self, objects: Objects, max_callers: int) -> None:
        self.objects = objects
        self.max_callers = max_callers
        self.evaluator: Evaluation
        self.scopes: list[Scope] = []
        self.read: dict[tuple[int, str], type] = {}
        self.of_frames: dict[tuple[int, str], int] = {}
        self.others: dict[str, None] = {}

    def held(self, frame: types.FrameType, name: str, value: object) -> Obj:
        """An object that a frame holds: what is read from it depends on its class."""
        self.read[id(frame), name] = kind_of(value)
        self.of_frames[id(frame), name] = id(value)
        return Obj(value, id(value), name)

    def way(self, frame: types.FrameType) -> Way:
        """What the slice of the request that `frame` makes depends on, once it is made."""
        states = (LiveState.of(scope) for scope in self.scopes)
        seen = {id(state.frame) for state in states if state.frame is not None}
        values = {
            place: self.objects.consulted[held]
            for place, held in self.of_frames.items()
            if held in self.objects.consulted
        }
        return way_of(frame, seen, self.read, values)

    def forget(self) -> None:
        """Let go of the frames: what their variables hold (a view of the arena) would live
        until the next garbage collection."""
        for scope in self.scopes:
            state = LiveState.of(scope)
            object.__setattr__(state, "frame", None)
            state.closure.clear()
        self.scopes.clear()

    def scope(self, frame: types.FrameType, up: int) -> tuple[Scope, ast.Call]:
        """The scope of a running frame and the call it stands at."""
        code = frame.f_code
        source = function_source(code)
        if source is None:
            file = os.path.basename(code.co_filename)
            raise Stop(f"{file}:{code.co_firstlineno}", "no source")
        call = call_at(code, frame.f_lasti)
        if call is None or id(call) not in source.places:
            raise Stop(f"{source.file}:{frame.f_lineno}", "the call is not found in the source")
        state = LiveState(frame.f_globals, frame, up=up)
        self.scopes.append(Scope(source, state, source.places[id(call)]))
        return self.scopes[-1], call

    def parameter(self, scope: Scope, name: str) -> Value:
        """The value that the caller passed, or what the frame itself proves."""
        state = LiveState.of(scope)
        frame = state.frame
        where = f"{scope.source.file}:{scope.source.node.lineno}"
        if frame is None:
            raise Stop(where, f"{name} has no value on some path")
        held = MISSING
        if scope.source.bindings(name) == 1:
            held = frame.f_locals.get(name, MISSING)
        key = ("parameter", id(frame), name)
        if self.enters(frame, scope, name) and objects.is_tensor(held):
            return self.objects.activation(held, key, name, where)
        if _is_instance(held):
            return self.held(frame, name, held)
        query = objects.is_tensor(held) and self.is_query(frame, name)
        try:
            found = self.lifted(scope, state, name, where)
        except Stop as stop:
            if query:
                return self.objects.activation(held, key, name, where)
            raise Stop(where, f"parameter {name}: {stop}") from None
        if query and isinstance(found, Tensor) and found.dims is not None:
            known = self.objects.activation(held, key, name, where)
            return self.closed(found, known)
        return found

    def closed(self, found: Tensor, known: Tensor) -> Tensor:
        """`found` with the dimensions that its origin leaves open, such as those of a C
        extension's result, as vLLM's interface has them."""
        assert found.dims is not None
        assert known.dims is not None
        pairs = zip(found.dims, known.dims, strict=True)
        dims = (k if self.evaluator.ledger.is_open(f) else f for f, k in pairs)
        return replace(found, dims=tuple(dims))

    def enters(self, frame: types.FrameType, scope: Scope, name: str) -> bool:
        """Whether this is one of vLLM's layer entries and `name` its activation."""
        module = frame.f_globals.get("__name__", "")
        return isinstance(module, str) and binding.entry(module, frame.f_code.co_qualname, name)

    def is_query(self, frame: types.FrameType, name: str) -> bool:
        """The query of an attention implementation: vLLM's interface says what it is."""
        if name not in binding.IMPL_ENTRIES.get(frame.f_code.co_name, ()):
            return False
        first = frame.f_locals.get(frame.f_code.co_varnames[0])
        cls: type = first if isinstance(first, type) else kind_of(first)  # a class method's cls
        return any(
            binding.is_vllm(base.__module__) and base.__name__ in binding.IMPLS
            for base in cls.__mro__
        )

    def lifted(self, scope: Scope, state: LiveState, name: str, where: str) -> Value:
        if state.up >= self.max_callers:
            raise Stop(where, f"not followed above {self.max_callers} callers")
        above = self.caller(state)
        self.others |= dict.fromkeys(_other_calls(scope, above))
        declared = scope.source.node.args
        owner = None
        positional = [a.arg for a in (*declared.posonlyargs, *declared.args)]
        if _is_method(scope.source.in_class, scope.source.node) and above.bound:
            assert state.frame is not None
            held = state.frame.f_locals.get(positional[0]) if positional else None
            owner = Obj(held, id(held), positional[0] if positional else "self")
        before, named = self.of_partial(above, name)
        first = [owner, *before] if owner is not None else before
        if name in named and name not in {k.arg for k in above.call.keywords}:
            return named[name]
        arguments = self.evaluator.arguments(scope.source, first, above.call, above.scope)
        if name not in arguments:
            raise Stop(where, f"the call in {above.scope.source.qualname} gives no {name}")
        return arguments[name]()

    def of_partial(self, above: CallAbove, name: str) -> tuple[list[Value], dict[str, Value]]:
        """The arguments that a functools.partial gives before those of the call.

        Constants where the partial is kept on an attribute that nothing but a constructor
        assigns; else they may be others next time.
        """
        held, node = above.held, above.call.func
        if not isinstance(held, functools.partial):
            return [], {}
        where, why = above.scope.where(above.call), "an argument of a functools.partial"
        frame = LiveState.of(above.scope).frame
        if isinstance(node, ast.Attribute) and frame is not None:
            self.noted(node, frame)
            owner: type = type(relays.held(node.value, frame))
            why = changes(owner, node.attr)
        wrap, key = self.objects.wrap, ("partial", id(held))
        before = [
            wrap(value, (key, i), f"partial_{i}", where, why)
            for i, value in enumerate(held.args)
        ]
        if name not in held.keywords:
            return before, {}
        return before, {name: wrap(held.keywords[name], (key, name), name, where, why)}

    def noted(self, node: ast.expr, frame: types.FrameType) -> object:
        """As `relays.held`; what was read on the way belongs to the way of the request."""
        value = relays.held(node, frame)
        if value is MISSING:
            return value
        if isinstance(node, ast.Attribute):
            owner = self.noted(node.value, frame)
            self.objects.consult(id(owner), node.attr, value)
        elif isinstance(node, ast.Name) and node.id in frame.f_locals:
            self.held(frame, node.id, value)
        return value

    def around(self, state: LiveState, name: str, where: str) -> Value | None:
        """A name of the enclosing function, from that function's frame; None where it ended."""
        frame = state.frame
        outer = relays.enclosing(frame, name) if frame is not None else None
        if outer is None or state.up >= self.max_callers:
            return None
        scope, _ = self.scope(outer, state.up + 1)
        once = scope.source.bindings(name) == 1 and name not in scope.source.shared
        if not once or scope.home is None:
            return None
        return self.evaluator.name(scope, name, scope.home, where)

    def caller(self, state: LiveState) -> CallAbove:
        """The frame that called, wrappers that only pass everything on left out."""
        frame = state.frame
        assert frame is not None
        codes, bound = [frame.f_code], False
        for _ in range(MAX_WRAPPERS):
            above = frame.f_back
            if above is None:
                raise Stop("", "no caller")
            if relays.runs_hooks(above):
                owner = above.f_locals.get("self")
                raise Stop(
                    "", f"hooks are registered on {type(owner).__name__}, or on all modules"
                )
            scope, call = self.scope(above, state.up + 1)
            called = relays.held(call.func, above)
            if not relays.is_relay(above):
                self.check_callee(scope, call, called, codes)
            bound |= relays.is_bound(called)
            if not _passes_all(scope, call):
                return CallAbove(scope, call, called, bound or _bound(call))
            codes.append(above.f_code)
            frame = above
        raise Stop("", f"more than {MAX_WRAPPERS} wrappers")

    def check_callee(
        self, scope: Scope, call: ast.Call, held: object, codes: list[types.CodeType]
    ) -> None:
        """The call must name what runs, or call an object that leads to it: C code in between
        could call with other arguments. `held` is what the call's expression holds."""
        called = call.func.attr if isinstance(call.func, ast.Attribute) else None
        if isinstance(call.func, ast.Name):
            called = call.func.id
        if called in {code.co_name for code in codes} or relays.leads_to(held, codes):
            return
        title, target = called or "something", codes[0].co_name
        raise Stop(scope.where(call), f"the call of {title} is not seen to reach {target}")


def _other_calls(callee: Scope, above: CallAbove) -> Iterator[str]:
    """Uses of the same function that the source has elsewhere, as `file:line:function`: calls
    from there may pass more. Looked for by name in the module of the function and in that of
    its caller; where several functions have it, only those on `self` in the same class count.
    """
    here, name = callee.source, getattr(callee.source.node, "name", "")
    if not name or name in _BY_ANY_NAME:
        return
    # Not the paths of the sources: equal functions of two files share one.
    asked, calling = (_path(LiveState.of(scope)) for scope in (callee, above.scope))
    running = (calling, above.call.lineno, above.call.col_offset)
    first, last = here.node.lineno, here.node.end_lineno or here.node.lineno
    for path in dict.fromkeys((asked, calling)):
        several = defined(path, name) > 1
        for line, column, on, in_class in uses_by_name(path).get(name, ()):
            if (path, line, column) == running:
                continue
            if path == asked and first <= line <= last:
                continue  # it calls itself
            if several and on and (on not in ("self", "cls") or in_class != here.in_class):
                continue
            if on == GLOBAL and here.in_class:
                continue  # no method is a global
            if on.startswith("super()"):
                continue
            yield f"{short(path)}:{line}:{here.qualname}"


def _path(state: LiveState) -> str:
    return state.frame.f_code.co_filename if state.frame is not None else ""


def _is_instance(held: object) -> bool:
    """An object that is told by its class, not a number, tensor or container."""
    if held is MISSING or objects.is_plain(held) or objects.is_tensor(held):
        return False
    if objects.is_dtype(held) or objects.is_integer(held):
        return False
    return not isinstance(held, tuple | list | dict | set | types.FunctionType | float)


def _is_method(in_class: str, node: ast.AST) -> bool:
    decorators = getattr(node, "decorator_list", [])
    static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in decorators)
    return bool(in_class) and not static


def _bound(call: ast.Call) -> bool:
    """`x.method(...)`, but not `Class.method(self, ...)`."""
    if not isinstance(call.func, ast.Attribute):
        return False
    owner = call.func.value
    named = isinstance(owner, ast.Name) and owner.id[:1].isupper()
    return not named


def _passes_all(scope: Scope, call: ast.Call) -> bool:
    """`return function(*args, **kwargs)` with the function's own, untouched, star arguments."""
    declared = scope.source.node.args
    if declared.vararg is None or not call.args:
        return False
    last = call.args[-1]
    stars = isinstance(last, ast.Starred) and isinstance(last.value, ast.Name)
    if not stars or len(call.args) != 1:
        return False
    assert isinstance(last, ast.Starred)
    assert isinstance(last.value, ast.Name)
    names = [
        last.value.id,
        *(k.value.id for k in call.keywords if isinstance(k.value, ast.Name)),
    ]
    own = {declared.vararg.arg, declared.kwarg.arg if declared.kwarg else ""}
    plain = [a.arg for a in (*declared.posonlyargs, *declared.args)]
    once = all(scope.source.bindings(n) == 1 for n in names)
    return set(names) <= own and once and plain in ([], ["self"])
