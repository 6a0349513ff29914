"""Ranks that write in pieces do not write into each other's lines, and nobody waits for long."""

from hypothesis import given
from hypothesis import strategies as st

from everstep.launcher.output.one_screen import MAX_WAITING, PATIENCE_S, OneScreen


class Shown:
    def __init__(self):
        self.data = b""
        self.screen = OneScreen(self.write)

    def write(self, stream, data):
        self.data += data

    def show(self, owner, text, now=0.0):
        self.screen.show(owner, 1, text.encode(), now)
        return self.data.decode()


def test_pieces_of_two_ranks_do_not_mix():
    shown = Shown()
    for piece in ("step", " ", "0", "\n"):
        for owner in "ab":
            text = shown.show(owner, piece)
    assert text == "step 0\nstep 0\n"


def test_one_who_is_alone_never_waits():
    shown = Shown()
    assert shown.show("a", "name? ") == "name? "
    assert shown.show("a", "\r 10%") == "name? \r 10%"


def test_who_begins_the_next_line_lets_the_others_first():
    shown = Shown()
    shown.show("a", "one")
    shown.show("b", "other\n")
    assert shown.show("a", " 1\ntwo") == "one 1\nother\ntwo"


def test_a_line_without_an_end_holds_the_others_for_a_moment_only():
    shown = Shown()
    shown.show("a", "name? ")
    assert shown.show("b", "loss 3\n", now=1.0) == "name? "
    shown.screen.look(1.0 + PATIENCE_S / 2)
    assert shown.data == b"name? "
    shown.screen.look(1.1 + PATIENCE_S)
    assert shown.data == b"name? loss 3\n"


def test_a_progress_bar_that_never_rests_does_not_starve_the_others():
    shown = Shown()
    for n in range(100):
        shown.show("a", f"\r{n}%", now=n * PATIENCE_S / 10)
        if n == 5:
            shown.show("b", "loss 3\n", now=n * PATIENCE_S / 10)
    assert b"loss 3\n" in shown.data
    assert shown.data.index(b"loss 3\n") < shown.data.index(b"18%")


def test_very_much_is_shown_at_once():
    shown = Shown()
    shown.show("a", "name? ")
    shown.show("b", "x" * MAX_WAITING)
    assert shown.show("b", "x").endswith("x")


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.text(alphabet="xyz\n\r", min_size=1, max_size=5), st.floats(0, 0.2)),
        max_size=60,
    )
)
def test_nothing_is_lost_and_each_rank_keeps_its_order(pieces):
    written, now = [], 0.0
    screen = OneScreen(lambda stream, data: written.append((stream, data)))
    for owner, text, later in pieces:
        now += later
        screen.show(owner, ord(owner), text.encode(), now)
        screen.look(now)
    screen.finish()
    for owner in "abc":
        said = "".join(text for who, text, _ in pieces if who == owner)
        assert b"".join(data for stream, data in written if stream == ord(owner)).decode() == said


@given(st.data(), st.integers(1, 4), st.integers(1, 5))
def test_whole_lines_stay_whole_however_they_are_cut(data, num_ranks, num_lines):
    left = {
        rank: [piece for n in range(num_lines) for piece in (f"rank {rank}", f" line {n}", "\n")]
        for rank in range(num_ranks)
    }
    shown = Shown()
    while left:
        rank = data.draw(st.sampled_from(sorted(left)))
        shown.show(rank, left[rank].pop(0))
        if not left[rank]:
            del left[rank]
    lines = shown.data.decode().splitlines()
    assert sorted(lines) == sorted(f"rank {rank} line {n}" for rank in range(num_ranks) for n in range(num_lines))
