"""Functions and methods that are understood by name: builtins, math, torch, vLLM's rounding.

`KNOWN` is the one table of functions. Most rules take the values of the arguments; the few that
must see how the call is written (a keyword, a starred size) take the call.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from wstrace.expr import tree
from wstrace.expr.tree import Const, simplified
from wstrace.slicer import arithmetic, tensors
from wstrace.slicer.ledger import Ledger
from wstrace.slicer.scope import Evaluation, Scope
from wstrace.slicer.values import (
    QUERIES,
    STARTS,
    BitLength,
    Dtype,
    Index,
    Num,
    Obj,
    Opaque,
    ProcessGroup,
    Range,
    Seq,
    Series,
    Stop,
    Tensor,
    Value,
    Zipped,
    constant,
    items_of,
    spread,
)

Known = Callable[[Evaluation, ast.Call, Scope], Value]
OnValues = Callable[[Ledger, list[Value], str], Value]
"""A rule over one choice of the arguments' values; the text is `file:line` of the call."""


def known(ev: Evaluation, title: str, node: ast.Call, scope: Scope) -> Value:
    """The result of the function that `World.title` calls `title`."""
    rule = KNOWN.get(title) or _values(partial(_unknown, title))
    return rule(ev, node, scope)


def method(ev: Evaluation, owner: Value, name: str, args: list[Value], where: str) -> Value:
    """Methods of values that are not objects."""
    if isinstance(owner, Series):
        return _series_method(ev.ledger, owner, name, where)
    if isinstance(owner, Tensor):
        return tensors.method(ev, owner, name, args, where)
    if isinstance(owner, ProcessGroup):
        return _gathered(ev, owner, name, args, where)
    if isinstance(owner, Num | Index) and name in ("item", "int", "tolist", "cpu"):
        return owner
    if isinstance(owner, Num) and name == "bit_length":
        return BitLength(arithmetic.number(ev.ledger, owner, where))
    if isinstance(owner, Seq) and name == "numel":
        return Num(_product(ev.ledger, owner.items, where))
    if isinstance(owner, Obj) and isinstance(owner.handle, Opaque):
        return ev.world.constant_call(owner, name, where)
    raise Stop(where, f"the method {name}() is not followed")


def length(value: Value, where: str) -> Value:
    """`len(value)`."""
    if isinstance(value, Seq):
        return constant(len(value.items))
    if isinstance(value, Tensor):
        return value.dim(0, where)
    if isinstance(value, Series) and value.count is not None:
        return value.count
    raise Stop(where, "the length of something that is not known")


def _gathered(
    ev: Evaluation, group: ProcessGroup, name: str, args: list[Value], where: str
) -> Value:
    """all_gather multiplies its dimension by the size of the group."""
    tensor, axis = (
        (args[0], ev.ledger.literal_index(args[1])) if len(args) == 2 else (None, None)
    )
    if name != "all_gather" or axis is None or not isinstance(tensor, Tensor):
        raise Stop(where, f"{name}() of a process group")
    return tensors.scaled(ev, tensor, axis, group.size, where)


def _series_method(ledger: Ledger, series: Series, name: str, where: str) -> Value:
    if name in ("tolist", "cpu", "to", "numpy", "int", "long", "item", "clone"):
        return series
    if name in ("numel", "size") and series.count is not None:
        return series.count
    if name in ("max", "amax", "min"):
        return ledger.element(series, Index((name, series.kind)), where)
    if name == "diff" and series.kind == STARTS:
        return replace(series, kind=QUERIES)
    if name == "sum" and series.kind in ("seq_lens", "query_lens"):
        role = "total_seq_len" if series.kind == "seq_lens" else "num_scheduled_tokens"
        return ledger.leaf(("sum", series), role, "driver", None, role, series.where, where)
    raise Stop(where, f"{name}() of per-request numbers")


def _values(rule: OnValues) -> Known:
    """`rule` on every choice of the arguments' arms."""

    def applied(ev: Evaluation, node: ast.Call, scope: Scope) -> Value:
        where = scope.where(node)

        def on(given: Value) -> Value:
            return spread(lambda *a: rule(ev.ledger, list(a), where), *items_of(given))

        return spread(on, ev.packed(node.args, scope))

    return applied


