"""Calls: the few functions that are understood by name, and callees that are inlined."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from wstrace.slicer.values import (
    Bound,
    Group,
    Obj,
    Stop,
    Value,
    arms,
    spread,
)

if TYPE_CHECKING:
    from wstrace.slicer.scope import Scope

from wstrace.slicer.inline import items_of
from wstrace.slicer.library import Library


class Calls(Library):
    """Which of the two a call is."""

    def call(self, node: ast.Call, scope: Scope) -> Value:
        """The result of a call; Stop unless every step of it is understood."""
        called = self.value(node.func, scope)
        if not all(isinstance(f, Bound) and f.function is None for f in arms(called)):
            return spread(lambda f: self.called(f, node, scope), called)
        where = scope.where(node)

        def applied(method: Value, given: Value) -> Value:
            assert isinstance(method, Bound)
            call = self.method
            return spread(
                lambda owner, *args: call(owner, method.name, list(args), where),
                method.owner,
                *items_of(given),
            )

        return spread(applied, called, self.packed([*node.args, *_axes(node)], scope))

    def called(self, function: Value, node: ast.Call, scope: Scope) -> Value:
        where = scope.where(node)
        target = function.function if isinstance(function, Bound) else function
        if not isinstance(target, Obj):
            raise Stop(where, "calls something that is not known")
        title = self.world.title(target)
        if title:
            return self.known(title, node, scope)
        if self.world.is_group(target):
            return Group(self.world.group_size(target, where))
        owner = function.owner if isinstance(function, Bound) else None
        try:
            return self.inlined(target, owner, node, scope)
        except Stop as stop:
            return self.world.result(target, owner, stop)


def _axes(node: ast.Call) -> list[ast.expr]:
    """`dim=` after the positional arguments of a method."""
    return [k.value for k in node.keywords if k.arg == "dim"]
