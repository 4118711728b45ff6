"""`wstrace bound`: evaluate an expression, or a known site's worst case."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wstrace.cli.outlet import Format
from wstrace.errors import WstraceError, did_you_mean

if TYPE_CHECKING:
    from wstrace.bounds.bound import Bound
    from wstrace.known_sites.known import KnownSite


def command(
    what: Annotated[
        str,
        typer.Argument(
            metavar="EXPR|KNOWN_SITE",
            help="A formula, a site's id (`wstrace sites`), or FILE:FUNCTION from an error.",
        ),
    ],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A number.")
    ] = None,
    model_config: Annotated[
        Path | None,
        typer.Option(
            help="The model's config.json; --set tensor_parallel_size=N goes with it."
        ),
    ] = None,
    vllm: Annotated[
        str | None, typer.Option(metavar="VERSION", help="The vLLM version; newest if absent.")
    ] = None,
    output: Annotated[Format, typer.Option("--format", help="Output format.")] = "text",
) -> None:
    """What a call site can ever ask of the workspace, in bytes.

    A number that is missing is named and never guessed: the bytes are then null, and the
    exit code is 0, because the question was understood. Mistakes in the input exit 2.
    """
    site, expression = _target(what, vllm)
    words, numbers = _words_of(settings or [])
    values = _values(numbers, site)
    if words:
        values |= _dispatch(words, values, site)
    if site is not None:
        _refuse_ignored(values, site, whole_model=model_config is not None)
        values = _with_layout(values, site)
    elif model_config is None:
        _refuse_unused(values, expression)
    if model_config is not None:
        from wstrace.vllm.model_config import read_model_config

        values = read_model_config(model_config, values) | values
    worst = _site_bound(site, values) if site else _bare_bound(expression, values)
    if worst.bytes is not None and worst.bytes < 0:
        raise WstraceError(
            f"{what} gives {worst.bytes}, which is no number of bytes.",
            "Check the --set values.",
        )
    if output == "json":
        typer.echo(json.dumps(_as_json(worst, site)))
    else:
        _print_text(worst, site)


def _target(what: str, vllm: str | None) -> tuple[KnownSite | None, str]:
    """The known site that `what` names, or None and the expression that it is."""
    from wstrace.known_sites.known import match, require, site_with_id
    from wstrace.versions import release_of

    if vllm is not None and not release_of(vllm).is_build:
        raise WstraceError(
            f"'{vllm}' names no release of vLLM.", "For example --vllm 0.21.0, or leave it out."
        )
    site = site_with_id(what)
    # matches: "turboquant_attn.py:747:_continuation_prefill"
    call = re.fullmatch(r"'?(.+\.py)(?::\d+)?:([\w.<>]+)'?", what)
    if site is None and call is not None:
        site = match(call[1], call[2], vllm)
        if site is None:
            raise WstraceError(
                f"No known site is {call[2]} in {call[1]}.", "`wstrace sites` lists them."
            )
    # matches: "turboquant.prefill"
    if site is None and re.fullmatch(r"[a-z]\w*(\.\w+)+", what):
        site = require(what)
    return (site.at(vllm) if site else None), what


def _values(settings: list[str], site: KnownSite | None) -> dict[str, int]:
    from wstrace.cli.settings import integers

    values = integers(settings, "max_model_len=32768")
    if site is not None:
        _refuse_unknown(values, site)
    return values


def _words_of(settings: list[str]) -> tuple[dict[str, str], list[str]]:
    """The settings that are no numbers, by name, and the others as they were given."""
    from wstrace.cli.settings import pairs
    from wstrace.vllm.limits import rows

    names = {row.name for row in rows("word")}
    chosen = [s for s in settings if s.partition("=")[0].strip().replace("-", "_") in names]
    words = pairs(chosen, "--set", "all2all_backend=deepep_high_throughput")
    named = {name.replace("-", "_"): word for name, word in words.items()}
    return named, [setting for setting in settings if setting not in chosen]


def _dispatch(
    words: dict[str, str], values: dict[str, int], site: KnownSite | None
) -> dict[str, int]:
    """What the all2all of --set says of the rows; no other word is a number of a formula."""
    from wstrace.vllm.dispatch import numbers_of

    wrong = sorted(words.keys() - {"all2all_backend"})
    if wrong or site is None or "unread_dispatch" not in site.takes:
        subject = f"The rule {site.id}" if site is not None else "An expression"
        raise WstraceError(
            f"{subject} does not take {next(iter(wrong), 'all2all_backend')}, a word.",
            "Leave it out: --set takes numbers, and all2all_backend where a rule's rows "
            "depend on it.",
        )
    if not values.keys() & {"enable_expert_parallel", "expert_parallel_size"}:
        raise WstraceError(
            "all2all_backend counts only under expert parallelism: is it on?",
            "Add --set enable_expert_parallel=1, or 0.",
        )
    said = numbers_of({**words, **values})
    return (
        {name: said[name] for name in said if name in site.takes}
        | values
        | {"unread_dispatch": max(said["unread_dispatch"], values.get("unread_dispatch", 0))}
    )


def _refuse_unused(values: dict[str, int], expression: str) -> None:
    """A misspelt name is no number of the expression."""
    from wstrace.expr.expression import parse

    unused = sorted(values.keys() - parse(expression).names)
    if unused:
        raise WstraceError(f"{expression} has no '{unused[0]}'.", "Check the --set names.")


def _refuse_ignored(values: dict[str, int], site: KnownSite, *, whole_model: bool) -> None:
    """A number that the rule does not take would be ignored, and the answer be another
    engine's; one that is known to move nothing may be given. Of a whole model (its
    config.json) the ranks that share a number of the rule are taken too."""
    idle = {flag.flag for flag in site.not_levers}
    taken = set(site.takes)
    if "expert_parallel_size" in taken:
        taken.add("enable_expert_parallel")
    if whole_model:
        taken |= {ranks for name in site.takes for ranks in site.vocabulary[name].shared_by}
    for name in sorted(values.keys() - taken):
        if site.vocabulary[name].flag not in idle:
            raise WstraceError(
                f"The rule {site.id} does not take {name}: it says nothing of such an engine.",
                f"It takes {', '.join(sorted(site.takes))}. A trace tells: wstrace run.",
            )


def _with_layout(values: dict[str, int], site: KnownSite) -> dict[str, int]:
    """`values` with the expert group that --enable-expert-parallel makes; an impossible layout
    is refused where the rule looks at the groups that it is made of."""
    from wstrace.vllm.model_config import expert_parallel_size, expert_ranks, tp_of

    if "expert_parallel_size" not in site.takes:
        return values
    found = values | {"expert_parallel_size": expert_parallel_size(values)}
    if not {"tensor_parallel_size", "data_parallel_size"} <= site.takes:
        return found if "enable_expert_parallel" in values else values
    experts, ranks = found["expert_parallel_size"], expert_ranks(values)
    if experts not in (1, ranks):
        raise WstraceError(
            f"expert_parallel_size {experts} is no layout of vLLM: it is 1, or TP * DP * PCP, "
            f"here {ranks}.",
            "Give tensor_parallel_size and data_parallel_size, or --set "
            "enable_expert_parallel=1 in its place.",
        )
    split = values.get("sequence_parallel_size", 1)
    if split not in (1, tp_of(values)):
        raise WstraceError(
            f"sequence_parallel_size {split} is no layout of vLLM: it is 1, or "
            f"tensor_parallel_size, here {tp_of(values)}.",
            "Give both alike, or leave sequence_parallel_size out.",
        )
    return found if "enable_expert_parallel" in values else values


def _refuse_unknown(values: dict[str, int], site: KnownSite) -> None:
    for name in sorted(values.keys() - site.vocabulary.keys()):
        names = ", ".join(used.name for used in site.names)
        raise WstraceError(
            f"{site.id} knows no number called '{name}'.",
            did_you_mean(name, site.vocabulary) or f"It takes {names}.",
        )


def _site_bound(site: KnownSite, values: dict[str, int]) -> Bound:
    from wstrace.bounds.by_rule import rule_bound

    found = rule_bound(site, values)
    if found.contradiction:
        raise WstraceError(
            f"{found.contradiction[0].upper()}{found.contradiction[1:]}.",
            "Record a trace of such an engine: wstrace run -- vllm serve ...",
        )
    return found


def _bare_bound(text: str, values: dict[str, int]) -> Bound:
    from wstrace.bounds.bound import Bound
    from wstrace.expr.expression import parse

    expression = parse(text)
    needs = tuple(sorted(expression.names - values.keys()))
    total = None if needs else expression.evaluate(values)
    return Bound(total, formula=text.strip(), needs=needs)


def _as_json(worst: Bound, site: KnownSite | None) -> dict[str, object]:
    from wstrace.bounds.by_rule import RULE_ALONE

    return {
        "version": 1,
        "bytes": worst.bytes,
        "formula": worst.formula,
        "grade": RULE_ALONE if site else None,
        "needs": list(worst.needs),
        "lever": worst.lever,
        "confirmed": False,
        "assumed": list(worst.assumed),
        "holds_for": site.choice or None if site else None,
        "holds_only": [condition.when for condition in site.valid_when] if site else [],
        "holds_anywhere": site.anywhere or None if site else None,
        "taken_for": _taken_for(site),
    }


def _taken_for(site: KnownSite | None) -> str | None:
    """What `--vllm` was taken for, where that release was not checked, or is older than the
    rule's first formula."""
    from wstrace.versions import release_of

    if site is None or site.version is None:
        return None
    release = release_of(site.version)
    told = [release.taken_for] if release.taken_for else []
    if not release.has(site.first_seen):
        told.append(
            f"the rule has no formula of vLLM {site.version}: "
            f"that of {site.first_seen} was taken"
        )
    return "; ".join(told) or None


