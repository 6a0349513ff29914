"""The simulated fleet against theory, against itself at other resolutions, and against what it says of itself."""

import json
import math
from random import Random

import msgspec
import pytest

from everstep.cli.main import main
from everstep.core.state.policy import Policy
from everstep.errors import ConfigError
from everstep.simulate.fleet.costs import BYTEROBUST, MEASURED, Costs, with_changes
from everstep.simulate.fleet.faults import LLAMA3, Cause, Mix, Sign, Stays
from everstep.simulate.fleet.pace import Cadence, Pace
from everstep.simulate.fleet.setup import DAY_S, Lemons, Setup
from everstep.simulate.fleet.striking import draw_strikes
from everstep.simulate.fleet.trace import read_trace, strikes_of
from everstep.simulate.outcome import summarise
from everstep.simulate.run import simulate_once

FREE = msgspec.structs.replace(
    MEASURED, detect_s={"": 0.0}, diagnose_s={"": 0.0}, stop_s=0.0, initialise_s=0.0, load_s=0.0, persist_s=0.0
)


def expected_ettr(*, mtbf_s: float, interval_s: float, save_s: float, restart_s: float) -> float:
    """Useful time over wall time, exactly (Daly 2006, "A higher order estimate of the optimum checkpoint interval",
    equation 13): failures may also come while a checkpoint is written and while the job restarts. `interval_s` of work,
    then `save_s` in which nothing is trained; `restart_s` from a failure to the first moment of work.
    """
    if mtbf_s <= 0 or interval_s <= 0 or save_s < 0 or restart_s < 0:
        raise ValueError(f"no regime: mtbf {mtbf_s}, interval {interval_s}, save {save_s}, restart {restart_s}")
    wall_s = mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1((interval_s + save_s) / mtbf_s)
    return interval_s / wall_s


def young_interval_s(*, mtbf_s: float, save_s: float) -> float:
    """The interval that is best to first order."""
    return math.sqrt(2 * save_s * mtbf_s)


def scaled(costs: Costs, field: str, factor: float) -> Costs:
    """All of one cost times a factor."""
    now = getattr(costs, field)
    if isinstance(now, dict):
        return msgspec.structs.replace(costs, **{field: {name: factor * value for name, value in now.items()}})
    changed = msgspec.structs.replace(costs, **{field: factor * now})
    if field != "initialise_s":
        return changed
    sizes = tuple((size, factor * value) for size, value in costs.initialise_by_gpus)
    return msgspec.structs.replace(changed, initialise_by_gpus=sizes)


def fleet(causes: tuple[Cause, ...] = LLAMA3.causes, per_day: float = 8.0, **changes: object) -> Setup:
    mix = Mix(name="test", source="test", per_node_day=per_day / 8, causes=causes)
    setup = Setup(
        num_nodes=8,
        num_cells=8,
        days=10.0,
        mix=mix,
        costs=MEASURED,
        policy=Policy(node_timeout_s=DAY_S, max_restarts=10**9),
        num_standby=2,
    )
    return msgspec.structs.replace(setup, **changes)


@pytest.mark.parametrize(
    ("mtbf_s", "interval_s", "save_s", "restart_s"),
    [
        (7200.0, 1500.0, 30.0, 300.0),
        pytest.param(14400.0, 600.0, 30.0, 60.0, marks=pytest.mark.soak),
        pytest.param(3600.0, 900.0, 60.0, 120.0, marks=pytest.mark.soak),
    ],
)
def test_ettr_is_what_theory_says_of_periodic_checkpoints(mtbf_s, interval_s, save_s, restart_s):
    """Within 2 %. A rank that is out of memory: a cause that is known, so every fault is a restart and nothing else."""
    costs = msgspec.structs.replace(FREE, initialise_s=restart_s, save_stall_s=save_s)
    killed = Cause(name="killed", count=1, sign=Sign.MEMORY)
    setup = fleet(
        (killed,),
        per_day=4 * DAY_S / mtbf_s,  # two of eight machines
        num_nodes=2,
        num_cells=2,
        num_standby=0,
        days=200 * mtbf_s / DAY_S,
        costs=costs,
        every_step=False,
        save_every_s=interval_s,
        step_s=1.0,
        spread=0.0,
    )
    found = simulate_once(setup, 2).ettr
    expected = expected_ettr(mtbf_s=mtbf_s, interval_s=interval_s, save_s=save_s, restart_s=restart_s)
    assert found == pytest.approx(expected, rel=0.02)


