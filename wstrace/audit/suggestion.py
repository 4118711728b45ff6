"""A patch that reserves what a serving request may ask, in vLLM's own idiom.

Three places, the first that fits: the gate of a reservation that is there but depends on
chunked prefill alone; the constructor that made the numbers of a request whose shape is fixed;
the metadata builder of the request's attention backend, with the worst case of each dimension.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from wstrace.audit.matching import at_of
from wstrace.audit.related import Placed, Relations
from wstrace.audit.sample_configs import canonical
from wstrace.audit.whole import AuditedSite, Reading
from wstrace.errors import WstraceError
from wstrace.expr import tree
from wstrace.expr.expression import parse
from wstrace.slicer.ledger import SlicedLeaf
from wstrace.slicer.static import FunctionRef, SpecShape
from wstrace.vllm.limits import NUMBERS
from wstrace.vllm.roles import ROLES

CHUNKED: Final = "enable_chunked_prefill"
CACHED: Final = "enable_prefix_caching"
# vLLM 0.13.0 to 0.33.0: what a metadata builder's constructor is given.
_OF_THE_SPEC: Final = {
    "num_kv_heads": "self.kv_cache_spec.num_kv_heads",
    "head_size": "self.kv_cache_spec.head_size",
    "block_size": "self.kv_cache_spec.block_size",
}
_HEADS: Final = (
    "self.vllm_config.model_config.get_num_attention_heads(\n"
    "    self.vllm_config.parallel_config\n)"
)
_OF_THE_CONFIG: Final = {
    "num_attention_heads": _HEADS,
    "tq_max_kv_splits_for_cuda_graph": (
        "self.vllm_config.attention_config.tq_max_kv_splits_for_cuda_graph"
    ),
    "max_cudagraph_capture_size": (
        "self.vllm_config.compilation_config.max_cudagraph_capture_size or 0"
    ),
    "num_speculative_tokens": (
        "(\n    self.vllm_config.speculative_config.num_speculative_tokens\n"
        "    if self.vllm_config.speculative_config\n    else 0\n)"
    ),
}
# The expression language's functions in vllm/utils/math_utils.py, vLLM 0.13.0 to 0.33.0.
_FUNCTIONS: Final = {
    "ceil_div": "cdiv",
    "round_up": "round_up",
    "next_pow2": "next_power_of_2",
}
# Numbers with which roles tell their general limits.
_GENERAL: Final = {
    "max_cudagraph_capture_size": 1,
    "mixed_graph_tokens": 0,
    "widest_mixed_graph": 0,
    "num_speculative_tokens": 1,
}
_WIDTH: Final = 88 - 12  # less the indent of a constructor's if
# matches: "num_kv_heads"
_WORD: Final = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Suggestion:
    """A unified diff (paths below the folder that holds `vllm/`), and what it does."""

    patch: str
    says: str


def suggest(read: Reading, wanted: str) -> Suggestion:
    """A patch for the serving request `wanted`: FILE:LINE, FILE:FUNCTION or the end of either.

    WstraceError where it names none or several, where nothing is missing, or where no place for
    a reservation is found.
    """
    site, placed = _chosen(read, wanted)
    if site.match in ("full", "self", "na"):
        raise WstraceError(
            f"{site.at} needs no reservation: {site.reason}.",
            "`wstrace audit` lists those that do, first.",
        )
    for made in (_wider_gate, _in_constructor, _in_builder):
        found = made(read, site, placed)
        if found is not None:
            return found
    raise WstraceError(
        f"No place for a reservation of {site.enclosing} is found.",
        "It has no metadata builder, and its shape is not that of a constructor's numbers.",
    )


def _chosen(read: Reading, wanted: str) -> tuple[AuditedSite, Placed]:
    found = [
        s for s in read.audit().serving if s.at.endswith(wanted) or s.name.endswith(wanted)
    ]
    functions = {site.name for site in found}
    if len(functions) != 1:
        what = "several requests" if found else "no serving request"
        hint = ", ".join(sorted(functions)[:5]) or "`wstrace audit` lists them."
        raise WstraceError(f"{wanted} names {what}.", hint)
    places = {at_of(p.site): p for p in read.placed}
    return found[0], places[found[0].at]


def _wider_gate(read: Reading, site: AuditedSite, placed: Placed) -> Suggestion | None:
    """The reservation is there: let it be made with prefix caching too."""
    if CHUNKED not in site.condition or CACHED in site.condition:
        return None
    reserved = next(p for p in read.placed if at_of(p.site) in site.matched_by)
    source = reserved.site.place.source
    for node in ast.walk(source.node):
        if isinstance(node, ast.Attribute) and node.attr == CHUNKED:
            text = ast.unparse(node)
            root = "self.vllm_config" if source.in_class else "vllm_config"
            inside = " " * (node.col_offset + 4)
            wider = (
                f"(\n{inside}{text}\n{inside}or {root}.cache_config.{CACHED}\n"
                f"{' ' * node.col_offset})"
            )
            edit = _replaced(read, reserved, node, wider)
            says = (
                f"{reserved.site.enclosing} reserves with prefix caching too: a cached prefix"
                " is continued without chunked prefill as well"
            )
            return Suggestion(edit, says)
    return None


def _replaced(read: Reading, placed: Placed, node: ast.expr, text: str) -> str:
    module = placed.site.place.module
    lines = read.matcher.project.texts[module].splitlines(keepends=True)
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    if first != last:
        raise WstraceError("The gate is spread over lines.", "Widen it by hand.")
    line = lines[first]
    made = line[: node.col_offset] + text + line[node.end_col_offset :]
    changed = [*lines[:first], *made.splitlines(keepends=True), *lines[first + 1 :]]
    return _diff(read, module, lines, changed)


def _in_constructor(read: Reading, site: AuditedSite, placed: Placed) -> Suggestion | None:
    """The same request where `self` was made, if its arguments need nothing else."""
    cls = Relations(read.matcher.project).owner(placed.site)
    init = read.matcher.project.own_member(cls, "__init__") if cls is not None else None
    names = {n.id for a in placed.site.args for n in ast.walk(a) if isinstance(n, ast.Name)}
    local = names & placed.site.place.source.locals - {"self"}
    if init is None or local or site.drivers:
        return None
    args = ", ".join(ast.unparse(argument) for argument in placed.site.args)
    body = [
        "# Reserve capacity before the workspace is locked.",
        "from vllm.v1.worker.workspace import (",
        "    current_workspace_manager,",
        "    is_workspace_manager_initialized,",
        ")",
        "",
        f"if is_workspace_manager_initialized(){_made(placed, init)}:",
        f"    current_workspace_manager().get_simultaneous({args})",
    ]
    patch = _appended(read, init, body)
    return Suggestion(patch, f"{init.owner}.__init__ asks for the same, before the lock")


def _made(placed: Placed, init: FunctionRef) -> str:
    """A test for attributes that the constructor may leave None."""
    held = {
        ast.unparse(n)
        for a in placed.site.args
        for n in ast.walk(a)
        if isinstance(n, ast.Attribute)
        and isinstance(n.value, ast.Name)
        and n.value.id == "self"
    }
    none = {
        ast.unparse(n.targets[0]) if isinstance(n, ast.Assign) else ast.unparse(n.target)
        for n in ast.walk(init.node)
        if isinstance(n, ast.Assign | ast.AnnAssign)
        and isinstance(n.value, ast.Constant)
        and n.value.value is None
    }
    return "".join(f" and {name} is not None" for name in sorted(held & none))


def _in_builder(read: Reading, site: AuditedSite, placed: Placed) -> Suggestion | None:
    """The worst case of each dimension, in the constructor of the backend's builder."""
    project = read.matcher.project
    relations = Relations(project)
    owner = relations.owner(placed.site)
    builders = [
        part
        for part in (relations.partners(owner) if owner is not None else [])
        if project.own_member(part, "__init__") is not None and part != owner
    ]
    if not builders:
        return None
    asked = read.matcher.specs(placed.site)
    if asked.stopped:
        raise WstraceError(
            f"The bytes of {site.at} cannot be followed: {asked.stopped}.",
            "Write its worst case by hand; `wstrace sites` may have a formula.",
        )
    pairs = zip(asked.pieces, placed.site.args, strict=True)
    each = [(spec, node) for piece, node in pairs for spec in max(piece.ways, key=len)]
    specs = [spec for spec, _ in each]
    used = {n for s in specs for d in s.dims or () for n in tree.names(d)}
    texts = {n: _worst(asked.leaves[n]) for n in sorted(used)}
    shapes = [_shape(spec, texts, placed, node) for spec, node in each]
    numbers = {n: _number(n) for text in texts.values() for n in parse(text).names}
    init = project.own_member(builders[0], "__init__")
    assert init is not None
    return Suggestion(
        _appended(read, init, _builder_body(shapes, numbers, site)),
        f"{init.owner}.__init__ reserves the worst case of {site.enclosing}",
    )


