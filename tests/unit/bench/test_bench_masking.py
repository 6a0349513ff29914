"""Names in a log that is kept: gone, and the same name is the same stand-in throughout."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from measuring.masking import masked

NAMES = {
    "slurmstepd: error: *** JOB 5 ON trainbox17 CANCELLED ***": "trainbox17",
    "srun: error: ada-gpu-12: task 3: Exited with exit code 1": "ada-gpu-12",
    "Nov 21 03:14:05 ada-gpu-12 kernel: NVRM: Xid 79": "ada-gpu-12",
    'File "/home/alice/job/train.py", line 3': "alice",
    "job deleted at request of alice@login1": "alice",
    "mail to alice.smith@corp.com": "alice",
    "connect to 10.20.30.40:29500 failed": "10.20.30.40",
    "s3://my-secret-bucket/ckpt: SlowDown": "my-secret-bucket",
    "https://hub.mycompany.io/models: 503": "mycompany",
    "GPU-8c3a2f1e-1111-2222-3333-444455556666 lost": "8c3a2f1e",
    "cannot reach trainer.prod.internal": "trainer",
}


@pytest.mark.parametrize("line", NAMES)
def test_a_name_is_masked(line):
    assert NAMES[line] not in masked(line)


def test_the_same_name_is_the_same_throughout_and_the_rest_stays():
    text = masked("srun: error: ada-gpu-12: task 3: Killed\nrank 3 lost contact to ada-gpu-12 at train.py:40\n")
    assert text == "srun: error: host-1: task 3: Killed\nrank 3 lost contact to host-1 at train.py:40\n"


def test_what_is_no_name_stays():
    text = "KeyError: 'a'\n  File \"/usr/lib/python3/x.py\", line 3\n127.0.0.1:80 [Errno 28] No space left on device\n"
    assert masked(text) == text
    assert masked(masked("node gpu7 at 10.1.2.3")) == masked("node gpu7 at 10.1.2.3")
