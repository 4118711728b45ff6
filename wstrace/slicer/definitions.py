"""Which value a local name holds at a point: backward over the statements before it."""

from __future__ import annotations

import ast

from wstrace.slicer import arithmetic
from wstrace.slicer.effects import (
    Append,
    Augment,
    Bind,
    Branch,
    Effect,
    Local,
    Lost,
    Through,
    binds,
    effect,
    terminates,
)
from wstrace.slicer.scope import Evaluation, Scope
from wstrace.slicer.syntax import LOOPS, Block, CodePoint, Enclosing
from wstrace.slicer.values import (
    Choice,
    Index,
    Range,
    Seq,
    Series,
    Stop,
    Value,
    Zipped,
    choose,
    forget_way,
    spread,
)


def _bare(stop: Stop) -> Stop:
    """The end without the frames that it passed: kept, they would keep all their variables."""
    stop.__traceback__ = stop.__context__ = None
    return stop


class Definitions:
    """Reaching definitions, by demand: only what the request needs is followed."""

    def __init__(self, ev: Evaluation) -> None:
        self.ev = ev
        self.assigned: dict[tuple[int, int], Value] = {}
        self.memo: dict[tuple[int, str, int, int], Value | Stop] = {}

    def forget(self) -> None:
        """No value and no frame is held any more."""
        for found in self.memo.values():
            if isinstance(found, Stop):
                forget_way(found)
        self.memo.clear()
        self.assigned.clear()

    def name(self, scope: Scope, name: str, point: CodePoint, where: str) -> Value:
        """The value of `name` just before `point`."""
        if name in scope.overrides:
            return scope.overrides[name]
        if name not in scope.source.locals:
            return self.ev.world.free(scope, name, where)
        key = (scope.serial, name, id(point.block), point.index)
        if key not in self.memo:
            self.memo[key] = self.observed(scope, name, point)
        found = self.memo[key]
        if isinstance(found, Stop):
            raise found
        return found

    def observed(self, scope: Scope, name: str, point: CodePoint) -> Value | Stop:
        """As `name`, with what a running frame shows; the end of a slice as a value."""
        found: Value | Stop
        try:
            found = self.before(scope, name, point)
            if name in scope.source.closed_over and _holds_list(found):
                found = Stop(scope.source.file, f"the list {name} is used by an inner function")
        except Stop as stop:
            found = _bare(stop)
        try:
            return self.ev.world.observed(scope, name, point, found)
        except Stop as stop:
            return _bare(stop)

    def before(self, scope: Scope, name: str, point: CodePoint) -> Value:
        self.ev.ledger.step(scope.source.file)
        if name in scope.source.shared:
            raise Stop(scope.source.file, f"{name} is rebound by an inner function")
        for index in range(point.index - 1, -1, -1):
            found = effect(scope.source, point.block[index], name)
            if found is not None:
                return self.after(scope, name, CodePoint(point.block, index), found)
        enclosing = scope.source.outer.get(id(point.block))
        if enclosing is None:
            return self.at_entry(scope, name)
        return self.entering(scope, name, enclosing)

    def at_entry(self, scope: Scope, name: str) -> Value:
        if scope.arguments is None:
            return self.ev.world.parameter(scope, name)
        if name not in scope.arguments:
            raise Stop(scope.source.file, f"{name} has no value on some path")
        return scope.arguments[name]()

    def entering(self, scope: Scope, name: str, enclosing: Enclosing) -> Value:
        """The start of a block inside `enclosing.owner` was reached without a definition."""
        owner = enclosing.owner
        where = scope.where(owner)
        if isinstance(owner, LOOPS):
            return self.in_loop(scope, name, enclosing)
        if isinstance(owner, ast.With | ast.AsyncWith):
            for item in owner.items:
                if item.optional_vars and binds(item.optional_vars, name):
                    raise Stop(where, f"{name} is bound by a with statement")
        if isinstance(owner, ast.Try) and enclosing.field != "body" and binds(owner, name):
            raise Stop(where, f"{name} is assigned in a try statement")
        if isinstance(owner, ast.Match) and binds(owner, name):
            raise Stop(where, f"{name} is assigned in a match statement")
        return self.name(scope, name, enclosing.point, where)

    def in_loop(self, scope: Scope, name: str, enclosing: Enclosing) -> Value:
        loop, where = enclosing.owner, scope.where(enclosing.owner)
        target = loop.target if isinstance(loop, ast.For | ast.AsyncFor) else None
        if target is not None and enclosing.field == "body" and binds(target, name):
            assert isinstance(loop, ast.For | ast.AsyncFor)
            return self.loop_target(scope, loop, name)
        if binds(loop, name):
            raise Stop(where, f"{name} is carried around a loop")
        value = self.name(scope, name, enclosing.point, where)
        assert isinstance(loop, ast.stmt)
        if effect(scope.source, loop, name) is not None and _holds_list(value):
            raise Stop(where, f"the list {name} may be changed in a loop")
        return value

    def after(self, scope: Scope, name: str, place: CodePoint, found: Effect) -> Value:
        """The value just after the statement at `place`, whose effect is `found`."""
        statement = place.block[place.index]
        where = scope.where(statement)
        if isinstance(found, Bind):
            self.ev.ledger.statements.setdefault(scope.source.line(statement))
            return self.unpacked(self.once(found.value, scope), found.path, where)
        if isinstance(found, Augment):
            self.ev.ledger.statements.setdefault(scope.source.line(statement))
            op = type(found.statement.op).__name__
            left = self.name(scope, name, place, where)
            return arithmetic.binary(
                self.ev.ledger, op, left, self.ev.value(found.statement.value, scope), where
            )
        if isinstance(found, Append):
            return self.appended(scope, name, place, found)
        if isinstance(found, Branch):
            return self.branched(scope, name, found.statement)
        if isinstance(found, Through):
            return self.name(scope, name, end(found.block), where)
        if isinstance(found, Local):
            return self.ev.world.imported(scope, found.statement, name)
        assert isinstance(found, Lost)
        return self.kept(scope, name, place, found)

    def once(self, node: ast.expr, scope: Scope) -> Value:
        """The value of an assignment's right side: one evaluation for all its targets, so
        that the arms of conditions inside it stay together."""
        key = (scope.serial, id(node))
        if key not in self.assigned:
            self.assigned[key] = self.ev.value(node, scope)
        return self.assigned[key]

    def kept(self, scope: Scope, name: str, place: CodePoint, lost: Lost) -> Value:
        """Only lists are hurt by calls and aliases; the rest keeps its value."""
        where = scope.where(place.block[place.index])
        if not lost.lists_only:
            raise Stop(where, f"{name} is {lost.why}")
        value = self.name(scope, name, place, where)
        if _holds_list(value):
            raise Stop(where, f"the list {name}: {lost.why}")
        return value

    def appended(self, scope: Scope, name: str, place: CodePoint, found: Append) -> Value:
        statement = place.block[place.index]
        where = scope.where(statement)
        self.ev.ledger.statements.setdefault(scope.source.line(statement))
        before = self.name(scope, name, place, where)
        added = self.ev.value(found.value, scope)

        def joined(old: Value, new: Value) -> Value:
            if not (isinstance(old, Seq) and old.mutable):
                raise Stop(where, f"{name} is appended to and is not a list that was followed")
            if not found.many:
                return Seq((*old.items, new), True)
            if isinstance(new, Seq):
                return Seq((*old.items, *new.items), True)
            raise Stop(where, f"{name} is extended by something of unknown length")

        return spread(joined, before, added)

    def branched(self, scope: Scope, name: str, statement: ast.If) -> Value:
        """Both arms, unless one cannot be reached from here or a constant decides."""
        scope.where(statement)
        self.ev.ledger.statements.setdefault(scope.source.line(statement))
        yes_ends, no_ends = terminates(statement.body), terminates(statement.orelse)
        decided = self.ev.decided(statement.test, scope)
        if yes_ends or decided is False:
            return self.arm(scope, name, statement, statement.orelse)
        if no_ends or decided is True:
            return self.arm(scope, name, statement, statement.body)
        yes = self.arm(scope, name, statement, statement.body)
        no = self.arm(scope, name, statement, statement.orelse)
        return choose((scope.serial, id(statement)), yes, no)

    def arm(self, scope: Scope, name: str, statement: ast.If, block: Block) -> Value:
        point = end(block) if block else scope.source.places[id(statement)]
        return self.name(scope, name, point, scope.where(statement))

    def unpacked(self, value: Value, path: tuple[int, ...], where: str) -> Value:
        for index in path:
            value = spread(lambda v, i=index: self.ev.part(v, i, where), value)
        return value

    def loop_target(self, scope: Scope, loop: ast.For | ast.AsyncFor, name: str) -> Value:
        where = scope.where(loop)
        self.ev.ledger.statements.setdefault(scope.source.line(loop))
        position = Index(("loop", scope.serial, id(loop)))
        iterated = self.ev.value(loop.iter, scope)
        return self.iterated(loop.target, iterated, position, name, where)

    def iterated(
        self, target: ast.expr, over: Value, position: Index, name: str, where: str
    ) -> Value:
        """The value of `name` in `target` while iterating `over`."""
        if isinstance(target, ast.Tuple | ast.List):
            if isinstance(over, Zipped) and len(over.parts) == len(target.elts):
                for inner, part in zip(target.elts, over.parts, strict=True):
                    if binds(inner, name):
                        return self.iterated(inner, part, position, name, where)
            raise Stop(where, f"{name} is a part of a loop variable")
        if isinstance(over, Range):
            return position if over.from_zero else Index(("shifted", position.base))
        if isinstance(over, Series):
            return self.ev.ledger.element(over, position, where)
        raise Stop(where, f"the loop variable {name} proves nothing")


def end(block: Block) -> CodePoint:
    """After the last statement of a block."""
    return CodePoint(block, len(block))


def _holds_list(value: Value) -> bool:
    if isinstance(value, Choice):
        return _holds_list(value.yes) or _holds_list(value.no)
    if isinstance(value, Seq):
        return value.mutable or any(_holds_list(i) for i in value.items)
    return False
