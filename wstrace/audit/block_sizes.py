"""The block size that a release takes where nobody sets one: by its own source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from wstrace.audit.call_sites import CallSite
from wstrace.audit.related import Relations
from wstrace.slicer.static import ClassRef, FunctionRef, Project

# vLLM 0.18.1 to 0.33.0; before it, the CUDA platform sets 16 for every backend but MLA's.
_CONFIG: Final = "vllm.config.cache"
_DEFAULT: Final = "DEFAULT_BLOCK_SIZE"
# vLLM 0.18.1 to 0.33.0: AttentionBackend's methods.
_PREFERRED: Final = "get_preferred_block_size"
_SUPPORTED: Final = "get_supported_kernel_block_sizes"


def default_block_size(project: Project, site: CallSite) -> tuple[int, str] | None:
    """The block size of the attention backend that makes a request, and the backend's class;
    None where the source does not tell it."""
    relations = Relations(project)
    owner = relations.owner(site)
    default = _release_default(project)
    if owner is None or default is None:
        return None
    found = {
        (size, backend.name)
        for backend in relations.backends(owner)
        if (size := _preferred(project, backend, default)) is not None
    }
    sizes = {size for size, _ in found}
    return min(found) if len(sizes) == 1 else None


def _release_default(project: Project) -> int | None:
    tree = project.tree(_CONFIG)
    for node in ast.walk(tree) if tree else ():
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(target, ast.Name) and target.id == _DEFAULT:
            assert isinstance(node, ast.AnnAssign)
            return _number(node.value)
    return None


def _preferred(project: Project, backend: ClassRef, default: int) -> int | None:
    """What the backend makes of the release's default."""
    own = project.member(backend, _PREFERRED)
    fixed = _number(_only_return(own)) if own is not None else None
    if fixed is not None:
        return fixed
    sizes = _supported(project.member(backend, _SUPPORTED))
    if sizes is None:
        return None
    if not sizes or any(default == n or (many and default % n == 0) for n, many in sizes):
        return default
    return min(n for n, _ in sizes)


def _supported(method: FunctionRef | None) -> list[tuple[int, bool]] | None:
    """The sizes that a backend lists, and whether multiples of each will do."""
    listed = _only_return(method) if method is not None else None
    if not isinstance(listed, ast.List):
        return None
    found = [(_number(e), _number(_multiple(e))) for e in listed.elts]
    if any(plain is None and many is None for plain, many in found):
        return None
    return [(plain or many or 0, plain is None) for plain, many in found]


def _multiple(node: ast.expr) -> ast.expr | None:
    named = isinstance(node, ast.Call) and ast.unparse(node.func).endswith("MultipleOf")
    return node.args[0] if isinstance(node, ast.Call) and named and node.args else None


def _only_return(method: FunctionRef) -> ast.expr | None:
    """The value of a function that does nothing but return it."""
    body = method.node.body
    statements = list(_plain(body)) if isinstance(body, list) else []
    only = statements[0] if len(statements) == 1 else None
    return only.value if isinstance(only, ast.Return) else None


def _plain(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            yield statement


def _number(node: ast.expr | None) -> int | None:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, int) else None