def _unknown(title: str, ledger: Ledger, args: list[Value], where: str) -> Value:
    raise Stop(where, f"{title}() is not followed")


def _concatenated(ev: Evaluation, node: ast.Call, scope: Scope) -> Value:
    """torch.cat, its axis given by place or by name."""
    where = scope.where(node)
    axis = next((k.value for k in node.keywords if k.arg == "dim"), None)
    axis = axis or (node.args[1] if len(node.args) > 1 else ast.Constant(0))
    place: int | None = 0
    if not isinstance(axis, ast.Constant):
        place = ev.ledger.literal_index(ev.value(axis, scope))
    elif isinstance(axis.value, int):
        place = axis.value

    def joined(given: Value) -> Value:
        if isinstance(given, Tensor) and given.dims is None and place == -1:
            return given  # (nope, pe) or one tensor: the same rows either way
        if not isinstance(given, Seq) or not isinstance(place, int):
            raise Stop(where, "torch.cat of something of unknown length")
        return tensors.concatenated(ev, given.items, place, where)

    return spread(joined, ev.value(node.args[0], scope))


def _maker(name: str) -> Known:
    """torch.empty and its like."""

    def made(ev: Evaluation, node: ast.Call, scope: Scope) -> Value:
        packed = ev.packed(node.args, scope)
        keywords = {k.arg: k.value for k in node.keywords}
        if "size" in keywords:
            packed = Seq((ev.value(keywords["size"], scope),))
        dtype = ev.value(keywords["dtype"], scope) if "dtype" in keywords else Dtype()

        def sized(given: Value) -> Value:
            return spread(lambda *a: tensors.made(name, list(a), dtype), *items_of(given))

        return spread(sized, packed)

    return made


def _getattr(ev: Evaluation, node: ast.Call, scope: Scope) -> Value:
    where = scope.where(node)
    name = node.args[1] if len(node.args) > 1 else None
    if not (isinstance(name, ast.Constant) and isinstance(name.value, str)):
        raise Stop(where, "getattr with a name that is not spelled out")
    owner = ev.value(node.args[0], scope)
    if not isinstance(owner, Obj):
        raise Stop(where, "getattr of something that is not known")
    return ev.world.attribute(owner, name.value, where)


def _super(ev: Evaluation, node: ast.Call, scope: Scope) -> Value:
    """`super()`: the classes after the one that the method stands in."""
    where = scope.where(node)
    names = scope.source.node.args.args
    if node.args or not scope.source.in_class or not names:
        raise Stop(where, "super() outside a method, or with arguments")
    owner = ev.name(scope, names[0].arg, scope.source.places[id(node)], where)
    if not isinstance(owner, Obj):
        raise Stop(where, "super() of something that is not known")
    return ev.world.parent(owner, scope, where)


def _rounded(up: bool, ledger: Ledger, args: list[Value], where: str) -> Value:
    return arithmetic.rounded(args[0], up, where)


def _length(ledger: Ledger, args: list[Value], where: str) -> Value:
    return length(args[0], where)


def _range(ledger: Ledger, args: list[Value], where: str) -> Value:
    return Range(len(args) == 1)


def _enumerated(ledger: Ledger, args: list[Value], where: str) -> Value:
    if len(args) != 1:
        return _unknown("builtins.enumerate", ledger, args, where)
    return Zipped((Range(), args[0]))


def _zipped(ledger: Ledger, args: list[Value], where: str) -> Value:
    return Zipped(tuple(args))


def _contents(title: str, ledger: Ledger, args: list[Value], where: str) -> Value:
    """A number made of a tensor's contents: known to the request, bounded by nothing."""
    why = f"{where}: {title}() of what a tensor holds"
    name = title.rpartition(".")[2]
    return ledger.leaf(("held", object()), name, "unbound", None, None, title, where, why)


def _same(ledger: Ledger, args: list[Value], where: str) -> Value:
    """float(x), cast(T, x): a number stays what it was."""
    return args[-1] if args else Seq(())


