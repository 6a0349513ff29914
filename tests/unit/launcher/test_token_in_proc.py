"""The join token that the environment gave is not to be found in /proc, where each rank of this user could read it."""

import os
import subprocess
import sys

PROGRAM = """
import os, subprocess, sys
from everstep.launcher.reach import token
found = token.given(os.environ)
print(found.reveal(), os.environ["BEFORE"], os.environ["ZAFTER"])
print(open("/proc/self/environ").read().replace(chr(0), " "))
print(subprocess.run(["env"], capture_output=True, text=True, check=True).stdout)
"""
TOKEN = "a-token-that-nobody-else-has"


def test_the_token_is_taken_and_nothing_of_it_is_left() -> None:
    env = {**os.environ, "BEFORE": "b", "EVERSTEP_JOIN_TOKEN": TOKEN, "EVERSTEP_JOIN_TOKEN_X": "other", "ZAFTER": "z"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=60)
    first, _, rest = done.stdout.partition("\n")
    assert first == f"{TOKEN} b z", done.stderr
    assert TOKEN not in rest
    assert "EVERSTEP_JOIN_TOKEN_X=other" in rest
