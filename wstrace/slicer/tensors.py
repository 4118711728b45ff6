"""Tensors by their shapes: slicing, views, and the methods that make one from another."""

from __future__ import annotations

import ast
from typing import Final

from wstrace.expr import tree
from wstrace.expr.tree import Const, Node
from wstrace.slicer import arithmetic
from wstrace.slicer.scope import Evaluation, Scope
from wstrace.slicer.values import (
    Literal,
    Num,
    Obj,
    Opaque,
    Seq,
    Series,
    Stop,
    Tail,
    Tensor,
    Value,
    constant,
)

# PyTorch 2.13: methods of torch.Tensor whose result has the tensor's own shape.
SAME_SHAPE: Final = {
    *("contiguous", "clone", "detach", "to", "cpu", "cuda", "float", "half", "bfloat16"),
    *("int", "long", "requires_grad_", "type", "numpy", "abs", "copy_", "fill_", "zero_"),
}


def attribute(tensor: Tensor, name: str, where: str) -> Value | None:
    """`shape`, `dtype`, `ndim`; None for methods."""
    if name == "shape":
        return (
            Obj(tensor, ("shape", tensor.key), "shape")
            if tensor.dims is None
            else _shape(tensor)
        )
    if name == "dtype":
        return tensor.dtype
    if name == "ndim" and tensor.dims is not None:
        return constant(len(tensor.dims))
    return None


def _shape(tensor: Tensor) -> Seq:
    assert tensor.dims is not None
    return Seq(tensor.dims)


def per_request(value: Value) -> Value:
    """A comprehension over requests: only its sum or maximum would be a number."""
    raise Stop("", f"a list of {type(value).__name__} per request")


def indexed(ev: Evaluation, owner: Value, parts: list[ast.expr], scope: Scope) -> Value:
    """`tensor[a, b:c, ...]`: an index drops a dimension, a slice shortens it."""
    where = scope.where(parts[0])
    if not isinstance(owner, Tensor):
        raise Stop(where, "slices of something that is not a tensor")
    if any(isinstance(p, ast.Constant) and p.value is Ellipsis for p in parts):
        raise Stop(where, "an ellipsis index")
    if owner.dims is None:
        return _lazily(ev, owner, parts, scope)
    rest = list(owner.dims)
    dims: list[Value] = []
    for part in parts:
        if isinstance(part, ast.Constant) and part.value is None:
            dims.append(constant(1))
            continue
        if not rest:
            raise Stop(where, "more indices than dimensions")
        dim = rest.pop(0)
        if isinstance(part, ast.Slice):
            dims.append(_cut(ev, dim, part, scope))
        else:
            _only_number(ev, part, scope)
    return Tensor((*dims, *rest), None, owner.dtype)


def _lazily(ev: Evaluation, owner: Tensor, parts: list[ast.expr], scope: Scope) -> Value:
    """A tensor of open rank: the first dimension cut, the others as they were."""
    where = scope.where(parts[0])
    if len(parts) != 1 or not isinstance(parts[0], ast.Slice):
        raise Stop(where, "an index into a tensor whose rank is not known")
    cut = parts[0]

    def dim(index: int) -> Value:
        return _cut(ev, None, cut, scope) if index == 0 else owner.dim(index, where)

    return Tensor(None, dim, owner.dtype, ("cut", owner.key, scope.serial, id(cut)))


def _only_number(ev: Evaluation, part: ast.expr, scope: Scope) -> None:
    value = ev.value(part, scope)
    if isinstance(value, Tensor | Seq | Series | Literal):
        raise Stop(scope.where(part), "a tensor indexed by a tensor or mask")


def _cut(ev: Evaluation, dim: Value | None, cut: ast.Slice, scope: Scope) -> Value:
    """`[a:b]` has b - a elements where the tensor is long enough, which vLLM's padded
    buffers are; a shorter one makes the formula too large, which the self-check tells."""
    where = scope.where(cut)
    if cut.step is not None:
        raise Stop(where, "a slice with a step")
    if cut.upper is None and cut.lower is None:
        if dim is None:
            raise Stop(where, "a dimension that is not known")
        return dim
    low = ev.value(cut.lower, scope) if cut.lower else constant(0)
    if cut.upper is None:
        if dim is None:
            raise Stop(where, "a dimension that is not known")
        return arithmetic.binary(ev.ledger, "Sub", dim, low, where)
    high = ev.value(cut.upper, scope)
    if isinstance(high, Num) and isinstance(high.node, Const) and high.node.value < 0:
        if dim is None:
            raise Stop(where, "a dimension that is not known")
        high = arithmetic.binary(ev.ledger, "Add", dim, high, where)
    return arithmetic.binary(ev.ledger, "Sub", high, low, where)


