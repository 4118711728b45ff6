"""Scenario g: DeepSeek-V4, as released and without its reservation; and its claims."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from tools.gpu.evidence import Evidence, MissingError
from tools.gpu.host import Host
from tools.gpu.models import DEEPSEEK_V4
from tools.gpu.outcomes import answers, lacks, no_growth
from tools.gpu.prompts import AtOnce, Prompts
from tools.gpu.runner import Runner, asks, until_death
from tools.gpu.servers import TOKENS_OUT
from tools.gpu.table import Claim, Outcome, claim, equal
from tools.gpu.unreserved import DEEPSEEK_V4 as PLACE
from tools.gpu.unreserved import without_reservation
from wstrace.trace.site_key import SiteKey
from wstrace.versions import release_of

LENGTH: Final = 16384
LONG: Final = 65536
BATCHED: Final = 2048
SHORT: Final = (50, 1300)
LONGEST: Final = LENGTH - TOKENS_OUT
SITE: Final = "_forward_prefill"
EXPERTS: Final = "_allocate_buffers"
INDEXER: Final = "sparse_attn_indexer"
# The chunk of prefills that one gather covers: PREFILL_CHUNK_SIZE of vLLM 0.22 to 0.26.
CHUNK: Final = 4
# From 0.24 one gather holds as many prefills as fit into the area of CHUNK widest ones, and
# is no larger than they are: one prompt alone asks for a quarter of the bound. Eight prompts
# in one step, each with a share of its tokens, come near it.
BY_AREA: Final = "0.24.0"
AT_ONCE: Final = 8
SHARE: Final = BATCHED // AT_ONCE
CROWD: Final = AtOnce(tuple(range(12000, 12000 + AT_ONCE)))


def by_area(version: str) -> bool:
    """Whether this release plans the chunks of a gather by their area."""
    return release_of(version).has(BY_AREA)


def arguments(version: str, length: int = LENGTH) -> tuple[str, ...]:
    """The flags of a DeepSeek-V4 server. Block size 256 and fp8 are what its kernels take."""
    crowd = by_area(version)
    return (
        *("--skip-tokenizer-init", "--max-model-len", str(length)),
        *("--max-num-batched-tokens", str(BATCHED)),
        *("--max-num-seqs", str(AT_ONCE if crowd else 4)),
        *(("--long-prefill-token-threshold", str(SHARE)) if crowd else ()),
        *("--kv-cache-dtype", "fp8", "--block-size", "256"),
        *("--compilation-config", '{"cudagraph_capture_sizes":[1,2,4]}'),
    )


def deadly(version: str) -> Prompts:
    """What needs more than the arena of a server without the reservation."""
    return (CROWD,) if by_area(version) else (SHORT[-1],)


def all_prompts(version: str) -> Prompts:
    """From the shortest to the longest, the crowd of a release that needs one included."""
    return (*SHORT, *((CROWD,) if by_area(version) else ()), LONGEST)


def gather_bytes(length: int) -> int:
    """The gather buffer of one prefill request, bytes: plain arithmetic.

    CHUNK rows of the compressed pool (a layer of ratio 4), the sliding window and one step's
    tokens, head_dim wide, two bytes an element.
    """
    config = DEEPSEEK_V4
    compressed = -(-length // 4)
    rows = compressed + int(config["sliding_window"]) + BATCHED
    return CHUNK * rows * int(config["head_dim"]) * 2


def deepseek_v4(run: Runner) -> None:
    """g: as released; killed and grown without the reservation."""
    version, unreserved = _unreserved(run)
    flags = arguments(version)
    plain = run.server("plain", "deepseek-v4", flags)
    grow = run.server("grow", "deepseek-v4", flags, "--on-growth", "grow")
    killed = run.server("killed", "deepseek-v4", flags)
    for server in (grow, killed):
        server.use(unreserved)
    run.together(  # the one that dies comes last: what it frees would falsify another's sizing
        asks(grow, all_prompts(version)),
        asks(plain, all_prompts(version)),
        (killed, partial(until_death, killed, deadly(version))),
    )
    run.stop()
    run.judge_all()


def deepseek_v4_rest(run: Runner) -> None:
    """g-rest: the second half of `g`: reserved; hidden by MoE and by the indexer."""
    (run.folder / "problems.json").unlink(missing_ok=True)
    version, unreserved = _unreserved(run)
    flags = arguments(version)
    sources = [run.server(name, "deepseek-v4", flags) for name in ("grow", "killed")]
    cured = [s for source in sources for s in run.reserved(source, flags, "deepseek-v4")]
    moe = run.server("hidden-moe", "deepseek-v4-top-6", flags)
    indexer = run.server("hidden-indexer", "deepseek-v4", arguments(version, LONG))
    for server in (*cured, moe, indexer):
        server.use(unreserved)
    run.together(
        *(asks(server, all_prompts(version)) for server in cured),
        asks(moe, SHORT),
        asks(indexer, SHORT),
    )
    run.stop()
    run.server("plain", "deepseek-v4", flags)
    run.judge_all()


def _unreserved(run: Runner) -> tuple[str, Host]:
    """vLLM's version, and the engine without the reservation (its lines: scenario.json)."""
    host = replace(run.host, engine_root=run.folder.parent / "engine-unreserved")
    removed = without_reservation(run.host.engine_root, host.engine_root, *PLACE)
    facts = run.host.facts()
    run.setting(scenario="g", removed=asdict(removed), **facts)
    return str(facts["vllm"]), host


