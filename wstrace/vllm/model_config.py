"""A model's Hugging Face config.json read into the names that formulas use.

Numbers of one rank: heads and expert widths are divided as vLLM's layers divide them. A key
that the config lacks stays absent: a bound then names it instead of guessing. The limits of
serving (max_model_len, max_num_seqs, ...) are flags, not properties of the model.
"""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING, Any, Final

from wstrace.errors import WstraceError
from wstrace.known_sites.known import known_sites, shared_names
from wstrace.units import human

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from wstrace.known_sites.known import Name

_LANGUAGE: Final = (
    "text_config",
    "llm_config",
    "language_config",
    "thinker_config",
    "language_model_config",
)
_KV_HEADS: Final = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
_MOST_BYTES: Final = 16 << 20
_OWN_RULE: Final = frozenset(
    ("num_kv_heads", "head_size", "compress_ratio", "max_image_tokens", "moe_intermediate_size")
)


def read_model_config(path: Path, values: Mapping[str, int]) -> dict[str, int]:
    """The names that the config.json at `path` gives, for one rank.

    `values` holds what the person set; tensor_parallel_size, data_parallel_size and
    expert_parallel_size among it count. Raises `WstraceError` where the file cannot be read,
    is no plain file, has more than 16 MiB, is no JSON object, or where the ranks cannot share
    a number of it that `values` lacks.
    """
    return names_of(_load(path), values)


def names_of(config: Mapping[str, Any], values: Mapping[str, int]) -> dict[str, int]:
    """The names that a loaded config gives; see `read_model_config`."""
    text = _language_model(config)
    tp = values.get("tensor_parallel_size", 1)
    found: dict[str, int | None] = {}
    for name in _vocabulary():
        value = None if name.name in _OWN_RULE else _first(text, name.keys)
        if value is not None:
            found[name.name] = (
                _share(name.name, value, tp, values) if name.divided_by else value
            )
    found |= {
        "num_kv_heads": _kv_heads(text, tp, values),
        "head_size": _head_size(text),
        "compress_ratio": _compress_ratio(text),
        "max_image_tokens": _image_tokens(text),
        "moe_intermediate_size": _expert_width(text, tp, values),
    }
    return {name: value for name, value in found.items() if value is not None}


def _load(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(_text(path))
    except OSError as error:
        raise WstraceError(
            f"The model config '{path}' cannot be read: {error.strerror}.",
            "Give the config.json that lies beside the model's weights.",
        ) from error
    except (ValueError, RecursionError) as error:
        raise WstraceError(
            f"'{path}' is no JSON: {error}.",
            "Give the config.json that lies beside the model's weights.",
        ) from error
    if not isinstance(config, dict):
        raise WstraceError(
            f"'{path}' holds no JSON object.",
            "Give the config.json that lies beside the model's weights.",
        )
    return config


def _text(path: Path) -> str:
    """The whole of a plain file of bounded size: a device or a pipe may never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise WstraceError(
            f"The model config '{path}' is no plain file.",
            "Give the config.json that lies beside the model's weights.",
        )
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise WstraceError(
            f"'{path}' has more than {human(_MOST_BYTES)}: no model's config is so large.",
            "Give the config.json that lies beside the model's weights.",
        )
    return content.decode("utf-8")


def _language_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """The language model's keys over those of the whole, through every level of nesting."""
    merged = dict(config)
    for key in _LANGUAGE:
        if isinstance(config.get(key), dict):
            merged |= _language_model(config[key])
    return merged


def _vocabulary() -> Iterator[Name]:
    seen: set[str] = set()
    for vocabulary in (shared_names(), *(site.vocabulary for site in known_sites())):
        for name in vocabulary.values():
            if name.keys and name.name not in seen:
                seen.add(name.name)
                yield name


def _first(config: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    return next((v for v in (_at(config, key) for key in keys) if v is not None), None)


def _at(config: Mapping[str, Any], key: str) -> int | None:
    node: Any = config
    for part in key.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node if isinstance(node, int) and not isinstance(node, bool) and node > 0 else None


def _share(name: str, value: int, ranks: int, values: Mapping[str, int]) -> int | None:
    """The part of one rank; None where it does not divide but the person gave the number."""
    if ranks > 0 and value % ranks == 0:
        return value // ranks
    if name in values:
        return None
    raise WstraceError(
        f"{name} {value} does not divide by {ranks}, the ranks that share it.",
        f"Give a size that divides it, or --set {name}=N for one rank.",
    )


def _kv_heads(text: Mapping[str, Any], tp: int, values: Mapping[str, int]) -> int | None:
    """MLA has one latent head; a model with fewer KV heads than ranks repeats each of them
    on as many ranks, so the ranks must then be a multiple of the heads."""
    if _at(text, "kv_lora_rank"):
        return 1
    total = _first(text, (*_KV_HEADS, "num_attention_heads"))
    if total is None:
        return None
    if tp > total and tp % total == 0:
        return 1
    if tp <= total or "num_kv_heads" in values:
        return _share("num_kv_heads", total, tp, values)
    raise WstraceError(
        f"num_kv_heads {total} cannot be repeated evenly on {tp} ranks, no multiple of it.",
        "Give a tensor_parallel_size that is, or --set num_kv_heads=N for one rank.",
    )


def _head_size(text: Mapping[str, Any]) -> int | None:
    rank = _at(text, "kv_lora_rank")
    if rank is not None:
        return rank + (_at(text, "qk_rope_head_dim") or 0)
    stated = _at(text, "head_dim")
    width, heads = _at(text, "hidden_size"), _at(text, "num_attention_heads")
    return stated or (width // heads if width and heads else None)


def _compress_ratio(text: Mapping[str, Any]) -> int | None:
    """The smallest ratio of a layer with a compressed cache.

    DeepSeek-V4 marks layers without one by 1 (its draft layers by 0), V4.1 by 0 only.
    """
    ratios = text.get("compress_ratios")
    if not isinstance(ratios, list):
        return _at(text, "compress_ratio")
    least = 1 if "V41" in str(text.get("architectures")) else 2
    compressed = [r for r in ratios if isinstance(r, int) and r >= least]
    return min(compressed, default=None)


def _image_tokens(text: Mapping[str, Any]) -> int | None:
    return _at(text, "vision_max_n_token") if _at(text, "vision_n_layers") else None


def _expert_width(text: Mapping[str, Any], tp: int, values: Mapping[str, int]) -> int | None:
    """One expert's width: its own key, or the layer's where the model has experts.

    Expert parallelism keeps an expert whole; without it TP and DP ranks share its width.
    """
    keys = ["moe_intermediate_size"]
    if _first(text, shared_names()["num_experts"].keys):
        keys.append("intermediate_size")
    width = _first(text, tuple(keys))
    if width is None or values.get("expert_parallel_size", 1) > 1:
        return width
    ranks = tp * values.get("data_parallel_size", 1)
    return _share("moe_intermediate_size", width, ranks, values)
