"""In which phase of a worker a line runs, told from who calls its function.

The phases of vLLM's start (constructors, the profile run with no attention metadata, warm-up)
and a real step, which has metadata. A function's phases are those of every place that refers to
it, up to `DEPTH` callers. Names are followed by class where the caller has `self`, otherwise by
name: a name that more than `MANY` places use says nothing and counts as a plain call.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from typing import Final

from wstrace.audit.call_sites import CallSite, enclosing_names
from wstrace.audit.flow import metadata, parameter_absent, unlocked
from wstrace.audit.guards import FlowGuard, after_lock, dead, deferred, guards
from wstrace.slicer.static import AssignedRef, ClassRef, FunctionRef, Project
from wstrace.slicer.syntax import FunctionSource, functions

DEPTH: Final = 6
MANY: Final = 24
MANY_MODULES: Final = 24
MOST_WAYS: Final = 32
_CONSTRUCTORS: Final = frozenset(("__init__", "__post_init__", "__new__"))
# vLLM 0.13.0 to 0.33.0: what makes a layer's kernels ready before a request, and the hook by
# which an attention impl reserves (0.33.0).
_WARMING: Final = ("warmup", "warm_up", "autotune", "compile_units")
_RESERVING: Final = ("reserve",)
# Called by vLLM's and PyTorch's own dispatch, not by this name.
_ENTRIES: Final = frozenset(
    ("forward", "__call__", "apply", "call", "run", "execute", "build", "forward_cuda",
     "forward_hip", "forward_native", "forward_xpu", "forward_mqa", "forward_mha")
)  # fmt: skip


class Phase(StrEnum):
    """Where a line runs."""

    BUILT = "constructor"
    PROFILE = "profile run"
    WARMUP = "warm-up"
    STEP = "real step"
    ANY = "any forward pass"


BEFORE_LOCK: Final = frozenset((Phase.BUILT, Phase.PROFILE))


@dataclass(frozen=True)
class Reference:
    """A place that uses a function: `call` where it calls it, else None (a callback)."""

    source: FunctionSource
    module: str
    node: ast.AST
    call: ast.Call | None


@dataclass(frozen=True)
class WayIn:
    """One way to a line: the phase, the functions passed from the line outwards, and every
    condition on it. `late`: a function on it is not called where it is named, but handed to
    something that may call it at any time."""

    phase: Phase
    functions: tuple[str, ...]
    guards: tuple[tuple[FunctionSource, FlowGuard], ...]
    modules: tuple[str, ...] = ()
    called: Reference | None = None
    before_metadata: bool = False
    late: bool = False


class Phases:
    """Ways to the functions of one project, remembered."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._uses: dict[str, dict[str, list[Reference]]] = {}
        self._names: dict[str, dict[int, str]] = {}

    def ways(self, site: CallSite) -> list[WayIn]:
        """Every way to a request; [] where nothing refers to its function."""
        place = site.place
        return self.to(place.source, place.module, place.call, DEPTH, frozenset())

    def to(
        self,
        source: FunctionSource,
        module: str,
        node: ast.AST,
        depth: int,
        seen: frozenset[int],
    ) -> list[WayIn]:
        """Every way to `node`, which stands in `source`."""
        if dead(source, node):
            return []
        own = [*guards(source, node), *decorators(source)]
        here = tuple((source, guard) for guard in own)
        name = self.dotted(module, source)
        inside = deferred(source, node)
        if inside is not None:
            uses = self.of_value(source, module, inside)
            ways = (self.to(u.source, u.module, u.node, depth - 1, seen) for u in uses or ())
            last = [WayIn(Phase.STEP, (name,), here, (module,), late=True)]
            return last if uses is None or depth == 0 else [w for each in ways for w in each]
        phase = Phase.STEP if after_lock(source, node) else self.settled(source, own)
        if phase is Phase.WARMUP and depth and id(source.node) not in seen:
            again = seen | {id(source.node)}
            real = self.from_callers(source, module, own, depth, again)
            if any(w.phase is Phase.STEP and not w.late for w in islice(real, MOST_WAYS)):
                phase = Phase.STEP
        if phase is not None:
            early = phase is Phase.STEP and self.before_metadata(source, node)
            return [WayIn(phase, (name,), here, (module,), before_metadata=early)]
        if isinstance(source.node, ast.Lambda):
            kept = self.of_kept_lambda(source, module) if depth else []
            ways = (self.to(u.source, u.module, u.node, depth - 1, seen) for u in kept)
            return [replace(w, guards=(*here, *w.guards)) for each in ways for w in each]
        if id(source.node) in seen or depth == 0:
            return [WayIn(self.by_parameters(source) or Phase.ANY, (name,), here, (module,))]
        inner = seen | {id(source.node)}
        found = list(islice(self.from_callers(source, module, own, depth, inner), MOST_WAYS))
        return [
            replace(
                w,
                functions=(name, *w.functions),
                guards=(*here, *w.guards),
                modules=(module, *w.modules),
            )
            for w in found
        ]

    def before_metadata(self, source: FunctionSource, node: ast.AST) -> bool:
        """Whether a function asks for its metadata only after `node`: `if attn_metadata is
        None: return` stands below it, so that a profile run passes the node."""
        point = source.places[id(node)]
        if point.block is not source.body:
            return False
        later = [s for s in point.block[point.index + 1 :] if isinstance(s, ast.If)]
        said = [metadata(FlowGuard(s.test, True, s.lineno), source) for s in later[:1]]
        return "absent" in said

    def settled(self, source: FunctionSource, own: list[FlowGuard]) -> Phase | None:
        """The phase where the function itself tells it, whoever calls."""
        if any(unlocked(guard) for guard in own):
            return Phase.PROFILE
        said = [metadata(guard, source) for guard in own]
        if "absent" in said:
            return Phase.PROFILE
        if source.name in _CONSTRUCTORS:
            return Phase.BUILT
        if any(word in source.name.lower() for word in _RESERVING):
            return None
        if any(word in source.name.lower() for word in _WARMING):
            return Phase.WARMUP
        if "present" in said:
            return Phase.STEP
        return self.by_parameters(source)

    def by_parameters(self, source: FunctionSource) -> Phase | None:
        """A function that is given metadata runs in a real step."""
        declared = source.node.args
        given = [*declared.posonlyargs, *declared.args, *declared.kwonlyargs]
        named = any("metadata" in a.arg and "layer" not in a.arg for a in given)
        return Phase.STEP if named else None

    def from_callers(
        self,
        source: FunctionSource,
        module: str,
        own: list[FlowGuard],
        depth: int,
        seen: frozenset[int],
    ) -> Iterator[WayIn]:
        uses = [] if self.common(source) else self.uses(source, module)
        if self.common(source) or len(uses) > MANY:
            yield WayIn(Phase.ANY, (), ())
            return
        absent = [p for guard in own if (p := parameter_absent(guard, source))]
        for use in uses:
            if any(_gives(use.call, source, parameter) for parameter in absent):
                continue
            kept = None if use.call else self.of_value(use.source, use.module, use.node)
            for later in [use] if kept is None else kept:
                for way in self.to(later.source, later.module, later.node, depth - 1, seen):
                    late = later.call is None and way.phase is not Phase.WARMUP
                    way = replace(way, called=later if later.call else None)
                    yield replace(way, phase=Phase.ANY, late=True) if late else way
        if not uses and self.registered(source, module):
            yield WayIn(Phase.ANY, (), ())

    def of_value(
        self, source: FunctionSource, module: str, node: ast.AST
    ) -> list[Reference] | None:
        """Calls of the name, or the attribute of `self`, that keeps a function; None where it
        is handed on, so that anything may call it."""
        point = source.places[id(node)]
        statement = point.block[point.index]
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if not isinstance(statement, ast.Assign) or statement.value is not node:
            return None
        if isinstance(target, ast.Name):
            return self.of_local(source, module, target.id)
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
            found = self.index(module).get(target.attr, [])
            same = [u for u in found if u.source.in_class == source.in_class and u.call]
            return same or None
        return None

    def of_kept_lambda(self, source: FunctionSource, module: str) -> list[Reference]:
        """Uses of the name that keeps a lambda which stands outside of functions."""
        name = self.dotted(module, source).rpartition(".")[2]
        found = []
        for other in self.project.mentioning(name) if name.isidentifier() else ():
            for use in self.index(other).get(name, ()):
                ref = self.project.lookup(other, name)
                same = isinstance(ref, AssignedRef) and ref.module == module
                if other == module or same or isinstance(use.node, ast.Attribute):
                    found.append(use)
        return found

    def of_local(
        self, source: FunctionSource, module: str, name: str
    ) -> list[Reference] | None:
        """Calls of a local name; None where it is used in another way."""
        used = [u for n, u in _uses_in(source, module) if n == name]
        return used if all(u.call is not None for u in used) else None

    def common(self, source: FunctionSource) -> bool:
        """A name that dispatch calls, or that too many modules have to tell whose it is."""
        name = source.name
        return name in _ENTRIES or len(self.project.mentioning(name)) > MANY_MODULES

    def registered(self, source: FunctionSource, module: str) -> bool:
        """Whether something outside of functions uses it: a registration, a decorator."""
        word = source.name
        plain = "." not in self.dotted(module, source)
        decorators = getattr(source.node, "decorator_list", [])
        if (source.in_class and word.startswith("__")) or decorators:
            return True
        for other in self.project.mentioning(word):
            tree = self.project.tree(other)
            for statement in tree.body if tree and plain else ():
                if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                    continue
                nodes = [n for n in ast.walk(statement) if isinstance(n, ast.Name)]
                if any(n.id == word for n in nodes):
                    return True
        return False

    def uses(self, source: FunctionSource, module: str) -> list[Reference]:
        """Places in functions that use a function or method, by its class where it shows."""
        owner = self.owner(source, module)
        found = []
        for other in self.project.mentioning(source.name):
            uses = self.index(other).get(source.name, ())
            others = (use for use in uses if use.source is not source)
            found += [use for use in others if self.may_be(use, source, module, owner)]
        return found

    def owner(self, source: FunctionSource, module: str) -> ClassRef | None:
        ref = self.project.lookup(module, source.in_class) if source.in_class else None
        return ref if isinstance(ref, ClassRef) else None

    def may_be(
        self, use: Reference, source: FunctionSource, module: str, owner: ClassRef | None
    ) -> bool:
        """Whether a use of the name can mean this function."""
        node = use.node
        if isinstance(node, ast.Name):
            if owner is not None:
                return False
            nested = use.module == module and "." in self.dotted(module, source)
            ref = self.project.lookup(use.module, node.id)
            plain = isinstance(ref, FunctionRef) and ref.module == module
            return nested or plain or self.imported_inside(use, module, node.id)
        assert isinstance(node, ast.Attribute)
        holder = node.value.id if isinstance(node.value, ast.Name) else ""
        if owner is None:
            ref = self.project.lookup(use.module, holder) if holder else None
            own_module = ref is not None and getattr(ref, "name", "") == module
            return own_module or ast.unparse(node.value).startswith("torch.ops")
        if holder in ("self", "cls") or ast.unparse(node.value) == "super()":
            asker = self.owner(use.source, use.module)
            return asker is not None and self.related(asker, owner)
        return use.module == module or not source.name.startswith("_")

    def imported_inside(self, use: Reference, module: str, name: str) -> bool:
        """An import in the function that uses the name."""
        for node in ast.walk(use.source.node):
            if isinstance(node, ast.ImportFrom) and any(a.name == name for a in node.names):
                ref = self.project.meaning(use.module, node, name)
                if isinstance(ref, FunctionRef) and ref.module == module:
                    return True
        return False

    def related(self, one: ClassRef, other: ClassRef) -> bool:
        """Whether one of two classes is the other's base."""
        return other in self.project.bases(one) or one in self.project.bases(other)

    def index(self, module: str) -> dict[str, list[Reference]]:
        """Every use of a name in the functions of a module."""
        if module not in self._uses:
            found: dict[str, list[Reference]] = {}
            tree = self.project.tree(module)
            for node, owner in functions(tree) if tree else ():
                if isinstance(node, ast.Lambda):
                    continue
                source = self.project.source(module, node, owner)
                for name, use in _uses_in(source, module):
                    found.setdefault(name, []).append(use)
            self._uses[module] = found
        return self._uses[module]

    def dotted(self, module: str, source: FunctionSource) -> str:
        """The function's name with the classes and functions around it."""
        if module not in self._names:
            tree = self.project.tree(module)
            self._names[module] = enclosing_names(tree) if tree else {}
        return self._names[module].get(id(source.node), source.qualname)


