"""A model's Hugging Face config.json read into the names that formulas use.

Numbers of one rank: heads and expert widths are divided as vLLM's layers divide them. A key
that the config lacks stays absent: a bound then names it instead of guessing. The limits of
serving (max_model_len, max_num_seqs, ...) are flags, not properties of the model.
"""

from __future__ import annotations

import json
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Final

from wstrace.errors import WstraceError
from wstrace.plain_files import TooLargeError, read_plain
from wstrace.vllm.limits import NUMBERS
from wstrace.vllm.number import TP

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    Getter = Callable[[str], int | None]
    Limit = int | str | bool | list[int] | None

# Keys of Hugging Face configs, not of vLLM; 0.13.0 to 0.33.0 have all names but the last.
_LANGUAGE: Final = (
    "text_config",
    "llm_config",
    "language_config",
    "thinker_config",
    "language_model_config",
)
_MOST_BYTES: Final = 16 << 20
# vLLM 0.13.0 to 0.33.0: what no key gives by itself. KV heads are never shared below one, a
# head without a key is the width over the heads, the ratio is the least of a list, and an
# expert's width may stand under the layer's key.
_OWN_RULE: Final = ("num_kv_heads", "head_size", "compress_ratio", "moe_intermediate_size")


def read_model_config(path: Path, values: Mapping[str, int]) -> dict[str, int]:
    """The names that the config.json at `path` gives, for one rank.

    `values` holds what the person set; the sizes of the parallel groups among it count.
    Raises `WstraceError` where the file cannot be read, is no plain file, has more than
    16 MiB, is no JSON object, or where the ranks cannot share a number of it that `values`
    lacks.
    """
    return names_of(load_model_config(path), values)


def names_of(config: Mapping[str, Any], values: Mapping[str, int]) -> dict[str, int]:
    """The names that a loaded config gives; see `read_model_config`."""
    get = partial(_at, _language_model(config))
    found = plain_numbers(get) | {
        name: value if value is None else _share(name, value, tp_of(values), values)
        for name, value in sharded_numbers(get).items()
    }
    found |= {
        "num_kv_heads": _kv_heads(get, tp_of(values), values),
        "head_size": _head_size(get),
        "compress_ratio": compress_ratio(_language_model(config).get),
        "moe_intermediate_size": _expert_width(get, values),
    }
    if not get("vision_n_layers"):
        found["max_image_tokens"] = None
    return {name: value for name, value in found.items() if value is not None}


def plain_numbers(get: Getter) -> dict[str, int | None]:
    """The numbers that every rank has whole, by name; None where the config lacks one."""
    plain = (n for n in NUMBERS.values() if n.keys and not n.shared_by)
    return {n.name: first(get, n.keys) for n in plain if n.name not in _OWN_RULE}


def sharded_numbers(get: Getter) -> dict[str, int | None]:
    """The numbers that TP ranks share, before they are shared."""
    shared = (n for n in NUMBERS.values() if n.shared_by == (TP,))
    return {n.name: first(get, n.keys) for n in shared if n.name not in _OWN_RULE}


def first(get: Getter, keys: tuple[str, ...]) -> int | None:
    """The number under the first of `keys` that has one."""
    return next((value for value in map(get, keys) if value is not None), None)


def expert_width(get: Getter) -> int | None:
    """One whole expert's width: its own key, or the layer's where the model has experts."""
    own, layers = NUMBERS["moe_intermediate_size"].keys
    width = get(own)
    has_experts = first(get, NUMBERS["num_experts"].keys) is not None
    return get(layers) if width is None and has_experts else width


def expert_ranks(values: Mapping[str, Limit]) -> int:
    """The ranks of one MoE layer: TP * DP * PCP, which share its experts or their width.

    Checked in vLLM 0.13.0 to 0.33.0: FusedMoEParallelConfig.make flattens the three groups
    (flatten_tp_across_dp_and_pcp) and makes the product the EP size where expert parallelism
    is on, else the TP size of every expert.
    """
    sizes = (values.get(name) for name in NUMBERS["moe_intermediate_size"].shared_by)
    return prod(size for size in sizes if isinstance(size, int))


def expert_parallel_size(values: Mapping[str, Limit]) -> int:
    """The ranks that hold whole experts, 1 where every rank has a part of each."""
    told = values.get("expert_parallel_size")
    if isinstance(told, int):
        return told
    return expert_ranks(values) if values.get("enable_expert_parallel") else 1


def tp_of(values: Mapping[str, int]) -> int:
    """The size of the tensor-parallel group, 1 where nobody said."""
    return values.get(TP, 1)


def load_model_config(path: Path) -> dict[str, Any]:
    """A config.json as it stands. WstraceError where it cannot be read, or is no object."""
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
    try:
        return read_plain(path, _MOST_BYTES).decode("utf-8-sig")
    except TooLargeError as error:
        raise WstraceError(
            f"'{path}' is {error}: no model's config is so large.",
            "Give the config.json that lies beside the model's weights.",
        ) from error


def _language_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """The language model's keys over those of the whole, through every level of nesting."""
    merged = dict(config)
    for key in _LANGUAGE:
        if isinstance(config.get(key), dict):
            merged |= _language_model(config[key])
    return merged


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


def _kv_heads(get: Getter, tp: int, values: Mapping[str, int]) -> int | None:
    """MLA has one latent head; a model with fewer KV heads than ranks repeats each of them
    on as many ranks, so the ranks must then be a multiple of the heads."""
    if get("kv_lora_rank"):
        return 1
    total = first(get, (*NUMBERS["num_kv_heads"].keys, "num_attention_heads"))
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


def _head_size(get: Getter) -> int | None:
    rank = get("kv_lora_rank")
    if rank is not None:
        return rank + (get("qk_rope_head_dim") or 0)
    width, heads = get("hidden_size"), get("num_attention_heads")
    return get("head_dim") or (width // heads if width and heads else None)


def compress_ratio(value_of: Callable[[str], object]) -> int | None:
    """The smallest ratio of a layer with a compressed cache; None for a model without one.

    `value_of` gives a key's value as the text config has it, None where it has none.
    DeepSeek-V4 marks layers without one by 1 (its draft layers by 0), V4.1 by 0 only.
    """
    ratios, one = value_of("compress_ratios"), value_of("compress_ratio")
    single = one if isinstance(one, int) and not isinstance(one, bool) and one > 0 else None
    if not isinstance(ratios, list | tuple):
        return single
    least = 1 if "V41" in str(value_of("architectures")) else 2
    compressed = [r for r in ratios if isinstance(r, int) and r >= least]
    return min(compressed, default=single)


def _expert_width(get: Getter, values: Mapping[str, int]) -> int | None:
    width = expert_width(get)
    if width is None or expert_parallel_size(values) > 1:
        return width
    return _share("moe_intermediate_size", width, expert_ranks(values), values)