def test_the_interval_of_young_is_near_the_best_one():
    best_s = young_interval_s(mtbf_s=7200.0, save_s=10.0)
    rates = {f: expected_ettr(mtbf_s=7200.0, interval_s=f * best_s, save_s=10.0, restart_s=60.0) for f in (0.3, 1, 3)}
    assert max(rates, key=lambda factor: rates[factor]) == 1
    with pytest.raises(ValueError, match="no regime"):
        expected_ettr(mtbf_s=0.0, interval_s=1.0, save_s=0.0, restart_s=0.0)


def test_without_faults_only_the_start_and_stalls_are_lost():
    outcome = simulate_once(fleet(per_day=0.0), 1)
    assert outcome.num_incidents == 0
    stall = MEASURED.stall_s / (6.0 + MEASURED.stall_s)
    assert outcome.ettr == pytest.approx(1 - stall, abs=1e-4)


def test_every_second_is_in_one_part_and_a_seed_is_a_run():
    setup = fleet(per_day=15.0, days=1.0)
    one, again, other = simulate_once(setup, 1), simulate_once(setup, 1), simulate_once(setup, 2)
    assert one == again
    assert one != other
    assert math.fsum(one.seconds.values()) == pytest.approx(one.wall_s, abs=60.0), "but for the last step"
    assert sum(one.solved_by.values()) == one.num_faults


@pytest.mark.soak
def test_a_cell_of_machines_behaves_as_the_machines_do():
    alone = fleet(per_day=0.5, num_nodes=64, num_cells=64, days=3.0)
    cells = msgspec.structs.replace(alone, num_cells=32)
    ettrs = [sum(simulate_once(setup, seed).ettr for seed in (1, 2)) / 2 for setup in (alone, cells)]
    assert ettrs[0] == pytest.approx(ettrs[1], abs=0.002)


@pytest.mark.soak
def test_what_halving_a_cost_gives_is_what_is_said():
    costs = msgspec.structs.replace(MEASURED, initialise_s=60.0)
    setup = fleet(per_day=20.0, costs=costs, days=20.0, spread=0.0)
    said = summarise([simulate_once(setup, 1)], 0.995)
    gain = next(lever.gain for lever in said.levers if lever.part == "starting")
    halved = msgspec.structs.replace(setup, costs=scaled(costs, "initialise_s", 0.5))
    assert gain > 0.003
    assert simulate_once(halved, 1).ettr - said.ettr.median == pytest.approx(gain, rel=0.25)


def test_machines_that_stay_bad_are_taken_out_by_what_the_flow_has_for_them():
    told = Cause(name="told", count=1, sign=Sign.ALERT, stays=Stays.MACHINE, code="ES-G79", action="REBOOT_NODE")
    silent = Cause(name="silent", count=1, sign=Sign.EXIT, stays=Stays.MACHINE)
    outcome = simulate_once(fleet((told,), per_day=2.0, recall=1.0, days=5.0), 1)
    assert outcome.solved_by.get("real-time eviction", 0) >= outcome.num_faults - 1
    outcome = simulate_once(fleet((silent,), per_day=1.5, days=5.0), 1)
    assert outcome.solved_by.get("stop-time checks", 0) > outcome.num_faults / 2


def test_without_a_machine_to_be_had_the_job_waits_for_repair():
    setup = fleet((Cause(name="gone", count=1, sign=Sign.LOST),), per_day=2.0, num_standby=0, num_spares=0, days=5.0)
    waiting = simulate_once(setup, 1).seconds["waiting for a machine"]
    assert waiting > 10 * simulate_once(msgspec.structs.replace(setup, num_spares=None), 1).seconds["starting"]


def test_bursts_and_lemons_are_as_uneven_as_asked():
    setup = fleet(per_day=8.0, days=400.0)
    for burst in (1.0, 4.0):
        days = [0] * 400
        for strike in draw_strikes(msgspec.structs.replace(setup, burst=burst), Random(3)):
            days[int(strike.at_s / DAY_S)] += 1
        mean = sum(days) / len(days)
        variance = sum((count - mean) ** 2 for count in days) / len(days)
        assert mean == pytest.approx(8.0, rel=0.15)
        assert variance / mean == pytest.approx(burst, rel=0.3)
    assert simulate_once(fleet(days=1.0, lemons=Lemons(share=0.3, times=5.0)), 1).num_faults > 0


