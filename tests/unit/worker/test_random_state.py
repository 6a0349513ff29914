"""Random state is that of the moment, however it came about, also where a generator is not asked again."""

import array
import random
import threading

import numpy as np
import pytest

from everstep.worker.digests import drawn, random_state

NUM_ROUNDS = 300


def now() -> dict:
    """By the libraries' own answers."""
    version, words, gauss = random.getstate()
    name, key, *rest = np.random.get_state()
    return {"python": (version, array.array("Q", words).tobytes(), gauss), "numpy": (name, key.tobytes(), *rest)}


def told() -> dict:
    state = random_state.capture_host()
    return {name: state[name] for name in ("python", "numpy")}


@pytest.fixture(autouse=True)
def as_it_was():
    ours, numpys = random.getstate(), np.random.get_state()
    yield
    random.setstate(ours)
    np.random.set_state(numpys)


ACTS = {
    "nothing": lambda _: None,
    "random": lambda _: random.random(),
    "gauss": lambda _: random.gauss(0, 1),
    "getrandbits": lambda _: random.getrandbits(7),
    "shuffle": lambda _: random.shuffle([1, 2, 3]),
    "seed": lambda dice: random.seed(dice.randrange(3)),
    "rand": lambda _: np.random.rand(),
    "randn": lambda _: np.random.randn(),
    "binomial": lambda _: np.random.binomial(20, 0.3),
    "permutation": lambda _: np.random.permutation(3),
    "numpy seed": lambda dice: np.random.seed(dice.randrange(3)),
}


def test_what_is_told_is_what_the_generators_say_after_any_draws_and_returns_to_earlier_states():
    dice = random.Random(5)
    earlier, numpys_earlier = [random.getstate()], [np.random.get_state()]
    acts = {
        **ACTS,
        "setstate": lambda dice: random.setstate(dice.choice(earlier)),
        "set_state": lambda dice: np.random.set_state(dice.choice(numpys_earlier)),
        "keep": lambda _: (earlier.append(random.getstate()), numpys_earlier.append(np.random.get_state())),
    }
    for _ in range(NUM_ROUNDS):
        done = dice.choices(list(acts), k=dice.randrange(4))
        for name in done:
            acts[name](dice)
        assert told() == now(), done


def test_the_second_number_of_a_pair_counts():
    np.random.seed(1)
    np.random.randn()
    after_one = np.random.get_state()
    assert told() == now()
    np.random.randn()  # it was there already: neither the key nor the position changes
    assert told() == now()
    np.random.set_state(after_one)
    assert told() == now()


def test_a_generator_that_did_not_draw_is_not_asked_again():
    told()
    first, second = told(), told()
    assert all(first[name] is second[name] for name in first)
    random.random()
    np.random.rand()
    third = told()
    assert all(third[name] is not second[name] for name in first)


@pytest.mark.parametrize("num_steady", [0, 1])
def test_what_another_thread_does_while_a_generator_is_asked_is_not_kept(monkeypatch, num_steady):
    """It sets the generator, and sets it back: no look at the memory before or after shows that."""
    asked = random.getstate

    class Other:
        __self__ = asked.__self__

        def __init__(self) -> None:
            self.num_asked = 0

        def __call__(self):
            self.num_asked += 1
            if self.num_asked <= num_steady:
                return asked()
            before = asked()
            random.seed(5)
            state = asked()
            random.setstate(before)
            return state

    random.seed(f"a state that nobody has asked for {num_steady}")
    for _ in range(2):
        monkeypatch.setattr(random, "getstate", Other())
        random_state.capture_host()
        monkeypatch.undo()
        assert told() == now()


def test_one_that_draws_in_another_thread_meanwhile_is_asked_again(monkeypatch):
    asked = random.getstate

    class Other:
        """Another thread draws between the look at the memory and the answer."""

        __self__ = asked.__self__

        def __call__(self):
            random.random()
            return asked()

    random.seed("another state that nobody has asked for")
    random_state.capture_host()
    before = asked()
    monkeypatch.setattr(random, "getstate", Other())
    random_state.capture_host()
    monkeypatch.undo()
    random.setstate(before)
    assert told() == now()


def test_other_generators_are_asked_every_time(monkeypatch):
    class Own(random.Random):
        pass

    own = Own(3)
    monkeypatch.setattr(random, "getstate", own.getstate)
    assert drawn.of_python() is None
    own.random()
    assert told()["python"][1] == array.array("Q", own.getstate()[1]).tobytes()
    monkeypatch.setattr(np.random, "get_state", np.random.RandomState(np.random.PCG64(1)).get_state)
    assert drawn.of_numpy(np) is None
    with pytest.warns(RuntimeWarning, match="legacy"):
        assert random_state.capture_host()["numpy"]["bit_generator"] == "PCG64"


def test_draws_of_a_thread_are_never_missed():
    over = threading.Event()

    def draw() -> None:
        while not over.is_set():
            random.random()
            np.random.randn(10)

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        for _ in range(NUM_ROUNDS):
            told()
    finally:
        over.set()
        thread.join()
    assert told() == now()
