"""What is shipped beside the code: the folder `dashboards/`, the pages of the findings."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from wstrace.errors import WstraceError

_PACKAGE: Final = Path(__file__).resolve().parent.parent


def shipped(path: str, what: str) -> Path:
    """What the package ships at `path`: in the wheel, or at the root of a source checkout.

    Raises WstraceError where an installation lacks it, named as `what`.
    """
    for root in (_PACKAGE, _PACKAGE.parent):
        if (root / path).exists():
            return root / path
    raise WstraceError(
        f"This installation of wstrace has no {what}.",
        "Install the wheel again, or run from a complete source checkout.",
    )


@cache
def dashboards() -> Path:
    """The folder of templates, CSS, JS and vendored files."""
    return shipped("dashboards/templates", "dashboards folder").parent


def read_text(name: str) -> str:
    """A text asset, such as `report.css`."""
    return (dashboards() / name).read_text(encoding="utf-8")


def read_bytes(name: str) -> bytes:
    """A binary asset, such as `vendor/plotly-basic.min.js.gz`."""
    return (dashboards() / name).read_bytes()
