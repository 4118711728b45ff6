"""The numbers that formulas are computed with: the text's, the model's, the person's."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from wstrace.errors import WstraceError
from wstrace.known_sites import known
from wstrace.reserve.schema import LIMIT_NAMES
from wstrace.vllm import model_config

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from wstrace.triage.extract.engine_settings import Value

_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_SWITCHES: Final = ("enable_", "enforce_", "async_")


@dataclass(frozen=True)
class Given:
    """What the person adds to the text: `--set NAME=N` and a Hugging Face config.json."""

    numbers: dict[str, int] = field(default_factory=dict)
    model_config: Path | None = None


def parse_set(assignments: Iterable[str]) -> dict[str, int]:
    """`NAME=N` texts, N of 1 and more; it may be 64k (64000) or 64K (65536).

    WstraceError: not of that form, or a name that no formula and no limit of vLLM has.
    """
    from wstrace.triage.extract.engine_settings import integer

    found: dict[str, int] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        number = integer(value.strip())
        name = name.strip().replace("-", "_")
        if not equals or number is None or not _NAME.fullmatch(name):
            raise WstraceError(
                f"--set takes NAME=N with an integer, not '{text}'.",
                "For example: --set num_kv_heads=4 --set head_size=128",
            )
        _refuse_unknown(name)
        if number < 1 and not _may_be_zero(name):
            raise WstraceError(
                f"--set {name} must be 1 or more, not {number}.",
                "Leave a number out that is not known: the report names what it needs.",
            )
        if found.setdefault(name, number) != number:
            raise WstraceError(
                f"--set gives {name} twice: {found[name]} and {number}.", "Keep one of the two."
            )
    return found


def _may_be_zero(name: str) -> bool:
    """Switches, and what vLLM itself leaves at 0, such as draft tokens."""
    named = (site.vocabulary.get(name) for site in known.known_sites())
    return name.startswith(_SWITCHES) or any(n is not None and n.default == 0 for n in named)


def _refuse_unknown(name: str) -> None:
    from difflib import get_close_matches

    names = LIMIT_NAMES.union(*(site.vocabulary for site in known.known_sites()))
    if name in names:
        return
    near = get_close_matches(name, sorted(names), n=3, cutoff=0.5)
    raise WstraceError(
        f"--set knows no number called '{name}'.",
        f"Did you mean {', '.join(near)}?" if near else "The report names what it needs.",
    )


def values(
    config: Mapping[str, Value], given: Given, model: Mapping[str, Value] | None = None
) -> dict[str, int]:
    """Every number known, the person's before the model's before the text's.

    `model` holds the keys of a config.json that the text quotes. They become numbers of one
    rank, so they count only where the tensor-parallel size is known.
    """
    numbers = {
        name: int(value)
        for name, value in config.items()
        if isinstance(value, int) and not isinstance(value, bool)
    }
    numbers |= given.numbers
    if config.get("enable_expert_parallel") is True:
        ranks = numbers.get("tensor_parallel_size", 1) * numbers.get("data_parallel_size", 1)
        numbers.setdefault("expert_parallel_size", ranks)
    if given.model_config is not None:
        numbers |= model_config.read_model_config(given.model_config, numbers)
    elif model and "tensor_parallel_size" in numbers:
        numbers = _of_model(model, numbers) | numbers
    return numbers | given.numbers


def _of_model(model: Mapping[str, Value], numbers: Mapping[str, int]) -> dict[str, int]:
    """What a quoted config.json gives; nothing where it does not fit the parallel sizes."""
    try:
        return model_config.names_of(model, numbers)
    except WstraceError:
        return {}
