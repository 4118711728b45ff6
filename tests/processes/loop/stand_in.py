"""A server on loopback that leaves the trace of one worker, as `vllm serve` would.

`python -m tests.processes.loop.stand_in serve MODEL --port N`. Its requests, arena, lock and
refusals follow vLLM's rules on small numbers; the recorder's own output writes them. What it
does otherwise stands in STAND_IN, by comma:

    roomy           warm-up made room for all
    quiet           no layer asks
    unlocked        it never locks
    beyond          a layer's own scratch is refused
    beyond_reserve  the same once there is a reserve
    refuses         the reserve, and does not start
    dies            in its start
    no_memory       in its start, before any worker, as a busy GPU makes it
    unrecorded      it serves, and no recorder is attached
    hangs           never ready
    leaves          ends with 0 at once
    slow            half a second a request
    slow_reserved   the same once there is a reserve
    deaf            it says that SIGINT came, and stays
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

import msgspec

from tests.unit.findings.build import (
    CONTINUATION,
    DECODE_SIZE,
    LIMITS,
    MOE,
    continuation,
    continuation_bytes,
)
from wstrace.recorder.settings import read_settings
from wstrace.recorder.state.output import TraceOutput
from wstrace.reserve import config as reserve_config
from wstrace.trace.records import (
    Count,
    Counts,
    End,
    Failure,
    Growth,
    Hook,
    Lock,
    Memory,
    Phase,
    PhaseChange,
    Ranks,
    Record,
    Request,
    ReserveEvent,
    Slot,
    Step,
    WorkerInit,
)

LONGEST, CHUNK, BLOCK_BYTES = 2048, 256, 8192
WORDS = frozenset(os.environ.get("STAND_IN", "").split(","))


class Engine:
    """The arena of one slot and what the two sites ask of it."""

    def __init__(self) -> None:
        self.settings = read_settings()
        recorded = self.settings.directory and "unrecorded" not in WORDS
        self.output = TraceOutput(self.settings) if recorded else None
        self.arena, self.locked, self.alive = 0, False, True
        self.steps = self.longest = 0
        self.calls: dict[tuple[int, Phase], list[int]] = {}
        self.sites = {site.id: site for site in (CONTINUATION, MOE)}
        self.turn = threading.Lock()

    def write(self, record: Record) -> None:
        if self.output is not None:
            self.output.write(msgspec.structs.replace(record))

    def start(self) -> None:
        """Load, profile with the reserve where there is one, warm up, lock."""
        limits = {**LIMITS, "cudagraph_mode": "NONE"}
        ranks, world = Ranks(dp=0, tp=0, pp=0, rank=0), Ranks(dp=1, tp=1, pp=1)
        if self.output is not None:
            self.output.write_worker(WorkerInit(ranks=ranks, world=world, limits=limits))
        self.write(Hook(name="WorkspaceManager._ensure_workspace_size", set=True))
        self._phase("load")
        self._phase("profile")
        if self.settings.reserve:
            self._reserve(Path(self.settings.reserve))
        self.write(
            Memory(available_kv_bytes=1 << 28, block_size=16, bytes_per_block=BLOCK_BYTES)
        )
        self._phase("warmup")
        if "dies" in WORDS:
            error = "ImportError: no kernels"
            self.write(
                PhaseChange(phase="init", why="compile_or_warm_up_model raised", error=error)
            )
            sys.exit(1)
        if "quiet" not in WORDS:
            self.ask(MOE.id, DECODE_SIZE, "warmup")
            if "roomy" in WORDS:
                self.ask(
                    CONTINUATION.id, continuation_bytes(LONGEST - 1), "warmup", LONGEST - 1
                )
        if not WORDS & {"unlocked", "quiet"}:
            self.locked = True
            self.write(Lock(event="lock", slots=[Slot()], sizes=[self.arena], phase="warmup"))
            self._phase("post-lock-warmup")
        self._phase("serving")

    def _phase(self, phase: Phase) -> None:
        self.write(PhaseChange(phase=phase))

    def _reserve(self, path: Path) -> None:
        loaded = reserve_config.load_reserve(path)
        if "refuses" in WORDS:
            self.write(ReserveEvent(event="refused", why="2.00 MiB are not free"))
            sys.exit(1)
        self.arena = max(slot.bytes for slot in loaded.slots)
        self.write(
            Growth(slot=Slot(), before=0, after=self.arena, phase="profile", reserve=True)
        )
        self.write(
            ReserveEvent(
                event="applied",
                slots=[Slot()],
                sizes=[self.arena],
                path=path.name,
                config=msgspec.json.encode(loaded).decode(),
            )
        )

    def ask(self, site: int, size: int, phase: Phase, computed: int = 0) -> bool:
        """One request for scratch; False where the locked arena refused it."""
        self._site(site)
        made: Request = (
            continuation(computed, self.arena, phase)
            if site == CONTINUATION.id
            else Request(site=site, slot=Slot(), bytes=size, arena=self.arena, phase=phase)
        )
        made.locked, made.step = self.locked, Step(index=self.steps, num_reqs=1)
        self.write(made)
        count = self.calls.setdefault((site, phase), [0, 0])
        count[:] = count[0] + 1, max(count[1], size)
        if size <= self.arena:
            return True
        forced = self.locked and self.settings.on_growth == "grow"
        if self.locked and not forced:
            self.write(
                Failure(
                    kind="arena",
                    site=site,
                    slot=Slot(),
                    required=size,
                    arena=self.arena,
                    phase=phase,
                    step=Step(index=self.steps),
                )
            )
            return False
        self.write(
            Growth(
                site=site,
                slot=Slot(),
                before=self.arena,
                after=size,
                phase=phase,
                locked=self.locked,
                forced=forced,
            )
        )
        self.arena = size
        return True

    def _site(self, number: int) -> None:
        """A site is told once, when it first asks."""
        if (site := self.sites.pop(number, None)) is not None:
            self.write(site)

    def complete(self, prompt: int) -> bool:
        """A prompt in chunks: each continues what is computed; then a decode step."""
        with self.turn:
            for computed in range(0, prompt, CHUNK):
                self.steps += 1
                self.longest = max(self.longest, computed)
                size = continuation_bytes(computed)
                if self.alive and computed and "quiet" not in WORDS:
                    self.alive = self.ask(CONTINUATION.id, size, "serving", computed)
            if self.alive and "quiet" not in WORDS:
                self.alive = self.ask(MOE.id, DECODE_SIZE, "serving")
            reserved = self.settings.reserve and "beyond_reserve" in WORDS
            if "beyond" in WORDS or reserved:
                self._site(MOE.id)
                kind = Failure(kind="layer", site=MOE.id, slot=Slot(), phase="serving")
                self.write(kind)
                self.alive = False
            self._count()
            return self.alive

    def _count(self) -> None:
        counts = [Count(site, Slot(), at, *told) for (site, at), told in self.calls.items()]
        self.write(
            Counts(
                step=self.steps,
                steps_real=self.steps,
                max_tokens=CHUNK,
                max_reqs=1,
                max_computed=self.longest,
                max_continued=self.longest,
                counts=counts,
            )
        )

    def end(self, *_: object) -> None:
        self._phase("shutdown")
        self.write(End(steps=self.steps))
        os._exit(0)


class Server(ThreadingTCPServer):
    """The three routes of vLLM's that `exercise` uses."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 256
    engine: Engine