def test_steps_are_counted_without_being_done_one_by_one():
    cadence = Cadence(step_s=2.0, stall_s=0.5, save_every_s=10.0, save_stall_s=3.0, persist_s=4.0)
    pace = Pace(cadence=cadence, first_step=7, begun_at=100.0)
    steps, at = [], 100.0
    for number in range(1, 40):
        at += 2.5
        steps.append(at)
        if number % 4 == 0:
            at += 3.0
    for number, done_at in enumerate(steps, 1):
        assert pace.done_at(number) == pytest.approx(done_at)
        assert pace.completed(done_at) == number
        assert pace.completed(done_at - 0.1) == number - 1
    assert pace.newest_save(100.0 + 13.0 + 3.9) is None
    assert pace.newest_save(100.0 + 13.0 + 4.0) == 10, "four steps from step 7 on"


def test_costs_are_read_by_cause_by_its_other_name_and_by_sign():
    nic = next(cause for cause in LLAMA3.causes if cause.name == "NIC")
    gpu = next(cause for cause in LLAMA3.causes if cause.name == "faulty GPU")
    assert BYTEROBUST.detect(nic) == 30.0
    assert BYTEROBUST.detect(gpu) == 10.0
    assert BYTEROBUST.diagnose(gpu) == 10.0
    assert BYTEROBUST.initialise(16384) == 65.0
    assert 54.0 < BYTEROBUST.initialise(12000) < 65.0
    assert BYTEROBUST.initialise(1) == 46.0
    changed: Costs = with_changes(BYTEROBUST, {"initialise": "5", "detect.hang": "7"})
    assert (changed.initialise(16384), changed.detect_s["hang"]) == (5.0, 7.0)
    for wrong in ({"nothing": "1"}, {"initialise": "-1"}, {"initialise": "soon"}):
        with pytest.raises(ConfigError):
            with_changes(BYTEROBUST, wrong)


def test_the_published_mix_adds_up():
    assert LLAMA3.total == 419
    assert LLAMA3.per_node_day * 2048 * 54 == pytest.approx(419)


def test_a_trace_is_laid_over_a_fleet_of_another_size():
    def line(node: str, day: float, kind: str, what: str) -> dict[str, object]:
        return {"node_id": node, "event_time": day, "event_type": kind, "fault_type": {"Level": "x", "Desc": what}}

    lines = [line("a", 1.0, "fault_start", "GPU Lost"), line("a", 3.0, "fault_end", "GPU Lost")]
    lines += [line("b", 11.0, "fault_start", "Kernel Panic")]
    trace = read_trace(json.dumps(lines).encode(), num_nodes=10)
    assert [cause.sign for cause in trace.mix.causes] == [Sign.ALERT, Sign.LOST]
    assert trace.faults[0][3] == 2 * DAY_S
    strikes = strikes_of(trace, 25, 100.0, Random(1))
    assert len(strikes) == pytest.approx(2 * 10 * 2.5, rel=0.3), "two faults in ten days of ten machines"
    assert all(strike.node is not None and 0 <= strike.node < 25 for strike in strikes)
    with pytest.raises(ConfigError, match="not a fault trace"):
        read_trace(b"{}")


def test_the_verb_prints_where_the_time_went(capsys):
    asked = ["simulate", "--gpus", "64", "--days", "1", "--rate", "0.5", "--runs", "2", "--jobs", "1"]
    assert main([*asked, "--cost", "initialise=30", "--set", "settle_s=1"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("ETTR 9")
    for part in ("where the time went", "what would help most", "which step of the flow solved it"):
        assert part in page
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["summary"]["num_runs"] == len(found["runs"]) == 2
    for wrong in (["--set", "nothing=1"], ["--checkpoint", "often"], ["--lemons", "x"], ["--faults", "trace"]):
        assert main([*asked, *wrong]) == 2
        assert capsys.readouterr().err.startswith("everstep: ")
