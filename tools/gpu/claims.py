"""The claims of every scenario, checked against the run's own files.

Nothing here starts anything: `table_of` can be called again on an unpacked result.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from tools.gpu import deepseek_v4, experts, guarded, prompts
from tools.gpu.claims_crash import crash_claims, expected
from tools.gpu.claims_overhead import overhead_claims
from tools.gpu.evidence import Evidence
from tools.gpu.outcomes import answered, answers, has, lacks, near_bound, no_growth, shown
from tools.gpu.table import Claim, Outcome, claim, equal
from wstrace.errors import WstraceError
from wstrace.trace.records import Slot


def table_of(folder: Path) -> tuple[list[Claim], list[str]]:
    """The claims of one scenario's folder, and what did not run there.

    Raises WstraceError where the folder is not an unpacked result.
    """
    setting = setting_of(folder)
    claims = CHECKS[setting["scenario"]](folder, setting)
    problems = folder / "problems.json"
    try:
        rows = json.loads(problems.read_text()) if problems.exists() else []
        told = [f"{folder.name}: {r['who']}: {r['what']} {r['hint']}".strip() for r in rows]
    except (ValueError, KeyError, TypeError):
        told = [f"{folder.name}: problems.json cannot be read"]
    return claims, told


def setting_of(folder: Path) -> dict[str, Any]:
    """scenario.json of an unpacked result. Raises WstraceError where it is not one."""
    try:
        setting: dict[str, Any] = json.loads((folder / "scenario.json").read_text())
        known = setting["scenario"] in CHECKS
    except (OSError, ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise WstraceError(
            f"{folder} is not a result of a scenario.",
            "Give the folder that unpacking SCENARIO.tar.gz makes.",
        )
    return setting


def builder_claims(folder: Path, setting: dict[str, Any]) -> list[Claim]:
    """b: vLLM 0.26."""
    chunked, prefix = Evidence(folder / "chunked"), Evidence(folder / "prefix")
    reserved = Evidence(folder / "reserved-prefix")

    def builder() -> Outcome:
        growths = [g for v in chunked.workers for g in v.growths if g.phase == "kv-init"]
        found = [f"{v.where(g.site)['caller']}" for v in chunked.workers for g in growths]
        ok = any("_reserve_workspace" in caller for caller in found)
        return "_reserve_workspace in kv-init", [*found, *(g.after for g in growths)], ok

    def covered() -> Outcome:
        answered(chunked, prompts.BUILDER)
        most = max(g.after for v in chunked.workers for g in v.growths if g.phase == "kv-init")
        asked = max(a.bytes for v in chunked.workers for u in v.sites.values() for a in u.after)
        return f"serving stays within {most:,}", asked, asked <= most

    def regrown() -> Outcome:
        cached = [n // 32 * 32 * setting["token_bytes"] for n in setting["prefixes"][1:-1]]
        found = [g.after for v in prefix.workers for g in v.growths if g.phase == "serving"]
        return equal(cached, found)

    rows = [
        ("chunked: every prompt answered", lambda: answers(chunked, prompts.BUILDER)),
        ("chunked: the builder's own reservation was seen", builder),
        ("chunked: it covers what serving asked for", covered),
        ("chunked: WS201, KV sizing never saw it", lambda: has(chunked, "WS201")),
        ("prefix caching: every prompt answered", lambda: answers(prefix, prompts.PREFIXES)),
        ("prefix caching: arenas in serving = cached tokens * 2 * Hk * D * 2", regrown),
        ("prefix caching: WS301", lambda: has(prefix, "WS301")),
        ("prefix caching: WS202", lambda: has(prefix, "WS202")),
        ("prefix caching: gate --allow-unlocked exits 1", lambda: equal(1, prefix.gate_exit)),
        ("reserved: every prompt answered", lambda: answers(reserved, prompts.PREFIXES)),
        ("reserved: no growth in serving", lambda: no_growth(reserved)),
        ("reserved: WS301 gone", lambda: lacks(reserved, "WS301")),
        ("reserved: WS202 gone", lambda: lacks(reserved, "WS202")),
        ("reserved: gate --allow-unlocked exits 0", lambda: equal(0, reserved.gate_exit)),
    ]
    return [claim("b", text, check) for text, check in rows]


def parallel_claims(folder: Path, setting: dict[str, Any]) -> list[Claim]:
    """d: tensor parallel."""
    grow, reserved = Evidence(folder / "grow"), Evidence(folder / "reserved-grow")
    turbo, tp = setting["turbo"], setting["tensor_parallel"]
    heads = turbo["num_kv_heads"] // tp

    def escapes() -> Outcome:
        tokens = [n for n, _ in answered(grow, prompts.PARALLEL)]
        wanted = [expected(turbo | {"num_kv_heads": heads}, tokens)] * tp
        return equal(wanted, [max(g.after for g in v.growths) for v in grow.workers])

    def gate() -> Outcome:
        answered(grow, prompts.PARALLEL)
        return equal(1, grow.gate_exit)

    def arenas() -> Outcome:
        rounded = -(-(turbo["max_model_len"] - 1) // turbo["block"]) * turbo["block"]
        wanted = [2 * heads * rounded * turbo["head_size"] * 2] * tp
        return equal(wanted, [v.arena(Slot()) for v in reserved.workers])

    rows = [
        ("growing: two workers recorded", lambda: equal(tp, len(grow.workers))),
        ("growing: every prompt answered", lambda: answers(grow, prompts.PARALLEL)),
        ("growing: largest arena of each rank = 2*Hk*cached*D*2", escapes),
        ("growing: WS204 absent", lambda: lacks(grow, "WS204")),
        ("growing: gate exits 1", gate),
        ("reserved: arena of each rank = 2*Hk*round_up(max_model_len-1, 16)*D*2", arenas),
        ("reserved: every prompt answered", lambda: answers(reserved, prompts.PARALLEL_CURED)),
        ("reserved: WS204 absent", lambda: lacks(reserved, "WS204")),
        ("reserved: gate exits 0", lambda: equal(0, reserved.gate_exit)),
    ]
    return [claim("d", text, check) for text, check in rows]


def latent_claims(folder: Path, setting: dict[str, Any]) -> list[Claim]:
    """e: MLA and sparse MLA: its sites, with what each asked."""
    found = []
    for name in ("mla", "sparse-mla"):
        ev = Evidence(folder / name)

        def sites(ev: Evidence = ev) -> Outcome:
            rows = [f"{s.key} {s.largest:,}" for s in ev.analysed.sites]
            return "its sites", rows, bool(ev.workers) and bool(rows)

        def close(ev: Evidence = ev) -> Outcome:
            return near_bound(ev, prompts.LATENT)

        def gate(ev: Evidence = ev) -> Outcome:
            return "0 or 1", ev.gate_exit, ev.gate_exit in (0, 1)

        found += [
            claim("e", f"{name}: every prompt answered", partial(answers, ev, prompts.LATENT)),
            claim("e", f"{name}: sites traced", sites),
            claim("e", f"{name}: requests in serving, against their bounds", close),
            claim("e", f"{name}: gate --allow-unlocked reaches a verdict", gate),
        ]
    return found


def dcp_claims(folder: Path, setting: dict[str, Any]) -> list[Claim]:
    """f: decode context parallelism."""
    grow, crash = Evidence(folder / "grow"), Evidence(folder / "crash")

    def escape() -> Outcome:
        found = [f for f in grow.gate["findings"] if f["code"] in ("WS101", "WS102")]
        names = sorted({f["function"] for f in found})
        wanted = "FlashAttentionImpl._forward_with_dcp"
        return wanted, names, wanted in names

    def largest() -> Outcome:
        tokens = min(setting["chunk"], max(setting["prompts"]))
        wanted = tokens * setting["heads"] * setting["head_size"] * 2
        sites = [s for s in grow.analysed.sites if s.key.function.endswith("_forward_with_dcp")]
        return equal(wanted, max(s.serving_bytes for s in sites))

    def seen() -> Outcome:
        caller = crash.locked_error()["caller"]
        return "_forward_with_dcp", caller, caller.endswith("_forward_with_dcp")

    rows = [
        ("growing: every prompt answered", lambda: answers(grow, prompts.DCP)),
        ("growing: the predicted escape", escape),
        ("growing: largest request = tokens * heads * D * 2", largest),
        ("growing: gate exits 1", lambda: equal(1, grow.gate_exit)),
        ("as it is: prompts answered", lambda: equal(["4: 200", "1000: 500"], shown(crash))),
        ("as it is: vLLM's error names the site", seen),
        ("as it is: gate exits 1", lambda: equal(1, crash.gate_exit)),
    ]
    return [claim("f", text, check) for text, check in rows]


CHECKS: Final[dict[str, Callable[[Path, dict[str, Any]], list[Claim]]]] = {
    "a": crash_claims,
    "b": builder_claims,
    "c": experts.claims,
    "d": parallel_claims,
    "e": latent_claims,
    "f": dcp_claims,
    "g": deepseek_v4.claims,
    "h": guarded.claims,
    "h-prefix": guarded.claims,
    "i": experts.claims,
    "j": experts.claims,
    "overhead": overhead_claims,
}
