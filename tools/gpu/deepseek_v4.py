"""Scenario g: DeepSeek-V4, as released and without its reservation; and its claims."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from tools.gpu.claims_crash import shown
from tools.gpu.evidence import Evidence, MissingError
from tools.gpu.host import Host
from tools.gpu.models import DEEPSEEK_V4
from tools.gpu.runner import Runner, asks, until_death
from tools.gpu.servers import TOKENS_OUT
from tools.gpu.table import Claim, Outcome, claim, equal
from tools.gpu.unreserved import DEEPSEEK_V4 as PLACE
from tools.gpu.unreserved import without_reservation

LENGTH: Final = 16384
LONG: Final = 65536
BATCHED: Final = 2048
SHORT: Final = (50, 1300)
LONGEST: Final = LENGTH - TOKENS_OUT
SITE: Final = "_forward_prefill"
# The chunk of prefills that one gather covers: PREFILL_CHUNK_SIZE of vLLM 0.22 to 0.26.
CHUNK: Final = 4


def arguments(length: int = LENGTH) -> tuple[str, ...]:
    """The flags of a DeepSeek-V4 server. Block size 256 and fp8 are what its kernels take."""
    return (
        *("--skip-tokenizer-init", "--max-model-len", str(length)),
        *("--max-num-batched-tokens", str(BATCHED), "--max-num-seqs", "4"),
        *("--kv-cache-dtype", "fp8", "--block-size", "256"),
        *("--compilation-config", '{"cudagraph_capture_sizes":[1,2,4]}'),
    )


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
    unreserved = _unreserved(run)
    plain = run.server("plain", "deepseek-v4", arguments())
    grow = run.server("grow", "deepseek-v4", arguments(), "--on-growth", "grow")
    killed = run.server("killed", "deepseek-v4", arguments())
    for server in (grow, killed):
        server.use(unreserved)
    run.together(  # the one that dies comes last: what it frees would falsify another's sizing
        asks(grow, [*SHORT, LONGEST]),
        asks(plain, [*SHORT, LONGEST]),
        (killed, partial(until_death, killed, [SHORT[-1]])),
    )
    run.stop()
    run.judge_all()


def deepseek_v4_rest(run: Runner) -> None:
    """g-rest: the second half of `g`: reserved; hidden by MoE and by the indexer."""
    (run.folder / "problems.json").unlink(missing_ok=True)
    unreserved = _unreserved(run)
    sources = [run.server(name, "deepseek-v4", arguments()) for name in ("grow", "killed")]
    cured = [s for source in sources for s in run.reserved(source, arguments(), "deepseek-v4")]
    moe = run.server("hidden-moe", "deepseek-v4-top-6", arguments())
    indexer = run.server("hidden-indexer", "deepseek-v4", arguments(LONG))
    for server in (*cured, moe, indexer):
        server.use(unreserved)
    run.together(
        *(asks(server, [*SHORT, LONGEST]) for server in cured),
        asks(moe, SHORT),
        asks(indexer, SHORT),
    )
    run.stop()
    run.server("plain", "deepseek-v4", arguments())
    run.judge_all()


def _unreserved(run: Runner) -> Host:
    """The engine without the reservation; which lines went stands in scenario.json."""
    host = replace(run.host, engine_root=run.folder.parent / "engine-unreserved")
    removed = without_reservation(run.host.engine_root, host.engine_root, *PLACE)
    run.setting(scenario="g", removed=asdict(removed), **run.host.facts())
    return host


def answers(ev: Evidence, planned: tuple[int, ...]) -> Outcome:
    """Every planned prompt was answered."""
    return equal([f"{n}: 200" for n in planned], shown(ev))


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
    rows = [
        *_plain(Evidence(folder / "plain")),
        *_killed(Evidence(folder / "killed")),
        *_grown(Evidence(folder / "grow")),
        *_hidden(Evidence(folder / "hidden-moe"), LENGTH),
        *_hidden(Evidence(folder / "hidden-indexer"), LONG),
    ]
    for name in ("grow", "killed"):
        rows += _cured(Evidence(folder / name), Evidence(folder / f"reserved-{name}"))
    return [claim("g", text, check) for text, check in rows]


def _plain(ev: Evidence) -> list[tuple[str, Any]]:
    def no_escape() -> Outcome:
        bad = [c for c in ev.judged() if c in ("WS101", "WS102", "WS304")]
        return equal([], bad)

    return [
        ("as released: every prompt answered", lambda: answers(ev, (*SHORT, LONGEST))),
        ("as released: no escape, and no WS304 (streams are ordered)", no_escape),
        ("as released: gate exits 0", lambda: equal(0, ev.gate_exit)),
    ]


def _killed(ev: Evidence) -> list[tuple[str, Any]]:
    def statuses() -> Outcome:
        return equal([500], [status for _, status in ev.prompts if status != 200])

    def in_log() -> Outcome:
        error = ev.locked_error()
        wanted = f"{SITE}, {gather_bytes(LENGTH) / 2**20:.2f} MB"
        caller = str(error["caller"]).rsplit(":", 1)[-1]
        return equal(wanted, f"{caller}, {error['required']} MB")

    def named() -> Outcome:
        return equal(ev.locked_error()["caller"], finding(ev, "WS101", "WS102")["caller"])

    def size() -> Outcome:
        return equal(gather_bytes(LENGTH), finding(ev, "WS101", "WS102")["serving_bytes"])

    def arena() -> Outcome:
        arena = finding(ev, "WS101", "WS102")["arena_bytes"] / 2**20
        return equal(f"{ev.locked_error()['current']} MB", f"{arena:.2f} MB")

    return [
        ("unreserved: the engine dies of one prompt", statuses),
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


def _grown(ev: Evidence) -> list[tuple[str, Any]]:
    return [
        ("grown: every prompt answered", lambda: answers(ev, (*SHORT, LONGEST))),
        ("grown: the escape is found", lambda: equal(SITE, _name(ev))),
        ("grown: the bound is proved, to the byte", lambda: _proved(ev, LENGTH)),
        ("grown: gate exits 1", lambda: equal(1, ev.gate_exit)),
    ]


def _name(ev: Evidence) -> str:
    return str(finding(ev, "WS101", "WS102")["function"]).rsplit(".", 1)[-1]


def _hidden(ev: Evidence, length: int) -> list[tuple[str, Any]]:
    name = ev.folder.name

    def hidden() -> Outcome:
        found = finding(ev, "WS103")
        wanted = gather_bytes(length)
        return equal([wanted, True], [found["serving_bytes"], found["arena_bytes"] >= wanted])

    return [
        (f"{name}: every prompt answered", lambda: answers(ev, SHORT)),
        (f"{name}: WS103, the neighbour's arena is larger", hidden),
        (f"{name}: the bound is proved, to the byte", lambda: _proved(ev, length)),
    ]


def _cured(source: Evidence, ev: Evidence) -> list[tuple[str, Any]]:
    name = ev.folder.name

    def size() -> Outcome:
        slots = source.json("reserve.json")["slots"]
        return equal([gather_bytes(LENGTH)], [slot["bytes"] for slot in slots])

    def growth() -> Outcome:
        ev.judged()
        late = [g.after for v in ev.workers for g in v.growths if g.phase == "serving"]
        return equal([], late)

    return [
        (f"{name}: the reserve is the gather buffer, to the byte", size),
        (f"{name}: every prompt answered", lambda: answers(ev, (*SHORT, LONGEST))),
        (f"{name}: no growth in serving", growth),
        (f"{name}: gate exits 0", lambda: equal(0, ev.gate_exit)),
    ]
