"""Calls: the few functions that are understood by name, and callees that are inlined."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from wstrace.formula import numbers, tensors, tree
from wstrace.formula.effects import terminates
from wstrace.formula.reach import Names
from wstrace.formula.source import Block, FunctionSource
from wstrace.formula.tree import Const, simplified
from wstrace.formula.values import (
    Bound,
    Choice,
    Dtype,
    Group,
    Index,
    Literal,
    Num,
    Obj,
    Opaque,
    Range,
    Seq,
    Series,
    Stop,
    Tensor,
    Value,
    Zipped,
    choose,
    constant,
    spread,
)

if TYPE_CHECKING:
    from wstrace.formula.scope import Scope

MAX_INLINED: Final = 6
_MAKERS: Final = {"empty", "zeros", "ones", "full", "empty_like", "zeros_like", "ones_like"}
_ROUNDING: Final = {"math.ceil": True, "math.floor": False, "builtins.int": False}
_SAME: Final = {
    "builtins.float",
    "typing.cast",
    "torch.Size",
    "builtins.tuple",
    "builtins.list",
}
_CEILINGS: Final = {"vllm.cdiv", "triton.cdiv"}
_ROUND: Final = {"vllm.round_up", "vllm.round_down"}
_POWERS: Final = {"vllm.next_power_of_2", "triton.next_power_of_2"}


class Calls(Names):
    """Calls, on top of names and conditions."""

    def call(self, node: ast.Call, scope: Scope) -> Value:
        """The result of a call; Stop unless every step of it is understood."""
        called = self.value(node.func, scope)
        return spread(lambda f: self.called(f, node, scope), called)

    def called(self, function: Value, node: ast.Call, scope: Scope) -> Value:
        where = scope.where(node)
        if isinstance(function, Bound) and function.function is None:
            name = function.name
            return spread(
                lambda owner, given: self.method(owner, name, _items(given), where),
                function.owner,
                self.packed([*node.args, *_axes(node)], scope),
            )
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

    def packed(self, nodes: Sequence[ast.expr], scope: Scope, whole: bool = False) -> Value:
        """Positional arguments or elements, stars unpacked: a Seq, or one for each arm.

        `whole`: constants whose parts only a worker can read stand for all of them.
        """
        stars = [isinstance(part, ast.Starred) for part in nodes]
        plain = [p.value if isinstance(p, ast.Starred) else p for p in nodes]
        values = [self.value(part, scope) for part in plain]

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
                if star and not isinstance(value, Seq):
                    raise Stop(scope.where(part), "a starred value of unknown length")
                items += value.items if star and isinstance(value, Seq) else [value]
            return Seq(tuple(items))

        starred = [v if star else Seq(()) for star, v in zip(stars, values, strict=True)]
        if not any(isinstance(v, Choice) for v in starred):
            return joined(*values)
        return spread(joined, *values)

    def method(self, owner: Value, name: str, args: list[Value], where: str) -> Value:
        """Methods of values that are not objects."""
        if isinstance(owner, Series):
            return self.series_method(owner, name, where)
        if isinstance(owner, Tensor):
            return tensors.method(self, owner, name, args, where)  # type: ignore[arg-type]
        if isinstance(owner, Group):
            return self.gathered(owner, name, args, where)
        if isinstance(owner, Num | Index) and name in ("item", "int", "tolist", "cpu"):
            return owner
        if isinstance(owner, Num) and name == "bit_length":
            return self.bit_length(owner, where)
        if isinstance(owner, Seq) and name == "numel":
            return Num(self.multiplied(owner, where))
        if isinstance(owner, Obj) and isinstance(owner.handle, Opaque):
            return self.world.constant_call(owner, name, where)
        raise Stop(where, f"the method {name}() is not followed")

    def literal_index(self, key: Value) -> int | None:
        """A position that cannot change, else None."""
        return self.session.fixed_value(key) if isinstance(key, Num) else None

    def bit_length(self, owner: Value, where: str) -> Value:
        raise NotImplementedError

    def gathered(self, group: Group, name: str, args: list[Value], where: str) -> Value:
        """all_gather multiplies its dimension by the size of the group."""
        tensor, axis = (
            (args[0], self.literal_index(args[1])) if len(args) == 2 else (None, None)
        )
        if name != "all_gather" or axis is None or not isinstance(tensor, Tensor):
            raise Stop(where, f"{name}() of a process group")
        return tensors.scaled(self, tensor, axis, group.size, where)  # type: ignore[arg-type]

    def series_method(self, series: Series, name: str, where: str) -> Value:
        if name in ("tolist", "cpu", "to", "numpy", "int", "long", "item", "clone"):
            return series
        if name in ("max", "amax", "min"):
            return self.session.element(series, Index((name, series.kind)), where)
        if name == "diff" and series.kind == numbers.STARTS:
            return replace(series, kind=numbers.QUERIES)
        if name == "sum" and series.kind in ("seq_lens", "query_lens"):
            role = "total_seq_len" if series.kind == "seq_lens" else "num_scheduled_tokens"
            key = ("sum", series)
            return self.session.leaf(key, role, "driver", None, role, series.where, where)
        raise Stop(where, f"{name}() of per-request numbers")

    def known(self, title: str, node: ast.Call, scope: Scope) -> Value:
        """A function understood by its name: builtins, math, torch, vLLM's own rounding."""
        where = scope.where(node)
        if title == "torch.cat":
            return self.concatenated(node, scope)
        if title in _SPECIAL:
            return _SPECIAL[title](self, node, scope)
        packed = self.packed(node.args, scope)
        if title.startswith("torch.") and title[6:] in _MAKERS:
            return self.made_tensor(title[6:], packed, node, scope)
        return spread(lambda given: self.spread_applied(title, given, where), packed)

    def spread_applied(self, title: str, given: Value, where: str) -> Value:
        return spread(lambda *a: self.applied(title, list(a), where), *_items(given))

    def concatenated(self, node: ast.Call, scope: Scope) -> Value:
        where = scope.where(node)
        axis = next((k.value for k in node.keywords if k.arg == "dim"), None)
        axis = axis or (node.args[1] if len(node.args) > 1 else ast.Constant(0))
        place = (
            0 if isinstance(axis, ast.Constant) else self.literal_index(self.value(axis, scope))
        )
        if isinstance(axis, ast.Constant) and isinstance(axis.value, int):
            place = axis.value
        parts = self.value(node.args[0], scope)

        def joined(given: Value) -> Value:
            if isinstance(given, Tensor) and given.dims is None and place == -1:
                return given  # (nope, pe) or one tensor: the same rows either way
            if not isinstance(given, Seq) or not isinstance(place, int):
                raise Stop(where, "torch.cat of something of unknown length")
            return tensors.joined(self, given.items, place, where)  # type: ignore[arg-type]

        return spread(joined, parts)

    def made_tensor(self, name: str, packed: Value, node: ast.Call, scope: Scope) -> Value:
        keywords = {k.arg: k.value for k in node.keywords}
        if "size" in keywords:
            packed = Seq((self.value(keywords["size"], scope),))
        dtype = self.value(keywords["dtype"], scope) if "dtype" in keywords else Dtype()
        where = scope.where(node)

        def made(given: Value) -> Value:
            sizes = _items(given)
            return spread(lambda *a: tensors.made(self, name, list(a), dtype, where), *sizes)  # type: ignore[arg-type]

        return spread(made, packed)

    def applied(self, title: str, args: list[Value], where: str) -> Value:
        if title in ("builtins.max", "builtins.min", "math.prod", "builtins.sum"):
            return self.folded(title, args, where)
        if title in _ROUNDING:
            return numbers.rounded(args[0], _ROUNDING[title], where)
        if title in _SAME:
            return self.converted(title, args, where)
        if title == "builtins.len":
            return self.length(args[0], where)
        if title == "builtins.range":
            return Range(len(args) == 1)
        if title == "builtins.enumerate" and len(args) == 1:
            return Zipped((Range(), args[0]))
        if title == "builtins.zip":
            return Zipped(tuple(args))
        return Num(self.library(title, args, where))

    def library(self, title: str, args: list[Value], where: str) -> tree.Node:
        """Rounding functions of vLLM and Triton, by their names."""
        if title not in {*_CEILINGS, *_POWERS, *_ROUND}:
            raise Stop(where, f"{title}() is not followed")
        nodes = [numbers.number(self.session, a, where) for a in args]
        if title in _CEILINGS and len(nodes) == 2:
            return numbers.ceiling(*nodes)
        if title == "vllm.round_up" and len(nodes) == 2:
            return simplified("round_up", *nodes)
        if title == "vllm.round_down" and len(nodes) == 2:
            return simplified("*", simplified("//", *nodes), nodes[1])
        if title in _POWERS and len(nodes) == 1:
            return simplified("next_pow2", *nodes)
        raise Stop(where, f"{title}() is not followed")

    def folded(self, title: str, args: list[Value], where: str) -> Value:
        """max, min, prod and sum over arguments or one sequence."""
        one = args[0] if len(args) == 1 else Seq(tuple(args))
        if isinstance(one, Series):
            return self.series_method(one, title.rpartition(".")[2], where)
        if not isinstance(one, Seq):
            raise Stop(where, f"{title}() of something of unknown length")
        if title == "math.prod":
            return Num(self.multiplied(one, where))
        nodes = [numbers.number(self.session, i, where) for i in one.items]
        if title == "builtins.sum":
            total: tree.Node = Const(0)
            for node in nodes:
                total = simplified("+", total, node)
            return Num(total)
        return Num(simplified(title.rpartition(".")[2], *nodes))

    def multiplied(self, shape: Seq, where: str) -> tree.Node:
        """The product of a shape's dimensions."""
        return tree.product([numbers.number(self.session, i, where) for i in shape.items])

    def converted(self, title: str, args: list[Value], where: str) -> Value:
        value = args[-1] if args else Seq(())
        if title == "builtins.list" and isinstance(value, Seq):
            return Seq(value.items, True)
        if title in ("builtins.tuple", "torch.Size"):
            if isinstance(value, Seq):
                return Seq(value.items)
            raise Stop(where, f"{title}() of something of unknown length")
        return value

    def length(self, value: Value, where: str) -> Value:
        if isinstance(value, Seq):
            return constant(len(value.items))
        if isinstance(value, Tensor):
            return value.dim(0, where)
        if isinstance(value, Series) and value.count is not None:
            return value.count
        raise Stop(where, "the length of something that is not known")

    def getattr_call(self, node: ast.Call, scope: Scope) -> Value:
        where = scope.where(node)
        name = node.args[1] if len(node.args) > 1 else None
        if not (isinstance(name, ast.Constant) and isinstance(name.value, str)):
            raise Stop(where, "getattr with a name that is not spelled out")
        owner = self.value(node.args[0], scope)
        if not isinstance(owner, Obj):
            raise Stop(where, "getattr of something that is not known")
        return self.world.attribute(owner, name.value, where)

    def inlined(self, target: Obj, owner: Value | None, node: ast.Call, scope: Scope) -> Value:
        """The value that a callee returns, its body followed with the call's arguments."""
        where = scope.where(node)
        if scope.depth >= MAX_INLINED:
            raise Stop(where, f"calls nested more than {MAX_INLINED} deep")
        inner = self.world.enter(target, where)
        arguments = self.arguments(inner.source, owner, node, scope, inner)
        inner = replace(inner, arguments=arguments, depth=scope.depth + 1)
        return self.returned(inner, inner.source.body, where)

    def arguments(
        self,
        source: FunctionSource,
        owner: Value | None,
        node: ast.Call,
        scope: Scope,
        inner: Scope,
    ) -> dict[str, Callable[[], Value]]:
        """Parameter name -> its value at the call, made when asked for."""
        where = scope.where(node)
        declared = source.node.args
        names = [a.arg for a in (*declared.posonlyargs, *declared.args)]
        given: list[Callable[[], Value]] = [lambda: owner] if owner is not None else []
        for arg in node.args:
            if isinstance(arg, ast.Starred):
                packed = self.packed([arg], scope)
                given += [lambda v=v: v for v in _items(packed)]  # type: ignore[misc]
            else:
                given.append(lambda a=arg: self.value(a, scope))  # type: ignore[misc]
        found = dict(zip(names, given, strict=False))
        if declared.vararg:
            rest = given[len(names) :]
            found[declared.vararg.arg] = lambda: Seq(tuple(g() for g in rest))
        elif len(given) > len(names):
            raise Stop(where, "a call with more arguments than parameters")
        for keyword in node.keywords:
            if keyword.arg is None:
                raise Stop(where, "a call with ** arguments")
            found[keyword.arg] = lambda k=keyword: self.value(k.value, scope)  # type: ignore[misc]
        self.defaults(source, found, inner)
        return found

    def defaults(
        self, source: FunctionSource, found: dict[str, Callable[[], Value]], inner: Scope
    ) -> None:
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
                return self.value(statement.value, scope)
            if isinstance(statement, ast.If) and _returns(statement):
                return self.forked(scope, block, number, statement, where)
            if isinstance(statement, ast.With) and _returns(statement):
                return self.returned(scope, statement.body, where)
            if isinstance(statement, ast.Try) and _returns(statement):
                return self.tried(scope, statement, block, number, where)
            if _returns(statement):
                raise Stop(scope.where(statement), "returns from inside a loop or try")
            if isinstance(statement, ast.Raise):
                break
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

        decided = self.decided(statement.test, scope)
        if decided is not None:
            return continued(statement.body if decided else statement.orelse)
        if _raises(statement.body):
            return continued(statement.orelse)
        yes, no = continued(statement.body), continued(statement.orelse)
        return choose((scope.serial, id(statement)), yes, no)


def _axes(node: ast.Call) -> list[ast.expr]:
    """`dim=` after the positional arguments of a method."""
    return [k.value for k in node.keywords if k.arg == "dim"]


def _is_opaque(value: Value) -> bool:
    return isinstance(value, Obj) and isinstance(value.handle, Opaque)


def _items(packed: Value) -> list[Value]:
    if not isinstance(packed, Seq):
        raise Stop("", "arguments whose number a condition decides")
    return list(packed.items)


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


_SPECIAL: Final[Mapping[str, Callable[[Calls, ast.Call, Scope], Value]]] = {
    "builtins.getattr": Calls.getattr_call,
}
