"""The world of a running worker: frames, modules and objects, read and never run."""

from __future__ import annotations

import ast
import builtins
import os
import sys
import types
from dataclasses import replace
from typing import Final

from wstrace.slicer import binding
from wstrace.slicer.attributes import changes, module_constant
from wstrace.slicer.ledger import Ledger
from wstrace.slicer.live import objects, relays
from wstrace.slicer.live.callers import Callers, LiveState
from wstrace.slicer.live.objects import MISSING, Objects, class_attribute, stored
from wstrace.slicer.scope import Evaluation, Scope
from wstrace.slicer.syntax import CodePoint, function_source
from wstrace.slicer.values import BoundMethod, Index, Literal, Obj, Parent, Stop, Tensor, Value
from wstrace.units import count_of

# PyTorch 2.13: where torch.nn.Module keeps hooks, which may change a call's arguments.
_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks")
_TRITON: Final = {"cdiv", "next_power_of_2"}


class LiveWorld:
    """Answers the evaluator from a live process."""

    def __init__(self, ledger: Ledger, max_callers: int) -> None:
        self.ledger = ledger
        self.objects = Objects(ledger)
        self.callers = Callers(self.objects, max_callers)
        self.evaluator: Evaluation

    def attach(self, evaluator: Evaluation) -> None:
        """The evaluator that asks this world, and that it asks for what arguments hold."""
        self.evaluator = self.callers.evaluator = evaluator

    def forget(self) -> None:
        """Let go of every frame that was looked at."""
        self.callers.forget()

    def parameter(self, scope: Scope, name: str) -> Value:
        return self.callers.parameter(scope, name)

    def free(self, scope: Scope, name: str, where: str) -> Value:
        state = LiveState.of(scope)
        closure = dict(state.closure)
        if state.frame is not None and name in state.frame.f_code.co_freevars:
            closure = {name: state.frame.f_locals.get(name, MISSING)}
        if name in closure:
            outer = self.callers.around(state, name, where)
            if outer is not None:
                return outer
            value, why = closure[name], f"{name} belongs to an enclosing function"
            if value is MISSING:
                raise Stop(where, f"{name} has no value yet")
            return self.objects.wrap(value, ("closure", scope.serial, name), name, where, why)
        if name in state.globals:
            return self.of_module(state.globals, name, where)
        if hasattr(builtins, name):
            return Obj(getattr(builtins, name), name, f"builtins.{name}")
        raise Stop(where, f"{name} is not defined")

    def of_module(self, names: dict[str, object], name: str, where: str) -> Value:
        """A module's global: a constant when its source binds it once."""
        value = names[name]
        module, path = names.get("__name__"), names.get("__file__")
        fixed = isinstance(path, str) and module_constant(path, name)
        imported = isinstance(value, types.ModuleType | types.FunctionType | type)
        why = "" if fixed or imported else f"the global {name} may be rebound"
        dotted = name if isinstance(value, types.ModuleType) else f"{module}.{name}"
        return self.objects.wrap(value, (module, name), dotted, where, why)

    def attribute(self, owner: Obj, name: str, where: str) -> Value:
        handle = owner.handle
        if isinstance(handle, Tensor):
            raise Stop(where, f"{name} of a shape")
        if isinstance(handle, Parent):
            return self.of_parent(handle, name, where)
        if isinstance(handle, types.ModuleType):
            return self.module_attribute(handle, name, where)
        if isinstance(handle, type):
            return self.class_member(owner, handle, name, where)
        raw = class_attribute(type(handle), name)
        if isinstance(raw, property) and raw.fget is not None:
            return self.followed(raw.fget, owner, where)
        held = stored(handle, name)
        cached = getattr(raw, "func", None) if type(raw).__name__ == "cached_property" else None
        if cached is not None and held is MISSING:
            return self.followed(cached, owner, where)
        if held is MISSING and hasattr(type(raw), "__get__") and not _is_method(raw):
            raise Stop(where, f"{name} is computed by a {type(raw).__name__}")
        return self.objects.instance(owner, name, where)

    def as_tensor(self, owner: Obj, where: str) -> Tensor:
        raise Stop(where, f"slices of {owner.path or 'an object'}, which is no tensor")

    def parent(self, owner: Obj, scope: Scope, where: str) -> Value:
        state = LiveState.of(scope)
        module, mro = state.globals.get("__name__"), type(owner.handle).__mro__
        places = [
            number
            for number, cls in enumerate(mro)
            if cls.__module__ == module and cls.__name__ == scope.source.in_class
        ]
        if len(places) != 1:
            raise Stop(where, "super() of a class that is not known")
        after = mro[places[0] + 1 :]
        return Obj(Parent(owner, after), (owner.key, "super", places[0]), "super()")

    def of_parent(self, parent: Parent, name: str, where: str) -> Value:
        for cls in parent.after:
            assert isinstance(cls, type)
            raw = vars(cls).get(name, MISSING)
            if isinstance(raw, types.FunctionType):
                return BoundMethod(parent.owner, name, Obj(raw, id(raw), name))
            if raw is not MISSING:
                raise Stop(where, f"super().{name} is a {type(raw).__name__}")
        raise Stop(where, f"no class above has {name}")

    def followed(self, function: object, owner: Obj, where: str) -> Value:
        """A property's value from its source."""
        inner = self.enter(Obj(function, id(function)), where)
        first = inner.source.node.args.args[0].arg
        inner = replace(inner, arguments={first: lambda: owner}, depth=1)
        return self.evaluator.returned(inner, inner.source.body, where)

    def module_attribute(self, module: types.ModuleType, name: str, where: str) -> Value:
        title = module.__name__
        if title.split(".")[0] == "triton" and name in _TRITON:
            return Obj(module, f"triton.{name}", f"triton.{name}")
        if title == "vllm.envs":
            return self.environment(name, where)
        if name not in vars(module):
            raise Stop(where, f"module {title} holds no {name}")
        value = vars(module)[name]
        if objects.is_integer(value):
            return self.of_module(vars(module), name, where)
        if isinstance(value, types.ModuleType):
            return Obj(value, id(value), value.__name__, "fixed")
        return self.objects.wrap(value, (title, name), f"{title}.{name}", where)

    def environment(self, name: str, where: str) -> Value:
        """vllm.envs computes its values on demand: only the variable itself is read."""
        text = os.environ.get(name, "")
        value = count_of(text)
        return self.ledger.leaf(
            ("env", name), name, "constant", value, None, f"envs.{name}", where
        )

    def class_member(self, owner: Obj, cls: type, name: str, where: str) -> Value:
        raw = class_attribute(cls, name)
        if raw is MISSING:
            raise Stop(where, f"{cls.__name__} has no {name}")
        if isinstance(raw, staticmethod):
            return Obj(raw.__func__, id(raw.__func__), name)
        if isinstance(raw, classmethod):
            return BoundMethod(owner, name, Obj(raw.__func__, id(raw.__func__), name))
        if isinstance(raw, types.FunctionType):
            return Obj(raw, id(raw), name)
        why = changes(cls, name)
        return self.objects.wrap(raw, (id(cls), name), f"{cls.__name__}.{name}", where, why)

    def item(self, owner: Obj, key: Value, where: str) -> Value:
        if type(owner.handle) is dict and isinstance(key, Literal) and owner.tag == "fixed":
            held = owner.handle
            if isinstance(key.value, str) and key.value in held:
                path = f"{owner.path}_{key.value}"
                return self.objects.wrap(held[key.value], (owner.key, key.value), path, where)
        raise Stop(where, f"an element of {owner.path or 'an object'}")

    def title(self, function: Obj) -> str:
        handle = function.handle
        if function.path.startswith(("builtins.", "triton.", "math.", "torch.")):
            return function.path
        module, name = getattr(handle, "__module__", ""), getattr(handle, "__name__", "")
        if not isinstance(module, str) or not isinstance(name, str):
            return ""
        if isinstance(handle, types.FunctionType | type | types.BuiltinFunctionType):
            if binding.is_vllm(module) and name in binding.MATH_UTILS:
                return f"vllm.{name}"
            if module.split(".")[0] in ("math", "torch", "triton", "builtins"):
                return f"{module.split('.')[0]}.{name}"
        return ""

    def enter(self, function: Obj, where: str) -> Scope:
        handle = function.handle
        if type(handle).__name__ == "_lru_cache_wrapper":
            handle = vars(handle).get("__wrapped__", handle)
        if not isinstance(handle, types.FunctionType):
            raise Stop(
                where, f"calls {function.path or type(handle).__name__}, which has no body"
            )
        code = handle.__code__
        source = function_source(code)
        if source is None:
            raise Stop(where, f"calls {code.co_qualname}, whose source is not found")
        cells = handle.__closure__ or ()
        closure = {
            name: _contents(cell) for name, cell in zip(code.co_freevars, cells, strict=True)
        }
        state = LiveState(handle.__globals__, None, closure)
        return Scope(source, state, arguments={})

    def callee(self, function: Obj) -> Obj | BoundMethod:
        handle = function.handle
        if isinstance(handle, types.MethodType):
            owner, inner = handle.__self__, handle.__func__
            name = inner.__name__
            return BoundMethod(Obj(owner, id(owner), name), name, Obj(inner, id(inner), name))
        if not relays.is_module(handle) or any(stored(handle, name) for name in _HOOKS):
            return function
        raw = class_attribute(type(handle), "forward")
        if not isinstance(raw, types.FunctionType) or stored(handle, "forward") is not MISSING:
            return function
        return BoundMethod(function, "forward", Obj(raw, id(raw), "forward"))

    def is_group(self, function: Obj) -> bool:
        handle = function.handle
        if not isinstance(handle, types.FunctionType):
            return False
        return binding.is_vllm(handle.__module__) and handle.__name__ in binding.GROUPS

    def group_size(self, function: Obj, where: str) -> Value:
        handle = function.handle
        assert isinstance(handle, types.FunctionType)
        name, slot = binding.GROUPS[handle.__name__]
        size = stored(handle.__globals__.get(slot), "world_size")
        if not objects.is_integer(size):
            raise Stop(where, f"the group of {handle.__name__}() is not set up")
        assert isinstance(size, int)
        return self.ledger.leaf(("group", name), name, "constant", size, None, name, where)

    def constant_call(self, owner: Obj, name: str, where: str) -> Value:
        raise Stop(where, f"the method {name}() is not followed")

    def result(self, function: Obj, owner: Value | None, stop: Stop) -> Value:
        raise stop

    def imported(self, scope: Scope, statement: ast.stmt, name: str) -> Value:
        """A function-level import is read from the frame or from sys.modules, never made."""
        where = scope.where(statement)
        if isinstance(statement, ast.ImportFrom) and not statement.level:
            module = sys.modules.get(statement.module or "")
            for alias in statement.names:
                if (alias.asname or alias.name) == name and module is not None:
                    return self.module_attribute(module, alias.name, where)
        if isinstance(statement, ast.Import):
            for imported in statement.names:
                module = sys.modules.get(imported.name)
                if imported.asname == name or (imported.name == name and module is not None):
                    return Obj(module, id(module), imported.name, "fixed")
        raise Stop(where, f"{name} is defined inside the function")

    def observed(self, scope: Scope, name: str, point: CodePoint, found: Value | Stop) -> Value:
        state = LiveState.of(scope)
        at_home = scope.home is not None and _same(point, scope.home)
        settled = at_home or scope.source.bindings(name) == 1
        held = MISSING
        if state.frame is not None and settled:
            held = state.frame.f_locals.get(name, MISSING)
        if isinstance(found, Stop):
            return self.recovered(scope, name, held, found)
        if isinstance(found, Index) and objects.is_integer(held):
            assert isinstance(held, int)
            return Index(found.base, found.offset, held)
        self.filled(found, held)
        return found

    def filled(self, found: Value, held: object) -> None:
        """Values of leaves from what the frame shows."""
        if objects.is_integer(held):
            assert isinstance(held, int)
            self.ledger.observe(found, held)
        elif objects.is_tensor(held) and isinstance(found, Tensor) and found.dims:
            for dim, size in zip(found.dims, objects.shape_of(held), strict=False):
                self.ledger.observe(dim, size)

    def recovered(self, scope: Scope, name: str, held: object, stop: Stop) -> Value:
        """A readable value whose origin is not known: an unbound leaf, or an object whose
        class tells the rest."""
        key, why = ("local", scope.serial, name), str(stop)
        if objects.is_integer(held) or objects.is_tensor(held):
            return self.objects.wrap(held, key, name, stop.where, why)
        if isinstance(held, tuple) and held and all(objects.is_integer(i) for i in held):
            return self.objects.wrap(tuple(held), key, name, stop.where, why)
        simple = objects.is_plain(held) or isinstance(held, list | tuple | dict)
        if held is MISSING or simple or objects.is_dtype(held):
            raise stop
        frame = LiveState.of(scope).frame
        assert frame is not None
        return self.callers.held(frame, name, held)


def _contents(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _same(a: CodePoint, b: CodePoint) -> bool:
    return a.block is b.block and a.index == b.index


def _is_method(raw: object) -> bool:
    return isinstance(raw, types.FunctionType | staticmethod | classmethod)