# Decorators of vLLM 0.13.0 to 0.33.0, Python and PyTorch after which the body still runs.
_RUNNING: Final = frozenset(
    ("staticmethod", "classmethod", "property", "cached_property", "override", "final",
     "abstractmethod", "inference_mode", "no_grad", "enable_grad", "disable", "cache",
     "lru_cache", "wraps", "contextmanager", "deprecated", "instrument",
     "eager_break_during_capture", "maybe_transfer_kv_layer")
)  # fmt: skip


def decorators(source: FunctionSource) -> Iterator[FlowGuard]:
    """Decorators that may leave a call out, each as a condition."""
    for node in getattr(source.node, "decorator_list", []):
        func = node.func if isinstance(node, ast.Call) else node
        word = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        if word not in _RUNNING and word not in ("setter", "jit"):
            says = f"@{ast.unparse(node)} calls {source.name}"
            yield FlowGuard(node, True, node.lineno, said=says)


def _uses_in(source: FunctionSource, module: str) -> Iterator[tuple[str, Reference]]:
    called = {id(n.func): n for n in ast.walk(source.node) if isinstance(n, ast.Call)}
    for node in ast.walk(source.node):
        if id(node) not in source.places:
            continue
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr, Reference(source, module, node, called.get(id(node)))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id, Reference(source, module, node, called.get(id(node)))


def _gives(call: ast.Call | None, source: FunctionSource, parameter: str) -> bool:
    """Whether the call gives this parameter something other than None."""
    if call is None:
        return False
    names = [a.arg for a in source.node.args.args]
    given = {k.arg: k.value for k in call.keywords}
    given |= dict(zip(names, call.args, strict=False))
    value = given.get(parameter)
    return value is not None and not (isinstance(value, ast.Constant) and value.value is None)
