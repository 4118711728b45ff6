"""What a model's expert layers keep: sizes as they are after loading, padding included.

FusedMoEConfig (vLLM 0.22.1 to 0.33.0 have these fields; an older layer lacks some and so the
limit) is the layer's own word: quantised weights and DeepEP round the model's sizes up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

_FIELDS: Final = {
    "moe_hidden_dim": "hidden_dim",
    "moe_intermediate_dim": "intermediate_size_per_partition",
    "num_local_experts": "num_local_experts",
    "moe_max_num_tokens": "max_num_tokens",
}
"""Limit to field of FusedMoEConfig."""


def expert_limits(worker: Any) -> dict[str, int]:
    """The largest of each size over the model's expert layers; empty without such layers."""
    model = getattr(getattr(worker, "model_runner", None), "model", None)
    modules = getattr(model, "modules", None)
    found: dict[str, int] = {}
    for module in modules() if callable(modules) else ():
        for name, value in _sizes_of(module):
            found[name] = max(value, found.get(name, 0))
    return found


def _sizes_of(module: Any) -> Iterator[tuple[str, int]]:
    config = vars(module).get("moe_config")
    for name, field in _FIELDS.items() if config is not None else ():
        value = getattr(config, field, None)
        if isinstance(value, int) and value > 0:
            yield name, value
    dispatchers = getattr(_experts_of(module), "num_dispatchers", None)
    if isinstance(dispatchers, int):
        yield "num_dispatchers", dispatchers


def _experts_of(module: Any) -> Any:
    """The layer's kernel of experts; from 0.18.1 on it stands behind `impl`."""
    kernel = getattr(vars(module).get("quant_method"), "moe_kernel", None)
    return getattr(getattr(kernel, "impl", kernel), "fused_experts", None)
