"""The ranks' output reaches the terminal as it was written, or, where --tee asks for it, as torchrun marks it."""

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lateness import Lateness

from everstep.errors import ConfigError
from everstep.launcher.output.output import OutputTail
from everstep.launcher.output.shown import Shown, check_streams
from everstep.launcher.output.teed import TeedLines


class Screen:
    def __init__(self):
        self.streams = {1: b"", 2: b""}

    def write(self, stream, data):
        self.streams[stream] += data


@pytest.fixture
def screen():
    return Screen()


def tail(tmp_path, screen, **changes):
    shown = {"log_dir": tmp_path, "nproc_per_node": 2, "world_size": 2, "role": "default"}
    return OutputTail(Shown(**{**shown, **changes}), screen.write)


def write(tmp_path, rank, text, generation=0, name="stdout.log"):
    folder = tmp_path / f"gen-{generation}" / f"rank-{rank}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("ab") as file:
        file.write(text if isinstance(text, bytes) else text.encode())


def test_bytes_are_shown_as_they_come(tmp_path, screen):
    following = tail(tmp_path, screen)
    following.poll()
    write(tmp_path, 0, b"one\ntw")
    following.poll()
    assert screen.streams[1] == b"one\ntw"
    write(tmp_path, 0, b"o\n\r 10%\r 20%\xff\x00")
    following.poll()
    assert screen.streams[1] == b"one\ntwo\n\r 10%\r 20%\xff\x00"
    following.drain()
    assert screen.streams[1] == b"one\ntwo\n\r 10%\r 20%\xff\x00"


def test_a_wait_ends_with_what_is_written_meanwhile(tmp_path, screen):
    following = tail(tmp_path, screen)
    write(tmp_path, 0, "")
    following.poll()
    threading.Timer(0.05, write, (tmp_path, 0, "now")).start()
    began = time.monotonic()
    with Lateness() as late:
        while not screen.streams[1] and time.monotonic() - began < 60:
            following.wait(5.0)
    assert screen.streams[1] == b"now"
    assert time.monotonic() - began < 5.0 + late.seconds


def test_ranks_that_write_in_turn_are_shown_in_turn(tmp_path, screen):
    following = tail(tmp_path, screen)
    for rank in (0, 1):
        write(tmp_path, rank, "")
    following.poll()
    write(tmp_path, 1, "first\n")
    write(tmp_path, 0, "second\n")
    following.wait(5.0)
    assert screen.streams[1] == b"first\nsecond\n"


@pytest.mark.parametrize("look", ["wait", "poll"])
def test_who_comes_late_shows_lines_in_turn_all_the_same(tmp_path, screen, look):
    following = tail(tmp_path, screen)
    for rank in (0, 1):
        write(tmp_path, rank, "")
    following.poll()
    for turn in range(30):
        for rank in (1, 0):
            write(tmp_path, rank, f"{turn} {rank}\n")
    write(tmp_path, 1, "no line end")
    following.wait(10) if look == "wait" else following.poll()
    lines = [f"{turn} {rank}" for turn in range(30) for rank in (1, 0)]
    assert screen.streams[1].decode().split("\n") == [*lines, "no line end"]


def test_a_line_that_is_written_in_pieces_is_one_turn(tmp_path, screen, monkeypatch):
    following = tail(tmp_path, screen)
    for rank in (0, 1):
        write(tmp_path, rank, "")
    following.poll()
    for rank, text in ((1, "0 1\n"), (0, "0 0\n"), (1, "1 1\n")):
        write(tmp_path, rank, text)
    told = [[(1, 1), (0, 1), (1, 1)], []]  # what came while the first piece was looked after
    monkeypatch.setattr(following._changes, "wait", lambda timeout_s: [(1, 1)])
    monkeypatch.setattr(following._changes, "take", lambda: told.pop(0))
    following.wait(1.0)
    assert screen.streams[1] == b"0 1\n0 0\n1 1\n"


