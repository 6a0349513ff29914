"""A run in an allocation of a real Slurm: submitted on the login host, one node drained by its administrator."""

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from everstep.engines.network import NetworkError
from everstep.testing.slurm import SlurmBed, why_not

SLOTS = 'while [ ! -e "$1" ]; do echo "slot $EVERSTEP_SLOT on $(hostname)"; sleep 0.1; done\n'


def until(what: str, condition: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + 90.0
    while not condition():
        assert time.monotonic() < ends_at, f"never came: {what}"
        time.sleep(0.05)


@pytest.mark.root
@pytest.mark.skipif(bool(why_not()), reason=f"no Slurm: {why_not()}")
def test_a_drained_node_is_left_for_the_spare_of_the_allocation():
    try:
        bed = SlurmBed(3)
    except NetworkError as error:
        pytest.skip(str(error))
    with bed:
        shared = bed.folder / "shared"
        (shared / "slots.sh").write_text(SLOTS)
        (shared / "everstep.toml").write_text("[policy]\nexamine = false\n")
        env = {"EVERSTEP_HOME": str(shared / "home")}
        submit = [sys.executable, "-P", "-m", "everstep.cli.main", "submit", "--nodes", "2", "--standby", "1"]
        program = ["--no-python", "sh", shared / "slots.sh", shared / "done"]
        try:
            bed.run(*submit, "--config", shared / "everstep.toml", *program, env=env)
            runs = shared / "home" / "runs"

            def output(generation: int) -> str:
                logs = (runs / "slurm-1").glob(f"logs/gen-{generation}/rank-*/stdout.log")
                return " ".join(log.read_text() for log in logs)

            until("both ranks", lambda: "slot 0 on n0" in output(0) and "slot 1 on" in output(0))
            lost = "n1" if "slot 1 on n1" in output(0) else "n2"
            bed.run("scontrol", "update", f"NodeName={lost}", "State=DRAIN", "Reason=a fan is to be replaced")
            spare = "n2" if lost == "n1" else "n1"
            until("the spare", lambda: any(f"slot 1 on {spare}" in output(number) for number in (1, 2)))
            (shared / "done").touch()
            until("the end", lambda: (runs / "slurm-1" / "exit-code").exists())
        except subprocess.CalledProcessError as error:
            pytest.fail(error.output)
        said = (runs / "slurm-1.out").read_text()
        assert (runs / "slurm-1" / "exit-code").read_text() == "0\n", said
        assert "a fan is to be replaced" in said
        assert bed.reason_of(lost) == "a fan is to be replaced"
