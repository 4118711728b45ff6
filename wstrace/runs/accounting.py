"""What KV sizing made of the arenas: counted, not counted, or unknown, in bytes and words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wstrace.runs.worker import Worker
from wstrace.trace.records import Growth, Window
from wstrace.units import human
from wstrace.versions import vllm_text


@dataclass(frozen=True)
class Accounting:
    """Bytes that the arenas of a rank gained, by what KV sizing made of them.

    `why` says for `not counted` and `unknown` what is known of the reason.
    """

    counted: int
    not_counted: int
    unknown: int
    why: dict[Window, str]

    def line(self) -> str:
        """One line for a report; empty where no arena was seen to grow."""
        sizes: dict[Window, int] = {
            "counted": self.counted,
            "not counted": self.not_counted,
            "unknown": self.unknown,
        }
        parts = [self._part(window, size) for window, size in sizes.items() if size]
        return "arenas in KV sizing: " + ", ".join(parts) if parts else ""

    def _part(self, window: Window, size: int) -> str:
        why = self.why.get(window)
        return f"{human(size)} {window}" + (f" ({why})" if why else "")


def window_of(worker: Worker, growth: Growth) -> Window:
    """As the worker wrote it, except that a KV size that was fixed later counts nothing.

    A startup plan fixes it within determine_available_memory, when arenas of init and load
    were written already. In the graph estimate an older trace says "not counted" of all,
    where vLLM counts some of it with the graphs.
    """
    if worker.memory.fixed_kv:
        return "not counted"
    if growth.phase == "graph-estimate" and not worker.memory.window:
        return "unknown"
    return growth.window


def windows(worker: Worker) -> dict[Window, int]:
    """Bytes that the arenas of a worker gained, by window; no key where there are none."""
    gained: dict[Window, int] = {}
    for growth in worker.growths:
        window, size = window_of(worker, growth), growth.after - growth.before
        gained[window] = gained.get(window, 0) + size
    return gained


def accounting(worker: Worker) -> Accounting:
    """The accounting of one rank."""
    gained = windows(worker)
    return Accounting(
        counted=gained.get("counted", 0),
        not_counted=gained.get("not counted", 0),
        unknown=gained.get("unknown", 0),
        why={"not counted": _fixed(worker), "unknown": _why_unknown(worker)},
    )


def worst(workers: Sequence[Worker]) -> Accounting | None:
    """Of the rank with the most bytes that are not known to be counted."""
    found = [accounting(worker) for worker in workers]
    return max(found, key=lambda a: (a.not_counted + a.unknown, a.counted), default=None)


def accounting_line(workers: Sequence[Worker]) -> str:
    """The line of a report for all ranks; empty where no arena was seen to grow."""
    of = worst(workers)
    line = of.line() if of else ""
    return f"{line} (the worst of {len(workers)} ranks)" if line and len(workers) > 1 else line


def _fixed(worker: Worker) -> str:
    fixed = worker.memory.fixed_kv
    return f"the KV size is fixed by {fixed}" if fixed else ""


def _why_unknown(worker: Worker) -> str:
    phases = {g.phase for g in worker.growths if window_of(worker, g) == "unknown"}
    if phases == {"graph-estimate"}:
        return "while vLLM estimated the memory of graphs"
    if "cpu_model_runner" in worker.init.runner:
        return "a CPU worker counts the pages that were touched"
    return f"what {vllm_text(worker.header.vllm)} counts there is not known"
