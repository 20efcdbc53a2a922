"""Tasks side by side on a Dask cluster: processes of this machine, or the workers of a scheduler that is running.

The workers of a scheduler may be on other machines; they have to share a folder with this one. When a worker dies, Dask
runs its task again on another one. The run directory holds the last checkpoint, and the lock on it ends with the dead
process: nothing is lost, and nothing is trained twice.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import resource_tracker
from tempfile import TemporaryDirectory
from typing import Any, Generic, Protocol, TypeVar
from uuid import uuid4

import torch

from advdrop.lab.choices import STOP_SIGNALS
from advdrop.lab.engine.progress import Overview
from advdrop.lab.engine.signals import StoppedError, stop_signals

TOPIC = "advdrop"  # the topic of the events that workers send
INTERVAL = 1.0  # seconds between two events of a task
GRACE = 60.0  # seconds to wait for runs that have to stop: they finish an update and save
TICK = 0.2  # seconds between two looks at the tasks
TIMEOUT = 10.0  # seconds to wait for a scheduler when a command starts or ends
PING, SILENCE = 5.0, 15.0
"""Seconds between two questions to the scheduler, and to wait for an answer before it is considered lost."""
DEATHS = 2
"""How often the worker of a task may die. Dask's own limit also counts tasks that were waiting on a dead worker."""
DIED = "its worker died twice, perhaps for lack of memory; run the same command again with fewer --jobs to continue"
ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "JOBLIB_MULTIPROCESSING": "0"}
"""Variables of the workers: waiting threads free their core, and a killed worker leaves no semaphores behind."""

Key = TypeVar("Key")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Tell = Callable[[int], bool]
"""Takes the number of updates that are done and returns True if the task has to stop."""


class Task(Protocol[T_co]):
    """Work for one worker process. It is pickled to get there."""

    @property
    def name(self) -> str:
        """What the user sees."""

    @property
    def updates(self) -> int:
        """How many updates there are in all."""

    def __call__(self, tell: Tell) -> T_co:
        """Do the work and call ``tell`` after each update. Raise a StoppedError if it returns True."""


def places(scheduler: str) -> int:
    """Return how many runs the workers of a scheduler, such as ``tcp://10.0.0.1:8786``, take at a time."""
    with _connected(scheduler) as client:
        threads = client.nthreads().values()
    if not threads:
        raise ValueError(f"--scheduler {scheduler} has no workers; start some: dask worker {scheduler} --nthreads 1")
    if max(threads) > 1:
        raise ValueError(f"--scheduler {scheduler} has workers with several threads; start them with --nthreads 1")
    return len(threads)


