"""What a row about one number of a vLLM engine says: every place it stands in."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

Kind = Literal["size", "count", "switch", "word", "sizes"]
Use = Literal["layout", "live", "rule", "told"]

TP: Final = "tensor_parallel_size"
DP: Final = "data_parallel_size"
PCP: Final = "prefill_context_parallel_size"


class Number(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One number or setting under the name that formulas use.

    `kind`: a size is 1 or more, a count 0 or more, a switch 0 or 1, a word a short name.
    `use`: `layout` decides shapes (a reserve holds for one layout only), `live` may change
    between two starts, `rule` is not recorded and only a rule's formula names it, `told` is
    shown and never computed with.
    `config` are the paths below VllmConfig, the newest first: the recorder takes the first
    that a release has. `keys` are Hugging Face config keys (dots go into nested ones), `env`
    vLLM's environment variable, `logged` the names in logs and, with dashes, on the command
    line where vLLM's differ from `name`, `coded` other names that vLLM's code has for it.
    `since` is the first release of the version matrix that has the row's path or variable,
    `until` the first that has it no more; "" where there is none (tests/matrix/test_config.py).
    `shared_by` are the groups whose ranks share it: the value is one rank's.
    `late`: vLLM knows it only after profiling, when the KV cache is made, so that a reserve
    takes the number of the run that it was made from.
    `default` is what vLLM's code takes when nobody sets it (a number, or an expression over
    other names), `why` the reason that default is one.
    """

    meaning: str
    name: str = ""
    kind: Kind = "size"
    use: Use = "rule"
    config: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    env: str = ""
    flag: str = ""
    logged: tuple[str, ...] = ()
    coded: tuple[str, ...] = ()
    shared_by: tuple[str, ...] = ()
    late: bool = False
    since: str = ""
    until: str = ""
    default: int | str | None = None
    why: str = ""

    @property
    def least(self) -> int:
        """The smallest value it can have."""
        return 1 if self.kind == "size" and self.default != 0 else 0

    @property
    def recorded(self) -> bool:
        """Whether a trace's limits have it, so that a formula may follow it."""
        return self.use in ("layout", "live")

    @property
    def spellings(self) -> tuple[str, ...]:
        """How logs and, with dashes, command lines name it; () for what has no flag."""
        return self.logged or ((self.name,) if self.config and not self.keys else ())

    def where(self) -> str:
        """How to give this number, in one line."""
        places = [self.flag, self.env and f"environment {self.env}"]
        if self.keys:
            per = f" / {self.shared_by[0]}" if self.shared_by else ""
            places.append(f"config.json {' or '.join(self.keys)}{per}")
        places.append(f"--set {self.name}=N")
        return "; ".join(place for place in places if place)
