"""Which of a release's requests one deployment loads.

Model code is loaded where the model's class is registered in it or in a module that imports it;
an attention backend where the KV cache's dtype, `--attention-backend` and the kind of attention
leave it possible. What only the start decides is said to be possible.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from wstrace.audit.deployment import Deployment
from wstrace.audit.guards import FlowGuard, guards
from wstrace.audit.reaching import Phases
from wstrace.audit.related import Placed, Relations
from wstrace.audit.sample_configs import canonical
from wstrace.slicer.static import ClassRef, Project

Loads = Literal["yes", "maybe", "no"]
# vLLM 0.13.0 to 0.33.0: where model code stands, and the table of its classes.
_MODELS: Final = ("vllm.models.", "vllm.model_executor.models.")
_REGISTRY: Final = "vllm.model_executor.models.registry"
# vLLM 0.13.0 to 0.33.0: parts of file names for other accelerators than CUDA's.
_PLATFORM_WORDS: Final = {"rocm": ("rocm", "amd", "aiter"), "xpu": ("xpu",)}
_COMPARE: Final = {
    ast.Gt: int.__gt__,
    ast.GtE: int.__ge__,
    ast.Lt: int.__lt__,
    ast.LtE: int.__le__,
    ast.Eq: int.__eq__,
    ast.NotEq: int.__ne__,
}


UNKNOWN_LAYER: Final = "which layer uses it is not known"


@dataclass(frozen=True)
class Loaded:
    """Whether a deployment loads a request, and why."""

    loads: Loads
    why: str


@dataclass
class Loading:
    """Answers for one project and one deployment."""

    project: Project
    deployment: Deployment

    def of(self, placed: Placed) -> Loaded:
        """Whether the deployment runs the code that makes this request."""
        of_model = [*self.by_model(placed), *self.by_experts(placed)]
        found = [
            *self.by_platform(placed),
            *self.by_conditions(placed),
            *of_model,
            *self.by_backend(placed),
        ]
        for wanted, among in (("no", found), ("yes", of_model), ("maybe", found)):
            one = next((f for f in among if f.loads == wanted), None)
            if one is not None:
                return one
        return found[0] if found else Loaded("maybe", UNKNOWN_LAYER)

    def by_platform(self, placed: Placed) -> Iterator[Loaded]:
        words = placed.site.place.module.lower().replace(".", "_").split("_")
        for platform, names in _PLATFORM_WORDS.items():
            if not set(names).isdisjoint(words) and platform != self.deployment.platform:
                yield Loaded("no", f"code for {platform}")

    def by_conditions(self, placed: Placed) -> Iterator[Loaded]:
        """A condition on every way that the config's numbers decide."""
        for way in placed.ways:
            tests = [guard for _, guard in way.guards]
            false = next((g for g in tests if self.holds(g) is False), None)
            if false is None:
                break
            yield Loaded("no", f"{false.text} does not hold")
        for guard in self.of_callers(placed):
            if self.holds(guard) is False:
                yield Loaded("no", f"{guard.text} does not hold")

    def of_callers(self, placed: Placed) -> Iterator[FlowGuard]:
        """Conditions of the calls of the request's function, where each call has one."""
        source, module = placed.site.place.source, placed.site.place.module
        phases = Phases(self.project)
        if phases.common(source):
            return
        uses = [u for u in phases.uses(source, module) if u.module == module]
        each = [[g for g in guards(u.source, u.node) if self.holds(g) is False] for u in uses]
        if each and all(each):
            yield each[0][0]

    def holds(self, guard: FlowGuard) -> bool | None:
        """Whether a condition holds, where the config's numbers tell."""
        found = self.truth(guard.test) if guard.plain else None
        return None if found is None else found == guard.holds

    def truth(self, test: ast.expr) -> bool | None:
        if isinstance(test, ast.BoolOp):
            parts = [self.truth(value) for value in test.values]
            stops = isinstance(test.op, ast.Or)
            if stops in parts:
                return stops
            return None if None in parts else not stops
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self.truth(test.operand)
            return None if inner is None else not inner
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            compare = _COMPARE.get(type(test.ops[0]))
            sides = [self.number(test.left), self.number(test.comparators[0])]
            if compare is None or sides[0] is None or sides[1] is None:
                return None
            return bool(compare(sides[0], sides[1]))
        known = self.number(test)
        return None if known is None else bool(known)

    def number(self, node: ast.expr) -> int | None:
        """A number that the config gives, by its name."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, int) else None
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
        return self.deployment.numbers.get(canonical(name.lstrip("_"), False))

    def by_model(self, placed: Placed) -> Iterator[Loaded]:
        module = placed.site.place.module
        if not module.startswith(_MODELS):
            return
        if not self.model_modules:
            named = ", ".join(self.deployment.architectures) or "the model"
            yield Loaded("maybe", f"{named} is in no table of this release")
        elif module in self.reached:
            yield Loaded("yes", f"{self.model_modules[0]} imports it")
        else:
            yield Loaded("no", "code of another model")

    @cached_property
    def model_modules(self) -> tuple[str, ...]:
        """The modules in which the release's table has the model's classes."""
        tree = self.project.tree(_REGISTRY)
        found = []
        for node in ast.walk(tree) if tree else ():
            for key, value in _items(node):
                if key in self.deployment.architectures:
                    found += [n for n in self.spelt(value) if n in self.project.files]
        return tuple(dict.fromkeys(found))

    def spelt(self, value: ast.expr) -> Iterator[str]:
        """A module of the table: relative to the folder of models, or whole."""
        for node in ast.walk(value):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
                yield f"vllm.model_executor.models.{node.value}"

    @cached_property
    def reached(self) -> frozenset[str]:
        """Modules of model code that the model's module imports, directly or not."""
        relations = Relations(self.project)
        found, todo = set(self.model_modules), list(self.model_modules)
        while todo:
            for name in relations.imported(todo.pop()):
                inside = name.startswith((*_MODELS, "vllm.models"))
                for module in self.inside(name) if inside and name not in found else ():
                    found.add(module)
                    todo.append(module)
        return frozenset(found)

    def inside(self, name: str) -> list[str]:
        return [name] if name in self.project.files else []

    def by_backend(self, placed: Placed) -> Iterator[Loaded]:
        relations = Relations(self.project)
        owner = relations.owner(placed.site)
        bases = self.project.bases(owner) if owner is not None else []
        if any("MLA" in b.name for b in bases) and not self.deployment.mla:
            yield Loaded("no", "the model has no latent attention")
        backends = relations.backends(owner) if owner is not None else []
        if not backends:
            return
        each = [self.backend(cls) for cls in backends]
        order = {"yes": 0, "maybe": 1, "no": 2}
        yield min(each, key=lambda found: order[found.loads])

    def backend(self, cls: ClassRef) -> Loaded:
        """Whether the deployment may take an attention backend."""
        words = self.deployment.words
        name = _returned(self.project, cls, "get_name")
        wanted = words.get("attention_backend", "")
        if wanted and name:
            same = wanted.upper() == name.upper()
            return Loaded("yes" if same else "no", f"--attention-backend {wanted}")
        dtypes = self.dtypes(cls)
        cache = words.get("cache_dtype", "auto")
        if dtypes and cache not in dtypes and cache != "auto":
            return Loaded("no", f"{name or cls.name} has no KV cache of {cache}")
        mla = _returned(self.project, cls, "is_mla") == "True" or any(
            b.name.startswith("MLACommon") for b in self.project.bases(cls)
        )
        if mla and not self.deployment.mla:
            return Loaded("no", "the model has no latent attention")
        if cache in dtypes and not cache.startswith(("auto", "fp8", "bfloat16", "float16")):
            return Loaded("yes", f"--kv-cache-dtype {cache}")
        if dtypes and cache == "auto" and "auto" not in dtypes:
            return Loaded("no", f"{name or cls.name} needs a KV cache of its own dtype")
        return Loaded("maybe", f"the start chooses the backend; {name or cls.name} is possible")

    def dtypes(self, cls: ClassRef) -> list[str]:
        """The KV cache dtypes that a backend lists."""
        for base in self.project.bases(cls):
            for node in base.node.body:
                target = node.target if isinstance(node, ast.AnnAssign) else None
                if isinstance(target, ast.Name) and target.id == "supported_kv_cache_dtypes":
                    assert isinstance(node, ast.AnnAssign)
                    every = ast.walk(node.value) if node.value else ()
                    return [
                        str(n.value)
                        for n in every
                        if isinstance(n, ast.Constant) and isinstance(n.value, str)
                    ]
        return []

    def by_experts(self, placed: Placed) -> Iterator[Loaded]:
        name = placed.site.enclosing
        words = f"{placed.site.place.module}.{name}"
        if "fused_moe" in words or "Experts" in name or "MoE" in name:
            has = self.deployment.experts
            yield Loaded("yes" if has else "no", "experts" if has else "the model has none")


def _items(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value, value


def _returned(project: Project, cls: ClassRef, method: str) -> str:
    """The constant that a method returns."""
    found = project.member(cls, method)
    for node in ast.walk(found.node) if found else ():
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Constant):
            return str(node.value.value)
    return ""
