"""The page: data into templates, scripts into a policy that lets nothing else run.

The file is complete in itself. Its Content-Security-Policy forbids every request and allows
exactly two scripts, by their hashes: ours, and plotly's, which the page inflates itself.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

import wstrace
from wstrace.report import assets
from wstrace.report.finding_text import asked_text
from wstrace.report.html.names import unbroken
from wstrace.units import exact, human, plural

PLOTLY: Final = "vendor/plotly-basic.min.js.gz"
_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; connect-src 'none'; "
    "base-uri 'none'; form-action 'none'; script-src {scripts}"
)


def build(template: str, context: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
    """Render `template` with our CSS, JS, the figures' specs and plotly inlined."""
    script = assets.read_text("report.js")
    policy = [_hash(script.encode())] + ([_plotly_hash()] if figures else [])
    return (
        _environment()
        .get_template(template)
        .render(
            **context,
            version=wstrace.__version__,
            css=Markup(assets.read_text("report.css")),
            script=Markup(script),
            policy=_POLICY.format(scripts=" ".join(policy)),
            figures=script_json(figures),
            plotly=_plotly() if figures else "",
        )
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(assets.dashboards() / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        size=human,
        asked=asked_text,
        exact=exact,
        count=plural,
        breaks=breaks,
        words=words,
    )
    return environment


def breaks(text: str) -> Markup:
    """`text` escaped, with places where a narrow screen may break a long name; a size keeps its
    unit."""
    # may break after each / . and :
    # matches: "vllm/v1/attention/mla.py:12"
    parts = re.split(r"(?<=[/:._,])", unbroken(text))
    return Markup("<wbr>").join(parts)


def words(text: str) -> Markup:
    """A command, escaped: a line ends between two words, not behind a hyphen of an option."""
    parts = (Markup('<span class="word">{}</span>').format(word) for word in text.split(" "))
    return Markup(" ").join(parts)


def script_json(value: Mapping[str, Any]) -> Markup:
    """JSON for a `<script type="application/json">`: no `<` is left that could close it."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    escaped = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Markup(escaped)


def _hash(script: bytes) -> str:
    digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
    return f"'sha256-{digest}'"


@cache
def _plotly() -> str:
    return base64.b64encode(assets.read_bytes(PLOTLY)).decode()


@cache
def _plotly_hash() -> str:
    return _hash(gzip.decompress(assets.read_bytes(PLOTLY)))
