"""A rank whose CPU somebody takes: which one it is, who takes it, and what excuses a machine instead of accusing it."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_controller_slowness import STEP_S, STEPS, Job, state_of

from everstep.analyzer.observations.records import RankTiming
from everstep.analyzer.slowness.cpu.starving import find_starving
from everstep.analyzer.slowness.slow import judge
from everstep.model.facts import Taken
from everstep.probes.rank.rivals import MIN_SHARE, find_rivals, is_bound, throttled_s


def rounds(delays: dict[int, float], hosts: str = "aabb", num: int = 5) -> list[list[RankTiming]]:
    return [
        [RankTiming(rank=r, compute_s=0.1, delay_s=delays.get(r, 0.001), host=h) for r, h in enumerate(hosts)]
        for _ in range(num)
    ]


def test_the_rank_that_waits_most_is_found_within_its_node_first():
    found = find_starving(rounds({1: 0.03}), rounds({}), 4)
    assert found is not None
    assert (found.rank, found.has_neighbours) == (1, True)
    assert found.says.startswith("rank 1 waits 30 ms per step for a CPU, usually 1 ms, its neighbours on the same")
    alone = find_starving(rounds({2: 0.03}, "abcd"), rounds({}, "abcd"), 4)
    assert alone is not None
    assert (alone.rank, alone.has_neighbours) == (2, False)


def test_what_all_ranks_of_a_machine_wait_or_always_waited_is_nobodys_own():
    assert find_starving(rounds({0: 0.03, 1: 0.03}), rounds({}), 4) is None
    assert find_starving(rounds({1: 0.03}), rounds({1: 0.03}), 4) is None
    assert find_starving(rounds({1: 0.03}), [], 4) is None
    mixed = [*rounds({1: 0.03}, num=3), *rounds({2: 0.03}, num=2)]
    assert find_starving(mixed, rounds({}), 4) is None


def test_the_run_names_the_rank_and_its_rival_and_evicts_nobody():
    delay = dict.fromkeys(range(4), 0.001)
    job = Job(state_of(("h0", "h0")), delay_s=lambda rank: STEPS * delay[rank])
    job.of_rank["rivals"] = lambda rank: "stress (pid 812) takes 98% of CPU 3" if delay[rank] > 0.01 else ""
    job.rounds(3)
    delay[2] = 0.03
    job.compute_s[2] = 1.3 * STEP_S
    (found,) = job.rounds(8)
    verdict = found.verdict
    assert (verdict.code, verdict.ranks, verdict.blame) == ("ES-S03", (2,), "environment")
    assert "stress (pid 812) takes 98% of CPU 3" in verdict.sentence
    assert job.rounds(5) == [], "once"


def test_who_is_bound_to_a_ranks_cpu_is_named_where_all_ranks_wait_as_long():
    takes: set[int] = set()
    delay_s = STEPS * 0.06  # of all ranks, at all times

    def takers(rank: int) -> tuple[Taken, ...]:
        return (Taken(4711, "burn", 0.15),) if rank in takes else ()

    job = Job(state_of(("h0", "h0")), delay_s=lambda _: delay_s, takers=takers)
    job.rounds(6)
    takes.add(2)
    (found,) = [each for each in job.rounds(8) if each.verdict.ranks]
    verdict = found.verdict
    assert (verdict.code, verdict.ranks, verdict.blame) == ("ES-S03", (2,), "environment")
    assert "its CPU is taken by burn (pid 4711) (12%), bound to it and new there" in verdict.sentence
    assert (found.verdict.evidence[0].rank, found.verdict.evidence[0].source) == (2, "scheduler"), "no eBPF looked"
    assert not [each for each in job.rounds(5) if each.verdict.ranks], "once"


def test_a_process_is_bound_that_may_not_run_wherever_we_may():
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("one CPU")
    code = f"import os, time; os.sched_setaffinity(0, {{{cpus[0]}}}); print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert is_bound(process.pid)
        process.kill()
    assert not is_bound(os.getpid())
    assert not is_bound(2**22 + 1)


def test_a_start_that_had_to_share_its_cpus_hides_nothing_later():
    """Agents, imports and the controller run beside the first rounds."""
    delay = dict.fromkeys(range(4), 0.04)
    job = Job(state_of(("h0", "h0")), delay_s=lambda rank: STEPS * delay[rank])
    job.rounds(2)
    delay |= dict.fromkeys(range(4), 0.001)
    assert job.rounds(8) == []
    delay[2] = 0.03
    job.compute_s[2] = 1.3 * STEP_S
    (found,) = job.rounds(8)
    assert (found.verdict.code, found.verdict.ranks) == ("ES-S03", (2,))


@pytest.mark.parametrize(("throttled_s", "code"), [(0.028, "ES-S09"), (0.005, "ES-S03"), (0.0, "ES-S03")])
def test_a_quota_of_one_rank_is_told_from_a_rival(throttled_s: float, code: str):
    """Its waiting for a CPU is most of it the quota's."""
    delay, throttled = dict.fromkeys(range(4), 0.001), dict.fromkeys(range(4), 0.0)
    job = Job(state_of(("h0", "h0")), delay_s=lambda rank: STEPS * delay[rank])
    job.of_rank["throttled_s"] = lambda rank: STEPS * throttled[rank]
    job.rounds(3)
    delay[2], throttled[2] = 0.03, throttled_s
    job.compute_s[2] = 1.3 * STEP_S
    (found,) = job.rounds(8)
    verdict = found.verdict
    assert (verdict.code, verdict.ranks, verdict.blame) == (code, (2,), "environment"), verdict
    assert ("quota" in verdict.sentence) == (code == "ES-S09")