def finding(ev: Evidence, *codes: str) -> dict[str, Any]:
    """The finding on the prefill's site with one of these codes."""
    found = [
        f for f in ev.gate["findings"] if f["code"] in codes and f["function"].endswith(SITE)
    ]
    if not found:
        raise MissingError(f"{ev.folder.name}: none of {codes} among {ev.codes()}")
    first: dict[str, Any] = found[0]
    return first


def claims(folder: Path, setting: dict[str, Any]) -> list[Claim]:
    """All rows of scenario g."""
    version = setting["vllm"]
    everything = flat(all_prompts(version))
    rows = [
        *_plain(Evidence(folder / "plain"), everything),
        *_killed(Evidence(folder / "killed"), version),
        *_grown(Evidence(folder / "grow"), everything),
        *_hidden(Evidence(folder / "hidden-moe"), LENGTH, version, EXPERTS),
        *_hidden(Evidence(folder / "hidden-indexer"), LONG, version, INDEXER),
    ]
    for name in ("grow", "killed"):
        source, cured = Evidence(folder / name), Evidence(folder / f"reserved-{name}")
        rows += _cured(source, cured, everything)
    return [claim("g", text, check) for text, check in rows]


def flat(prompts: Prompts) -> tuple[int, ...]:
    """The lengths in order, those sent at once among them."""
    each = (one.lengths if isinstance(one, AtOnce) else (one,) for one in prompts)
    return tuple(n for lengths in each for n in lengths if isinstance(n, int))


def _plain(ev: Evidence, planned: tuple[int, ...]) -> list[tuple[str, Any]]:
    return [
        ("as released: every prompt answered", lambda: answers(ev, planned)),
        (
            "as released: no escape, and no WS304 (streams are ordered)",
            lambda: lacks(ev, "WS101", "WS102", "WS304"),
        ),
        ("as released: gate exits 0", lambda: equal(0, ev.gate_exit)),
    ]


def _asked(found: int, length: int, version: str) -> Outcome:
    """Serving's largest request: the whole buffer, or a chunk of it where planned by area."""
    whole = gather_bytes(length)
    if not by_area(version):
        return equal(whole, found)
    return f"a chunk of at most {whole:,}", found, 0 < found <= whole


