"""Joining by munge, with a real munged: who gets in, and what is never enough."""

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from everstep.launcher.reach.munge import Either, MungeToken
from everstep.testing.munge import Munged, is_installed
from everstep.wire.joining import JoinToken

SIDES = ("host", "a certificate", "n1", "n2")

pytestmark = pytest.mark.skipif(not is_installed(), reason="no munge: not installed (Debian: munge)")


@pytest.fixture(scope="module")
def munged():
    with tempfile.TemporaryDirectory() as name:  # pytest's own is for this user alone
        folder = Path(name)
        folder.chmod(0o711)
        made = Munged(folder)
        yield made
        made.close()


def token(munged, about="job 7 n0:20000"):
    return MungeToken(about, str(munged.socket))


def test_the_same_user_in_the_same_job_gets_in_once(munged):
    proof = token(munged).proof(*SIDES)
    assert len(proof) < 2048
    assert token(munged).is_right(proof, *SIDES)
    assert not token(munged).is_right(proof, *SIDES), "a credential is read once"


@pytest.mark.parametrize("place", range(4))
def test_a_proof_for_another_connection_or_side_is_not_enough(munged, place):
    others = [each + "x" if number == place else each for number, each in enumerate(SIDES)]
    assert not token(munged).is_right(token(munged).proof(*others), *SIDES)


def test_another_job_of_the_same_user_is_another_run(munged):
    assert not token(munged).is_right(token(munged, "job 8 n0:20000").proof(*SIDES), *SIDES)


@pytest.mark.parametrize("proof", ["", "MUNGE:", "MUNGE:" + "A" * 400 + ":", "x" * 9000, "MUNGE:\udcff\x00é:"])
def test_nonsense_is_not_a_proof(munged, proof):
    assert not token(munged).is_right(proof, *SIDES)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="another user's credential needs root")
def test_another_user_does_not_get_in(munged):
    """Not even one who leaves the credential open to everybody."""
    text = "\n".join(["everstep join", "job 7 n0:20000", *SIDES])
    made = subprocess.run(
        ["munge", "--socket", str(munged.socket), "--string", text],
        user=65534,
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    assert not token(munged).is_right(made.stdout.strip(), *SIDES)


def test_without_a_munged_nobody_gets_in(munged, tmp_path):
    lonely = MungeToken("job 7 n0:20000", str(tmp_path / "nothing"))
    assert not token(munged).is_right(lonely.proof(*SIDES), *SIDES)
    assert not lonely.is_right(token(munged).proof(*SIDES), *SIDES)


def test_the_first_host_takes_a_token_and_munge_and_answers_as_it_was_asked(munged):
    shared = JoinToken("a token that all share")
    head = Either(shared, token(munged))
    for proofs in (shared, token(munged)):
        knock = proofs.proof(*SIDES)
        assert head.of_kind(knock).is_right(knock, *SIDES)
        assert head.of_kind(knock).is_of_job == (proofs is not shared), "a token is no word of the scheduler's"
        answer = head.of_kind(knock).proof("head", *SIDES[1:])
        assert proofs.is_right(answer, "head", *SIDES[1:])
    assert not head.is_right(JoinToken("another token of anyone").proof(*SIDES), *SIDES)
