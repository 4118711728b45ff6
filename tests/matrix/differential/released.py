"""vLLM's own functions, run from a release's source without importing vLLM.

A module's names are made when they are first read: a function or a class by executing its one
statement, an import by reading the release's other file. What comes from outside vLLM, torch
and the standard library is `Unknown`: it can be called and read, but a branch or an index on
it is an error, so that no size can follow from it.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import torch

Spec = tuple[tuple[int, ...], torch.dtype]
_REAL = {"torch", "numpy", *sys.stdlib_module_names}
_AS_MODULE = "released_vllm"
sys.modules.setdefault(_AS_MODULE, ModuleType(_AS_MODULE))  # dataclass looks there for names
_KEPT_DECORATORS = {"property", "staticmethod", "classmethod", "dataclass"}


class Unknown:
    """What the harness does not provide: no number and no truth value can come from it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_name":
            raise AttributeError(name)
        return Unknown(f"{self._name}.{name}")

    def __call__(self, *_: Any, **__: Any) -> Any:
        return Unknown(f"{self._name}()")

    def __mro_entries__(self, _: Any) -> tuple[type, ...]:
        return (Base,)

    def __bool__(self) -> NoReturn:
        raise LookupError(f"a branch on {self._name}, which the harness does not provide")

    __index__ = __iter__ = __len__ = __bool__

    def __getitem__(self, _: Any) -> Any:
        return Unknown(f"{self._name}[]")

    def __or__(self, _: Any) -> Any:
        return self

    __ror__ = __or__


class Base:
    """Stands for a base class from outside vLLM."""


class Reached(Exception):  # noqa: N818  it is how a run ends, no error
    """The request for workspace was made: what follows needs a GPU."""

    def __init__(self, specs: tuple[Spec, ...]) -> None:
        super().__init__()
        self.specs = specs


class Manager:
    """Stands for the WorkspaceManager: the first request that `wanted` takes ends the run."""

    def __init__(self, skip: int = 0) -> None:
        self.skip = skip

    def get_simultaneous(self, *specs: Spec) -> list[torch.Tensor]:
        """Raise with the specs, or give meta tensors for a request that is skipped."""
        if not self.skip:
            raise Reached(specs)
        self.skip -= 1
        return [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in specs]


