"""Options of a `vllm serve` command line, as argparse takes them."""

from __future__ import annotations

from collections.abc import Sequence


def option(command: Sequence[str], *names: str) -> str | None:
    """The value of `--name VALUE`, `--name=VALUE` or `-n VALUE`, the last one given.

    vLLM takes `_` for `-` in a long name (0.13.0 to 0.33.0: FlexibleArgumentParser).
    """
    found = None
    for word, after in zip(command, (*command[1:], ""), strict=False):
        given, equals, value = word.partition("=")
        name = given.replace("_", "-") if given.startswith("--") else given
        if name in names:
            found = value if equals else after
        elif short := next((n for n in names if _joined(word, n)), ""):
            found = word[len(short) :]
    return found


def _joined(word: str, name: str) -> bool:
    """Whether a number follows a short name without a space, as argparse takes it: `-dp2`."""
    return not name.startswith("--") and word.startswith(name) and word[len(name) :].isdecimal()
