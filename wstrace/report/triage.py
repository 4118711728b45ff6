"""What `wstrace triage` prints: the common findings below a line about the texts.

Markdown is made to be pasted, and what is pasted stays for ever: only facts that were read
out, no line of the log.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import PurePath
from typing import Final

from wstrace.findings.finding import Finding
from wstrace.report.finding_json import triage_json
from wstrace.report.finding_text import MAX_LINE, block
from wstrace.report.markdown import escape, finding_lines
from wstrace.report.safe import clean
from wstrace.triage.diagnose.relatives import NotTheArena
from wstrace.triage.diagnose.what_worked import Worked
from wstrace.triage.redaction import redact, redact_value
from wstrace.triage.report import Report
from wstrace.units import exact, plural

WIDTH: Final = 80
FULL: Final = 2
NOTHING: Final = "No failure found: the text states no workspace failure of vLLM."
BESIDE: Final = "No failure of the arena, but one that looks like it:"
_NAMES: Final = "max_model_len, max_num_batched_tokens, max_num_seqs"


def render_json(report: Report) -> str:
    """The contract in shared form: see `triage_json`."""
    return json.dumps(triage_json(report), indent=2) + "\n"


def render_text(report: Report, width: int = WIDTH) -> str:
    """The worst two findings in full, the others in a line each."""
    found = report.incidents
    lines = [*_head(report, found)]
    for number, finding in enumerate(found[:FULL]):
        lines += [*([""] if number else []), *block(finding, width)]
    lines += [_also(finding) for finding in found[FULL:]]
    if len(found) > FULL:
        lines += ["", "Everything in full: --format markdown"]
    for relative in report.relatives:
        lines += ["", *relative_block(relative, width)]
    lines += [line for worked in report.worked for line in _worked(worked, width)]
    lines += [f"note: {note}" for note in report.notes]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _head(report: Report, found: list[Finding]) -> Iterator[str]:
    if not found:
        yield BESIDE if report.relatives else NOTHING
        if report.skipped:
            times = "once" if report.skipped == 1 else f"{report.skipped} times"
            yield f"It speaks of the message {times} without numbers."
        return
    names = (PurePath(path).name if path != "-" else "stdin" for path in report.paths)
    named = [*dict.fromkeys(names)]
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    yield f"{', '.join(named[:3])}{more}: {plural(len(found), 'finding')}"


def relative_block(relative: NotTheArena, width: int) -> list[str]:
    """What is not the arena, as plain lines."""
    lines = textwrap.wrap(f"not the arena: {_titled(relative)}", width, subsequent_indent="  ")
    lines += textwrap.wrap(
        clean(f"why: {relative.why}", MAX_LINE),
        width,
        initial_indent="  ",
        subsequent_indent="      ",
    )
    sizes = (("asked for", relative.asked), ("had", relative.had))
    lines += [f"  {name}: {exact(size)}" for name, size in sizes if size is not None]
    name = "stdin" if relative.path == "-" else PurePath(relative.path).name
    lines.append(f"  seen: line {relative.at} of {redact(name)}")
    return [*lines, f"  do: {clean(relative.knob)}"]


def _worked(worked: Worked, width: int) -> list[str]:
    """`worked, says comment 3: --enforce-eager`, with the sentence."""
    settings = f": {', '.join(worked.settings)}" if worked.settings else ""
    lines = [f"worked, says {worked.part}{settings}", f'"{worked.says}"']
    if worked.url:
        lines[0] += f" ({worked.url})"
    return [
        "",
        clean(lines[0]),
        *textwrap.wrap(clean(lines[1]), width, initial_indent="  ", subsequent_indent="  "),
    ]


def _titled(relative: NotTheArena) -> str:
    site = ":".join(filter(None, (relative.file, relative.function)))
    return clean(f"{site}: {relative.title}" if site else relative.title)


def _also(finding: Finding) -> str:
    return f"\nalso {finding.code} {finding.where}: {finding.detail}"


def render_markdown(report: Report) -> str:
    """Markdown for an issue or a chat."""
    found = report.incidents
    if not found and not report.relatives:
        return NOTHING + "\n"
    lines = [f"### {escape(next(_head(report, found)))}", ""]
    for finding in found:
        lines += [*finding_lines(finding), ""]
    for relative in report.relatives:
        lines += [
            f"**Not the arena: {escape(_titled(relative))}**",
            "",
            escape(relative.why),
            "",
        ]
        lines += [f"- do: `{relative.knob}`", ""]
    for worked in report.worked:
        said = ", ".join(f"`{setting}`" for setting in worked.settings) or "no setting named"
        lines += [f"Said to work in {worked.part}: {said}", ""]
    lines += [*_config(report), "", "Made by `wstrace triage`; no line of the log is quoted."]
    return "\n".join(lines) + "\n"


def _config(report: Report) -> Iterator[str]:
    if not report.config:
        yield f"The log shows no configuration ({_NAMES} would help)."
        return
    yield from ("<details><summary>Configuration in the log</summary>", "", "```yaml")
    yield from (f"{name}: {value}" for name, value in redact_value(report.config).items())
    yield from ("```", "", "</details>")
