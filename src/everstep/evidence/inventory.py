"""Inventory of a directory: what it held, what of it was understood, and what to collect next so that more can be
concluded. Pure."""

from everstep.analyzer.observations.claims import Claims
from everstep.analyzer.observations.known import Known
from everstep.analyzer.observations.records import Case
from everstep.analyzer.observations.words import ranks_text
from everstep.model.verdict import Verdict

NO_FAULT = "ES-H00"
KERNEL_LOGS = "the kernel logs of the nodes (dmesg -T)"
RAS = "`ncclras -v` while it still stands, where NCCL is 2.24 or newer"
_OF_COMMUNICATION = frozenset({"nccl", "pytorch_dist", "gloo", "rdma", "nic"})
"""Components whose consequences a hang of another rank brings about."""


def read(case: Case, known: tuple[Known, ...], num_logs: int) -> tuple[str, ...]:
    """One line per kind of evidence that was there."""
    claims = case.claims
    rows = (
        ("flight records", [e.rank for e in case.ranks if e.flight is not None]),
        ("Python stacks", [e.rank for e in case.ranks if e.processes]),
        ("process states", [e.rank for e in case.ranks if e.states]),
        ("watchdog lines", [work.rank for work in claims.works]),
        ("collective fingerprints", [call.rank for call in claims.calls]),
        ("NCCL COLL trace", [call.rank for call in claims.last_calls]),
    )
    found = [f"{what} of {ranks_text(sorted(set(ranks)))}" for what, ranks in rows if ranks]
    found += [f"a report of {source}" for source in dict.fromkeys(named.source for named in claims.named)]
    found += [f"{num_logs} log{'s' if num_logs > 1 else ''}"] if num_logs else []
    found += [f"{len(known)} known fault lines"] if known else []
    return tuple(found)


def collect(case: Case, verdict: Verdict, known: tuple[Known, ...]) -> tuple[str, ...]:
    """List the evidence that would show more, most useful first. A fault that names itself needs no stacks and flight
    records: its confirmation lists what to look at."""
    found = next((each for each in known if each.code == verdict.code), None)
    is_over = any(each.finished_line for each in known) and not verdict.ranks
    if verdict.code == NO_FAULT or is_over or (found is not None and (found.is_cause or found.is_small)):
        return ()
    silent = sorted({*case.world, *case.claims.world} - _heard(case.claims) - {e.rank for e in case.ranks})
    logs = [f"the logs of {ranks_text(silent)}, of which nothing is here"] if silent else []
    if found is not None and found.component not in _OF_COMMUNICATION:
        return (*logs, *(() if logs else ("the logs of the other ranks, from before this line",)), KERNEL_LOGS)
    return (*_of_hang(case, verdict.ranks), *logs, *_tools(case))


def _of_hang(case: Case, suspects: tuple[int, ...]) -> list[str]:
    world = sorted({*case.world, *case.claims.world})
    stacked = {e.rank for e in case.ranks if e.processes}
    recorded = {e.rank for e in case.ranks if e.flight is not None}
    wanted = [rank for rank in suspects if rank not in stacked]
    rows = []
    if wanted or not stacked:
        who = ranks_text(wanted) if wanted else "every rank"
        rows.append(f"stacks of {who}: py-spy dump --pid PID > stack-rank-N.txt, while it still stands")
    missing = [rank for rank in world if rank not in recorded]
    if not recorded or missing:
        who = "all ranks" if not recorded else ranks_text(missing)
        rows.append(
            f"flight records of {who}: TORCH_FR_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1 before the next run"
        )
    return rows


def _tools(case: Case) -> tuple[str, ...]:
    if any(e.flight is not None or e.processes for e in case.ranks):
        return ()
    is_asked = any(named.source == "NCCL RAS" for named in case.claims.named)
    return (KERNEL_LOGS, "`ncclras -v` again, some seconds later" if is_asked else RAS)


def _heard(claims: Claims) -> set[int]:
    return {*claims.speakers, *(work.rank for work in claims.works)}
