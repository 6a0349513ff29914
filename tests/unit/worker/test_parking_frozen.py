"""What a rank had when it left its twin is passed over by the collector until the first step, and no longer.

Each story runs in an interpreter of its own: the collector is the process's.
"""

import subprocess
import sys

import pytest

SETUP = """
import gc, sys, weakref
from everstep.worker.parking.frozen import QUESTIONS, Frozen

class Knot:
    def __init__(self): self.me = self

full = []
frozen = Frozen()

def on_gc(phase, info):
    if phase == "start" and info["generation"] == 2:
        frozen.before_full()
        full.append(gc.get_freeze_count())

gc.callbacks.append(on_gc)
sys.addaudithook(lambda event, args: frozen.release() if event in QUESTIONS else None)

def until_automatic():
    before, kept = len(full), []
    while len(full) == before:
        kept.append([])

def parked():
    frozen.freeze()
    frozen.begin()

knot = Knot()
gone = weakref.ref(knot)
del knot
"""


def told(story: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", SETUP + story], capture_output=True, text=True, timeout=60, check=True
    )
    return ended.stdout.strip()


def test_a_collection_by_itself_passes_over_what_was_there_until_it_is_released():
    story = """
parked()
until_automatic()
print(full[-1] > 1000, gone() is not None)
frozen.release()
until_automatic()
print(full[-1], gone())
"""
    assert told(story) == "True True\n0 None"


@pytest.mark.parametrize("asks", ["gc.collect()", "gc.collect(2)", "gc.disable(); gc.collect()"])
def test_a_collection_that_the_program_asks_for_goes_through_everything(asks):
    story = f"parked()\n{asks}\nprint(full, gone(), gc.get_freeze_count() < 1000)"
    assert told(story) == "[0] None True", "Python 3.12 passes over some 375 of its own after any collection"


def test_a_collection_of_what_is_young_changes_nothing():
    assert told("parked()\ngc.collect(0), gc.collect(1)\nprint(full, gc.get_freeze_count() > 1000)") == "[] True"


@pytest.mark.parametrize("asks", ["gc.get_objects()", "gc.get_referrers(Knot)", "gc.get_referents(Knot)"])
def test_who_asks_for_objects_sees_all(asks):
    assert told(f"parked()\n{asks}\nprint(gc.get_freeze_count())") == "0"


def test_all_objects_are_found_by_the_question_itself():
    story = "mark = ['here']\nparked()\nprint(any(each is mark for each in gc.get_objects()))"
    assert told(story) == "True"


def test_it_does_not_last_longer_than_a_minute():
    story = """
parked()
from everstep.worker.parking import frozen as module
frozen._until -= module.LONGEST_S + 1
until_automatic()
print(full[-1], gone())
"""
    assert told(story) == "0 None"


@pytest.mark.parametrize("when", ["gc.freeze(); parked()", "parked(); gc.collect(); gc.freeze()"])
def test_what_the_program_froze_itself_stays_frozen(when):
    assert told(f"{when}\nfrozen.release()\nprint(gc.get_freeze_count() > 1000)") == "True"


def test_what_python_froze_itself_is_not_the_programs():
    """Python 3.12 begins with some 375 objects that are passed over."""
    story = "real, gc.get_freeze_count = gc.get_freeze_count, lambda: 375\nparked()\nprint(real() > 1000)"
    assert told(story) == "True"


def test_a_twin_that_waits_stays_as_it_is_and_who_goes_on_from_it_does_not():
    story = """
parked()
frozen.wait()
gc.collect()
print(full[-1] > 1000)
frozen.freeze()
frozen.begin()
frozen.release()
print(gc.get_freeze_count())
"""
    assert told(story) == "True\n0"
