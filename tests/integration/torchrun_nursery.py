"""torchrun as a fork of a process that has imported it: what many short programs are compared with.

    python torchrun_nursery.py serve NAME               # until it is killed
    python -SE torchrun_nursery.py NAME ARGUMENTS       # as `python -m torch.distributed.run ARGUMENTS`

The second one stands in torchrun's place: its streams, variables, directory and exit code are those of the fork.
Signals that it gets are not. NAME is that of an abstract socket.
"""

import json
import os
import socket
import sys

_LENGTH = 8


def serve(name: str) -> list[str]:
    """Returns in each fork, with the arguments of its torchrun. One at a time. Ends with whoever started it."""
    die_with_parent(os.getppid())
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"\0{name}")
        listening.listen()
        print("ready", flush=True)
        while True:
            asked, _ = listening.accept()
            with asked:
                length, fds, _, _ = socket.recv_fds(asked, _LENGTH, 3)
                told = json.loads(_exactly(asked, int.from_bytes(length, "big")))
                pid = os.fork()
                if pid == 0:
                    return _become(told, fds)
                for fd in fds:
                    os.close(fd)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                asked.sendall(str(code).encode())


def _exactly(asked: socket.socket, length: int) -> bytes:
    found = b""
    while len(found) < length:
        found += asked.recv(length - len(found))
    return found


def _become(told: dict, fds: list[int]) -> list[str]:
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(told["cwd"])
    os.environ.clear()
    os.environ.update(told["env"])
    return told["argv"]


def ask(name: str, argv: list[str]) -> int:
    told = json.dumps({"argv": argv, "env": dict(os.environ), "cwd": os.getcwd()}).encode()  # noqa: PTH109
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(f"\0{name}")
        socket.send_fds(asked, [len(told).to_bytes(_LENGTH, "big")], [0, 1, 2])
        asked.sendall(told)
        return int(asked.recv(16))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        from torch.distributed.run import main

        from everstep.linux.parent import die_with_parent

        main(serve(sys.argv[2]))
    else:
        code = ask(sys.argv[1], sys.argv[2:])
        sys.exit(code if code >= 0 else 128 - code)