def _listed(ledger: Ledger, args: list[Value], where: str) -> Value:
    value = _same(ledger, args, where)
    return Seq(value.items, True) if isinstance(value, Seq) else value


def _tupled(title: str, ledger: Ledger, args: list[Value], where: str) -> Value:
    value = _same(ledger, args, where)
    if isinstance(value, Seq):
        return Seq(value.items)
    raise Stop(where, f"{title}() of something of unknown length")


def _folded(name: str, ledger: Ledger, args: list[Value], where: str) -> Value:
    """max, min, prod and sum over arguments or one sequence."""
    one = args[0] if len(args) == 1 else Seq(tuple(args))
    if isinstance(one, Series):
        return _series_method(ledger, one, name, where)
    if not isinstance(one, Seq):
        title = "math.prod" if name == "prod" else f"builtins.{name}"
        raise Stop(where, f"{title}() of something of unknown length")
    return spread(lambda *items: _folded_items(name, ledger, items, where), *one.items)


def _folded_items(name: str, ledger: Ledger, items: tuple[Value, ...], where: str) -> Value:
    """As `_folded`, over one choice of arms."""
    if name == "prod":
        return Num(_product(ledger, items, where))
    nodes = [arithmetic.number(ledger, i, where) for i in items]
    if name != "sum":
        return Num(simplified(name, *nodes))
    total: tree.Node = Const(0)
    for node in nodes:
        total = simplified("+", total, node)
    return Num(total)


def _product(ledger: Ledger, items: tuple[Value, ...], where: str) -> tree.Node:
    return tree.product([arithmetic.number(ledger, i, where) for i in items])


def _of_numbers(title: str, count: int, make: Callable[..., tree.Node]) -> Known:
    """A rule over `count` integers, as trees."""

    def applied(ledger: Ledger, args: list[Value], where: str) -> Value:
        nodes = [arithmetic.number(ledger, a, where) for a in args]
        if len(nodes) != count:
            return _unknown(title, ledger, args, where)
        return Num(make(*nodes))

    return _values(applied)


def _round_up(top: tree.Node, bottom: tree.Node) -> tree.Node:
    return simplified("round_up", top, bottom)


def _round_down(top: tree.Node, bottom: tree.Node) -> tree.Node:
    return simplified("*", simplified("//", top, bottom), bottom)


def _power(value: tree.Node) -> tree.Node:
    return simplified("next_pow2", value)


# PyTorch 2.13: functions of torch that make a tensor of the shape they are given.
_MAKERS: Final = ("empty", "zeros", "ones", "full", "empty_like", "zeros_like", "ones_like")
KNOWN: Final[Mapping[str, Known]] = {
    "builtins.getattr": _getattr,
    "builtins.super": _super,
    "builtins.int": _values(partial(_rounded, False)),
    "builtins.float": _values(_same),
    "builtins.tuple": _values(partial(_tupled, "builtins.tuple")),
    "builtins.list": _values(_listed),
    "builtins.len": _values(_length),
    "builtins.range": _values(_range),
    "builtins.enumerate": _values(_enumerated),
    "builtins.zip": _values(_zipped),
    **{f"builtins.{n}": _values(partial(_folded, n)) for n in ("max", "min", "sum")},
    "math.prod": _values(partial(_folded, "prod")),
    "math.ceil": _values(partial(_rounded, True)),
    "math.floor": _values(partial(_rounded, False)),
    "typing.cast": _values(_same),
    "torch.cat": _concatenated,
    "torch.Size": _values(partial(_tupled, "torch.Size")),
    **{f"torch.{n}": _maker(n) for n in _MAKERS},
    **{t: _values(partial(_contents, t)) for t in ("torch.sum", "torch.max", "torch.min")},
    **{t: _of_numbers(t, 2, arithmetic.ceiling) for t in ("vllm.cdiv", "triton.cdiv")},
    "vllm.round_up": _of_numbers("vllm.round_up", 2, _round_up),
    "vllm.round_down": _of_numbers("vllm.round_down", 2, _round_down),
    **{
        t: _of_numbers(t, 1, _power) for t in ("vllm.next_power_of_2", "triton.next_power_of_2")
    },
}
