"""On which machine a result was measured, and the page that it goes into."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

from tools.docs.page import between

END = "<!-- end -->"


def machine() -> str:
    return (
        f"vLLM {version('vllm')}, PyTorch {version('torch')}, "
        f"Python {platform.python_version()}, {cpu_name()}, load average "
        f"{os.getloadavg()[0]:.1f}."
    )


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{named[0]}, {len(named)} cores" if named else platform.machine()


def write(page: Path, text: str, begin: str, end: str = END) -> None:
    """Put `text` between the page's two marks."""
    page.write_text(between(page.read_text(), begin, end, text))
