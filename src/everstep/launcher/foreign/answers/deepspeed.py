"""The answer to what `deepspeed` would start on this host. Its own code reads the command line and the hostfile,
chooses the devices and makes the environment; where it would start a rank, or ask other hosts by ssh, it ends here."""

import base64
import json
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from everstep.launcher.foreign.answers.answering import Found, Stand, answer, changes, kind_of, refuse
from everstep.launcher.foreign.line import TEMPLATE, Line, literal

NAME = "deepspeed"
_OF_A_RANK = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
_REFUSED = {
    "autotuning": "it starts many short trainings itself; run them with deepspeed, and the result with everstep",
    "bind_cores_to_rank": "numactl for each rank is not supported; leave it out",
    "save_pid": "everstep's own record has the processes; leave it out, and end a run with `everstep stop`",
    "elastic_training": "leave it out, and give everstep --nnodes MIN:MAX",
}
"""Flags that everstep would not do as meant."""


def find(args: Sequence[str]) -> None:
    before = dict(os.environ)
    runner: Any = import_module("deepspeed.launcher.runner")
    given = runner.parse_args(list(args))
    for name, why in _REFUSED.items():
        if getattr(given, name, None):
            refuse(NAME, f"--{name}: {why}")
    if getattr(given, "enable_each_rank_log", "None") != "None":
        refuse(
            NAME, f"--enable_each_rank_log: give everstep --log-dir {given.enable_each_rank_log} --redirects 3 instead"
        )

    def on_hosts(_given: Any, world: str, *_: object) -> NoReturn:  # noqa: ANN401
        refuse(NAME, _one_line_per_host(given, list(_decoded(world))))

    def on_this_host(command: Sequence[str], env: dict[str, str]) -> NoReturn:
        raise Found(_line(before, command, env))

    for name in [name for name in vars(runner) if name.endswith("Runner")]:
        setattr(runner, name, on_hosts)
    runner.subprocess = Stand(
        runner.subprocess,
        Popen=on_this_host,
        check_call=lambda *_, **__: 0,  # whether the first host answers to ssh
        check_output=lambda command, **__: command[-3].encode(),  # its addresses: its name will do
    )
    runner.main(list(args))


def _decoded(world: str) -> dict[str, list[int]]:
    decoded: dict[str, list[int]] = json.loads(base64.urlsafe_b64decode(world))
    return decoded


def _one_line_per_host(given: Any, hosts: list[str]) -> str:  # noqa: ANN401
    address = given.master_addr or hosts[0]
    return (
        f"it would start ranks on {len(hosts)} hosts ({', '.join(hosts[:4])}) by {given.launcher}, and everstep starts "
        f"them on its own host. Run on each one: everstep run deepspeed --no_ssh --node_rank N --master_addr {address} "
        f"..., with N from 0 to {len(hosts) - 1}"
    )


def _line(before: dict[str, str], command: Sequence[str], env: dict[str, str]) -> Line:
    """From the command of DeepSpeed's second launcher, which starts the ranks of one host."""
    launch: Any = import_module("deepspeed.launcher.launch")
    started: list[tuple[list[str], dict[str, str]]] = []

    def start(rank_command: Sequence[str], env: dict[str, str], **_: object) -> Stand:
        started.append((list(rank_command), dict(env)))
        return Stand(None, pid=0, poll=lambda: over())

    def over() -> NoReturn:
        raise Found(_of_ranks(before, given, started))

    launch.subprocess = Stand(launch.subprocess, Popen=start)
    launch.logger = logging.Logger(NAME)  # it would name processes that there are not
    os.environ.clear()
    os.environ.update(env)
    sys.argv = list(command[command.index("deepspeed.launcher.launch") :])
    given = launch.parse_args()
    launch.main()
    refuse(NAME, "it started no rank")


def _of_ranks(before: dict[str, str], given: Any, started: list[tuple[list[str], dict[str, str]]]) -> Line:  # noqa: ANN401
    world = list(_decoded(given.world_info).values())
    if len({len(devices) for devices in world}) > 1:
        refuse(NAME, f"hosts with different numbers of ranks ({', '.join(str(len(each)) for each in world)})")
    command, env = started[0]
    kind, (program, *arguments) = kind_of(command)
    own = () if given.no_local_rank else (f"--local_rank={TEMPLATE}",)
    flags = ["--nproc-per-node", str(len(started)), "--rdzv-backend", "static", *kind]
    flags += ["--master-addr", given.master_addr, "--master-port", str(given.master_port)]
    if len(world) > 1:
        flags += ["--nnodes", str(len(world)), "--node-rank", str(given.node_rank)]
    shared = {name: value for name, value in env.items() if name not in _OF_A_RANK}
    return Line(
        launcher=NAME,
        flags=tuple(flags),
        program=program,
        args=(*own, *literal(arguments[len(own) :])),
        starts="bare ranks",
        **changes({name: value for name, value in before.items() if name not in _OF_A_RANK}, shared),
    )


if __name__ == "__main__":
    answer(NAME, find)
