"""Many runs side by side, each in a process of its own: whatever one leaves behind is ended by it alone.

Used by healthy.py, certain.py and same_programs.py. However the benchmark ends, so do its workers, and all below them.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

from rich.console import Console

from measuring.display import progress
from measuring.launched import adopt_orphans, end_on_sigterm

Task = TypeVar("Task")
Done = TypeVar("Done")


def side_by_side(
    function: Callable[[Task], Done], tasks: Sequence[Task], jobs: int, what: str, console: Console
) -> Iterator[Done]:
    """As they end. `function` is called in another process."""
    pool = ProcessPoolExecutor(jobs, initializer=_begin_worker)
    try:
        with progress(console) as bar:
            shown = bar.add_task(what, total=len(tasks))
            for done in as_completed([pool.submit(function, task) for task in tasks]):
                bar.update(shown, advance=1)
                yield done.result()
    finally:
        workers = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        while any(worker.is_alive() for worker in workers):  # a worker that was asked once goes on to its next task
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.join(1.0)


def _begin_worker() -> None:
    adopt_orphans()
    end_on_sigterm()