def made(name: str, args: list[Value], dtype: Value) -> Tensor:
    """torch.empty and its like, from sizes given one by one or as one sequence."""
    like = args[0] if name.endswith("_like") else None
    if isinstance(like, Tensor):
        return Tensor(like.dims, like.lazy, like.dtype, like.key)
    sizes = args[0] if args and isinstance(args[0], Seq) else Seq(tuple(args))
    assert isinstance(sizes, Seq)
    return Tensor(sizes.items, None, dtype)


def method(ev: Evaluation, tensor: Tensor, name: str, args: list[Value], where: str) -> Value:
    """The result of a tensor's method; Stop for those that are not understood."""
    if name in SAME_SHAPE:
        return Tensor(tensor.dims, tensor.lazy, tensor.dtype, tensor.key)
    if name in ("size", "dim", "numel", "element_size", "nelement"):
        return _measured(ev, tensor, name, args, where)
    if name in ("view", "reshape", "new_empty", "new_zeros"):
        sizes = args[0].items if args and isinstance(args[0], Seq) else tuple(args)
        if name.startswith("new_"):
            return Tensor(sizes, None, tensor.dtype)
        if sizes and isinstance(sizes[-1], Tail):
            return _view_with_tail(ev, tensor, sizes, where)
        if tensor.dims is None and constant(-1) in sizes:
            return _view_of_open_rank(tensor, sizes, where)
        return Tensor(_viewed(ev, tensor, sizes, where), None, tensor.dtype)
    if name == "split" and len(args) == 2:
        axis = ev.ledger.literal_index(args[1])
        if axis is not None:
            return split(ev, tensor, args[0], axis, where)
    if tensor.dims is None:
        raise Stop(where, f"{name}() of a tensor whose rank is not known")
    return Tensor(tuple(_rearranged(ev, tensor, name, args, where)), None, tensor.dtype)


def _rearranged(
    ev: Evaluation, tensor: Tensor, name: str, args: list[Value], where: str
) -> list[Value]:
    assert tensor.dims is not None
    dims = list(tensor.dims)
    if name == "unsqueeze":
        dims.insert(_axis(ev, args[0], len(dims) + 1, where), constant(1))
    elif name == "squeeze" and args:
        dims.pop(_axis(ev, args[0], len(dims), where))
    elif name == "transpose" and len(args) == 2:
        a, b = (_axis(ev, x, len(dims), where) for x in args)
        dims[a], dims[b] = dims[b], dims[a]
    elif name == "flatten" and not args:
        dims = [Num(_elements(ev, tensor, where))]
    else:
        raise Stop(where, f"the tensor method {name}()")
    return dims


def _measured(
    ev: Evaluation, tensor: Tensor, name: str, args: list[Value], where: str
) -> Value:
    if name == "size":
        if not args:
            return _shape(tensor) if tensor.dims is not None else Obj(tensor, None, "shape")
        axis = ev.ledger.literal_index(args[0])
        if axis is None:
            raise Stop(where, "a dimension chosen at run time")
        return tensor.dim(axis, where)
    if name == "element_size":
        return ev.member(tensor.dtype, "itemsize", where)
    if name == "dim":
        if tensor.dims is None:
            raise Stop(where, "the rank of a tensor that is not known")
        return constant(len(tensor.dims))
    return Num(_elements(ev, tensor, where))


def _elements(ev: Evaluation, tensor: Tensor, where: str) -> Node:
    if tensor.dims is None:
        raise Stop(where, "the size of a tensor whose rank is not known")
    return tree.product([arithmetic.number(ev.ledger, d, where) for d in tensor.dims])


def _viewed(
    ev: Evaluation, tensor: Tensor, sizes: tuple[Value, ...], where: str
) -> tuple[Value, ...]:
    """Sizes of a view; a -1 takes what the others leave of the tensor's elements."""
    nodes = [arithmetic.number(ev.ledger, s, where) for s in sizes]
    if Const(-1) not in nodes:
        return sizes
    hole = nodes.index(Const(-1))
    if tensor.dims is None:
        raise Stop(where, "the size of a tensor whose rank is not known")
    own = [arithmetic.number(ev.ledger, d, where) for d in tensor.dims]
    front, back = nodes[:hole], nodes[hole + 1 :]
    while back and own and back[-1] == own[-1]:
        back.pop()
        own.pop()
    rest = ev.ledger.exactly(tree.product(own), tree.product([*front, *back]))
    return (*sizes[:hole], Num(rest), *sizes[hole + 1 :])


