"""The example of docs/python-api.md prints what the page says; --update-gold writes it."""

from __future__ import annotations

import io
import re
from contextlib import chdir, redirect_stdout
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "python-api.md"
EXAMPLE = re.compile(  # `<!-- example -->`, a block of Python, a block with what it prints
    r"(?P<code><!-- example -->\n```python\n(?P<source>.*?)^```\n)"
    r"```text\n(?P<printed>.*?)^```\n",
    re.DOTALL | re.MULTILINE,
)
MARK = "# -- next block --"


def printed(sources: list[str]) -> list[str]:
    """What each block prints when all run as one script beside the sample `crash`."""
    script = f"\nprint({MARK!r})\n".join(sources)
    out = io.StringIO()
    with chdir(ROOT / "tests" / "data" / "docs"), redirect_stdout(out):
        exec(compile(script, str(PAGE), "exec"), {"__name__": "__main__"})
    return out.getvalue().split(f"{MARK}\n")


def test_the_example_prints_what_the_page_says(request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text()
    blocks = list(EXAMPLE.finditer(page))
    assert len(blocks) == page.count("<!-- example -->") >= 4
    found = printed([block["source"] for block in blocks])
    if request.config.getoption("--update-gold"):
        outputs = iter(found)
        page = EXAMPLE.sub(lambda b: f"{b['code']}```text\n{next(outputs)}```\n", page)
        PAGE.write_text(page)
        return
    assert found == [block["printed"] for block in blocks]
