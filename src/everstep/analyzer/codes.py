"""Codes of silent faults: H hangs, S slowness, N numbers. Text only; the analysis names a code and never its text.

The shape equals `everstep.knowledge.codes.Code`, so that the two tables can be read as one.
"""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Code:
    code: str
    name: str
    blame: str  # user, machine, network, storage, scheduler, unknown: what is believed without further evidence
    means: str
    everstep_does: str
    confirm: str
    you_do: str
    drill: str = ""  # how to cause it on purpose


_ISOLATE = "Names the rank and its parallel group, ends the generation, restarts on the machines that are left."
_SAY = "Says so and changes nothing: the cause is not a machine."
_REPORT = "Reports it with the evidence; ends nothing by itself."

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
        "unknown",
        "A rank's process exists and is stopped (SIGSTOP, a debugger, a frozen control group): it runs nothing.",
        _ISOLATE,
        "grep State /proc/PID/status shows T (stopped) or t (tracing stop).",
        "Find who stopped it: a debugger, a job-control shell, a freezer. kill -CONT PID lets it go on.",
        "everstep drill stop R",
    ),
    Code(
        "ES-H02",
        "rank-never-entered",
        "unknown",
        "The others of a process group wait in a collective that this rank never entered, and it waits for nobody.",
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
        "Two stacks, seconds apart, show the same function, running and holding the interpreter lock.",
        "Read the loop at the named place: its end condition never becomes true on this rank.",
        "everstep drill python-loop R",
    ),
    Code(
        "ES-H08",
        "native-call",
        "unknown",
        "The rank is inside a call of native code that holds the interpreter lock and does not return.",
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
        "Every rank of the group entered the collective with the same arguments, and it does not complete.",
        _REPORT,
        "NCCL_DEBUG=INFO, the link counters of the machines in the group, and their kernel logs.",
        "Check network and links between the machines of the group.",
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
        "Collect all ranks at one moment into an empty folder.",
    ),
    Code(
        "ES-H15",
        "not-enough-evidence",
        "unknown",
        "Something is wrong or may be, and the evidence does not say with whom.",
        "Says what is missing, blames nobody.",
        "The list of evidence names what could not be read.",
        "Collect flight records (TORCH_FR_BUFFER_SIZE=2000) and py-spy dumps of all ranks.",
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
        "Stops before a snapshot of it is kept; goes back to a step before it.",
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
        "Names the rank, goes back to the newest step at which all agreed, isolates the machine.",
        "Digests of the parameters at the named step.",
        "Have the machine tested: memory, GPU, links. One flipped bit is enough.",
        "everstep drill flip-bit R",
    ),
    Code(
        "ES-N05",
        "replicas-disagree",
        "unknown",
        "Data-parallel replicas hold different parameters, and there is no majority that would say which one is right.",
        "Goes back to the newest step at which all agreed; blames nobody.",
        "Repeat the steps since then on other machines and compare.",
        "With two replicas only a repetition can tell which one is wrong.",
    ),
)

CODES: dict[str, Code] = {entry.code: entry for entry in (*_HANGS, *_SLOWNESS, *_NUMBERS)}
"""By code. A code is never given another meaning."""


def name_of(code: str) -> str:
    """`ES-H03 collective-desync`; an unknown code stands for itself."""
    entry = CODES.get(code)
    return f"{code} {entry.name}" if entry else code
