"""Functions and methods that are understood by name: builtins, math, torch, vLLM's rounding."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from wstrace.expr import tree
from wstrace.expr.tree import Const, simplified
from wstrace.slicer import arithmetic, tensors
from wstrace.slicer.values import (
    Dtype,
    Group,
    Index,
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
    constant,
    spread,
)

if TYPE_CHECKING:
    from wstrace.slicer.scope import Scope

from wstrace.slicer.inline import Inlining, items_of

_MAKERS: Final = {"empty", "zeros", "ones", "full", "empty_like", "zeros_like", "ones_like"}
_ROUNDING: Final = {"math.ceil": True, "math.floor": False, "builtins.int": False}
_SAME: Final = {
    "builtins.float",
    "typing.cast",
    "torch.Size",
    "builtins.tuple",
    "builtins.list",
}
_REDUCTIONS: Final = {"torch.sum", "torch.max", "torch.min"}
_CEILINGS: Final = {"vllm.cdiv", "triton.cdiv"}
_ROUND: Final = {"vllm.round_up", "vllm.round_down"}
_POWERS: Final = {"vllm.next_power_of_2", "triton.next_power_of_2"}


class Library(Inlining):
    """Known functions, on top of names, conditions and inlining."""

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

    def gathered(self, group: Group, name: str, args: list[Value], where: str) -> Value:
        """all_gather multiplies its dimension by the size of the group."""
        tensor, axis = (
            (args[0], self.literal_index(args[1])) if len(args) == 2 else (None, None)
        )
        if name != "all_gather" or axis is None or not isinstance(tensor, Tensor):
            raise Stop(where, f"{name}() of a process group")
        return tensors.scaled(self, tensor, axis, group.size, where)  # type: ignore[arg-type]

    def literal_index(self, key: Value) -> int | None:
        """A position that cannot change, else None."""
        return self.session.fixed_value(key) if isinstance(key, Num) else None

    def bit_length(self, owner: Value, where: str) -> Value:
        raise NotImplementedError

    def series_method(self, series: Series, name: str, where: str) -> Value:
        if name in ("tolist", "cpu", "to", "numpy", "int", "long", "item", "clone"):
            return series
        if name in ("numel", "size") and series.count is not None:
            return series.count
        if name in ("max", "amax", "min"):
            return self.session.element(series, Index((name, series.kind)), where)
        if name == "diff" and series.kind == arithmetic.STARTS:
            return replace(series, kind=arithmetic.QUERIES)
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
        return spread(lambda *a: self.applied(title, list(a), where), *items_of(given))

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
            sizes = items_of(given)
            return spread(lambda *a: tensors.made(self, name, list(a), dtype, where), *sizes)  # type: ignore[arg-type]

        return spread(made, packed)

    def applied(self, title: str, args: list[Value], where: str) -> Value:
        if title in ("builtins.max", "builtins.min", "math.prod", "builtins.sum"):
            return self.folded(title, args, where)
        if title in _ROUNDING:
            return arithmetic.rounded(args[0], _ROUNDING[title], where)
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
        if title in _REDUCTIONS:
            return self.contents(title, where)
        return Num(self.library(title, args, where))

    def contents(self, title: str, where: str) -> Value:
        """A number made of a tensor's contents: known to the request, bounded by nothing."""
        why = f"{where}: {title}() of what a tensor holds"
        name = title.rpartition(".")[2]
        return self.session.leaf(
            ("held", object()), name, "unbound", None, None, title, where, why
        )

    def library(self, title: str, args: list[Value], where: str) -> tree.Node:
        """Rounding functions of vLLM and Triton, by their names."""
        if title not in {*_CEILINGS, *_POWERS, *_ROUND}:
            raise Stop(where, f"{title}() is not followed")
        nodes = [arithmetic.number(self.session, a, where) for a in args]
        if title in _CEILINGS and len(nodes) == 2:
            return arithmetic.ceiling(*nodes)
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
        return spread(lambda *items: self.folded_items(title, items, where), *one.items)

    def folded_items(self, title: str, items: tuple[Value, ...], where: str) -> Value:
        """As `folded`, over one choice of arms."""
        one = Seq(items)
        if title == "math.prod":
            return Num(self.multiplied(one, where))
        nodes = [arithmetic.number(self.session, i, where) for i in one.items]
        if title == "builtins.sum":
            total: tree.Node = Const(0)
            for node in nodes:
                total = simplified("+", total, node)
            return Num(total)
        return Num(simplified(title.rpartition(".")[2], *nodes))

    def multiplied(self, shape: Seq, where: str) -> tree.Node:
        """The product of a shape's dimensions."""
        return tree.product([arithmetic.number(self.session, i, where) for i in shape.items])

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

    def parent_call(self, node: ast.Call, scope: Scope) -> Value:
        """`super()`: the classes after the one that the method stands in."""
        where = scope.where(node)
        names = scope.source.node.args.args
        if node.args or not scope.source.in_class or not names:
            raise Stop(where, "super() outside a method, or with arguments")
        point = scope.source.places[id(node)]
        owner = self.name(scope, names[0].arg, point, where)
        if not isinstance(owner, Obj):
            raise Stop(where, "super() of something that is not known")
        return self.world.parent(owner, scope, where)


_SPECIAL: Final[Mapping[str, Callable[[Library, ast.Call, Scope], Value]]] = {
    "builtins.getattr": Library.getattr_call,
    "builtins.super": Library.parent_call,
}
