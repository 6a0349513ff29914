"""Codes of silent faults: H hangs, S slowness, N numbers. Text only; the analysis names a code and never its text.

`everstep.report.parts.codes` puts them together with those of loud faults.
"""

from everstep.model.code import Code

_ISOLATE = "Names the rank and its parallel group, ends the generation, restarts on the machines that are left."
_SAY = "Says so and changes nothing: the cause is not a machine."
_REPORT = "Reports it with the evidence; ends nothing by itself."

_GO_BACK = (
    "Found at the next digest. Goes back to the newest step after which all replicas agreed, in memory or on disk, and "
    "starts all ranks from there; without such a step training continues."
)

_HANGS = (
    Code(
        "ES-H00",
        "no-fault-found",
        "unknown",
        "The evidence is complete enough to judge, and shows no rank that the others wait for.",
        "Nothing.",
        "Take the evidence again a few seconds later: a job that moves shows other sequence numbers.",
        "If the job stands still all the same, add what is missing: flight records and stacks of all ranks.",
    ),
    Code(
        "ES-H01",
        "rank-stopped",
        "operator",
        "A rank's process exists and is stopped (SIGSTOP, a debugger, a frozen cgroup): it runs nothing.",
        _ISOLATE,
        "grep State /proc/PID/status shows T (stopped) or t (tracing stop).",
        "Find who stopped it: a debugger, a job-control shell, a freezer. kill -CONT PID lets it go on.",
        "everstep drill stop R",
    ),
    Code(
        "ES-H02",
        "rank-never-entered",
        "unknown",
        "The others of a process group wait in a collective that this rank never entered, and it waits for none.",
        _ISOLATE,
        "The flight record of the rank ends before the sequence number that the others wait at.",
        "Read the rank's stack: it shows what it does instead. A branch on rank or on data before a collective is "
        "the usual cause in user code.",
        "everstep drill skip-collective R",
    ),
    Code(
        "ES-H03",
        "collective-desync",
        "user",
        "At the same place in a process group's sequence the ranks called different collectives.",
        _ISOLATE,
        "Compare the operation names at that sequence number in the flight records.",
        "Look for a collective under an `if` that not all ranks take; the differing rank skipped or added one.",
        "everstep drill skip-collective R",
    ),
    Code(
        "ES-H04",
        "mismatched-arguments",
        "user",
        "All ranks called the same collective, one of them with another size or data type.",
        _ISOLATE,
        "Compare the sizes and data types at that sequence number in the flight records.",
        "Look at the shape that the named rank passes: an uneven last batch, or a parameter that only some ranks have.",
        "everstep drill mismatched-shape R",
    ),
    Code(
        "ES-H05",
        "opposite-order",
        "user",
        "Ranks entered collectives of two process groups in opposite order and wait for each other.",
        _ISOLATE,
        "The flight records show each of them pending in another group.",
        "Give the collectives of overlapping groups one order on all ranks.",
        "everstep drill opposite-order R",
    ),
    Code(
        "ES-H06",
        "blocked-data-loader",
        "storage",
        "The rank waits for its data loader while the others wait for the rank.",
        _ISOLATE,
        "The stack of the rank is in the data loader; the one of its worker process shows what it reads.",
        "Check the storage that the reader uses; a worker in uninterruptible sleep points to it or to its driver.",
        "everstep drill blocked-loader R",
    ),
    Code(
        "ES-H07",
        "python-loop",
        "user",
        "The rank executes Python code without end while the others wait for it.",
        _ISOLATE,
        "Two stacks, seconds apart, show the same function, running and holding the GIL.",
        "Read the loop at the named place: its end condition never becomes true on this rank.",
        "everstep drill python-loop R",
    ),
    Code(
        "ES-H08",
        "native-call",
        "unknown",
        "The rank is inside a call of native code that holds the GIL and does not return.",
        _ISOLATE,
        "py-spy dump --native shows the function; no other thread of the process can run Python.",
        "An extension, a driver call or a system call without a timeout: the named line calls it.",
        "everstep drill native-call R",
    ),
    Code(
        "ES-H09",
        "uninterruptible-sleep",
        "storage",
        "A process of the rank is in uninterruptible sleep (state D): the kernel waits for a device or a server.",
        _ISOLATE,
        "cat /proc/PID/stack and /proc/PID/wchan as root; dmesg for 'blocked for more than'.",
        "Check disk, NFS or the driver on this machine. The process cannot be ended before the kernel answers.",
        "everstep drill blocked-loader R",
    ),
    Code(
        "ES-H10",
        "rank-missing",
        "unknown",
        "The others wait, and this rank left no record, stack or process: it is gone, or it cannot answer at all.",
        _ISOLATE,
        "Look for its process on its machine, and whether the machine itself answers.",
        "If the machine is unreachable, treat it as lost.",
        "everstep drill stop R",
    ),
    Code(
        "ES-H11",
        "communication-stalled",
        "network",
        "The collective does not complete, and nothing says which rank is missing: the ranks that report it entered it "
        "with the same arguments.",
        _REPORT,
        "NCCL_DEBUG=INFO, the link counters of the machines in the group, and their kernel logs.",
        "Find out whether all ranks entered it (their stacks, the logs of those that reported nothing). If they did, "
        "check the links between the machines, or between the GPUs of one machine.",
    ),
    Code(
        "ES-H12",
        "stack-outlier",
        "unknown",
        "Most ranks are at the same place, these are not. There is no record of communication that says more.",
        _ISOLATE,
        "Take the stacks again: outliers of a healthy job change from one sweep to the next.",
        "Set TORCH_FR_BUFFER_SIZE=2000 so that the next time the flight record names the collective.",
    ),
    Code(
        "ES-H13",
        "odd-one-out",
        "unknown",
        "One rank is idle while the others work, or works while the others are idle. Nothing else is known.",
        _ISOLATE,
        "everstep doctor takes stacks and flight records of all ranks.",
        "Look at the stack of the named rank.",
    ),
    Code(
        "ES-H14",
        "mixed-evidence",
        "unknown",
        "The files do not belong together: other generations, or records that cannot have existed at one moment.",
        "Judges the newest generation, and sets aside what does not belong to it.",
        "The list of evidence names the files that were set aside.",
        "Collect all ranks at one moment into an empty directory.",
    ),
    Code(
        "ES-H15",
        "not-enough-evidence",
        "unknown",
        "Something is wrong or may be, and the evidence does not say with whom.",
        "Says what is missing, blames no rank.",
        "The list of evidence names what could not be read.",
        "Collect flight records (TORCH_FR_BUFFER_SIZE=2000) and py-spy dumps of all ranks.",
    ),
    Code(
        "ES-H16",
        "everybody-waits",
        "unknown",
        "No rank is in a collective, and every one of them waits: at the job's store, or for something of its own.",
        "Acts at once where no rank can answer (all wait at the store); else gives it the time of a doubtful wait.",
        "The stacks of all ranks; the kernel's word on what each thread waits for.",
        "Look at the named line: a key of the store that no rank sets, a file or a service that does not answer.",
    ),
    Code(
        "ES-H17",
        "rank-ended-early",
        "user",
        "A rank ended with exit code 0, or was through with its training, while the others still needed it.",
        "Names the rank and the step, restarts all ranks.",
        "The rank's log ends normally; the others wait in a collective, or say that a connection was closed.",
        "Give all ranks the same number of steps (an uneven data set, a `break` or a `return` on one rank). After the "
        "training, call on all ranks what is collective: a save, a barrier, metrics that are gathered.",
    ),
    Code(
        "ES-H18",
        "device-stands",
        "unknown",
        "Every rank has queued the collective, and this rank's device does not get to it or does not finish it: its "
        "peers have finished it, or have begun it.",
        _ISOLATE,
        "The flight records: what is pending on this rank has a lower number than what its peers finished or began.",
        "Look for an Xid in the kernel log and run dcgmi diag on that machine. A kernel of the program that never ends "
        "looks the same: py-spy shows the host waiting in a synchronisation.",
    ),
    Code(
        "ES-H19",
        "network-cut",
        "network",
        "Every rank waits in communication, and the hosts of some of them do not reach each other: both ends lose the "
        "probes that the hosts of a run send each other.",
        "Waits, because connections go on when a network heals; then restarts all ranks. Evicts no machine.",
        "The list of evidence has each link, since when and which way. ss -ti on both hosts shows retransmissions.",
        "Check the cables, switches, routes and firewalls between the named hosts.",
    ),
    Code(
        "ES-H20",
        "log-outlier",
        "unknown",
        "By what the logs say, these ranks differ from the others: they timed out elsewhere or reported no timeout, "
        "did not answer, or ended at an earlier step. No record or stack says what they did.",
        _ISOLATE,
        "The log of the named rank: its last lines, and whether its process still runs.",
        "Read the named rank's log and stack. TORCH_FR_BUFFER_SIZE=2000 makes the next hang name the collective.",
    ),
)

