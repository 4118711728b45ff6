"""A model folder that any vLLM loads with `--load-format dummy`, made without a download.

The tokenizer is a byte-level BPE without merges: one token a byte, written by hand, so that
the folder is the same on every machine and needs no tokenizer library to build.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from wstrace.errors import WstraceError

END_OF_TEXT: Final = "<|endoftext|>"
BYTES: Final = 256
CONFIG: Final[dict[str, Any]] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "bos_token_id": BYTES,
    "eos_token_id": BYTES,
    "dtype": "bfloat16",
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 256,
    "intermediate_size": 512,
    "max_position_embeddings": 16384,
    "num_attention_heads": 8,
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "vocab_size": 320,
}


def byte_symbols() -> list[str]:
    """The printable character that byte-level BPE writes for each of the 256 bytes.

    Bytes that print stand for themselves; the others follow from U+0100 on, in byte order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(BYTES)]


def tokenizer() -> dict[str, Any]:
    """`tokenizer.json` of a byte-level BPE without merges; token id = byte value."""
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": BYTES,
                "content": END_OF_TEXT,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {symbol: token for token, symbol in enumerate(byte_symbols())},
            "merges": [],
        },
    }


def build_model(folder: Path, **overrides: Any) -> Path:
    """Write config.json and the tokenizer into `folder`, made if missing; returns it.

    `overrides` replace keys of config.json (`num_key_value_heads=2`). Weights are not
    written: serve it with `--load-format dummy`. Raises `WstraceError` where the folder
    cannot be written.
    """
    files = {
        "config.json": CONFIG | overrides,
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END_OF_TEXT,
            "model_max_length": (CONFIG | overrides)["max_position_embeddings"],
        },
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_text(json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise WstraceError(
            f"cannot write the model folder {folder}: {error.strerror}",
            "Name a folder that can be written.",
        ) from error
    return folder


def main() -> None:
    """`python -m wstrace.testbed.model DIR`."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m wstrace.testbed.model DIR")
    try:
        print(build_model(Path(sys.argv[1])))
    except WstraceError as error:
        sys.exit(f"{error.message}\n{error.hint}")


if __name__ == "__main__":
    main()