def test_a_quota_that_always_stopped_it_is_not_what_is_new():
    delay, throttled = dict.fromkeys(range(4), 0.02), dict.fromkeys(range(4), 0.02)
    job = Job(state_of(("h0", "h0")), delay_s=lambda rank: STEPS * delay[rank])
    job.of_rank["throttled_s"] = lambda rank: STEPS * throttled[rank]
    job.rounds(3)
    delay[2] = 0.05
    job.compute_s[2] = 1.3 * STEP_S
    (found,) = job.rounds(8)
    assert (found.verdict.code, found.verdict.ranks) == ("ES-S03", (2,))


@pytest.mark.parametrize(("part", "code"), [("throttled_s", "ES-S09"), ("io_s", "ES-S07")])
def test_a_quota_or_a_slow_storage_evicts_nobody(part: str, code: str):
    made = [
        [
            RankTiming(rank=r, compute_s=0.13 if r == 2 else 0.1 + 0.0001 * (r + n), **{part: 0.03 if r == 2 else 0.0})
            for r in range(6)
        ]
        for n in range(5)
    ]
    found = judge(made)
    assert (found.code, found.ranks, found.refusal is not None) == (code, (2,), True)


@pytest.mark.parametrize(
    ("mine", "theirs", "code"),
    [
        ({"cpu_s": 0.09}, {"cpu_s": 0.09}, "ES-S10"),  # it runs as long as the others, and takes longer
        ({"cpu_s": 0.12}, {"cpu_s": 0.09}, "ES-S01"),  # the same work needs more CPU time there
        ({"cpu_s": 0.105}, {"cpu_s": 0.09}, "ES-S01"),  # and half of it
        ({"cpu_s": 0.045, "delay_s": 0.02}, {"cpu_s": 0.045, "delay_s": 0.02}, "ES-S10"),  # they share their CPUs
        ({"cpu_s": 0.02}, {"cpu_s": 0.02}, "ES-S01"),  # most of the time is a device's
        ({"cpu_s": 0.13}, {"cpu_s": 0.13}, "ES-S01"),  # the others burn CPU while they wait for it
        ({"cpu_s": 0.09, "delay_s": 0.03}, {"cpu_s": 0.09}, "ES-S01"),  # it was ready to run
        ({"cpu_s": None}, {"cpu_s": 0.09}, "ES-S01"),
        ({"cpu_s": 0.09, "delay_s": None}, {"cpu_s": 0.09}, "ES-S01"),
    ],
)
def test_who_sleeps_is_not_a_slow_machine(mine: dict[str, float], theirs: dict[str, float], code: str):
    made = [
        [
            RankTiming(
                rank=r,
                compute_s=0.13 if r == 2 else 0.1 + 0.0001 * (r + n),
                **{"delay_s": 0.0} | (mine if r == 2 else theirs),
            )
            for r in range(6)
        ]
        for n in range(5)
    ]
    found = judge(made)
    assert (found.code, found.ranks, found.refusal is not None) == (code, (2,), code == "ES-S10"), found