def _view_with_tail(
    ev: Evaluation, tensor: Tensor, sizes: tuple[Value, ...], where: str
) -> Tensor:
    """`x.view(a, -1, *x.shape[1:])`: the first dimension divided, the others as they were."""
    *front, tail = sizes
    assert isinstance(tail, Tail)
    nodes = [arithmetic.number(ev.ledger, s, where) for s in front]
    if Const(-1) in nodes:
        if tail.start != 1 or not _shares_tail(tensor, tail.tensor):
            raise Stop(where, "a view that is not understood")
        hole = nodes.index(Const(-1))
        others = tree.product([n for i, n in enumerate(nodes) if i != hole])
        rows = arithmetic.number(ev.ledger, tensor.dim(0, where), where)
        front[hole] = Num(ev.ledger.exactly(rows, others))

    def dim(index: int) -> Value:
        if 0 <= index < len(front):
            return front[index]
        past = index if index < 0 else index - len(front) + tail.start
        return tail.tensor.dim(past, where)

    return Tensor(None, dim, tensor.dtype, ("view", tail.tensor.key, tuple(front)))


def _shares_tail(tensor: Tensor, other: Tensor) -> bool:
    """Whether `tensor` is `other`, or `other` with its first dimension cut."""
    if tensor.key is None:
        return False
    cut = isinstance(tensor.key, tuple) and tensor.key[:2] == ("cut", other.key)
    return tensor.key == other.key or cut


def _view_of_open_rank(tensor: Tensor, sizes: tuple[Value, ...], where: str) -> Tensor:
    """The sizes as given; what a -1 stands for is not known where the rank is not."""

    def dim(index: int) -> Value:
        if not -len(sizes) <= index < len(sizes):
            raise Stop(where, f"dimension {index} of a tensor with {len(sizes)}")
        if sizes[index] != constant(-1):
            return sizes[index]
        why = f"{where}: the size of a tensor whose rank is not known"
        return Obj(Opaque(why, open=True), ("rest", tensor.key, sizes), "view.rest")

    return Tensor(None, dim, tensor.dtype, ("view", tensor.key, sizes))


def concatenated(ev: Evaluation, parts: tuple[Value, ...], axis: int, where: str) -> Tensor:
    """torch.cat: one dimension is the sum, the others are the first tensor's."""
    tensors = [p for p in parts if isinstance(p, Tensor)]
    if not tensors or len(tensors) != len(parts):
        raise Stop(where, "torch.cat of something that is not a tensor")
    first = tensors[0]

    def dim(index: int) -> Value:
        own = first.dim(index, where)
        if index != axis:
            return own
        for other in tensors[1:]:
            own = arithmetic.binary(ev.ledger, "Add", own, other.dim(index, where), where)
        return own

    if first.dims is None:
        return Tensor(None, dim, first.dtype, ("joined", first.key, axis))
    axis %= len(first.dims)
    return Tensor(tuple(dim(i) for i in range(len(first.dims))), None, first.dtype)


def split(ev: Evaluation, tensor: Tensor, sizes: Value, axis: int, where: str) -> Seq:
    """tensor.split([a, b], dim=axis)."""
    if not isinstance(sizes, Seq):
        raise Stop(where, "a split into parts of one size")

    def part(size: Value) -> Tensor:
        def dim(index: int) -> Value:
            return size if index == axis else tensor.dim(index, where)

        if tensor.dims is None:
            return Tensor(None, dim, tensor.dtype, ("split", tensor.key, axis, size))
        place = axis % len(tensor.dims)
        dims = [size if i == place else d for i, d in enumerate(tensor.dims)]
        return Tensor(tuple(dims), None, tensor.dtype)

    return Seq(tuple(part(size) for size in sizes.items))


def scaled(ev: Evaluation, tensor: Tensor, axis: int, by: Value, where: str) -> Tensor:
    """One dimension multiplied."""
    if tensor.dims is None:

        def dim(index: int) -> Value:
            own = tensor.dim(index, where)
            return (
                arithmetic.binary(ev.ledger, "Mult", own, by, where) if index == axis else own
            )

        return Tensor(None, dim, tensor.dtype, ("scaled", tensor.key, axis))
    dims = list(tensor.dims)
    dims[axis] = arithmetic.binary(ev.ledger, "Mult", dims[axis], by, where)
    return Tensor(tuple(dims), None, tensor.dtype)


def _axis(ev: Evaluation, value: Value, rank: int, where: str) -> int:
    axis = ev.ledger.literal_index(value)
    if axis is None or not -rank <= axis < rank:
        raise Stop(where, "a dimension chosen at run time")
    return axis % rank
