"""Captured graphs and torch.compile with a snapshot of each step, and a record read while a graph is captured."""

import threading

from gpu_running.part import Report, Request, SkipError, run
from gpu_running.under_everstep import run as everstep_run


def main(request: Request, report: Report) -> None:
    for kind in ("captured", "compiled"):
        report.attempt(kind, lambda kind=kind: _one(request, kind))  # type: ignore[misc]
    report.attempt("beside a capture", lambda: _beside_a_capture(request, report))


def _one(request: Request, kind: str) -> None:
    if request.is_rehearsal and kind == "captured":
        raise SkipError("the CPU captures no graph")
    with everstep_run(request, kind, "graphs_program.py", (kind, request.device, request.out)) as one:
        one.wait(request.limit_s)


def _beside_a_capture(request: Request, report: Report) -> None:
    """A thread that is relaxed may ask CUDA for anything while another captures; one that is not spoils the capture."""
    if request.is_rehearsal:
        raise SkipError("the CPU captures no graph")
    import torch

    from everstep.worker.process.capturing import relax

    torch.cuda.set_device(request.device)
    source = torch.ones(1 << 20, device=request.device)

    def capture(*, is_relaxed: bool) -> bool:
        """Whether the graph is whole after another thread has worked on the device meanwhile."""
        begun, done = threading.Event(), threading.Event()

        def other() -> None:
            torch.cuda.set_device(request.device)
            if is_relaxed:
                relax()
            begun.wait()
            try:
                stream = torch.cuda.Stream()
                with torch.cuda.stream(stream):
                    source.cpu()
                event = torch.cuda.Event()
                event.record(stream)
                event.synchronize()
            finally:
                done.set()

        thread = threading.Thread(target=other)
        thread.start()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                held = source * 2
                begun.set()
                done.wait(20)
            graph.replay()
            torch.cuda.synchronize()
            return bool((held == 2).all())
        except RuntimeError:
            return False
        finally:
            begun.set()
            thread.join()

    report.figure("a relaxed thread beside a capture leaves it whole", capture(is_relaxed=True), goal="is true")
    report.figure("one that is not relaxed", capture(is_relaxed=False), note="the capture is whole")


if __name__ == "__main__":
    run(main)