def _share(pid: int) -> float:
    """Of one core, over a while."""
    used = [sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))]
    time.sleep(2.0)
    used.append(sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13])))
    return (used[1] - used[0]) / os.sysconf("SC_CLK_TCK") / 2.0


@pytest.mark.slow
def test_who_runs_on_the_core_is_found():
    core = min(os.sched_getaffinity(0))
    pin = f"import os; os.sched_setaffinity(0, {{{core}}})\n"
    # Whoever takes less than a tenth of a core is not named: on a loaded machine this one would be given no more.
    first = "import contextlib\nwith contextlib.suppress(OSError): os.nice(-40)\n"
    burn = subprocess.Popen([sys.executable, "-c", pin + first + "while True: pass"])
    waits = subprocess.Popen([sys.executable, "-c", pin + "import time; time.sleep(600)"])
    try:
        burns = re.compile(rf"\(pid {burn.pid}\) takes \d+% of CPU {core}\b")
        text = ""
        for _ in range(100):  # on a loaded machine it may not have begun, or is on its way to the core
            text = find_rivals(waits.pid, {os.getpid(), waits.pid}).text
            if burns.search(text):
                break
        if not burns.search(text) and (got := _share(burn.pid)) < MIN_SHARE:
            pytest.skip(f"this machine gave {got:.0%} of a core to who should take it")
        assert burns.search(text), text
        assert f"(pid {burn.pid})" not in find_rivals(waits.pid, {burn.pid}).text
    finally:
        for process in (burn, waits):
            process.kill()
            process.wait()


def stat(folder: Path, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def test_the_quota_of_a_cgroup_or_of_one_above_it(tmp_path: Path):
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    stat(proc / "7", "cgroup", "0::/pod/box\n")
    assert throttled_s(7, proc, root) is None
    stat(root / "pod/box", "cpu.stat", "usage_usec 5\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n")
    assert throttled_s(7, proc, root) == 0.0, "no quota: it is known that nothing stops it"
    stat(root / "pod", "cpu.stat", "nr_periods 9\nnr_throttled 4\nthrottled_usec 2500000\n")
    assert throttled_s(7, proc, root) == 2.5
    stat(proc / "8", "cgroup", "4:memory:/x\n3:cpu,cpuacct:/host/path/not/here\n0::/\n")
    stat(root / "cpu,cpuacct", "cpu.stat", "nr_periods 9\nnr_throttled 4\nthrottled_time 1500000000\n")
    assert throttled_s(8, proc, root) == 1.5
    assert throttled_s(9, proc, root) is None


def test_a_name_is_printed_without_what_a_terminal_would_obey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ticks = iter((0, 1000))

    def write(pid: int, name: str, used: int) -> None:
        words = ["S", "1", *["0"] * 9, str(used), "0", *["0"] * 6, "55", *["0"] * 16, "3", "0"]
        stat(tmp_path / str(pid), "stat", f"{pid} ({name}) {' '.join(words)}\n")

    def sleep(_s: float) -> None:
        write(2, "ev\x1b[31m) il", next(ticks) + 1000)

    write(1, "python", 0)
    write(2, "ev\x1b[31m) il", 0)
    monkeypatch.setattr("everstep.probes.rank.rivals.time.sleep", sleep)
    text = find_rivals(1, {1}, tmp_path).text
    assert text == "ev?[31m) il (pid 2) takes 100% of CPU 3"
