"""Fields of instances offline: roles, methods, properties, and what a constructor settles."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING

from wstrace.formula import binding, numbers
from wstrace.formula.classes import changes_in
from wstrace.formula.passed import Passing
from wstrace.formula.project import (
    ClassRef,
    FunctionRef,
)
from wstrace.formula.scope import Scope
from wstrace.formula.tree import Const, simplified
from wstrace.formula.values import (
    Bound,
    Dtype,
    Num,
    Obj,
    Opaque,
    Series,
    Stop,
    Tensor,
    Value,
)

if TYPE_CHECKING:
    pass

from wstrace.formula.passed import Instance


class Fields(Passing):
    """The part of an offline world that reads attributes of instances."""

    @abstractmethod
    def enter(self, function: Obj, where: str) -> Scope:
        """The scope of a function to inline."""

    def field(self, owner: Obj, cls: ClassRef, name: str, where: str) -> Value:
        """An attribute of an instance: a role, a method, a property, or a constant."""
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
            return Bound(owner, name, Obj(method, method, name))
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
            count = self.driver(("reqs", owner.key), "num_reqs", origin, where, cls)
            if kind == numbers.STARTS:
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
            raise Stop(where, f"{cls.name}.{name} has no role")
        return None

    def driver(self, key: Hashable, role: str, origin: str, where: str, cls: ClassRef) -> Num:
        role = binding.scope_role(role, cls.name)
        return self.session.leaf(key, role, "driver", None, role, origin, where)

    def typed_field(self, owner: Obj, cls: ClassRef, name: str) -> Value | None:
        """A field whose annotation is a class of the project."""
        found = self.project.annotation(cls, name)
        ref = self.project.named(*found) if found else None
        if not isinstance(ref, ClassRef):
            return None
        return Obj(Instance(ref), (owner.key, name), f"{owner.path}.{name}")

    def followed(self, owner: Obj, method: FunctionRef, where: str) -> Value:
        inner = self.enter(Obj(method, method), where)
        first = inner.source.node.args.args[0].arg
        inner = replace(inner, arguments={first: lambda: owner}, depth=1)
        return self.evaluator.returned(inner, inner.source.body, where)

    def constant_field(self, owner: Obj, cls: ClassRef, name: str, where: str) -> Value:
        bases = self.project.bases(cls)
        config = any(b.name.endswith("Config") for b in bases)
        for base in bases if not config else ():
            tree = self.project.tree(base.module)
            assert tree is not None
            why = changes_in(tree, base.node, name)
            if why:
                raise Stop(where, why)
        typed = self.typed_field(owner, cls, name) or self.given(cls, name, owner)
        if typed is not None:
            return typed
        return Obj(Opaque(), (owner.key, name), f"{owner.path}.{name}")

    def given(self, cls: ClassRef, name: str, owner: Obj) -> Value | None:
        """`self.name = parameter` in a constructor, whose annotation names a class."""
        init = self.project.member(cls, "__init__")
        if init is None or isinstance(init.node, ast.Lambda):
            return None
        types = {a.arg: a.annotation for a in init.node.args.args}
        for node in ast.walk(init.node):
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            if not (isinstance(target, ast.Attribute) and target.attr == name):
                continue
            assert isinstance(node, ast.Assign)
            kind = types.get(node.value.id) if isinstance(node.value, ast.Name) else None
            if isinstance(node.value, ast.Call):
                kind = node.value.func
            ref = self.project.named(init.module, kind) if kind is not None else None
            if isinstance(ref, ClassRef):
                path = f"{owner.path}.{name}"
                return Obj(Instance(ref), (owner.key, name), path, "fixed")
        return None


def decorated(method: FunctionRef, *names: str) -> bool:
    nodes = getattr(method.node, "decorator_list", [])
    found = {n.attr if isinstance(n, ast.Attribute) else getattr(n, "id", "") for n in nodes}
    return not found.isdisjoint(names)
