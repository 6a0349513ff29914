"""Each reader of foreign bytes, on what fuzzing keeps and on mutations of it: nothing comes out but what is expected.

The long search is `python bench/fuzz.py READER`; what it finds becomes a file in tests/corpus.
"""

from pathlib import Path

import pytest
from examples import examples
from foreign_readers import READERS
from hypothesis import given, settings
from hypothesis import strategies as st

CORPUS = Path(__file__).parents[1] / "corpus"
SEEDS = {name: [path.read_bytes() for path in sorted((CORPUS / name).iterdir())] for name in READERS}


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path))


@st.composite
def mutated(draw, seeds):
    """Pieces cut out, put in, doubled, or taken from another seed."""
    whole, other = bytearray(draw(st.sampled_from(seeds))), draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 5))):
        at, end = draw(st.integers(0, len(whole))), draw(st.integers(0, len(whole)))
        piece = draw(st.binary(max_size=8) | st.just(bytes(whole[at:end])) | st.just(other[at:end]))
        whole[min(at, end) : min(at, end) + draw(st.integers(0, 9))] = piece
    return bytes(whole[:40_000])


def test_the_corpus_is_of_these_readers_and_small():
    assert {path.name for path in CORPUS.iterdir()} == set(READERS)
    assert sum(map(len, (data for seeds in SEEDS.values() for data in seeds))) < 200_000


@pytest.mark.parametrize("reader", READERS)
def test_what_was_kept_is_read_or_refused(reader):
    for data in SEEDS[reader]:
        READERS[reader](data)


@pytest.mark.parametrize("reader", READERS)
def test_what_is_made_of_it_is_read_or_refused(reader):
    @settings(deadline=None, max_examples=examples(60))
    @given(mutated(SEEDS[reader]))
    def search(data):
        READERS[reader](data)

    search()
