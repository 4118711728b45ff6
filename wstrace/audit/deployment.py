"""One deployment, as its command line and the model's config.json give it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wstrace.triage.extract.engine_settings import command_settings
from wstrace.vllm import dispatch
from wstrace.vllm.command_line import option
from wstrace.vllm.limits import NUMBERS
from wstrace.vllm.model_config import load_model_config, read_model_config

Platform = str
# Hugging Face: the longest sequence, which vLLM takes where --max-model-len is absent.
_LONGEST: Final = "max_position_embeddings"


@dataclass(frozen=True)
class Deployment:
    """`numbers` are those that formulas use, one rank's; `words` settings such as the KV
    cache's dtype; `architectures` the model's classes, as config.json names them."""

    numbers: Mapping[str, int]
    words: Mapping[str, str]
    architectures: tuple[str, ...]
    platform: Platform = "cuda"

    @property
    def mla(self) -> bool:
        """Whether the model has multi-head latent attention."""
        return "kv_lora_rank" in self.numbers or "compress_ratio" in self.numbers

    @property
    def experts(self) -> bool:
        """Whether the model has experts."""
        return self.numbers.get("num_experts", 0) > 1


def deployment(flags: str, model_config: Path, platform: Platform = "cuda") -> Deployment:
    """Read the flags of `vllm serve` (a command line, or a part of it) and a config.json.

    WstraceError where the config cannot be read, or ranks cannot share its numbers.
    """
    said = command_settings(flags)
    numbers = {name: int(v) for name, v in said.items() if isinstance(v, int)}
    words = {name: v for name, v in said.items() if isinstance(v, str)}
    backend = option(shlex.split(flags), "--attention-backend")
    if backend:
        words["attention_backend"] = backend
    numbers |= read_model_config(model_config, numbers)
    raw = load_model_config(model_config)
    longest = raw.get(_LONGEST)
    if isinstance(longest, int):
        numbers.setdefault("max_model_len", longest)
    named = raw.get("architectures")
    classes = tuple(str(c) for c in named) if isinstance(named, list) else ()
    sizes = said.get("cudagraph_capture_sizes")
    if isinstance(sizes, list) and sizes:
        numbers.setdefault("max_cudagraph_capture_size", max(sizes))
    experts = dispatch.numbers_of({"all2all_backend": dispatch.DEFAULT, **numbers, **words})
    return Deployment(_with_defaults(experts | numbers), words, classes, platform)


def _with_defaults(numbers: dict[str, int]) -> dict[str, int]:
    """vLLM's own values for what nobody set, where its code has a plain number."""
    plain = {n: row.default for n, row in NUMBERS.items() if isinstance(row.default, int)}
    return plain | numbers