def _builder_body(
    shapes: Sequence[Sequence[str]], numbers: Mapping[str, str], site: AuditedSite
) -> list[str]:
    lines = [line for shape in shapes for line in shape]
    used = sorted({f for f in _FUNCTIONS.values() if any(f"{f}(" in line for line in lines)})
    body = [
        f"# Reserve the worst case of {site.enclosing.rpartition('.')[2]}: the workspace is",
        "# locked before a request can ask for it.",
    ]
    if used:
        body.append(f"from vllm.utils.math_utils import {', '.join(used)}")
    body += [
        "from vllm.v1.worker.workspace import (",
        "    current_workspace_manager,",
        "    is_workspace_manager_initialized,",
        ")",
        "",
        "reserve = is_workspace_manager_initialized()",
    ]
    if "num_computed_tokens" in site.drivers:
        body += [
            "# A request has computed tokens when its prompt is cut into chunks, or when a",
            "# prefix of it is cached.",
            "reserve = reserve and (",
            f"    self.vllm_config.scheduler_config.{CHUNKED}",
            f"    or self.vllm_config.cache_config.{CACHED}",
            ")",
        ]
    body.append("if reserve:")
    for name, expression in sorted(numbers.items()):
        body += [f"    {line}" for line in _assigned(name, expression)]
    body.append("    current_workspace_manager().get_simultaneous(")
    body += [f"        {line}" for line in lines]
    return [*body, "    )"]


