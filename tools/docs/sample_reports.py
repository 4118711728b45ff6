"""report.txt and report.md beside each trace in sample_traces/, report.html for three."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tools import ROOT
from tools.docs.commands import said
from tools.docs.page import Generator, Pages

SAMPLES: Final = ROOT / "sample_traces"
KINDS: Final = {"report.txt": "text", "report.md": "markdown", "report.html": "html"}
WITH_PAGE: Final = (
    "demo-crash",
    "h100-vllm-0.21.0-turboquant-crash",
    "h100-vllm-0.21.0-turboquant-grow",
)
# matches: '<script type="application/octet-stream" id="plotly-gz">H4sIAAAA'
PLOTLY: Final = re.compile(r'(<script[^>]* id="plotly-gz">)[^<]*')


def samples() -> list[Path]:
    return sorted(path.parent for path in SAMPLES.glob("*/run.json"))


def names(sample: Path) -> list[str]:
    return [name for name in KINDS if name != "report.html" or sample.name in WITH_PAGE]


def pages() -> Pages:
    """Made from the folder above, so that no path of this machine gets into a report."""
    for sample in samples():
        for name in names(sample):
            yield sample / name, made(sample, name)


def made(sample: Path, name: str) -> str:
    with TemporaryDirectory() as folder:
        target = Path(folder) / name
        said(["report", sample.name, "--format", KINDS[name], "-o", str(target)], SAMPLES)
        return target.read_text("utf-8")


def same(made: str, kept: str) -> bool:
    """Equal but for plotly's own code: its version is the environment's."""
    return PLOTLY.sub(r"\1", made) == PLOTLY.sub(r"\1", kept)


GENERATOR: Final = Generator("sample-reports", pages, same)
