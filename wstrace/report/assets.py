"""Where `dashboards/` is: inside the installed package, or at the root of a source checkout."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from wstrace.errors import WstraceError

_PACKAGE = Path(__file__).resolve().parent.parent


@cache
def dashboards() -> Path:
    """The folder of templates, CSS, JS and vendored files.

    Raises WstraceError when an installation lacks it.
    """
    for folder in (_PACKAGE / "dashboards", _PACKAGE.parent / "dashboards"):
        if (folder / "templates").is_dir():
            return folder
    raise WstraceError(
        "This installation of wstrace has no dashboards folder.",
        "Install the wheel again, or run from a complete source checkout.",
    )


def read_text(name: str) -> str:
    """A text asset, such as `report.css`."""
    return (dashboards() / name).read_text(encoding="utf-8")


def read_bytes(name: str) -> bytes:
    """A binary asset, such as `vendor/plotly-basic.min.js.gz`."""
    return (dashboards() / name).read_bytes()
