"""The report as Markdown for an issue: what a maintainer asks for, under 60 lines."""

from __future__ import annotations

import shlex

from wstrace.findings.analysed_run import AnalysedRun
from wstrace.findings.finding import Finding
from wstrace.gate.limits import model_of
from wstrace.report.finding_text import asked_text, evidence, locked_text, serving_text, sizes
from wstrace.report.safe import clean
from wstrace.report.verdict import sentence
from wstrace.runs.accounting import accounting_line
from wstrace.triage.log_run import LogRun
from wstrace.triage.redaction import redact
from wstrace.units import exact, human, plural
from wstrace.versions import vllm_text

MAX_LINES = 60
MAX_SITES = 10
MAX_FINDINGS = 3
MAX_DOUBTS = 6
SHOWN_LIMITS = (
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "block_size",
    "num_attention_heads",
    "num_kv_heads",
    "head_size",
    "tensor_parallel_size",
    "cudagraph_mode",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "num_speculative_tokens",
)


def render_markdown(run: AnalysedRun) -> str:
    """One issue's worth of text: verdict, versions, sites, evidence, how to reproduce."""
    head = f"### {escape(sentence(run))}"
    lines = [head, "", *_doubts(run), *_environment(run), "", *_sites(run)]
    for finding in [f for f in run.findings if f.severity != "note"][:MAX_FINDINGS]:
        lines += ["", *finding_lines(finding)]
    lines += ["", *_reproduce(run)]
    return "\n".join(lines[:MAX_LINES]) + "\n"


def _doubts(run: AnalysedRun) -> list[str]:
    """Why it is inconclusive, as far as the sentence above does not say it."""
    told = [why for why in run.inconclusive if why.rstrip(".") not in sentence(run)]
    lines = [escape(f"- note: {why}") for why in told[:MAX_DOUBTS]]
    if len(told) > MAX_DOUBTS:
        lines.append(f"- {len(told) - MAX_DOUBTS} more reasons: --format json")
    return [*lines, ""] if lines else []


def escape(text: str) -> str:
    """Text that cannot break out of a Markdown table cell or start markup."""
    flat = " ".join(text.split())
    for char in ("\\", "|", "`", "*", "_", "<", ">", "[", "]"):
        flat = flat.replace(char, f"\\{char}")
    return flat


def _code(text: str) -> str:
    return "`" + clean(" ".join(text.replace("`", "'").split()), 500) + "`"


def _environment(run: AnalysedRun) -> list[str]:
    if isinstance(run, LogRun):
        return [f"- {escape(vllm_text(run.vllm_version))}, read from a log"]
    if not run.workers:
        return ["No worker left a trace."]
    first = run.workers[0]
    limits = ", ".join(
        f"{name}={first.limits[name]}" for name in SHOWN_LIMITS if name in first.limits
    )
    arenas = accounting_line(run.workers)
    return [
        escape(
            f"- {vllm_text(first.header.vllm)}, torch {first.header.torch or '?'}, "
            f"Python {first.header.python}, wstrace {first.header.wstrace}"
        ),
        f"- model {_code(model_of(run) or '?')}, "
        f"{plural(len(run.workers), 'rank')}, runner {_code(first.init.runner)}",
        f"- {_code(limits)}",
        f"- {locked_text(run.workers, exact)}",
        *([f"- {escape(arenas)}"] if arenas else []),
        f"- rests on {escape('; '.join(run.rests_on.shown()))}",
    ]


def _sites(run: AnalysedRun) -> list[str]:
    if isinstance(run, LogRun):
        return []
    rows = [
        "| site | warm-up | serving | arena | can need | grade |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for site in run.sites[:MAX_SITES]:
        cells = (
            _code(site.named).replace("|", "\\|"),
            asked_text(site.warmup_bytes),
            serving_text(site),
            human(site.arena_bytes),
            human(site.bound.bytes),
            site.bound.grade,
        )
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def finding_lines(finding: Finding) -> list[str]:
    """A finding with its evidence as a list; of a trace at most seven facts."""
    place = _code(finding.named) if finding.named else "the run"
    head = f"**{finding.code}** {escape(finding.title)}: {place}"
    if finding.log is not None:
        commands = [f"- do: {_code(redact(command))}" for command in finding.log.commands]
        return [head, *(f"- {_linked(line)}" for line in evidence(finding)), *commands]
    facts = [f"- {escape(line)}" for line in evidence(finding)[:7]]
    numbers = sizes(finding)
    return [head, *([f"- {numbers}"] if numbers else []), *facts]


def _linked(line: str) -> str:
    """A link of our own data stays one; all else cannot start markup."""
    return line if line.startswith("see: https://") else escape(line)


def _reproduce(run: AnalysedRun) -> list[str]:
    if run.trace.meta is None:
        return []
    lines = [f"wstrace run -- {shlex.join(run.trace.meta.command)}"]
    worst = next((f.step for f in run.findings if f.step and f.step.requests), None)
    if worst is not None:
        longest = max(r.computed + r.scheduled for r in worst.requests)
        lines.append(f"# then a prompt of at least {longest} tokens")
    return ["Reproduce:", "```", *lines, "```"]
