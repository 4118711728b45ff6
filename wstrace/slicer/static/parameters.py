"""Parameters offline: by annotation, by vLLM's interfaces, or from every caller there is."""

from __future__ import annotations

import ast
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Final

from wstrace.slicer import arithmetic, binding
from wstrace.slicer.ledger import Ledger
from wstrace.slicer.scope import Evaluation, Scope
from wstrace.slicer.static.project import CallPlace, ClassRef, ExternalRef, Project
from wstrace.slicer.syntax import FunctionSource
from wstrace.slicer.values import Dtype, Obj, Opaque, Stop, Tensor, Value, choose

MAX_CALLS: Final = 8
_COMMON: Final = {"forward", "__call__", "apply", "build", "run", "call", "compute", "execute"}


@dataclass(frozen=True)
class Instance:
    """An object of a class of the project; `fixed` when it cannot be replaced."""

    cls: ClassRef


@dataclass(frozen=True)
class SourceState:
    """What an offline scope knows: its module, and how many callers it was lifted."""

    module: str
    up: int = 0

    @staticmethod
    def of(scope: Scope) -> SourceState:
        """The state of a scope that a world of source made."""
        assert isinstance(scope.state, SourceState)
        return scope.state


class Parameters:
    """What parameters stand for where nothing runs."""

    def __init__(self, ledger: Ledger, project: Project, max_callers: int) -> None:
        self.ledger = ledger
        self.project = project
        self.max_callers = max_callers
        self.evaluator: Evaluation
        self.followed: list[FunctionSource] = []

    def parameter(self, scope: Scope, name: str) -> Value:
        """By class where the annotation is one; else what all callers in reach pass."""
        state = SourceState.of(scope)
        source = scope.source
        where = f"{source.file}:{source.node.lineno}"
        owner = self.owner_class(source, state.module)
        declared = source.node.args
        plain = [*declared.posonlyargs, *declared.args]
        if owner is not None and plain and plain[0].arg == name:
            return Obj(Instance(owner), ("self", owner), name, "fixed")
        annotation = next(
            (a.annotation for a in (*plain, *declared.kwonlyargs) if a.arg == name), None
        )
        ref = self.project.named(state.module, annotation) if annotation is not None else None
        if isinstance(ref, ClassRef):
            return Obj(Instance(ref), (source.qualname, name), name)
        if self.enters(source, state.module, name, owner):
            return self.activation((source.qualname, name), name, where)
        if source.name == "__init__" and owner is not None:
            return Obj(Opaque(), ("init", owner, name), name)
        key = (source.qualname, name)
        try:
            found = self.from_callers(scope, state, name, where)
            return (
                self.forgiving(found, key, name, where) if isinstance(found, Tensor) else found
            )
        except Stop as stop:
            tensor = isinstance(ref, ExternalRef) and ref.name == "torch.Tensor"
            if tensor:
                return self.unknown_tensor((source.qualname, name), name, where, str(stop))
            why = f"parameter {name}: {stop}"
            if _is_int(annotation):
                return Obj(Opaque(why, open=True), key, name)
            raise Stop(where, why) from None

    def owner_class(self, source: FunctionSource, module: str) -> ClassRef | None:
        """The class a method stands in."""
        static = any(
            isinstance(d, ast.Name) and d.id == "staticmethod"
            for d in getattr(source.node, "decorator_list", [])
        )
        ref = self.project.lookup(module, source.in_class) if source.in_class else None
        return ref if isinstance(ref, ClassRef) and not static else None

    def enters(
        self, source: FunctionSource, module: str, name: str, owner: ClassRef | None
    ) -> bool:
        """vLLM's layer entries, and its attention interface's query."""
        if binding.entry(module, source.qualname, name):
            return True
        if owner is None or name not in binding.IMPL_ENTRIES.get(source.name, ()):
            return False
        return any(b.name in binding.IMPLS for b in self.project.bases(owner))

    def activation(self, key: Hashable, name: str, where: str) -> Tensor:
        """All tokens of a step, padded; other dimensions assumed constant."""

        def dim(index: int) -> Value:
            if index != 0:
                return self.assumed(key, name, index, where)
            role, origin = "num_padded_tokens", f"{name}.shape[0]"
            made = self.ledger.leaf
            return made(("tokens", key), role, "driver", None, role, origin, where)

        return Tensor(None, dim, self.dtype_of(key, name, where), key)

    def assumed(self, key: Hashable, name: str, index: int, where: str) -> Value:
        """Another dimension than the first: a constant, unless requests show otherwise."""
        why = f"assumed constant: dimension {index} of {name}; compare across requests"
        title = f"{name}_{index}" if index > 0 else f"{name}_last"
        origin = f"{name}.shape[{index}]"
        key = ("dim", key, index)
        return self.ledger.leaf(key, title, "constant", None, None, origin, where, why)

    def dtype_of(self, key: Hashable, name: str, where: str) -> Dtype:
        """A dtype that only a worker knows: its size is a constant."""
        key, origin = (key, "itemsize"), f"{name}.dtype"
        made = self.ledger.leaf
        leaf = made(key, f"{name}_itemsize", "constant", None, None, origin, where)
        return Dtype(leaf.node)

    def unknown_tensor(self, key: Hashable, name: str, where: str, why: str) -> Tensor:
        def dim(index: int) -> Value:
            if index != 0:
                return self.assumed(key, name, index, where)
            origin = f"{name}.shape[0]"
            rows = Obj(Opaque(f"{origin}: {why}", open=True), (key, "rows"), origin)
            return arithmetic.opaque_leaf(self.ledger, rows, where)

        return Tensor(None, dim, self.dtype_of(key, name, where), key)

    def forgiving(self, tensor: Tensor, key: Hashable, name: str, where: str) -> Tensor:
        """A tensor that callers make: dimensions after the first may stay assumptions."""

        def dim(index: int) -> Value:
            try:
                return tensor.dim(index, where)
            except Stop:
                if index == 0:
                    raise
                return self.assumed(key, name, index, where)

        return tensor if tensor.dims is not None else Tensor(None, dim, tensor.dtype, key)

    def from_callers(self, scope: Scope, state: SourceState, name: str, where: str) -> Value:
        if state.up >= self.max_callers:
            raise Stop(where, f"not followed above {self.max_callers} callers")
        places = self.places(scope.source, state.module)
        if not places:
            raise Stop(where, "no caller is found")
        values = [self.passed(scope, place, state, name, where) for place in places]
        result = values[-1]
        for place, value in zip(places[-2::-1], values[-2::-1], strict=True):
            result = choose(("caller", id(place.call)), value, result)
        return result

    def places(self, source: FunctionSource, module: str) -> list[CallPlace]:
        """Every call of this name: in the file, else anywhere in the project."""
        name = source.name
        if not name:
            raise Stop(source.file, "a lambda's callers are not known")
        owner = self.owner_class(source, module)
        near = {module, *(b.module for b in self.project.bases(owner))} if owner else {module}
        calls = self.project.calls_of(name, sorted(near))
        found = [p for p in calls if p.source is not source and _fits(source, p.call)]
        if not found and name not in _COMMON:
            modules = [m for m in self.project.mentioning(f"{name}(") if m != module]
            calls = self.project.calls_of(name, modules[:12])
            found = [p for p in calls if _fits(source, p.call)]
        if len(found) > MAX_CALLS:
            raise Stop(source.file, f"{name} has more than {MAX_CALLS} callers")
        return found

    def entered(self, scope: Scope, place: CallPlace) -> Scope:
        """The scope of a function as this call of it gives its parameters."""
        state = SourceState.of(scope)
        caller = Scope(place.source, SourceState(place.module, state.up + 1))
        self.followed.append(place.source)
        first: list[Value] = []
        method = self.owner_class(scope.source, state.module)
        if method is not None and isinstance(place.call.func, ast.Attribute):
            first = [Obj(Instance(method), ("self", method), "self", "fixed")]
        given = self.evaluator.arguments(scope.source, first, place.call, caller)
        return replace(scope, arguments=given)

    def passed(
        self, scope: Scope, place: CallPlace, state: SourceState, name: str, where: str
    ) -> Value:
        caller = Scope(place.source, SourceState(place.module, state.up + 1))
        self.followed.append(place.source)
        first: list[Value] = []
        method = self.owner_class(scope.source, state.module)
        if method is not None and isinstance(place.call.func, ast.Attribute):
            first = [Obj(None, ("self", method), "self")]
        arguments = self.evaluator.arguments(scope.source, first, place.call, caller)
        if name not in arguments:
            raise Stop(where, f"the call in {place.source.qualname} gives no {name}")
        return arguments[name]()


def _is_int(annotation: ast.expr | None) -> bool:
    """Annotated as an integer, or as one that may be absent."""
    if isinstance(annotation, ast.BinOp):
        return _is_int(annotation.left) or _is_int(annotation.right)
    return isinstance(annotation, ast.Name) and annotation.id == "int"


def _fits(source: FunctionSource, call: ast.Call) -> bool:
    """Whether the call could be of this function, by its number of arguments and names."""
    declared = source.node.args
    names = [a.arg for a in (*declared.posonlyargs, *declared.args)]
    known = {*names, *(a.arg for a in declared.kwonlyargs)}
    if declared.kwarg is None and any(k.arg and k.arg not in known for k in call.keywords):
        return False
    return declared.vararg is not None or len(call.args) <= len(names)
