"""Calls: a function known by its name, or a body, its arguments bound to parameters."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from wstrace.slicer import functions
from wstrace.slicer.effects import terminates
from wstrace.slicer.scope import Evaluation, Scope
from wstrace.slicer.syntax import Block, FunctionSource
from wstrace.slicer.values import (
    BoundMethod,
    Choice,
    Literal,
    Obj,
    Opaque,
    ProcessGroup,
    Raises,
    Seq,
    Stop,
    Tail,
    Value,
    arms,
    choose,
    constant,
    items_of,
    spread,
)

MAX_INLINED: Final = 6


class Callees:
    """What a call returns."""

    def __init__(self, ev: Evaluation) -> None:
        self.ev = ev

    def call(self, node: ast.Call, scope: Scope) -> Value:
        """The result of a call; Stop unless every step of it is understood."""
        called = self.ev.value(node.func, scope)
        if not all(isinstance(f, BoundMethod) and f.function is None for f in arms(called)):
            return spread(lambda f: self.called(f, node, scope), called)
        where = scope.where(node)

        def applied(method: Value, given: Value) -> Value:
            assert isinstance(method, BoundMethod)
            return spread(
                lambda owner, *args: functions.method(
                    self.ev, owner, method.name, list(args), where
                ),
                method.owner,
                *items_of(given),
            )

        return spread(applied, called, self.packed([*node.args, *_axes(node)], scope))

    def called(self, function: Value, node: ast.Call, scope: Scope) -> Value:
        """A function known by its name, a process group, or a body that is followed."""
        where = scope.where(node)
        if isinstance(function, Obj):
            function = self.ev.world.callee(function)
        target = function.function if isinstance(function, BoundMethod) else function
        if not isinstance(target, Obj):
            raise Stop(where, "calls something that is not known")
        title = self.ev.world.title(target)
        if title:
            return functions.known(self.ev, title, node, scope)
        if self.ev.world.is_group(target):
            return ProcessGroup(self.ev.world.group_size(target, where))
        owner = function.owner if isinstance(function, BoundMethod) else None
        try:
            return self.inlined(target, owner, node, scope)
        except Stop as stop:
            return self.ev.world.result(target, owner, stop)

    def packed(self, nodes: Sequence[ast.expr], scope: Scope, whole: bool = False) -> Value:
        """Positional arguments or elements, stars unpacked: a Seq, or one for each arm.

        `whole`: constants whose parts only a worker can read stand for all of them.
        """
        stars = [isinstance(part, ast.Starred) for part in nodes]
        plain = [p.value if isinstance(p, ast.Starred) else p for p in nodes]
        values = [self.ev.value(part, scope) for part in plain]

        def joined(*given: Value) -> Value:
            items: list[Value] = []
            for star, value, part in zip(stars, given, nodes, strict=True):
                if (
                    star
                    and whole
                    and isinstance(value, Obj)
                    and isinstance(value.handle, Opaque)
                ):
                    items.append(value)
                    continue
                if star and isinstance(value, Tail):
                    items.append(value)
                    continue
                if star and not isinstance(value, Seq):
                    raise Stop(scope.where(part), "a starred value of unknown length")
                items += value.items if star and isinstance(value, Seq) else [value]
            return Seq(tuple(items))

        starred = [v if star else Seq(()) for star, v in zip(stars, values, strict=True)]
        if not any(isinstance(v, Choice) for v in starred):
            return joined(*values)
        return spread(joined, *values)

    def inlined(self, target: Obj, owner: Value | None, node: ast.Call, scope: Scope) -> Value:
        """The value that a callee returns, its body followed with the call's arguments."""
        where = scope.where(node)
        if scope.depth >= MAX_INLINED:
            raise Stop(where, f"calls nested more than {MAX_INLINED} deep")
        inner = self.ev.world.enter(target, where)
        first = [owner] if owner is not None else []
        arguments = self.arguments(inner.source, first, node, scope)
        inner = replace(inner, arguments=arguments, depth=scope.depth + 1)
        try:
            return self.returned(inner, inner.source.body, where)
        except Raises as end:
            raise Stop(end.where, end.why) from None

    def arguments(
        self,
        source: FunctionSource,
        first: Sequence[Value],
        node: ast.Call,
        scope: Scope,
    ) -> dict[str, Callable[[], Value]]:
        """Parameter name -> its value at the call, made when asked for."""
        where = scope.where(node)
        declared = source.node.args
        names = [a.arg for a in (*declared.posonlyargs, *declared.args)]
        given: list[Callable[[], Value]] = [lambda v=v: v for v in first]  # type: ignore[misc]
        for arg in node.args:
            if isinstance(arg, ast.Starred):
                packed = self.packed([arg], scope)
                given += [lambda v=v: v for v in items_of(packed)]  # type: ignore[misc]
            else:
                given.append(lambda a=arg: self.ev.value(a, scope))  # type: ignore[misc]
        found = dict(zip(names, given, strict=False))
        if declared.vararg:
            rest = given[len(names) :]
            found[declared.vararg.arg] = lambda: Seq(tuple(g() for g in rest))
        elif len(given) > len(names):
            raise Stop(where, "a call with more arguments than parameters")
        for keyword in node.keywords:
            if keyword.arg is None:
                raise Stop(where, "a call with ** arguments")
            found[keyword.arg] = lambda k=keyword: self.ev.value(k.value, scope)  # type: ignore[misc]
        self.defaults(source, found)
        return found

    def defaults(self, source: FunctionSource, found: dict[str, Callable[[], Value]]) -> None:
        declared = source.node.args
        positional = [*declared.posonlyargs, *declared.args]
        pairs = list(
            zip(
                positional[len(positional) - len(declared.defaults) :],
                declared.defaults,
                strict=True,
            )
        )
        pairs += [
            (a, d) for a, d in zip(declared.kwonlyargs, declared.kw_defaults, strict=True) if d
        ]
        for parameter, default in pairs:
            if parameter.arg not in found and isinstance(default, ast.Constant):
                literal = default.value
                value = constant(literal) if type(literal) is int else Literal(literal)
                found[parameter.arg] = lambda v=value: v  # type: ignore[misc]

    def returned(self, scope: Scope, block: Block, where: str, index: int = 0) -> Value:
        """What the statements from `block[index]` on return; an if with a return forks."""
        for number in range(index, len(block)):
            statement = block[number]
            if isinstance(statement, ast.Return) and statement.value is not None:
                return self.ev.value(statement.value, scope)
            if isinstance(statement, ast.If) and _returns(statement):
                return self.forked(scope, block, number, statement, where)
            if isinstance(statement, ast.With) and _returns(statement):
                return self.returned(scope, statement.body, where)
            if isinstance(statement, ast.Try) and _returns(statement):
                return self.tried(scope, statement, block, number, where)
            if _returns(statement):
                raise Stop(scope.where(statement), "returns from inside a loop or try")
            if isinstance(statement, ast.Raise):
                raise Raises(scope.where(statement), f"{scope.source.qualname} raises")
        raise Stop(where, f"{scope.source.qualname} returns nothing that is followed")

    def tried(
        self, scope: Scope, statement: ast.Try, block: Block, number: int, where: str
    ) -> Value:
        """A try: what its body returns, or any of its handlers, or what follows."""
        if statement.finalbody or any(binds_any(h.body) for h in statement.handlers):
            raise Stop(scope.where(statement), "returns from a try that is not followed")
        result = self.after_try(
            scope, [*statement.body, *statement.orelse], block, number, where
        )
        for handler in statement.handlers:
            if not _raises(handler.body):
                other = self.after_try(scope, handler.body, block, number, where)
                result = choose((scope.serial, id(handler)), result, other)
        return result

    def after_try(
        self, scope: Scope, inner: Block, block: Block, number: int, where: str
    ) -> Value:
        if any(_returns(s) for s in inner):
            return self.returned(scope, inner, where)
        return self.returned(scope, block, where, number + 1)

    def forked(
        self, scope: Scope, block: Block, number: int, statement: ast.If, where: str
    ) -> Value:
        def continued(arm: Block) -> Value:
            if terminates(arm):
                return self.returned(scope, arm, where)
            if any(_returns(s) for s in arm):
                raise Stop(scope.where(statement), "returns in part of an arm")
            return self.returned(scope, block, where, number + 1)

        decided = self.ev.decided(statement.test, scope)
        if decided is not None:
            return continued(statement.body if decided else statement.orelse)
        try:
            yes = continued(statement.body)
        except Raises:
            return continued(statement.orelse)
        try:
            no = continued(statement.orelse)
        except Raises:
            return yes
        return choose((scope.serial, id(statement)), yes, no)


def _axes(node: ast.Call) -> list[ast.expr]:
    """`dim=` after the positional arguments of a method."""
    return [k.value for k in node.keywords if k.arg == "dim"]


def _returns(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return False
    return any(isinstance(n, ast.Return) for n in ast.walk(statement))


def binds_any(block: Block) -> bool:
    """Whether any name is assigned in `block`."""
    stores = (n for s in block for n in ast.walk(s) if isinstance(n, ast.Name))
    return any(not isinstance(n.ctx, ast.Load) for n in stores)


def _raises(block: Block) -> bool:
    return bool(block) and isinstance(block[-1], ast.Raise)