def test_what_was_written_before_a_file_was_watched_comes_before_what_was_told(tmp_path, screen, monkeypatch):
    following = tail(tmp_path, screen)
    for rank in (0, 1):
        write(tmp_path, rank, "")
    told = [[], [(0, 1), (1, 1)]]  # rank 1 wrote its first line before it was watched

    def take():
        if told == [[(0, 1), (1, 1)]]:
            for rank, text in ((0, "0 0\n"), (1, "1 1\n")):
                write(tmp_path, rank, text)
        return told.pop(0) if told else []

    monkeypatch.setattr(following._changes, "take", take)
    write(tmp_path, 1, "0 1\n")
    following.poll()
    assert screen.streams[1] == b"0 1\n0 0\n1 1\n"


def test_what_was_written_before_the_first_look_is_shown_in_the_order_of_its_time(tmp_path, screen):
    following = tail(tmp_path, screen)
    write(tmp_path, 1, "first\n")
    time.sleep(0.02)  # the grain of a file's time
    write(tmp_path, 0, "second\n")
    following.poll()
    assert screen.streams[1] == b"first\nsecond\n"


def test_a_new_rank_ends_a_wait(tmp_path, screen):
    following = tail(tmp_path, screen)
    write(tmp_path, 0, "")
    following.poll()
    threading.Timer(0.05, write, (tmp_path, 1, "now")).start()
    began = time.monotonic()
    with Lateness() as late:
        while not screen.streams[1] and time.monotonic() - began < 60:
            following.wait(20)
    assert (screen.streams[1], time.monotonic() - began < 5 + late.seconds) == (b"now", True)


def test_output_goes_on_after_a_child_has_opened_dev_stdout(tmp_path, screen):
    following = tail(tmp_path, screen)
    write(tmp_path, 0, "much that came before\n")
    following.poll()
    (tmp_path / "gen-0" / "rank-0" / "stdout.log").write_text("x\n")
    following.poll()
    write(tmp_path, 0, "more\n")
    following.drain()
    assert screen.streams[1] == b"much that came before\nx\nmore\n"


def test_streams_stay_apart(tmp_path, screen):
    write(tmp_path, 1, "out\n")
    write(tmp_path, 1, "err\n", name="stderr.log")
    tail(tmp_path, screen).drain()
    assert screen.streams == {1: b"out\n", 2: b"err\n"}


def test_streams_that_are_one_are_shown_once(tmp_path, screen):
    write(tmp_path, 0, "both\n")
    (tmp_path / "gen-0" / "rank-0" / "stderr.log").symlink_to("stdout.log")
    tail(tmp_path, screen).drain()
    assert screen.streams == {1: b"both\n", 2: b""}


def test_a_generation_that_came_and_went_between_two_looks_is_shown(tmp_path, screen):
    for generation in range(4):
        write(tmp_path, 0, f"g{generation}\n", generation)
    tail(tmp_path, screen).drain()
    assert screen.streams[1] == b"".join(b"g%d\n" % generation for generation in range(4))


def test_a_generation_that_never_started_anywhere_is_passed_over(tmp_path, screen):
    following = tail(tmp_path, screen)
    write(tmp_path, 0, "a\n", 0)
    following.poll()
    write(tmp_path, 0, "b\n", 3)
    following.poll()
    assert screen.streams[1] == b"a\nb\n"


def test_the_rest_of_a_generation_comes_before_the_next_one(tmp_path, screen):
    following = tail(tmp_path, screen, tee="3")
    write(tmp_path, 0, "a\nlast words")
    following.poll()
    write(tmp_path, 0, "b\n", 1)
    following.poll()
    assert screen.streams[1] == b"[default0]:a\n[default0]:last words[default0]:b\n"


def test_a_rank_that_appears_late_is_found(tmp_path, screen):
    following = tail(tmp_path, screen)
    write(tmp_path, 0, "a\n")
    following.poll()
    write(tmp_path, 1, "b\n")
    following.poll()
    assert screen.streams[1] == b"a\nb\n"