_SLOWNESS = (
    Code(
        "ES-S00",
        "not-slow",
        "unknown",
        "Step times are as they were, and no rank makes the others wait.",
        "Nothing.",
        "everstep top",
        "Nothing.",
    ),
    Code(
        "ES-S01",
        "straggler",
        "machine",
        "One rank computes longer than its peers for the same work, round after round, and they wait for it.",
        "Votes over five rounds; then treats its machine as a suspect.",
        "Clocks, temperature and power of that machine against its peers.",
        "Have the machine looked at: throttled clocks, a noisy neighbour, a degraded link or memory.",
        "everstep drill slow R",
    ),
    Code(
        "ES-S02",
        "straggler-group",
        "machine",
        "The ranks of one parallel group compute longer than all others, round after round.",
        "Votes over five rounds; then treats the group's machines as suspects.",
        "Clocks, temperature and power of those machines against the rest.",
        "Look for what they share: a rack, a switch, a power feed.",
    ),
    Code(
        "ES-S03",
        "slower-than-before",
        "unknown",
        "Steps take longer than this job's own steps did, on all ranks alike.",
        _REPORT,
        "The change point names the step; compare what changed at that time.",
        "Look for something shared: storage, network, a change of data, another job on the same machines.",
    ),
    Code(
        "ES-S04",
        "uneven-work",
        "user",
        "Ranks take different time because they are given different work, such as sequences of varying length.",
        _SAY,
        "Time per token is the same on all ranks, or the slowest rank is another one each step.",
        "Balance the batches by tokens, not by samples.",
    ),
    Code(
        "ES-S05",
        "long-pipeline-stage",
        "user",
        "One pipeline stage takes longer than the others, in all of its replicas.",
        _SAY,
        "The same stage is longest in each data-parallel replica.",
        "Move layers: the last stage also has the output layer and the loss.",
    ),
    Code(
        "ES-S06",
        "garbage-collection",
        "user",
        "The extra time of the rank is Python's garbage collector.",
        _SAY,
        "gc.callbacks measures it; the pauses fall on different ranks at different steps.",
        "Call gc.collect() on all ranks at the same step and gc.disable() in between.",
    ),
    Code(
        "ES-S07",
        "slow-data",
        "storage",
        "The extra time of the rank is waiting for its data loader.",
        _SAY,
        "The share of data time of the rank against its peers.",
        "More loader workers, prefetching, or faster storage.",
    ),
    Code(
        "ES-S08",
        "always-uneven",
        "user",
        "The rank has taken longer since the first step: this job is made so, nothing became slow.",
        _SAY,
        "Compare with the first steps of the generation.",
        "Nothing, or balance the work.",
    ),
    Code(
        "ES-S09",
        "throttled",
        "environment",
        "The extra time of the rank is the CPU quota of its cgroup (a container's limit): the kernel stops it when it "
        "has used its share.",
        _SAY,
        "cat cpu.stat of the rank's cgroup: nr_throttled and throttled_usec grow.",
        "Raise the container's CPU limit, or start fewer threads; a restart elsewhere has the same limit.",
    ),
    Code(
        "ES-S10",
        "waits-by-itself",
        "user",
        "The extra time of the rank is not computing: its training thread sleeps or waits for something of its own, "
        "such as a lock, a thread, a service.",
        _SAY,
        "py-spy dump of that rank, several times: where its main thread stands.",
        "Look at what the program does there on that rank only; a restart elsewhere does the same.",
    ),
    Code(
        "ES-S11",
        "slow-link",
        "network",
        "Data of the rank takes longer than usual to another machine, and steps became longer by it. No rank computes "
        "longer.",
        _SAY,
        "ss -ti on the rank's machine: busy time, delivery rate and retransmissions of the connections to the peer.",
        "Look at the link, the port and the limits of traffic between both machines.",
    ),
)