class Triton:
    """The two host functions of triton that sizes are made with."""

    jit = staticmethod(lambda function: function)

    @staticmethod
    def next_power_of_2(n: int) -> int:
        """The smallest power of two that is no less than `n`."""
        return 1 << max(0, n - 1).bit_length()

    @staticmethod
    def cdiv(a: int, b: int) -> int:
        """`a` by `b`, rounded up."""
        return -(-a // b)


class Module(dict[str, Any]):
    """The globals of one of vLLM's modules, made name by name."""

    def __init__(self, release: Release, name: str, tree: ast.Module) -> None:
        own = {**vars(builtins), "__import__": self._import}
        super().__init__(__name__=_AS_MODULE, __builtins__=own)
        self.release, self.name = release, name
        self.made = {n: statement for statement in _top(tree.body) for n in _names(statement)}

    def __missing__(self, name: str) -> Any:
        if name in self.release.provided:
            return self.release.provided[name]
        if name not in self.made:
            raise KeyError(name)
        statement = self.made[name]
        if isinstance(statement, ast.Import | ast.ImportFrom):
            self[name] = self._imported(statement, name)
        else:
            self._execute(statement, name)
        return self[name]

    def _execute(self, statement: ast.stmt, name: str) -> None:
        plain = ast.fix_missing_locations(_Undecorated().visit(statement))
        for needed in _read_at_once(plain):  # a class body asks no __missing__ for its names
            if needed != name and (needed in self.made or needed in self.release.provided):
                self[needed]
        lazy = __future__.annotations.compiler_flag
        code = compile(ast.Module([plain], []), self.name, "exec", lazy)
        exec(code, self)
        self.setdefault(name, Unknown(name))

    def _import(
        self, name: str, _g: Any = None, _l: Any = None, wanted: Any = (), level: int = 0
    ) -> Any:
        """An import inside a function: from the release too, never the installed vLLM."""
        if level:
            name = ".".join([*self.name.split(".")[:-level], *filter(None, [name])])
        elif name.split(".")[0] in _REAL:
            return importlib.__import__(name, fromlist=wanted)
        return Names(self.release, name) if wanted else Names(self.release, name.split(".")[0])

    def _imported(self, statement: ast.Import | ast.ImportFrom, name: str) -> Any:
        alias = next(a for a in statement.names if (a.asname or a.name.split(".")[0]) == name)
        if isinstance(statement, ast.Import):
            return self.release.imported(alias.name if alias.asname else name)
        package = self.name.split(".")[: -statement.level] if statement.level else []
        path = ".".join([*package, *filter(None, [statement.module])])
        return self.release.imported(path, alias.name)


class Names:
    """What `from PATH import NAME` reads its names from."""

    def __init__(self, release: Release, path: str) -> None:
        self._release, self._path = release, path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        provided = self._release.provided
        return provided[name] if name in provided else self._release.imported(self._path, name)


class View:
    """A module as an object: `mk.FusedMoEExperts`."""

    def __init__(self, module: Module) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        try:
            return self._module[name]
        except KeyError:
            raise AttributeError(name) from None


class Release:
    """One release's source tree. `provided` are the values that stand for the engine's."""

    def __init__(self, root: Path, version: str) -> None:
        self.root, self.version = root, version
        self.modules: dict[str, Module | None] = {}
        self.provided: dict[str, Any] = {}
        self.provide({})

    def provide(self, values: Mapping[str, Any], skip: int = 0) -> None:
        """Give these values to every module, beside those that all runs need."""
        manager = Manager(skip)
        self.provided.clear()
        self.provided |= {
            "ABC": Base,
            "abstractmethod": lambda function: function,
            "current_workspace_manager": lambda: manager,
            "is_workspace_manager_initialized": lambda: True,
            "logger": Unknown("logger"),
            "triton": Triton,
            **values,
        }

    def module(self, name: str) -> Module | None:
        """The module's globals; None where the release has no such file."""
        if name not in self.modules:
            path = self.root.joinpath(*name.split("."))
            files = [path.with_suffix(".py"), path / "__init__.py"]
            file = next((f for f in files if f.is_file()), None)
            tree = ast.parse(file.read_text("utf-8")) if file else None
            self.modules[name] = Module(self, name, tree) if tree else None
        return self.modules[name]

    def imported(self, path: str, name: str | None = None) -> Any:
        """What an import statement gives."""
        if path.split(".")[0] in _REAL:
            module = importlib.import_module(path)
            return module if name is None else getattr(module, name)
        inner = self.module(f"{path}.{name}") if name else None
        if inner is not None:
            return View(inner)
        module_ = self.module(path)
        if module_ is None:
            return Unknown(f"{path}.{name}")
        if name is None:
            return View(module_)
        return module_[name] if name in module_.made else Unknown(f"{path}.{name}")

    def get(self, file: str, name: str) -> Any:
        """A function or class by its dotted name; LookupError where the release lacks it."""
        module = self.module(file.removesuffix(".py").replace("/", "."))
        first, *rest = name.split(".")
        if module is None or first not in module.made:
            raise LookupError(f"{self.version} has no {file}:{name}")
        found = module[first]
        for part in rest:
            found = getattr(found, part, None)
        if found is None:
            raise LookupError(f"{self.version} has no {file}:{name}")
        return found


def specs_of(call: Callable[[], Any]) -> tuple[Spec, ...]:
    """The request that `call` makes; LookupError where it makes none."""
    try:
        call()
    except Reached as reached:
        return reached.specs
    raise LookupError("no request was made")


def request_bytes(specs: tuple[Spec, ...]) -> int:
    """Bytes of a request: a buffer starts at a multiple of 256 (workspace.py, all releases)."""
    total = 0
    for shape, dtype in specs:
        size = dtype.itemsize
        for dimension in shape:
            size *= int(dimension)
        total += -(-size // 256) * 256
    return total


def instance(cls: type, **attributes: Any) -> Any:
    """An object of `cls` that never ran a constructor, with these attributes alone; what else
    it is asked for is unknown."""
    unknown = {"__getattr__": lambda _, name: Unknown(f"{cls.__name__}.{name}")}
    made: Any = object.__new__(type(cls.__name__, (cls,), unknown))
    made.__dict__.update(attributes)
    return made


def _top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Top-level statements, also those under `if` and `try`; the first branch wins last."""
    for statement in body:
        if isinstance(statement, ast.If):
            yield from _top(statement.orelse)
            yield from _top(statement.body)
        elif isinstance(statement, ast.Try):
            for handler in statement.handlers:
                yield from _top(handler.body)
            yield from _top(statement.body)
        else:
            yield statement


def _names(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.split(".")[0] for alias in statement.names]
    return [
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]


def _read_at_once(node: ast.AST) -> Iterator[str]:
    """Names that a statement reads when it is executed: not those in functions' bodies."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        inner: list[ast.AST] = [*node.decorator_list, *node.args.defaults]
        inner += [default for default in node.args.kw_defaults if default is not None]
    elif isinstance(node, ast.AnnAssign):
        inner = [node.value] if node.value is not None else []
    else:
        inner = list(ast.iter_child_nodes(node))
    for child in inner:
        yield from _read_at_once(child)


class _Undecorated(ast.NodeTransformer):
    """Without decorators: they register operators and kernels, and change no size."""

    def _bare(self, node: Any) -> Any:
        node.decorator_list = [d for d in node.decorator_list if _kept(d)]
        self.generic_visit(node)
        return node

    visit_FunctionDef = visit_ClassDef = _bare  # noqa: N815  names that ast asks for


def _kept(decorator: ast.expr) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(target, ast.Name) and target.id in _KEPT_DECORATORS