@contextmanager
def _connected(scheduler: Any) -> Iterator[Any]:
    """Connect to a scheduler or a LocalCluster with a client that prints nothing on the terminal."""
    from distributed import Client

    for name in ("distributed", "distributed.client", "distributed.gc", "tornado.application"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        client: Any = Client(scheduler, timeout=TIMEOUT, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        reason = str(error).split("\n")[0] or type(error).__name__
        raise ValueError(f"--scheduler {scheduler}: no Dask scheduler answers there ({reason})") from None
    try:
        yield client
    finally:
        with suppress(OSError):  # the scheduler is gone
            client.close(timeout=TIMEOUT)


@contextmanager
def _local(count: int, threads: int) -> Iterator[Any]:
    """Start this many processes that only this machine can reach; they leave no file behind."""
    import dask
    from distributed import LocalCluster

    with TemporaryDirectory(prefix="advdrop-") as folder:
        settings: dict[str, Any] = {
            "temporary-directory": folder,
            "distributed.nanny.pre-spawn-environ": {},  # the environment of the workers is set below, and nowhere else
            "distributed.scheduler.http.routes": [],
            "distributed.worker.http.routes": [],
            "distributed.worker.profile.enabled": False,
        }
        with dask.config.set(settings), _blocked_signals():
            cluster = LocalCluster(  # type: ignore[no-untyped-call]
                n_workers=count,
                threads_per_worker=1,
                dashboard_address="127.0.0.1:0",
                scheduler_kwargs={"dashboard": False},
                memory_limit=0,
                silence_logs=logging.CRITICAL,
                env=ENVIRONMENT | {"OMP_NUM_THREADS": threads},
            )
        with cluster:
            yield cluster


@contextmanager
def _blocked_signals() -> Iterator[None]:
    """Block signals in all threads and processes that start in the meantime: only the main thread handles them."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    resource_tracker.ensure_running()  # unblocks some of them when it starts
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_alone = threading.Lock()  # runs share the random state of their process


def work(task: Task[T_co], name: str, threads: int) -> T_co:
    """Run a task in this worker with this number of threads, and send events about it. Dask knows it by ``name``."""
    from distributed import Status, get_worker

    worker, sent = get_worker(), float("-inf")

    def tell(updates: int) -> bool:
        nonlocal sent
        if worker.status is Status.closing:
            raise StoppedError("its worker was closed")
        if time.monotonic() - sent > INTERVAL:
            sent = time.monotonic()
            worker.log_event(TOPIC, {"name": name, "what": updates})
        state = worker.state.tasks.get(name)
        return state is None or state.state == "cancelled"

    worker.log_event(TOPIC, {"name": name, "what": "started"})
    try:
        with _alone:
            torch.set_num_threads(threads)
            return task(tell)
    finally:
        worker.log_event(TOPIC, {"name": name, "what": "ended"})


def side_by_side(
    tasks: Mapping[Key, Task[T]],
    count: int,
    threads: int,
    scheduler: str | None = None,
    done: int = 0,
    progress: bool = True,
) -> Iterator[tuple[Key, T | Exception]]:
    """Run tasks on several workers and yield the result or the error of each as soon as it ends.

    A task whose worker dies is run again on another one. The first signal stops all tasks, with a StoppedError; the
    second one does not wait for them. If the scheduler is gone, there is a RuntimeError within half a minute.

    Args:
        tasks: what to run.
        count: how many at a time.
        threads: of each task.
        scheduler: the address of a scheduler; None for processes of this machine.
        done: how many others are done, for the progress.
        progress: whether to show how far it is.
    """
    if not tasks:
        return
    overview = Overview({key: (each.name, each.updates) for key, each in tasks.items()}, done, progress)
    with ExitStack() as stack:
        asked = stack.enter_context(stop_signals(overview.say))
        cluster = scheduler or stack.enter_context(_local(min(count, len(tasks)), threads))
        queue = _Queue(stack.enter_context(_connected(cluster)), tasks, threads, stack.enter_context(overview))
        while queue.waiting or queue.running:
            queue.start_more(count)
            time.sleep(TICK)
            if asked():
                queue.stop()
                raise StoppedError(f"stopped with {overview.count} runs done; run the same command again to continue")
            queue.ping()
            yield from queue.ended()


class _Queue(Generic[Key, T]):
    """The tasks that wait and those that run on the cluster of a client."""

    def __init__(self, client: Any, tasks: Mapping[Key, Task[T]], threads: int, overview: Overview[Key]) -> None:
        self.client, self.tasks, self.threads, self.overview = client, tasks, threads, overview
        self.waiting = deque(tasks)
        self.running: dict[str, tuple[Key, Any]] = {}  # by the names that Dask knows
        self.starts, self.ends = Counter[str](), Counter[str]()
        self.pinged = time.monotonic()
        client.subscribe_topic(TOPIC, self.note_event)

    def note_event(self, event: tuple[float, dict[str, Any]]) -> None:
        """Note an event of a worker. Dask calls this in a thread of its own."""
        name, what = event[1]["name"], event[1]["what"]
        if what == "started":
            self.starts[name] += 1
        elif what == "ended":
            self.ends[name] += 1
        elif name in self.running:  # not of another command
            self.overview.saw(self.running[name][0], what)

    def start_more(self, count: int) -> None:
        """Submit tasks until this number of them runs."""
        while self.waiting and len(self.running) < count:
            key, name = self.waiting.popleft(), f"advdrop-{uuid4().hex}"
            future = self.client.submit(work, self.tasks[key], name, self.threads, key=name, pure=False)
            self.running[name] = key, future

    def ended(self) -> Iterator[tuple[Key, T | Exception]]:
        """Yield the tasks that have ended since the last time."""
        for name, (key, future) in list(self.running.items()):
            if self.starts[name] <= DEATHS and future.status == "pending":
                continue
            outcome = self.outcome(name, future)
            del self.running[name]
            if isinstance(outcome, StoppedError):  # its worker was closed
                self.waiting.appendleft(key)
            else:
                self.overview.ended(key, failed=isinstance(outcome, Exception))
                yield key, outcome

    def outcome(self, name: str, future: Any) -> T | Exception:
        """Return the result or the error of a task; a StoppedError if its worker died with the result."""
        if self.starts[name] > DEATHS:
            future.cancel()
            return RuntimeError(DIED)
        if future.status == "error":
            error: Exception = future.exception()
            return RuntimeError(DIED) if type(error).__name__ == "KilledWorker" else error
        try:
            found: T = future.result(timeout=SILENCE)
        except TimeoutError:
            return StoppedError("its worker died with the result")
        except (OSError, CancelledError):
            raise self.lost() from None
        return found

    def ping(self) -> None:
        """Ask the scheduler from time to time whether it is still there."""
        if time.monotonic() - self.pinged > PING:
            try:
                self.client.sync(self.client.scheduler.identity, callback_timeout=SILENCE)
            except OSError:
                raise self.lost() from None
            self.pinged = time.monotonic()

    def lost(self) -> RuntimeError:
        """Return the error that says that the scheduler is gone."""
        return RuntimeError(
            f"the Dask scheduler is gone ({self.client.scheduler.address}), with {self.overview.count} runs done; "
            "the others are unfinished, not failed: run the same command again to continue"
        )

    def stop(self) -> None:
        """Cancel the tasks and wait until those that run have stopped."""
        self.client.cancel([future for _, future in self.running.values()])
        deadline = time.monotonic() + GRACE
        while any(self.starts[name] > self.ends[name] for name in self.running) and time.monotonic() < deadline:
            time.sleep(TICK)
