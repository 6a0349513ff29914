"""Codes of what processes do: P for their ends, U for the user's code. A code is never reused for something else.

`everstep.report.parts.codes` puts them together with those of silent faults (H hangs, S slowness, N numbers).
"""

from everstep.model.code import Code

_RESTART = "Ends the other ranks, restarts all of them in place, restores the newest step that every rank holds."

CODES: dict[str, Code] = {
    entry.code: entry
    for entry in (
        Code(
            code="ES-P01",
            name="worker-exit-code",
            blame="unknown",
            means="A rank ended with a non-zero exit code and left no exception report: sys.exit (its place "
            "is named where it is known), os._exit, or a launcher script between everstep and Python. Exit code 2 "
            "before the first step is a program that refuses its arguments. The program is blamed with low confidence; "
            "a code above 128 is how a shell reports a signal of its child (blame unknown).",
            everstep_does=_RESTART,
            confirm="everstep logs --rank R: the last lines of stderr usually say why.",
            you_do="Look for sys.exit or os._exit on the path that the log shows.",
            drill="everstep drill exit R",
        ),
        Code(
            code="ES-P02",
            name="worker-signal",
            blame="unknown",
            means="A rank was ended by a signal other than SIGKILL: SIGSEGV and SIGABRT come from native code, "
            "SIGTERM, SIGINT, SIGHUP and SIGQUIT from outside (blame operator), SIGXCPU and SIGXFSZ from a limit "
            "(environment). A crash in native code is most often the program's: low confidence.",
            everstep_does=f"{_RESTART} When native code crashes again soon, all machines are examined: docs/flow.md.",
            confirm="everstep logs --rank R; dmesg | grep segfault; python -X faulthandler prints the Python stack.",
            you_do="Again on the same machine: suspect the machine. On others too: suspect a native extension.",
            drill="kill -SEGV the rank's pid (everstep status --json lists pids)",
        ),
        Code(
            code="ES-P03",
            name="worker-oom-killed",
            blame="user",
            means="The kernel's out-of-memory killer ended a rank: the machine, or the cgroup the rank is in, "
            "had no memory left.",
            everstep_does=_RESTART,
            confirm="The incident shows the kernel line or the cgroup's oom_kill counter.",
            you_do="Lower the memory use (data-loader workers, prefetch, caches) or raise the limit. "
            "It comes back otherwise.",
            drill="everstep drill oom R",
        ),
        Code(
            code="ES-P04",
            name="worker-never-started",
            blame="unknown",
            means="A rank's process could not be made, or did not reach the user's program within start_timeout_s.",
            everstep_does=_RESTART,
            confirm="nodes/<node>/agent.log in the run directory.",
            you_do="Slow import from a shared disk: raise start_timeout_s. Process limits: ulimit -u, pids cgroup.",
        ),
        Code(
            code="ES-P05",
            name="rendezvous-incomplete",
            blame="unknown",
            means="Some ranks waited in init_process_group while others never arrived, for rendezvous_timeout_s.",
            everstep_does=_RESTART,
            confirm="The incident names the ranks that did not call init_process_group; everstep logs --rank R.",
            you_do="See what those ranks do before init_process_group: loading, downloading, a lock.",
        ),
        Code(
            code="ES-P06",
            name="agent-lost",
            blame="machine",
            means="The agent of a node ended or can no longer be reached. Its workers ended with it.",
            everstep_does="Puts the node out for ever, gives its slot to a standby or to a new node, "
            "restarts all ranks.",
            confirm="nodes/<node>/agent.log; is the machine up?",
            you_do="Nothing, unless it is the same machine again.",
            drill="everstep drill kill-agent",
        ),
        Code(
            code="ES-P07",
            name="peers-lost-contact",
            blame="unknown",
            means="Ranks ended because a connection to another rank broke, "
            "and no rank ended first for a reason of its own. A rank whose own socket or pipe broke is named (ES-U01).",
            everstep_does=_RESTART,
            confirm="everstep logs --first-error; network counters of the machines named.",
            you_do="Once: nothing. Again between the same machines: suspect the network between them.",
        ),
        Code(
            code="ES-P08",
            name="restore-failed",
            blame="unknown",
            means="A snapshot or checkpoint that a rank was to begin from is damaged, incomplete, or not there.",
            everstep_does="Never tries it again. Restarts all ranks from the next candidate: another node's copy, an "
            "older step, a checkpoint. Gives up when none is left, because beginning anew in silence would be worse. "
            "If the snapshot is whole and the program does not load it, the program begins as under torchrun.",
            confirm="The incident names the rank, the step, where the snapshot lay, and what was wrong with it.",
            you_do="From memory: have the memory of the machine tested. From disk: everstep ckpt verify.",
        ),
        Code(
            code="ES-P09",
            name="worker-killed",
            blame="operator",
            means="A rank, or a worker of its data loader, was ended by SIGKILL, and neither the kernel log nor the "
            "cgroup shows lack of memory: a user or a program sent it. Ranks that were killed together are all named.",
            everstep_does=_RESTART,
            confirm="Scheduler's log, audit log, other tools on the machine (earlyoom, systemd-oomd log elsewhere).",
            you_do="Find the sender if it happens again.",
            drill="everstep drill kill-rank R",
        ),
        Code(
            code="ES-U01",
            name="uncaught-exception",
            blame="user",
            means="The user's program raised an exception that nothing caught.",
            everstep_does=_RESTART + " The same place max_same_failure times without a new step: gives up.",
            confirm="The incident carries the traceback of the first rank that raised.",
            you_do="Fix the line that the traceback names. It came once, the run continued: look at that step's data.",
            drill="everstep drill raise R",
        ),
        Code(
            code="ES-U02",
            name="program-cannot-run",
            blame="user",
            means="The program cannot start at all: a syntax error, a module that does not exist, a missing file.",
            everstep_does="Gives up at once: starting it again would end the same way.",
            confirm="The traceback in the incident.",
            you_do="Fix the program or the environment and start again.",
        ),
    )
}
