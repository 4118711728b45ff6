"""Where the work is done: this process, a pool of processes, or an existing Ray cluster.

Each engine takes batches of sources and gives rows as they are done, with a bounded number of
batches under way. A process that dies loses the row that killed it and no other.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, Final

from wstrace.cli.fleet.job import Job, do
from wstrace.cli.sigterm import heed_sigterm
from wstrace.fleet.source import RowSource
from wstrace.fleet.summary import RunSummary, unread
from wstrace.gather.ray_cluster import connected
from wstrace.server_process import end_with_parent

Done = tuple[RowSource, RunSummary]
Work = Callable[[Job, Sequence[RowSource]], list[RunSummary]]
Task = Callable[[Sequence[RowSource]], list[RunSummary]]
Engine = Callable[[Job, Iterable[RowSource]], Generator[Done]]
"""Closed before its end it leaves nothing under way."""
BATCH_BYTES: Final = 4 << 20
BATCH_SOURCES: Final = 16
AHEAD: Final = 3
"""Batches under way for each process."""
KILLED: Final = "its reader was killed (out of memory?)"


def engine(name: str, jobs: int | None) -> Engine:
    """The engine of that name; `jobs` processes of the local one (None: one a core)."""
    if name == "ray":
        return _on_ray(connected())
    count = jobs or len(os.sched_getaffinity(0))
    return _here if count == 1 else partial(_pool, count)


def batches(sources: Iterable[RowSource]) -> Iterator[list[RowSource]]:
    """Small sources together, so that a batch is worth its way."""
    batch: list[RowSource] = []
    size = 0
    for source in sources:
        batch.append(source)
        size += source.bytes
        if len(batch) >= BATCH_SOURCES or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _here(job: Job, sources: Iterable[RowSource]) -> Generator[Done]:
    for source in sources:
        yield source, do(job, [source])[0]


def _pool(
    count: int, job: Job, sources: Iterable[RowSource], work: Work = do
) -> Generator[Done]:
    waiting = batches(sources)
    while True:
        with _executor(count) as pool:
            lost = yield from _through(pool, partial(work, job), waiting, count * AHEAD)
        if not lost:
            return
        yield from _one_by_one(partial(work, job), lost)  # one of them killed its process


@contextmanager
def _executor(count: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that end with this one, however it ends; at once where it is told to end."""
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        count,
        # spawn: the parent has threads (the progress bar), which a fork would copy half
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin,
        initargs=(os.getpid(),),
    )
    try:
        yield pool
    except BaseException:
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(parent: int) -> None:
    """In a new process: it ends with its parent, which may have ended before this."""
    heed_sigterm()
    end_with_parent()
    if os.getppid() != parent:
        os._exit(1)


def _in_process(task: Task, batch: Sequence[RowSource]) -> list[RunSummary]:
    """The task in a pool's process, which would take a SIGTERM's exit for its result."""
    try:
        return task(batch)
    except SystemExit as left:
        os._exit(int(left.code or 0))


def _through(
    pool: ProcessPoolExecutor, work: Task, waiting: Iterator[list[RowSource]], most: int
) -> Generator[Done, None, list[RowSource]]:
    """The batches' rows; returns the sources under way when a process died."""
    running: dict[Future[list[RunSummary]], list[RowSource]] = {}
    lost: list[RowSource] = []
    while not lost:
        try:
            for batch in islice(waiting, most - len(running)):
                running[_submit(pool, work, batch, lost)] = batch
        except BrokenProcessPool:
            break
        if not running:
            break
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            batch = running.pop(future)
            if isinstance(future.exception(), BrokenProcessPool):
                lost += batch
            else:
                yield from zip(batch, future.result(), strict=True)
    for future, batch in running.items():
        lost += batch
        future.cancel()
    return lost


def _submit(
    pool: ProcessPoolExecutor, work: Task, batch: list[RowSource], lost: list[RowSource]
) -> Future[list[RunSummary]]:
    try:
        return _submitted(pool, work, batch)
    except BrokenProcessPool:
        lost += batch
        raise


def _submitted(
    pool: ProcessPoolExecutor, work: Task, batch: Sequence[RowSource]
) -> Future[list[RunSummary]]:
    """The first of a pool starts its processes: Ctrl-C, which a terminal sends to all, is the
    parent's."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return pool.submit(_in_process, work, batch)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _one_by_one(work: Task, sources: Sequence[RowSource]) -> Iterator[Done]:
    """Each source alone in a process, a new one where it died: that source killed it."""
    waiting = iter(sources)
    killed = True
    while killed:
        killed = False
        with _executor(1) as pool:
            for source in waiting:
                try:
                    yield source, _submitted(pool, work, [source]).result()[0]
                except BrokenProcessPool:
                    yield source, unread(source, KILLED)
                    killed = True
                    break


def _on_ray(ray: Any) -> Engine:
    def run(job: Job, sources: Iterable[RowSource]) -> Generator[Done]:
        task = ray.remote(num_cpus=1, max_retries=1)(do)
        most = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
        waiting = batches(sources)
        running: dict[Any, list[RowSource]] = {}
        while True:
            for batch in islice(waiting, most - len(running)):
                running[task.remote(job, batch)] = batch
            if not running:
                return
            (done,), _ = ray.wait(list(running), num_returns=1)
            batch = running.pop(done)
            yield from zip(batch, _fetched(ray, task, job, done, batch), strict=True)

    return run


def _fetched(
    ray: Any, task: Any, job: Job, done: Any, batch: Sequence[RowSource]
) -> list[RunSummary]:
    """A batch's rows; where its worker died each source is tried alone."""
    try:
        rows: list[RunSummary] = ray.get(done)
        return rows
    except Exception as error:
        if len(batch) == 1:
            why = type(error).__name__
            return [unread(batch[0], f"{KILLED}: {why}")]
        alone = [(task.remote(job, [source]), source) for source in batch]
        return [_fetched(ray, task, job, one, [source])[0] for one, source in alone]
