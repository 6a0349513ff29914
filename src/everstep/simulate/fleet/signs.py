"""How a fault looks to the brain: the event that an agent, a watch or the engine would tell. Pure."""

from everstep.core.restore.trust import LASTING_NAN
from everstep.model import events
from everstep.model.events import Event
from everstep.model.facts import Alert, ErrorReport, Exit, OomEvidence
from everstep.model.verdict import Blame, Certainty, Confidence, Verdict
from everstep.simulate.fleet.faults import Sign
from everstep.simulate.fleet.machines import Fault

SIGABRT, SIGKILL = 6, 9


def first_event(
    fault: Fault, *, at: float, generation: int, node: str, rank: int, num_ranks: int, done: int | None
) -> Event:
    """`done`: newest step that was whole when the fault came."""
    match fault.cause.sign:
        case Sign.ALERT if not fault.is_hidden:
            return events.NodeAlerted(at=at, node=node, alerts=(_alert(fault, at),))
        case Sign.LOST:
            return events.NodeLost(at=at, node=node, reason=f"simulated: {fault.cause.name}")
        case Sign.HANG:
            why = f"hung: all {num_ranks} ranks are silent"
            return events.HangSuspected(
                at=at, generation=generation, ranks=(rank,), since=fault.at, window_s=at - fault.at, why=why
            )
        case Sign.SLOW:
            verdict = _verdict(fault, "ES-S01", rank, at, f"rank {rank} makes the others wait")
            return events.AnomalyFound(at=at, generation=generation, verdict=verdict)
        case Sign.WRONG if fault.cause.code == LASTING_NAN:
            verdict = Verdict(
                code=LASTING_NAN,
                sentence="the loss stays NaN (simulated)",
                blame=Blame.UNKNOWN,
                confidence=Confidence.HIGH,
                at=at,
            )
            return events.AnomalyFound(at=at, generation=generation, verdict=verdict, agreed_step=done)
        case Sign.WRONG:
            verdict = _verdict(fault, "ES-N04", rank, at, f"rank {rank} holds other parameters than all its replicas")
            return events.AnomalyFound(at=at, generation=generation, verdict=verdict, agreed_step=done)
        case Sign.CHANGE:
            version = f"change-{id_of(fault)}"
            return events.UpdateRequested(
                at=at, version=version, code=f"/code/{version}", is_urgent=True, why="simulated"
            )
        case _:
            return exit_event(fault, at=at, generation=generation, node=node, rank=rank)


def exit_event(fault: Fault, *, at: float, generation: int, node: str, rank: int) -> events.WorkerExited:
    """A rank on the machine ends."""
    if fault.cause.sign is Sign.MEMORY:
        exit_ = Exit(rank=rank, at=at, signal=SIGKILL, oom=OomEvidence(source="simulated"))
    elif fault.cause.sign is Sign.RAISE:
        place = "train.py:100" if fault.stays else f"data.py:{100 + id_of(fault)}"
        error = ErrorReport(kind="RuntimeError", message="simulated", place=place)
        exit_ = Exit(rank=rank, at=at, code=1, error=error, finding=_said(fault, at) if fault.cause.code else None)
    else:
        exit_ = Exit(rank=rank, at=at, signal=SIGABRT)
    return events.WorkerExited(at=at, node=node, generation=generation, exit=exit_)


def id_of(fault: Fault) -> int:
    """Something of its own: two passing faults are hardly ever at the same line."""
    return int(fault.at * 1000) % 100_000


def hang_verdict(fault: Fault | None, rank: int, at: float) -> Verdict:
    """Return the verdict that the analyzer would reach from the evidence: the rank that the others wait for."""
    if fault is None:
        return Verdict(code="ES-H00", sentence="no fault found", blame=Blame.UNKNOWN, confidence=Confidence.LOW, at=at)
    return _verdict(fault, "ES-H08", rank, at, f"rank {rank} is blocked in a native call, and the others wait for it")


def _verdict(fault: Fault, code: str, rank: int, at: float, sentence: str) -> Verdict:
    return Verdict(
        code=code,
        sentence=f"{sentence} (simulated: {fault.cause.name})",
        blame=Blame.MACHINE,
        confidence=Confidence.HIGH,
        ranks=(rank,),
        at=at,
        certainty=Certainty.CERTAIN if code.startswith("ES-H") else Certainty.UNSTATED,
    )


def _said(fault: Fault, at: float) -> Alert:
    """Return the alert from the rank's own output. It blames the program; the fault may be a machine's."""
    return Alert(
        at=at,
        code=fault.cause.code,
        sentence=f"simulated: {fault.cause.name}",
        component="cuda",
        blame="user",
        severity="error",
        action="CHECK_USER_CODE",
        role="either",
    )


def _alert(fault: Fault, at: float) -> Alert:
    return Alert(
        at=at,
        code=fault.cause.code,
        sentence=f"simulated: {fault.cause.name}",
        component="gpu",
        blame="machine",
        severity="fault",
        action=fault.cause.action,
        source="kernel log",
        device=f"gpu {id_of(fault)}",
    )