def test_earlier_attempts_are_skipped(tmp_path, screen):
    write(tmp_path, 0, "old\n", 0)
    write(tmp_path, 0, "old\n", 1)
    following = tail(tmp_path, screen)
    following.skip_existing()
    write(tmp_path, 0, "new\n", 2)
    following.drain()
    assert screen.streams[1] == b"new\n"


def test_the_template_is_torchruns(tmp_path, screen):
    write(tmp_path, 1, "x\n")
    tail(tmp_path, screen, nproc_per_node=1, tee="3", template="${role_name}/${rank}/${local_rank}/${x} ").drain()
    assert screen.streams[1] == b"default/1/0/${x} x\n"


def test_much_output_is_shown_completely(tmp_path, screen):
    line = "x" * 99 + "\n"
    write(tmp_path, 0, line * 50_000)
    tail(tmp_path, screen).poll()
    assert screen.streams[1].count(b"\n") == 50_000


def test_a_rank_that_writes_faster_than_it_is_shown_leaves_room_for_the_others(tmp_path):
    """Memory as well: no more than some chunks of it are held, however far behind the terminal is."""
    chunk, shown, largest = b"x" * (256 << 10), {0: 0}, [0]

    class Slow(Screen):
        def write(self, stream, data):
            largest[0] = max(largest[0], len(data))
            shown[0] += 1
            if shown[0] < 200:
                write(tmp_path, 0, chunk)

    following = tail(tmp_path, Slow())
    write(tmp_path, 1, "")
    write(tmp_path, 0, chunk * 2)
    following.poll()
    assert shown[0] < 100
    assert largest[0] <= 8 * len(chunk)
    following.drain()
    assert shown[0] >= 200


def test_lines_of_teed_streams_that_a_filter_names_are_duplicated(tmp_path, screen):
    write(tmp_path, 0, "an apple\na pear\n")
    write(tmp_path, 1, "one more apple\n")
    tail(tmp_path, screen, tee="0:1", filters={1: ("apple", "plum")}).drain()
    assert (tmp_path / "gen-0" / "filtered_stdout.log").read_text() == "[default0]:an apple\n"
    assert screen.streams[1] == b"[default0]:an apple\n[default0]:a pear\none more apple\n"


@given(st.lists(st.binary(max_size=12), max_size=8))
def test_teed_lines_are_those_of_a_text_file_however_they_are_cut(pieces):
    teed, shown = TeedLines("p:"), []
    for piece in pieces:
        shown += teed.feed(piece)
    text = b"".join(pieces).decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    wanted = [f"p:{line}" for line in text.split("\n")]
    expected = "\n".join(wanted if text and not text.endswith("\n") else [*wanted[:-1], ""])
    assert "".join([*shown, *teed.finish()]) == expected


def test_an_unfinished_line_goes_on_without_another_prefix():
    teed = TeedLines("p:")
    assert teed.feed(b"name? ") == []
    assert teed.rest() == ["p:name? "]
    assert teed.feed(b"anna\nb") == ["anna\n"]
    assert teed.finish() == ["p:b"]


@pytest.mark.parametrize(
    ("redirects", "tee", "only", "shown"),
    [
        ("0", "0", None, {0: 3, 1: 3}),
        ("3", "0", None, {0: 0, 1: 0}),
        ("3", "1", None, {0: 1, 1: 1}),
        ("1:2", "0", None, {0: 3, 1: 1}),
        ("0", "3", (1,), {0: 0, 1: 3}),
    ],
)
def test_what_is_shown_is_torchruns_rule(tmp_path, redirects, tee, only, shown):
    rule = Shown(log_dir=tmp_path, nproc_per_node=2, world_size=4, role="r", redirects=redirects, tee=tee, only=only)
    assert {rank: rule.streams(rank) for rank in range(4)} == {**shown, 2: shown[0], 3: shown[1]}


def test_nonsense_is_refused_with_its_name():
    with pytest.raises(ConfigError, match="--redirects many"):
        check_streams("many", "0", 2)