class Handler(StreamRequestHandler):
    """A dead engine answers 503, and its server ends a moment later.

    HTTP/1.0 in a few lines: to import http.server takes as long as all the rest, a hundred
    times in these tests.
    """

    server: Server

    def handle(self) -> None:
        method, path, *_ = self.rfile.readline().decode().split() or ["", ""]
        length = 0
        while (line := self.rfile.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        if method == "POST":
            self._complete(json.loads(self.rfile.read(length)))
        elif path == "/health":
            self._answer(200 if self.server.engine.alive and "hangs" not in WORDS else 503, {})
        elif path:
            self._answer(200, {"data": [{"id": "tiny", "max_model_len": LONGEST}]})

    def _complete(self, body: Any) -> None:
        reserved = self.server.engine.settings.reserve and "slow_reserved" in WORDS
        if "slow" in WORDS or reserved:
            time.sleep(0.5)
        if self.server.engine.complete(len(body["prompt"])):
            self._answer(200, {"choices": []})
            return
        self._answer(500, {"error": {"message": "EngineCore encountered an issue."}})
        threading.Timer(0.2, os._exit, (1,)).start()

    def _answer(self, status: int, body: Any) -> None:
        text = json.dumps(body).encode()
        head = f"HTTP/1.0 {status} -\r\nContent-Length: {len(text)}\r\n\r\n"
        self.wfile.write(head.encode() + text)


def main(words: list[str]) -> None:
    if "leaves" in WORDS:
        return
    if "no_memory" in WORDS:
        sys.exit(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.\n"
            "RuntimeError: Engine core initialization failed. See root cause above."
        )
    engine = Engine()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, engine.end)
    engine.start()
    port = int(words[words.index("--port") + 1])
    if "deaf" in WORDS:
        signal.signal(signal.SIGINT, lambda *_: print("SIGINT: no", flush=True))
    server = Server(("127.0.0.1", port), Handler)
    server.engine = engine
    print("ready", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