def _killed(ev: Evidence, version: str) -> list[tuple[str, Any]]:
    def statuses() -> Outcome:
        bad = [status for _, status in ev.prompts if status != 200]
        return "500 from the first that failed", bad, bool(bad) and set(bad) == {500}

    def in_log() -> Outcome:
        error = ev.locked_error()
        wanted = f"{SITE}, {finding(ev, 'WS101', 'WS102')['serving_bytes'] / 2**20:.2f} MB"
        caller = SiteKey.called(str(error["caller"])).function
        return equal(wanted, f"{caller}, {error['required']} MB")

    def named() -> Outcome:
        return equal(ev.locked_error()["caller"], finding(ev, "WS101", "WS102")["caller"])

    def size() -> Outcome:
        return _asked(finding(ev, "WS101", "WS102")["serving_bytes"], LENGTH, version)

    def arena() -> Outcome:
        arena = finding(ev, "WS101", "WS102")["arena_bytes"] / 2**20
        return equal(f"{ev.locked_error()['current']} MB", f"{arena:.2f} MB")

    return [
        ("unreserved: the engine dies of it", statuses),
        ("unreserved: vLLM's error names the site and its bytes", in_log),
        ("unreserved: wstrace names the caller that vLLM's log names", named),
        ("unreserved: wstrace's bytes", size),
        ("unreserved: the arena that vLLM's log names", arena),
        ("unreserved: one story, no WS103 beside it", lambda: _one_story(ev)),
        ("unreserved: the bound is proved, to the byte", lambda: _proved(ev, LENGTH)),
        ("unreserved: gate exits 1", lambda: equal(1, ev.gate_exit)),
    ]


def _one_story(ev: Evidence) -> Outcome:
    codes = [f["code"] for f in ev.gate["findings"] if str(f["function"]).endswith(SITE)]
    return "one code", codes, len(codes) == 1


def _proved(ev: Evidence, length: int) -> Outcome:
    bound = finding(ev, "WS101", "WS102", "WS103")["bound"]
    return equal(["proved", gather_bytes(length)], [bound["grade"], bound["bytes"]])


def _grown(ev: Evidence, planned: tuple[int, ...]) -> list[tuple[str, Any]]:
    return [
        ("grown: every prompt answered", lambda: answers(ev, planned)),
        ("grown: the escape is found", lambda: equal(SITE, _name(ev))),
        ("grown: the bound is proved, to the byte", lambda: _proved(ev, LENGTH)),
        ("grown: gate exits 1", lambda: equal(1, ev.gate_exit)),
    ]


def _name(ev: Evidence) -> str:
    return str(finding(ev, "WS101", "WS102")["function"]).rsplit(".", 1)[-1]


def _hidden(ev: Evidence, length: int, version: str, neighbour: str) -> list[tuple[str, Any]]:
    name = ev.folder.name

    def size() -> Outcome:
        return _asked(finding(ev, "WS103")["serving_bytes"], length, version)

    def hidden() -> Outcome:
        arena, whole = finding(ev, "WS103")["arena_bytes"], gather_bytes(length)
        name, largest = _largest_neighbour(ev)
        ok = name == neighbour and largest == arena >= whole
        wanted = f"an arena of at least {whole:,}, by {neighbour}"
        return wanted, f"{arena:,}, {largest:,} by {name}", ok

    return [
        (f"{name}: every prompt answered", lambda: answers(ev, SHORT)),
        (f"{name}: WS103, the neighbour's arena is larger", hidden),
        (f"{name}: wstrace's bytes", size),
        (f"{name}: the bound is proved, to the byte", lambda: _proved(ev, length)),
    ]


def _largest_neighbour(ev: Evidence) -> tuple[str, int]:
    """The other site of the largest request before the lock, and its bytes."""
    others = [
        (site.warmup_bytes, SiteKey.called(site.caller).function)
        for site in ev.analysed.sites
        if not site.caller.endswith(SITE)
    ]
    size, name = max(others, default=(0, "none"))
    return name, size


def _cured(source: Evidence, ev: Evidence, planned: tuple[int, ...]) -> list[tuple[str, Any]]:
    name = ev.folder.name

    def size() -> Outcome:
        slots = source.json("reserve.json")["slots"]
        return equal([gather_bytes(LENGTH)], [slot["bytes"] for slot in slots])

    return [
        (f"{name}: the reserve is the gather buffer, to the byte", size),
        (f"{name}: every prompt answered", lambda: answers(ev, planned)),
        (f"{name}: no growth in serving", lambda: no_growth(ev)),
        (f"{name}: gate exits 0", lambda: equal(0, ev.gate_exit)),
    ]
