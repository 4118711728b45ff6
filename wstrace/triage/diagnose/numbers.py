"""The numbers that formulas are computed with: the text's, the model's, the person's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wstrace.errors import WstraceError, did_you_mean
from wstrace.known_sites import known
from wstrace.vllm import dispatch, model_config

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from wstrace.known_sites.given import Told
    from wstrace.triage.extract.engine_settings import Settings, Value


@dataclass(frozen=True)
class Given:
    """What the person adds to the text: numbers by name, and a Hugging Face config.json.

    `option` is how errors call what gave the numbers; `words` are settings that are none, such
    as the all2all backend.
    """

    numbers: dict[str, int] = field(default_factory=dict)
    model_config: Path | None = None
    option: str = "--set"
    words: dict[str, str] = field(default_factory=dict)

    @property
    def told(self) -> dict[str, Told]:
        """Numbers and words."""
        return {**self.numbers, **self.words}


def refuse_unknown(given: Given) -> None:
    """Raises WstraceError for a name that no formula and no limit of vLLM has."""
    known_names = known.known_names().keys() | dispatch.WORDS
    for name in given.told:
        if name in known_names:
            continue
        raise WstraceError(
            f"{given.option} knows no number called '{name}'.",
            did_you_mean(name, known_names, most=3, cutoff=0.5)
            or "The report names what it needs.",
        )


def refuse_contradicted(settings: Settings, given: Given) -> None:
    """WstraceError where one is given that vLLM's own line says it chose otherwise."""
    for name, number in given.numbers.items():
        chosen = settings.resolved(name)
        if chosen and number not in chosen:
            told = " and ".join(sorted(map(str, chosen)))
            raise WstraceError(
                f"{given.option} {name}={number} contradicts the log: vLLM chose {told}.",
                f"Leave {given.option} {name} out: the log's own number is used.",
            )


def version_of(config: Mapping[str, Value]) -> str | None:
    """The version of vLLM that the text names."""
    version = config.get("vllm_version")
    return version if isinstance(version, str) else None


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
        numbers.setdefault("expert_parallel_size", model_config.expert_ranks(numbers))
    said = dispatch.numbers_of({**config, **given.words, **numbers})
    numbers = said | numbers
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