_NUMBERS = (
    Code(
        "ES-N00",
        "numbers-normal",
        "unknown",
        "Loss and gradient norm are finite and without a jump.",
        "Nothing.",
        "everstep logs",
        "Nothing.",
    ),
    Code(
        "ES-N01",
        "not-a-number",
        "unknown",
        "Loss or gradient norm became NaN or infinite.",
        _REPORT,
        "Rerun the step on other machines with the same data: the same NaN is the code or the data.",
        "Check learning rate, loss scale and the batch; if it stays away on other machines, suspect the machine.",
        "everstep drill nan R",
    ),
    Code(
        "ES-N02",
        "loss-jump",
        "unknown",
        "The loss is more than five times its own recent level.",
        _REPORT,
        "Look whether gradient norm jumped with it, and whether it comes down again within some steps.",
        "Look at the batch of that step and at the learning rate; go back to an earlier step if it stays up.",
    ),
    Code(
        "ES-N03",
        "gradient-jump",
        "unknown",
        "The gradient norm is more than five times its own recent level.",
        _REPORT,
        "One step alone is usual and is what clipping is for; a row of them is not.",
        "Clip gradients, look at the batch, or go back to an earlier step.",
    ),
    Code(
        "ES-N04",
        "replica-differs",
        "machine",
        "Data-parallel replicas hold different parameters, and all but one agree: that one computed something else.",
        _GO_BACK + " If it differs again, its machine is replaced by a standby. A line of the program may write the "
        "same wrong numbers again: after those it is replaced only if an examination finds it at fault.",
        "Digests of the parameters at the named step.",
        "Have the machine tested: memory, GPU, links. One flipped bit is enough.",
        "everstep drill flip-bit R",
    ),
    Code(
        "ES-N05",
        "replicas-disagree",
        "unknown",
        "Data-parallel replicas hold different parameters, and there is no majority that would say which one is right.",
        _GO_BACK + " No rank is blamed.",
        "Repeat the steps since then on other machines and compare.",
        "With two replicas only a repetition can show which one is wrong.",
    ),
    Code(
        "ES-N06",
        "replicas-never-equal",
        "user",
        "Ranks that should be replicas differ, and have never been seen equal since the run began.",
        _SAY,
        "Compare the parameters of two ranks right after they were made.",
        "Make all replicas from the same seed or broadcast them; leave parameters that differ on purpose out of DDP.",
    ),
    Code(
        "ES-N07",
        "stays-not-a-number",
        "unknown",
        "The loss was NaN or infinite three times in a row: the parameters are, so every further step is for nothing.",
        _GO_BACK + " When it comes again, all machines are examined. A run is never ended for it.",
        "everstep incident says which ranks said it. At the same step again: data or code. At another one: a machine.",
        "The same step again: look at its batch and at the learning rate. Without a trusted step nothing is undone.",
        "everstep drill nan R",
    ),
    Code(
        "ES-N08",
        "update-left-out",
        "user",
        "A data-parallel replica took fewer (or more) optimizer steps in a step of the loop than the others: the "
        "replicas differ from then on.",
        _SAY,
        "everstep incident shows the optimizer steps and collectives of each replica at the named step.",
        "Look for a `continue`, or an update under a condition on data, that not all ranks take at that step; decide "
        "it with a collective, so that all do the same. Going back to the step before repeats it.",
    ),
)

CODES: dict[str, Code] = {entry.code: entry for entry in (*_HANGS, *_SLOWNESS, *_NUMBERS)}
"""By code. A code is never given another meaning."""


def name_of(code: str) -> str:
    """`ES-H03 collective-desync`; an unknown code stands for itself."""
    entry = CODES.get(code)
    return f"{code} {entry.name}" if entry else code
