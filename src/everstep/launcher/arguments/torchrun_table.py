"""Table of torchrun's flags and what each means here: docs/torchrun.md is made of it, and a test compares it with
torchrun's own parser. `launcher.arguments.torchrun` refuses what stands here as refused."""

import argparse
from typing import Literal

import msgspec


class Meaning(msgspec.Struct, frozen=True):
    kind: Literal["same", "in part", "refused"]
    text: str
    accepted: tuple[str, ...] = ()  # values that are taken, for the tests
    refused: tuple[str, ...] = ()  # values that are not


def _same(text: str = "", *accepted: str) -> Meaning:
    return Meaning("same", text, accepted)


LATER = frozenset({"log_line_prefix_template", "print_completion"})
"""Not yet in the torch that the page is made with."""

FLAGS: dict[str, Meaning] = {
    "nnodes": Meaning(
        "in part",
        "`N` hosts, or `MIN:MAX`, that meet at `--rdzv-endpoint` ([hosts.md](hosts.md)); `1:MAX` is one machine. "
        "Several nodes on this machine: `--local-nodes N`",
        ("1", "1:4"),
        ("2", "2:4", "0", "3:2", "a"),
    ),
    "nproc_per_node": _same("a number, `auto`, `cpu`, `gpu`, `xpu`. More ranks than GPUs are said", "2", "auto", "cpu"),
    "rdzv_backend": Meaning(
        "in part",
        "`c10d` and `static`, which differ only in where ranks meet. A backend that needs a server is refused: "
        "everstep has a rendezvous of its own",
        ("c10d", "static"),
        ("etcd", "etcd-v2", "nonsense"),
    ),
    "rdzv_endpoint": Meaning(
        "in part",
        "where hosts meet; the one that owns the address goes first, and after commas where else the run may be. With "
        "one host an address of this machine, with `static` it is `MASTER_ADDR` and `MASTER_PORT`",
        ("localhost:29511",),
        ("203.0.113.9:29400", "localhost:x"),
    ),
    "rdzv_id": _same("also the name of the run's directory; a second run with the same id gets `ID.2`", "job77", "a b"),
    "rdzv_conf": Meaning(
        "same",
        "`join_timeout`: how long hosts are waited for; `read_timeout`: how long for the first one",
        ("timeout=5",),
        ("abc",),
    ),
    "standalone": _same("the endpoint and the id are ignored, as torchrun does"),
    "max_restarts": _same(
        "N restarts, over the whole run, whatever failed how often. **Not given, everstep's policy holds** (torchrun: "
        "0): restarts while they help",
        "0",
        "1000",
    ),
    "monitor_interval": _same("an end is noticed at once, so never later than torchrun would", "2"),
    "start_method": _same("torchrun uses it for functions only, and a script is not one", "fork"),
    "event_log_handler": Meaning(
        "refused",
        "but for `null`, the default: torch's agent, whose events these are, does not run. docs/journal.md",
        ("null",),
        ("console", "nope"),
    ),
    "role": _same("", "trainer"),
    "module": _same(),
    "no_python": _same(),
    "run_path": _same(),
    "log_dir": _same("", "/tmp"),
    "redirects": _same("", "3", "0:1,1:2"),
    "tee": _same("", "3"),
    "local_ranks_filter": _same("", "0"),
    "duplicate_stdout_filters": _same("", "apple"),
    "duplicate_stderr_filters": _same("", "apple"),
    "log_line_prefix_template": _same("", "${rank}: "),
    "print_completion": _same(),
    "node_rank": _same("with several hosts; not given: slots in order of arrival", "0"),
    "master_addr": Meaning(
        "in part",
        "with several hosts where they meet; else a name or address of this machine, and ranks get it with "
        "`--master-port`",
        ("localhost",),
        ("203.0.113.9",),
    ),
    "master_port": _same("the same port after every restart", "29544"),
    "local_addr": _same("ranks get it as `MASTER_ADDR`", "127.0.0.3"),
    "logs_specs": Meaning(
        "refused", "but for torch's own: everstep writes the ranks' files itself", ("default",), ("nope",)
    ),
    "numa_binding": Meaning("refused", "not supported: ranks run on every core, as without it", (), ("node",)),
    "signals_to_handle": _same("ranks get the very signal that the launcher got", "SIGUSR1,SIGTERM"),
    "shutdown_timeout": _same("30 s, or `TORCH_ELASTIC_SHUTDOWN_TIMEOUT`", "9"),
    "virtual_local_rank": _same("`LOCAL_RANK` 0, one device in `CUDA_VISIBLE_DEVICES`"),
    "training_script": _same("a script, a module, a zip archive, a directory, a compiled file"),
    "training_script_args": _same("also flags of ours among them; `${local_rank}` is filled in as torchrun does"),
}

_HEAD = """# torchrun's flags

`everstep run` takes torchrun's own parser, so every flag is known: with dash or underscore, abbreviated as torchrun
allows, and with its `PET_*` variable for a default. Each one means the same, or is refused before anything starts, with
a reason. None is accepted and ignored. everstep's own flags are written out ([run.md](run.md)), so that no abbreviation
of torchrun's gets another meaning.

| flag | variable | here | |
|---|---|---|---|
"""

_TAIL = """
torch 2.15 also has `--log-line-prefix-template` and `--print-completion`: the same. Flags that an earlier torch does
not have are unknown with it. torch 2.11 has no `--shutdown-timeout`; 2.6 neither that nor `--event-log-handler`,
`--duplicate-stdout-filters`, `--duplicate-stderr-filters`, `--numa-binding`, `--signals-to-handle` and
`--virtual-local-rank`. Where no port is given, ranks meet at a free one with every torch; torchrun of an earlier torch
(seen: 2.11) then takes 29500.

## What is different on purpose

| | torchrun | everstep |
|---|---|---|
| a rank fails, no `--max-restarts` | the run ends | all ranks are restarted while that helps (below) |
| exit codes | 0, 1, 2 | the same; `--exit-codes everstep` says more: [exit-codes.md](exit-codes.md) |
| `TORCHELASTIC_RUN_ID` with `--rdzv-id` and no backend | a new UUID, the id is dropped | the id |
| ports | `MASTER_PORT`, the agent's | also the status page's and the snapshot server's, on loopback |

Without `--max-restarts`, a program that fails twice in the same way before its first step ends the run with code 1. The
same way is the same place, exit code or signal. Arguments that the program refuses (exit code 2) end it at
once. After a step, the same place three times without a new step in between does (policy `max_same_failure`).

A signal may end a rank's process after its program's last line, as when a library's thread aborts at exit. Its work is
done. Where nothing keeps snapshots, the other ranks go on to their own ends, and the run ends with code 1: a restart
would do all the work again. torchrun ends the other ranks at once.
"""


def render() -> str:
    """docs/torchrun.md."""
    from torch.distributed.run import get_args_parser

    actions = [action for action in get_args_parser()._actions if action.dest in FLAGS]
    rows = [_row(action, FLAGS[action.dest]) for action in actions]
    return _HEAD + "\n".join(rows) + "\n" + _TAIL


def _row(action: argparse.Action, meaning: Meaning) -> str:
    names = [name for name in action.option_strings if "_" not in name] or [action.dest]
    has_variable = type(action).__name__ in ("env", "check_env")
    variable = f"`PET_{action.dest.upper()}`" if has_variable else ""
    return f"| {', '.join(f'`{name}`' for name in names)} | {variable} | {meaning.kind} | {meaning.text} |"


if __name__ == "__main__":
    print(render(), end="")  # noqa: T201