def _print_text(worst: Bound, site: KnownSite | None) -> None:
    from rich.table import Table

    from wstrace.report.console import plain_console

    console = plain_console()
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in _lines(worst, site):
        table.add_row(label, text)
    if console.is_terminal:
        console.print(table)
        return
    for label, text in _lines(worst, site):
        typer.echo(f"{label}\t{text}")


def _lines(worst: Bound, site: KnownSite | None) -> list[tuple[str, str]]:
    lines = [("worst case", _size(worst, site)), ("formula", worst.formula or "")]
    if site is None:
        return lines + [("needs", f"{name}: --set {name}=N") for name in worst.needs]
    lines.insert(0, ("site", f"{site.id}: {site.title}"))
    if told := _taken_for(site):
        lines.append(("vLLM", told))
    if site.choice:
        lines.append(("holds for", site.choice))
    lines += [("holds only", condition.when) for condition in site.valid_when]
    lines += [("holds anywhere", site.anywhere)] if site.anywhere else []
    lines += [("needs", f"{name}: {site.number(name).where()}") for name in worst.needs]
    lines += [("taken", default) for default in worst.assumed]
    lines.append(("lever", f"{site.lever.flag}: {site.lever.effect}"))
    lines += [("no lever", f"{flag.flag}: {flag.why}") for flag in site.not_levers]
    lines += [("or", f"{other.id}: {other.choice}") for other in _alternatives(site)]
    return lines


def _size(worst: Bound, site: KnownSite | None) -> str:
    if worst.bytes is None:
        return f"unknown: needs {', '.join(worst.needs)}"
    from wstrace.bounds.by_rule import RULE_ALONE
    from wstrace.units import exact

    return f"{exact(worst.bytes)}, {RULE_ALONE}" if site else exact(worst.bytes)


def _alternatives(site: KnownSite) -> list[KnownSite]:
    from wstrace.known_sites.known import known_sites

    return [
        other
        for other in known_sites()
        if other.id != site.id
        and other.choice
        and set(other.functions) & set(site.functions)
        and set(other.files) & set(site.files)
    ]
