"""A patch that reserves what a serving request may ask, in vLLM's own idiom.

Three places, the first that fits: the gate of a reservation that is there but depends on
chunked prefill alone; the constructor that made the numbers of a request whose shape is fixed;
the metadata builder of the request's attention backend, with the worst case of each dimension.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
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
from wstrace.slicer.static import AskedSpecs, FunctionRef, SpecShape
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
# Numbers with which roles tell their general limits: those of a model with latent attention,
# whose decodes may be as wide as a step.
_GENERAL: Final = {
    "kv_lora_rank": 1,
    "max_cudagraph_capture_size": 1,
    "mixed_graph_tokens": 0,
    "widest_mixed_graph": 0,
    "num_speculative_tokens": 1,
}
_WIDTH: Final = 88 - 12  # less the indent of a constructor's if
# matches: "num_kv_heads"
_WORD: Final = re.compile(r"[A-Za-z_]\w*")


MOST_SHAPES: Final = 8


@dataclass(frozen=True)
class Suggestion:
    """A unified diff (paths below the folder that holds `vllm/`), and what it does."""

    patch: str
    says: str


@dataclass(frozen=True)
class Edit:
    """Lines of a module, counted from 0, that others take the place of."""

    module: str
    first: int
    last: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Addition:
    """Statements at the end of a constructor, under the test that the workspace is there;
    `cached`: only where a request can have computed tokens."""

    init: FunctionRef
    lines: tuple[str, ...]
    says: str
    cached: bool = False
    also: str = ""


def suggest(read: Reading, *wanted: str) -> Suggestion:
    """One patch for all serving requests that `wanted` names: each FILE:LINE, FILE:FUNCTION or
    the end of either.

    WstraceError where one names no function or several, where nothing is missing, or where no
    place for a reservation is found.
    """
    edits: list[Edit] = []
    blocks: list[Addition] = []
    said: list[str] = []
    for site, placed in _chosen(read, wanted):
        found = _made_for(read, site, placed)
        said.append(found.says if isinstance(found, Addition) else found[1])
        if isinstance(found, Addition):
            blocks.append(found)
        else:
            edits.append(found[0])
    constructors = {(b.init.module, b.init.node.lineno): b.init for b in blocks}
    for init in constructors.values():
        mine = list(dict.fromkeys(b for b in blocks if b.init == init and _same(b.init, init)))
        edits.append(_at_the_end(init, mine))
    return Suggestion(_diffs(read, dict.fromkeys(edits)), "\n".join(dict.fromkeys(said)))


def _same(one: FunctionRef, other: FunctionRef) -> bool:
    return one.node is other.node


def _made_for(read: Reading, site: AuditedSite, placed: Placed) -> Addition | tuple[Edit, str]:
    """The first place that fits."""
    found = (
        _wider_gate(read, site)
        or _in_constructor(read, site, placed)
        or _in_builder(read, site, placed)
    )
    if found is None:
        raise WstraceError(
            f"No place for a reservation of {site.enclosing} is found.",
            "It has no metadata builder, and its shape is not that of a constructor's numbers.",
        )
    return found


def _chosen(read: Reading, wanted: Sequence[str]) -> list[tuple[AuditedSite, Placed]]:
    """Every request of the functions that are named, and that lacks a reservation."""
    serving = read.audit().serving
    places = {at_of(p.site): p for p in read.placed}
    chosen: dict[str, AuditedSite] = {}
    for name in wanted:
        found = [s for s in serving if s.at.endswith(name) or s.name.endswith(name)]
        functions = {site.name for site in found}
        if len(functions) != 1:
            what = "several requests" if found else "no serving request"
            hint = ", ".join(sorted(functions)[:5]) or "`wstrace audit` lists them."
            raise WstraceError(f"{name} names {what}.", hint)
        lacking = [s for s in found if s.match not in ("full", "self", "na")]
        if not lacking:
            raise WstraceError(
                f"{found[0].at} needs no reservation: {found[0].reason}.",
                "`wstrace audit` lists those that do, first.",
            )
        chosen |= {s.at: s for s in lacking}
    return [(site, places[at]) for at, site in chosen.items()]


def _wider_gate(read: Reading, site: AuditedSite) -> tuple[Edit, str] | None:
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
            return edit, says
    return None


def _replaced(read: Reading, placed: Placed, node: ast.expr, text: str) -> Edit:
    module = placed.site.place.module
    lines = read.matcher.project.texts[module].splitlines(keepends=True)
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    if first != last:
        raise WstraceError("The gate is spread over lines.", "Widen it by hand.")
    line = lines[first]
    made = line[: node.col_offset] + text + line[node.end_col_offset :]
    return Edit(module, first, first + 1, tuple(made.splitlines(keepends=True)))


def _in_constructor(read: Reading, site: AuditedSite, placed: Placed) -> Addition | None:
    """The same request where `self` was made, if its arguments need nothing else."""
    cls = Relations(read.matcher.project).owner(placed.site)
    init = read.matcher.project.own_member(cls, "__init__") if cls is not None else None
    names = {n.id for a in placed.site.args for n in ast.walk(a) if isinstance(n, ast.Name)}
    local = names & placed.site.place.source.locals - {"self"}
    if init is None or local or site.drivers:
        return None
    args = ", ".join(ast.unparse(argument) for argument in placed.site.args)
    asks = f"current_workspace_manager().get_simultaneous({args})"
    says = f"{init.owner}.__init__ asks for the same, before the lock"
    return Addition(init, (asks,), says, also=_made(placed, init))


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
    return " and ".join(f"{name} is not None" for name in sorted(held & none))


def _in_builder(read: Reading, site: AuditedSite, placed: Placed) -> Addition | None:
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
    ways = _ways(asked, placed)
    used = {n for way in ways for s, _ in way for d in s.dims or () for n in tree.names(d)}
    texts = {n: _worst(asked.leaves[n]) for n in sorted(used)}
    numbers = {n: _number(n) for text in texts.values() for n in parse(text).names}
    lines = [line for n, told in sorted(numbers.items()) for line in _assigned(n, told)]
    each = (
        [x for spec, node in way for x in _shape(spec, texts, placed, node)] for way in ways
    )
    for shapes in dict.fromkeys(tuple(shape) for shape in each):
        lines.append("current_workspace_manager().get_simultaneous(")
        lines += [f"    {line}" for line in shapes]
        lines.append(")")
    init = project.own_member(builders[0], "__init__")
    assert init is not None
    says = f"{init.owner}.__init__ reserves the worst case of {site.enclosing}"
    return Addition(init, tuple(lines), says, "num_computed_tokens" in site.drivers)


def _ways(asked: AskedSpecs, placed: Placed) -> list[list[tuple[SpecShape, ast.expr]]]:
    """The specs of each way that conditions go: all are reserved, and the largest counts."""
    found: list[list[tuple[SpecShape, ast.expr]]] = [[]]
    for piece, node in zip(asked.pieces, placed.site.args, strict=True):
        each = dict.fromkeys(piece.ways)
        found = [[*before, *((spec, node) for spec in way)] for before in found for way in each]
    if len(found) > MOST_SHAPES:
        raise WstraceError(
            f"{placed.site.enclosing} has {len(found)} shapes.", "Reserve where they are made."
        )
    return found


def _at_the_end(init: FunctionRef, blocks: Sequence[Addition]) -> Edit:
    """Blocks at the end of a constructor, those for computed tokens behind both gates."""
    every = [line for block in blocks for line in block.lines]
    used = sorted({f for f in _FUNCTIONS.values() if any(f"{f}(" in line for line in every)})
    body = ["# Reserve capacity: the workspace is locked before a request can ask for it."]
    if used:
        body.append(f"from vllm.utils.math_utils import {', '.join(used)}")
    body += [
        "from vllm.v1.worker.workspace import (",
        "    current_workspace_manager,",
        "    is_workspace_manager_initialized,",
        ")",
        "",
    ]
    plain = [b for b in blocks if not b.cached]
    behind = [b for b in blocks if b.cached]
    if behind:
        body.append("reserve = is_workspace_manager_initialized()")
    for block in plain:
        test = "reserve" if behind else "is_workspace_manager_initialized()"
        body.append(f"if {' and '.join(t for t in (test, block.also) if t)}:")
        body += [f"    {line}" for line in block.lines]
    if behind:
        body += [
            "# A request has computed tokens when its prompt is cut into chunks, or when a",
            "# prefix of it is cached.",
            "reserve = reserve and (",
            f"    self.vllm_config.scheduler_config.{CHUNKED}",
            f"    or self.vllm_config.cache_config.{CACHED}",
            ")",
            "if reserve:",
        ]
        body += [f"    {line}" for block in behind for line in block.lines]
    return _appended(init, body)


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


def _appended(init: FunctionRef, body: Sequence[str]) -> Edit:
    """The body's lines after the last statement of a constructor."""
    assert not isinstance(init.node, ast.Lambda)
    last = init.node.body[-1]
    indent = " " * init.node.body[0].col_offset
    added = tuple(f"{indent}{line}\n" if line else "\n" for line in ("", *body))
    end = last.end_lineno or last.lineno
    return Edit(init.module, end, end, added)


def _diffs(read: Reading, edits: Iterable[Edit]) -> str:
    """One unified diff of all edits, module by module."""
    project = read.matcher.project
    made = ""
    by_module: dict[str, list[Edit]] = {}
    for edit in edits:
        by_module.setdefault(edit.module, []).append(edit)
    for module, mine in sorted(by_module.items()):
        before = project.texts[module].splitlines(keepends=True)
        after = list(before)
        for edit in sorted(mine, key=lambda e: (e.first, e.last), reverse=True):
            after[edit.first : edit.last] = edit.lines
        file = project.short(module)
        made += "".join(difflib.unified_diff(before, after, f"a/{file}", f"b/{file}"))
    return made
