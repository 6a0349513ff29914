"""What the end of one rank means."""

import pytest

from everstep.knowledge.live import classify

TRACE = b"""Traceback (most recent call last):
  File "/job/train.py", line 41, in <module>
    main()
  File "/job/train.py", line 12, in main
    batch["labels"]
KeyError: 'labels'
"""
NCCL = b"a:1:2 [0] NCCL WARN Net : Connection closed by remote peer node-07<45678>\n"


@pytest.mark.parametrize(
    ("text", "code", "role"),
    [
        (TRACE.decode(), "ES-PY01", "root"),
        (TRACE.decode()[90:], "ES-PY01", "root"),  # the begin was cut off
        (NCCL.decode() + "Aborted (core dumped)\n", "ES-TD16", "either"),
        (NCCL.decode(), "ES-NC08", "cascade"),
        (
            'Traceback (most recent call last):\n  File "a.py", line 1, in f\nmy.own.StrangeError: no\n',
            "ES-UN07",
            "unknown",
        ),
    ],
)
def test_the_end_of_a_rank(text, code, role):
    finding = classify(text)
    assert finding is not None
    assert (finding.code, finding.role) == (code, role)


@pytest.mark.parametrize("text", ["", "step 1 loss 2\n", "\udc80\ud800\x00"])
def test_nothing_known_is_said_of_harmless_text(text):
    assert classify(text) is None


def test_an_interrupt_is_the_operators():
    found = classify("KeyboardInterrupt\n")
    assert found is not None
    assert (found.blame, found.acts) == ("operator", False)
