"""The numbers that a rule or an expression of `wstrace bound` gets, and those that it refuses.

A number that the rule does not take would be ignored, and the answer be another engine's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from wstrace.cli.settings import settings as read_settings
from wstrace.errors import WstraceError, did_you_mean
from wstrace.expr.expression import parse
from wstrace.known_sites.given import numbers_of, words_of
from wstrace.vllm import dispatch
from wstrace.vllm.model_config import (
    expert_parallel_size,
    expert_ranks,
    read_model_config,
    tp_of,
)

if TYPE_CHECKING:
    from wstrace.known_sites.known import KnownSite


def given_numbers(
    settings: Sequence[str], site: KnownSite | None, expression: str, model_config: Path | None
) -> dict[str, int]:
    """What `--set` and the model's config.json give the rule of `site`, or `expression` where
    it is None.

    Raises WstraceError for a setting that is not understood or would be ignored, and for a
    layout that vLLM does not have.
    """
    told = read_settings(settings, "max_model_len=32768")
    words, values = words_of(told), numbers_of(told)
    if site is not None:
        _refuse_unknown(values, site)
    if words:
        values |= _dispatch(words, values, site)
    if site is not None:
        _refuse_ignored(values, site, whole_model=model_config is not None)
        values = _with_layout(values, site)
    elif model_config is None:
        _refuse_unused(values, expression)
    if model_config is None:
        return values
    return read_model_config(model_config, values) | values


def _dispatch(
    words: dict[str, str], values: dict[str, int], site: KnownSite | None
) -> dict[str, int]:
    """What the all2all of --set says of the rows; no other word is a number of a formula."""
    wrong = sorted(words.keys() - dispatch.WORDS)
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
    said = dispatch.numbers_of({**words, **values})
    return (
        {name: said[name] for name in said if name in site.takes}
        | values
        | {"unread_dispatch": max(said["unread_dispatch"], values.get("unread_dispatch", 0))}
    )


def _refuse_unused(values: dict[str, int], expression: str) -> None:
    """A misspelt name is no number of the expression."""
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