def _assigned(name: str, expression: str) -> list[str]:
    """An assignment within vLLM's 88 columns."""
    plain = f"{name} = {expression}"
    if "\n" in plain or len(plain) <= _WIDTH:
        return plain.splitlines()
    return [f"{name} = (", f"    {expression}", ")"]


def _shape(
    spec: SpecShape, names: Mapping[str, str], placed: Placed, node: ast.expr
) -> list[str]:
    """One spec over lines, as vLLM's formatter leaves it."""
    if spec.dims is None:
        raise WstraceError(
            f"The shape of {placed.site.enclosing} does not show in the source.",
            "Reserve where it is made.",
        )
    dims = [_text(tree.text(dim), names) for dim in spec.dims]
    return [
        "(",
        "    (",
        *(f"        {d}," for d in dims),
        "    ),",
        f"    {_dtype(node)},",
        "),",
    ]


def _dtype(node: ast.expr) -> str:
    """A spec's dtype where the source spells it out, else the model's."""
    pair = isinstance(node, ast.Tuple) and len(node.elts) == 2
    spelt = ast.unparse(node.elts[1]) if isinstance(node, ast.Tuple) and pair else ""
    return spelt if spelt.startswith("torch.") else "self.vllm_config.model_config.dtype"


def _text(formula: str, names: Mapping[str, str]) -> str:
    """A formula as Python over the config's numbers, leaves replaced by their worst case."""

    def told(match: re.Match[str]) -> str:
        word = match[0]
        if word not in names:
            return word
        worst = names[word]
        return worst if worst.isidentifier() else f"({worst})"

    whole = str(parse(_WORD.sub(told, formula)))  # without brackets that say nothing
    return _WORD.sub(lambda match: _FUNCTIONS.get(match[0], match[0]), whole)


def _worst(leaf: SlicedLeaf) -> str:
    """A leaf's worst case over the config's numbers."""
    if leaf.role:
        return str(parse(ROLES[leaf.role].limit(_GENERAL)))
    return canonical(leaf.name, leaf.why.startswith("assumed"))


def _number(name: str) -> str:
    """Where a metadata builder has a number of the config."""
    known = _OF_THE_SPEC.get(name) or _OF_THE_CONFIG.get(name)
    if known is None and name in NUMBERS and NUMBERS[name].config:
        known = f"self.vllm_config.{NUMBERS[name].config[0]}"
    if known is None:
        raise WstraceError(
            f"Where a metadata builder has {name} is not known.",
            "Write the reservation by hand.",
        )
    return known


def _appended(read: Reading, init: FunctionRef, body: Sequence[str]) -> str:
    """The body's lines after the last statement of a constructor."""
    assert not isinstance(init.node, ast.Lambda)
    lines = read.matcher.project.texts[init.module].splitlines(keepends=True)
    last = init.node.body[-1]
    indent = " " * init.node.body[0].col_offset
    added = [f"{indent}{line}\n" if line else "\n" for line in ("", *body)]
    end = last.end_lineno or last.lineno
    return _diff(read, init.module, lines, [*lines[:end], *added, *lines[end:]])


def _diff(read: Reading, module: str, before: list[str], after: list[str]) -> str:
    file = read.matcher.project.short(module)
    made = difflib.unified_diff(before, after, f"a/{file}", f"b/{file}")
    return "".join(made)
