"""The world of source alone: what a worker would hold, as far as its files tell."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NoReturn

from wstrace.expr.tree import Const
from wstrace.slicer import binding
from wstrace.slicer.ledger import Ledger
from wstrace.slicer.scope import Evaluation, Scope
from wstrace.slicer.static.fields import Fields, abstract, decorated
from wstrace.slicer.static.parameters import Instance, Parameters, SourceState
from wstrace.slicer.static.project import (
    AssignedRef,
    ClassRef,
    ExternalRef,
    FunctionRef,
    ModuleRef,
    Project,
    Ref,
)
from wstrace.slicer.syntax import CodePoint, FunctionSource, asserted_class
from wstrace.slicer.values import (
    BoundMethod,
    Dtype,
    Literal,
    Num,
    Obj,
    Opaque,
    Parent,
    Stop,
    Tensor,
    Value,
)

# PyTorch 2.13: bytes of an element, torch.dtype.itemsize.
_ITEMSIZES: Final = {
    **dict.fromkeys(("uint8", "int8", "bool", "float8_e4m3fn", "float8_e4m3fnuz"), 1),
    **dict.fromkeys(("float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn_x2"), 1),
    **dict.fromkeys(("float16", "half", "bfloat16", "int16"), 2),
    **dict.fromkeys(("float32", "float", "int32", "int"), 4),
    **dict.fromkeys(("float64", "double", "int64", "long"), 8),
}
_METHODS: Final = ("get_", "is_", "has_", "fp8_", "num_compute_units")
_REDUCING: Final = {"item", "sum", "max", "min", "to", "int", "cpu"}
# vLLM 0.13.0 to 0.33.0; num_compute_units: not in 0.16.0, in 0.18.1. The count of one GPU's
# processors.
_DEVICE: Final = {"get_num_sm", "num_compute_units"}
# vLLM 0.13.0 to 0.33.0: vllm/platforms, an object that asks the device.
_PLATFORM: Final = "current_platform"
_MODULES: Final = ("torch.nn.Module", "nn.Module", "Module")


class SourceWorld:
    """Answers the evaluator from a project's files."""

    def __init__(
        self,
        ledger: Ledger,
        project: Project,
        max_callers: int = 4,
        concrete: Mapping[ClassRef, ClassRef] | None = None,
    ) -> None:
        self.ledger = ledger
        self.project = project
        self.parameters = Parameters(ledger, project, max_callers)
        self.fields = Fields(ledger, project, concrete or {}, self.followed)
        self.abstract: dict[ClassRef, str] = {}
        self.evaluator: Evaluation

    def attach(self, evaluator: Evaluation) -> None:
        """The evaluator that asks this world, and that it asks for what arguments hold."""
        self.evaluator = self.parameters.evaluator = evaluator

    def parameter(self, scope: Scope, name: str) -> Value:
        return self.parameters.parameter(scope, name)

    def followed(self, owner: Obj, method: FunctionRef, where: str) -> Value:
        """A property's value from its source."""
        inner = self.enter(Obj(method, method), where)
        first = inner.source.node.args.args[0].arg
        inner = replace(inner, arguments={first: lambda: owner}, depth=1)
        return self.evaluator.returned(inner, inner.source.body, where)

    def scope(self, module: str, source: FunctionSource, up: int = 0) -> Scope:
        """A scope with nothing bound."""
        self.parameters.followed.append(source)
        return Scope(source, SourceState(module, up))

    def free(self, scope: Scope, name: str, where: str) -> Value:
        state = SourceState.of(scope)
        if name == _PLATFORM:
            return Obj(Opaque(), name, name)
        ref = self.project.lookup(state.module, name)
        if ref is not None:
            return self.referred(ref, where)
        if hasattr(builtins, name):
            return Obj(None, name, f"builtins.{name}")
        raise Stop(where, f"{name} is not found")

    def referred(self, ref: Ref, where: str) -> Value:
        """The value of a global."""
        if isinstance(ref, ExternalRef):
            return self.external(ref.name)
        if isinstance(ref, AssignedRef):
            return self.assigned(ref, where)
        return Obj(ref, ref, ref.name, "fixed")

    def external(self, name: str) -> Value:
        kind = name.removeprefix("torch.")
        if name.startswith("torch.") and kind in _ITEMSIZES:
            return Dtype(Const(_ITEMSIZES[kind]))
        return Obj(ExternalRef(name), name, name, "fixed")

    def assigned(self, ref: AssignedRef, where: str) -> Value:
        """A module constant: its value, or a name for what a worker would read."""
        function = ast.Lambda(_NO_ARGUMENTS, ref.node)
        scope = self.scope(ref.module, self.project.source(ref.module, function))
        try:
            return self.evaluator.value(ref.node, replace(scope, arguments={}))
        except Stop:
            return Obj(Opaque(), (ref.module, ref.name), ref.name)

    def attribute(self, owner: Obj, name: str, where: str) -> Value:
        handle = owner.handle
        if isinstance(handle, ModuleRef):
            return self.module_attribute(handle, name, where)
        if isinstance(handle, ExternalRef):
            return self.external(f"{handle.name}.{name}")
        if isinstance(handle, ClassRef):
            return self.class_attribute(owner, handle, name, where)
        if isinstance(handle, Instance):
            return self.fields.field(owner, handle.cls, name, where)
        if isinstance(handle, Parent):
            return self.of_parent(handle, name, where)
        if isinstance(handle, Opaque):
            return self.of_opaque(owner, name, where)
        raise Stop(where, f"{name} of {owner.path or 'something'}")

    def as_tensor(self, owner: Obj, where: str) -> Tensor:
        if not isinstance(owner.handle, Opaque) or _settled(owner):
            raise Stop(where, f"slices of {owner.path or 'an object'}, which is no tensor")
        return _open_tensor(self, owner, where)

    def parent(self, owner: Obj, scope: Scope, where: str) -> Value:
        state = SourceState.of(scope)
        own = self.parameters.owner_class(scope.source, state.module)
        if own is None or not isinstance(owner.handle, Instance):
            raise Stop(where, "super() of a class that is not known")
        held = self.fields.concrete.get(owner.handle.cls, owner.handle.cls)
        bases = self.project.bases(held)
        after = bases[bases.index(own) + 1 :] if own in bases else self.project.bases(own)[1:]
        return Obj(Parent(owner, tuple(after)), (owner.key, "super", own), "super()")

    def of_parent(self, parent: Parent, name: str, where: str) -> Value:
        for cls in parent.after:
            assert isinstance(cls, ClassRef)
            method = self.project.own_member(cls, name)
            if method is not None:
                return BoundMethod(parent.owner, name, Obj(method, method, name))
        raise Stop(where, f"no class above has {name}")

    def of_opaque(self, owner: Obj, name: str, where: str) -> Value:
        if _settled(owner) and name.startswith(_METHODS):
            return BoundMethod(owner, name)
        if name in ("shape", "dtype", "itemsize", "world_size") or _settled(owner):
            return Obj(owner.handle, (owner.key, name), f"{owner.path}.{name}")
        if isinstance(owner.handle, Opaque) and owner.handle.open and name in _REDUCING:
            return BoundMethod(owner, name)
        if name in ("size", "view", "numel", "element_size"):
            return BoundMethod(_open_tensor(self, owner, where), name)
        raise Stop(where, f"{name} of {owner.path}, whose class is not known")

    def module_attribute(self, handle: ModuleRef, name: str, where: str) -> Value:
        if handle.name == "vllm.envs":
            return Obj(Opaque(), ("envs", name), f"envs.{name}")
        ref = self.project.lookup(handle.name, name)
        if ref is None:
            raise Stop(where, f"module {handle.name} has no {name}")
        return self.referred(ref, where)

    def class_attribute(self, owner: Obj, cls: ClassRef, name: str, where: str) -> Value:
        method = self.project.member(cls, name)
        if method is None:
            return Obj(Opaque(), (cls, name), f"{cls.name}.{name}")
        function = Obj(method, method, name)
        bound = decorated(method, "classmethod")
        return BoundMethod(owner, name, function) if bound else function

    def item(self, owner: Obj, key: Value, where: str) -> Value:
        if isinstance(owner.handle, Opaque):
            place = self.ledger.literal_index(key)
            text = key.value if isinstance(key, Literal) else place
            if text is not None:
                return Obj(owner.handle, (owner.key, text), f"{owner.path}_{text}")
        raise Stop(where, f"an element of {owner.path or 'an object'}")

    def title(self, function: Obj) -> str:
        if function.path.startswith("builtins."):
            return function.path
        handle = function.handle
        if isinstance(handle, ExternalRef):
            return "" if handle.name.rpartition(".")[2] in _DEVICE else handle.name
        if isinstance(handle, FunctionRef) and binding.is_vllm(handle.module):
            return f"vllm.{handle.name}" if handle.name in binding.MATH_UTILS else ""
        return ""

    def enter(self, function: Obj, where: str) -> Scope:
        handle = function.handle
        if not isinstance(handle, FunctionRef):
            raise Stop(where, f"calls {function.path or 'something'}, which has no body")
        if abstract(handle):
            self.left_open(handle, where)
        source = self.project.source(handle.module, handle.node, handle.owner)
        self.parameters.followed.append(source)
        return Scope(source, SourceState(handle.module), arguments={})

    def left_open(self, method: FunctionRef, where: str) -> NoReturn:
        """A method of a class that only a worker has chosen: noted in `abstract`."""
        cls = self.project.lookup(method.module, method.owner)
        if isinstance(cls, ClassRef):
            self.abstract[cls] = method.name
        raise Stop(where, f"{method.owner}.{method.name} is a subclass's")

    def callee(self, function: Obj) -> Obj | BoundMethod:
        handle = function.handle
        if not isinstance(handle, Instance):
            return function
        cls = self.fields.concrete.get(handle.cls, handle.cls)
        bases = {
            ast.unparse(node) for base in self.project.bases(cls) for node in base.node.bases
        }
        method = self.project.member(cls, "forward")
        if method is None or bases.isdisjoint(_MODULES):
            return function
        return BoundMethod(function, "forward", Obj(method, method, "forward"))

    def is_group(self, function: Obj) -> bool:
        handle = function.handle
        return isinstance(handle, FunctionRef) and handle.name in binding.GROUPS

    def group_size(self, function: Obj, where: str) -> Value:
        assert isinstance(function.handle, FunctionRef)
        name, _ = binding.GROUPS[function.handle.name]
        return self.ledger.leaf(("group", name), name, "constant", None, None, name, where)

    def result(self, function: Obj, owner: Value | None, stop: Stop) -> Value:
        """By its annotation, a result of a class; from a config, a constant."""
        handle = function.handle
        if function.path.rpartition(".")[2] in _DEVICE:
            return Obj(Opaque(), "num_sms", "num_sms")
        if not isinstance(handle, FunctionRef) or isinstance(handle.node, ast.Lambda):
            raise stop
        ref = (
            self.project.named(handle.module, handle.node.returns)
            if handle.node.returns
            else None
        )
        if isinstance(ref, ClassRef):
            return Obj(Instance(ref), ("result", handle), handle.name)
        held = owner.handle if isinstance(owner, Obj) else None
        if isinstance(held, Instance) and held.cls.name.endswith("Config"):
            assert isinstance(owner, Obj)
            name = handle.name.removeprefix("get_")
            return Obj(Opaque(), (owner.key, name), f"{owner.path}.{name}")
        raise stop

    def constant_call(self, owner: Obj, name: str, where: str) -> Value:
        if isinstance(owner.handle, Opaque) and owner.handle.open and name in _REDUCING:
            return Obj(owner.handle, (owner.key, name), f"{owner.path}_{name}")
        if not _settled(owner):
            raise Stop(where, f"the method {name}() is not followed")
        short = name.removeprefix("get_")
        return Obj(Opaque(), (owner.key, short), f"{owner.path}.{short}")

    def imported(self, scope: Scope, statement: ast.stmt, name: str) -> Value:
        if name == _PLATFORM:
            return Obj(Opaque(), name, name)
        where = scope.where(statement)
        state = SourceState.of(scope)
        if isinstance(statement, ast.ImportFrom | ast.Import):
            ref = self.project.meaning(state.module, statement, name)
            if ref is not None:
                return self.referred(ref, where)
        raise Stop(where, f"{name} is defined inside the function")

    def observed(self, scope: Scope, name: str, point: CodePoint, found: Value | Stop) -> Value:
        if not isinstance(found, Stop):
            return found
        state = SourceState.of(scope)
        hint = asserted_class(scope.source, name)
        ref = self.project.named(state.module, hint) if hint is not None else None
        key = ("local", scope.source.qualname, name)
        if isinstance(ref, ClassRef):
            return Obj(Instance(ref), key, name)
        if name in scope.source.loop_targets and scope.source.bindings(name) == 1:
            return Obj(Opaque(str(found), open=True), key, name)
        if name in scope.source.shaped:
            return self.parameters.unknown_tensor(key, name, found.where, str(found))
        raise found


def _settled(owner: Obj) -> bool:
    """Configs and the platform: nothing of them changes while the engine serves."""
    return "config" in owner.path.lower() or owner.path == _PLATFORM


def _open_tensor(world: SourceWorld, owner: Obj, where: str) -> Tensor:
    def dim(index: int) -> Value:
        shape = Obj(owner.handle, (owner.key, "shape"), f"{owner.path}.shape")
        return world.item(shape, Num(Const(index)), where)

    dtype = Obj(owner.handle, (owner.key, "dtype"), f"{owner.path}.dtype")
    return Tensor(None, dim, dtype, owner.key)


_NO_ARGUMENTS: Final = ast.arguments([], [], None, [], [], None, [])
