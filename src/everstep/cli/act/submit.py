"""`everstep submit`: ask a Slurm cluster for nodes, and run a training job on them with spares.

everstep submit --engine slurm --nodes 16 --standby 2 [--sbatch OPTION]... [everstep run's flags] train.py ARGS

One allocation of nodes and spares (`sbatch --no-kill`), with one launcher on each node. `--sbatch` gives an option to
sbatch, as --sbatch=--partition=gpu or --sbatch=--gres=gpu:8, any number of times. The run directory must be seen by all
nodes and by this host: EVERSTEP_HOME on a shared file system. docs/slurm.md has the rest.
"""

import sys
import time
from collections.abc import Sequence

from everstep.errors import ConfigError
from everstep.model.names import MachineName

ENGINES = ("slurm",)
_OWN = ("--engine", "--nodes", "--standby", "--sbatch")


def run(argv: Sequence[str]) -> int:
    import subprocess

    from everstep.engines.slurm.batch import Submission, script
    from everstep.engines.slurm.commands import SlurmError, parse_job
    from everstep.journal.runs import home
    from everstep.linux.files import make_own

    if not argv or argv[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if argv else ConfigError.exit_code
    own, arguments = _split(argv)
    if own["--engine"] not in ENGINES:
        raise ConfigError(f"--engine {own['--engine']!r}: must be one of {', '.join(ENGINES)}")
    if not arguments:
        raise ConfigError("no program given: everstep submit --engine slurm --nodes N train.py")
    runs = home() / "runs"
    make_own(runs)
    excluded = _quarantined()
    wanted = Submission(
        num_nodes=_whole("--nodes", own["--nodes"], least=1),
        num_standby=_whole("--standby", own["--standby"], least=0),
        everstep=(sys.executable, "-P", "-m", "everstep.cli.main"),
        arguments=tuple(arguments),
        runs=str(runs),
        exclude=excluded,
    )
    if wanted.num_nodes + wanted.num_standby < 2:
        raise ConfigError("--nodes 1: one node needs no run over several: sbatch --wrap 'everstep run train.py'")
    options = own["--sbatch"].split("\n") if own["--sbatch"] else []
    try:
        said = subprocess.run(["sbatch", "--parsable", *options], input=script(wanted), capture_output=True, text=True)
    except OSError as error:
        raise SlurmError(f"sbatch cannot be started: {error.strerror}. Nothing was submitted") from error
    if said.returncode:
        raise SlurmError(f"{' '.join(said.stderr.split())}. Nothing was submitted")
    job = parse_job(said.stdout)
    print(f"job {job} is submitted: {wanted.num_nodes} nodes and {wanted.num_standby} standby")
    if excluded:
        print(f"excluded, because they are quarantined: {', '.join(excluded)} (everstep node ls)")
    print(f"everstep status slurm-{job}      output: {runs}/slurm-{job}.out      scancel {job} ends it")
    return 0


def _split(argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Our flags come first; the first word that is none of them begins what `everstep run` gets."""
    own = {"--engine": ENGINES[0], "--nodes": "", "--standby": "0", "--sbatch": ""}
    words = list(argv)
    while words:
        flag, has_value, value = words[0].partition("=")
        if flag not in _OWN:
            break
        words.pop(0)
        if not has_value:
            if not words:
                raise ConfigError(f"{flag}: needs a value")
            value = words.pop(0)
        own[flag] = f"{own[flag]}\n{value}" if flag == "--sbatch" and own[flag] else value
    return own, words


def _whole(flag: str, text: str, *, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise ConfigError(f"{flag} {text or '(not given)'}: must be a whole number, at least {least}")
    return int(text)


def _quarantined() -> tuple[MachineName, ...]:
    """Machines that are in quarantine after earlier runs. A memory that cannot be read excludes none, and is said. Of
    an earlier version it may hold what is not a machine's name."""
    from everstep.health.rules import State
    from everstep.health.store import HealthError, Store
    from everstep.model.names import is_name, machine_name

    try:
        hosts = Store().hosts(time.time())
    except HealthError as error:
        print(f"everstep: no node is excluded: {error}", file=sys.stderr)
        return ()
    found = [each.host for each in hosts if each.state is State.QUARANTINED]
    odd = [each for each in found if not is_name(each)]
    if odd:
        print(
            f"everstep: {len(odd)} quarantined, not excluded: not names of machines: {odd[0][:80]!a}", file=sys.stderr
        )
    return tuple(machine_name(each) for each in found if is_name(each))
