"""The least value that a number of vLLM's config can have: most are sizes, of 1 and more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from wstrace.errors import WstraceError
from wstrace.known_sites.known import known_sites
from wstrace.reserve.schema import LIMIT_NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping

_SWITCHES: Final = ("enable_", "enforce_", "async_")
_OFF: Final = "max_cudagraph_capture_size"


def refuse_below_least(values: Mapping[str, int]) -> None:
    """Raises `WstraceError` for a size below 1, or a switch or a count below 0.

    Names that neither vLLM's config nor a known site has mean what their user likes.
    """
    for name, value in values.items():
        named = [site.vocabulary[name] for site in known_sites() if name in site.vocabulary]
        if not named and name not in LIMIT_NAMES:
            continue
        off = name.startswith(_SWITCHES) or name == _OFF or any(n.default == 0 for n in named)
        if value < (0 if off else 1):
            raise WstraceError(
                f"--set {name}={value}: {name} is {0 if off else 1} or more.",
                "Leave a number out that is not known: the answer names what it needs.",
            )
