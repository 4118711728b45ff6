"""Fields of instances offline: roles, methods, properties, and what a constructor settles."""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Mapping

from wstrace.expr.tree import Const, simplified
from wstrace.slicer import binding
from wstrace.slicer.attributes import changes_in
from wstrace.slicer.ledger import Ledger
from wstrace.slicer.static.parameters import Instance
from wstrace.slicer.static.project import (
    ClassRef,
    FunctionRef,
    Project,
)
from wstrace.slicer.values import (
    STARTS,
    BoundMethod,
    Dtype,
    Num,
    Obj,
    Opaque,
    Series,
    Stop,
    Tensor,
    Value,
)


class Fields:
    """Attributes of instances where nothing runs.

    `concrete`: abstract classes -> the class whose instance a worker holds in their place.
    `followed` gives the value of a property from its body.
    """

    def __init__(
        self,
        ledger: Ledger,
        project: Project,
        concrete: Mapping[ClassRef, ClassRef],
        followed: Callable[[Obj, FunctionRef, str], Value],
    ) -> None:
        self.ledger = ledger
        self.project = project
        self.concrete = concrete
        self.followed = followed

    def field(self, owner: Obj, cls: ClassRef, name: str, where: str) -> Value:
        """An attribute of an instance: a role, a method, a property, or a constant."""
        cls = self.concrete.get(cls, cls)
        bound = self.metadata(owner, cls, name, where)
        if bound is not None:
            return bound
        method = self.project.member(cls, name)
        if method is not None and decorated(method, "property", "cached_property"):
            try:
                return self.followed(owner, method, where)
            except Stop:
                if not decorated(method, "cached_property"):
                    raise
            return Obj(Opaque(), (owner.key, name), f"{owner.path}.{name}")
        if method is not None:
            if decorated(method, "staticmethod"):
                return Obj(method, method, name)
            return BoundMethod(owner, name, Obj(method, method, name))
        return self.constant_field(owner, cls, name, where)

    def metadata(self, owner: Obj, cls: ClassRef, name: str, where: str) -> Value | None:
        bases = self.project.bases(cls)
        if not any(binding.is_holder(b.module, b.name) for b in bases):
            return None
        origin, key = f"{cls.name}.{name}", (owner.key, name)
        if name in binding.SCALARS:
            return self.driver(key, binding.SCALARS[name], origin, where, cls)
        if name in binding.SERIES:
            kind = binding.SERIES[name]
            counted, role = binding.series_count(kind, owner.key)
            count = self.driver(counted, role, origin, where, cls)
            if kind == STARTS:
                count = Num(simplified("+", count.node, Const(1)))
            return Series(kind, owner.key, 0, origin, count)
        if name in binding.TENSORS:
            dims = [
                self.driver((key, i), role, f"{origin}.shape[{i}]", where, cls)
                for i, role in enumerate(binding.TENSORS[name])
            ]
            return Tensor(tuple(dims), None, Dtype(Const(4)), key)
        typed = self.typed_field(owner, cls, name)
        if typed is not None:
            return typed
        if self.project.member(cls, name) is None:
            return Obj(Opaque(f"{where}: {origin} has no role", open=True), key, origin)
        return None

    def driver(self, key: Hashable, role: str, origin: str, where: str, cls: ClassRef) -> Num:
        role = binding.scope_role(role, cls.name)
        return self.ledger.leaf(key, role, "driver", None, role, origin, where)

    def typed_field(self, owner: Obj, cls: ClassRef, name: str) -> Value | None:
        """A field whose annotation is a class of the project."""
        found = self.project.annotation(cls, name)
        ref = self.project.named(*found) if found else None
        if not isinstance(ref, ClassRef):
            return None
        return Obj(Instance(ref), (owner.key, name), f"{owner.path}.{name}")

    def constant_field(self, owner: Obj, cls: ClassRef, name: str, where: str) -> Value:
        bases = self.project.bases(cls)
        config = any(b.name.endswith("Config") for b in bases)
        for base in bases if not config else ():
            tree = self.project.tree(base.module)
            assert tree is not None
            why = changes_in(tree, base.node, name)
            if why:
                handle = Opaque(f"{where}: {why}", open=True)
                return Obj(handle, (owner.key, name), f"{owner.path}.{name}")
        typed = self.typed_field(owner, cls, name) or self.given(cls, name, owner)
        if typed is not None:
            return typed
        return Obj(Opaque(), (owner.key, name), f"{owner.path}.{name}")

    def given(self, cls: ClassRef, name: str, owner: Obj) -> Value | None:
        """What constructors assign to `self.name`: a class called, a function that returns one
        by its annotation, or a parameter whose annotation names one, or that a subclass gives
        to `super().__init__`."""
        passed: dict[str, tuple[str, ast.expr]] = {}
        for base in self.project.bases(cls):
            init = self.project.own_member(base, "__init__")
            if init is None or isinstance(init.node, ast.Lambda):
                continue
            assigned = _assigned_to(init.node, name)
            if assigned is not None:
                kind = self.kind_given(init, assigned, passed)
                ref = self.project.named(*kind) if kind else None
                if isinstance(ref, FunctionRef) and not isinstance(ref.node, ast.Lambda):
                    made = ref.node.returns
                    ref = self.project.named(ref.module, made) if made else None
                if not isinstance(ref, ClassRef):
                    return None
                return Obj(Instance(ref), (owner.key, name), f"{owner.path}.{name}", "fixed")
            passed = _given_up(init)
        return None

    def kind_given(
        self, init: FunctionRef, assigned: ast.expr, passed: dict[str, tuple[str, ast.expr]]
    ) -> tuple[str, ast.expr] | None:
        """Module and expression of the class of what a constructor assigns."""
        if isinstance(assigned, ast.Call):
            return init.module, assigned.func
        if not isinstance(assigned, ast.Name):
            return None
        if assigned.id in passed:
            return passed[assigned.id]
        types = {a.arg: a.annotation for a in init.node.args.args}
        annotation = types.get(assigned.id)
        return (init.module, annotation) if annotation is not None else None


def _assigned_to(init: ast.AST, name: str) -> ast.expr | None:
    """The last value that a constructor assigns to `self.name`."""
    found = None
    for node in ast.walk(init):
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Attribute) and target.attr == name:
            assert isinstance(node, ast.Assign)
            found = node.value
    return found


def _given_up(init: FunctionRef) -> dict[str, tuple[str, ast.expr]]:
    """Objects made in the keywords of `super().__init__(...)`: name -> their class."""
    for node in ast.walk(init.node):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "super().__init__":
            made = [(k.arg, k.value) for k in node.keywords if k.arg]
            return {n: (init.module, v.func) for n, v in made if isinstance(v, ast.Call)}
    return {}


def abstract(method: FunctionRef) -> bool:
    """Whether a method is left to subclasses."""
    body = method.node.body
    last = body[-1] if isinstance(body, list) else None
    raised = ast.unparse(last.exc) if isinstance(last, ast.Raise) and last.exc else ""
    alone = len(body) <= 2 if isinstance(body, list) else False
    return decorated(method, "abstractmethod") or (
        alone and raised.startswith("NotImplementedError")
    )


def decorated(method: FunctionRef, *names: str) -> bool:
    nodes = getattr(method.node, "decorator_list", [])
    found = {n.attr if isinstance(n, ast.Attribute) else getattr(n, "id", "") for n in nodes}
    return not found.isdisjoint(names)
