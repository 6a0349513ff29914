"""What libraries say in forms of their own: settings that do not exist, where C++ raised, whose rank it was."""

import pytest
from built_in import BASE, ENGINE

from everstep.knowledge.causality.ranking import choose_verdict, rank_findings
from everstep.knowledge.findings import Finding
from everstep.knowledge.matcher import Matcher

SOCKET = "The client socket has timed out after 90000ms while trying to connect to (n7, 29511)."
RAISED_FROM = "Exception raised from {} at /src/torch/csrc/distributed/c10d/socket.cpp:101 (most recent call first):"


def cause(text: str) -> Finding | None:
    matcher = Matcher(BASE, now=1_795_000_000.0, engine=ENGINE)
    matcher.feed("log", text.encode() + b"\n")
    return choose_verdict(rank_findings(matcher.finish())).finding


@pytest.mark.parametrize(
    "said",
    [
        "In 'train': Could not find 'optimizer/adam8'\n\nAvailable options in 'optimizer':\n\tadam",
        "Cannot find primary config 'pretrain'. Check that it's in your config search path.",
        "Primary config module 'job.conf' not found.",
        "Primary config directory not found.",
        "Error merging override optim.beta=3",
        "Missing mandatory value: corpus.folder",
        "You must specify 'optimizer', e.g, optimizer=<OPTION>\nAvailable options:\n\tadam",
        "LexerNoViableAltException: lr=[1",
        'pretrain.py [options]: error: Parser key "fit.nodes": Does not validate against any',
        "absl.flags._exceptions.UnrecognizedFlagError: Unknown command line flag 'local_rank'",
        "ERROR: Could not consume arg: --lr",
        "ERROR: The function received no value for the required argument: corpus",
        "Unrecognized options: --lr",
        "| No such option: --lr |",
    ],
)
def test_settings_that_do_not_exist_are_a_wrong_command_line(said):
    found = cause(said)
    assert found is not None
    assert (found.code, found.blame) == ("ES-PY14", "user")


@pytest.mark.parametrize("words", ["Merging override files", "error merging shards, will retry", "no config found"])
def test_talk_of_settings_is_no_wrong_command_line(words):
    assert cause(words) is None


def test_where_cpp_raised_an_exception_is_not_an_exception_by_itself():
    warned = f"[W715 TCPStore.cpp:330] [c10d] TCP client failed to connect to n7:29511 - retrying: {SOCKET}"
    text = f"{warned}\n{RAISED_FROM.format('throwTimeoutError')}\n[E715 09:25:41.110 socket.cpp:1023] [c10d] {SOCKET}"
    found = cause(text)
    assert found is not None
    assert found.code == "ES-TD08"
    assert cause(RAISED_FROM.format("throwTimeoutError")) is None


@pytest.mark.parametrize(
    ("said", "ranks"),
    [
        ("RuntimeError: Rank 12: found NaN in local forward loss calculation. Device: 4, node: n2", (12,)),
        ("AssertionError: [Rank 5]: loss is nan", (5,)),
        ("RuntimeError: Rank 2, node n3, device 4: loss is nan", (2,)),
        ("RuntimeError: Rank 2, 3 and 5 say that the loss is nan", ()),
        ("RuntimeError: Rank 2, which sent it, says that the loss is nan", ()),
        ("RuntimeError: Rank 2 sent it, and loss is nan", ()),
        ("RuntimeError: loss is nan, was fine on rank 2: none", ()),
    ],
)
def test_an_exception_that_gives_its_rank_is_of_that_rank(said, ranks):
    found = cause(f'Traceback (most recent call last):\n  File "/job/train.py", line 3, in step\n    f()\n{said}')
    assert found is not None
    assert found.ranks == ranks


@pytest.mark.parametrize("of", ["Local rank", "local_rank", "node_rank:", "DP rank", "tensor-parallel rank"])
def test_the_number_of_a_rank_within_something_is_no_rank_of_the_job(of):
    found = cause(f"{of} 2: CUDA out of memory. Tried to allocate 2 GiB")
    assert found is not None
    assert (found.code, found.ranks) == ("ES-CU08", ())


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-20 10:00:00 - INFO - the load was tried again, last error: CUDA out of memory",
        "[2026-11-20 10:00:00] WARNING request failed. Last error: HTTPError: 503 Server Error",
        "attempt 1/5 failed, will retry. Last error: CUDA out of memory. Tried to allocate 2 GiB",
        "'(ReadTimeoutError(\"Read timed out.\"))' thrown while requesting HEAD https://hub/gpt2/resolve/main/config.json",
        "    logger.error('Last error: CUDA out of memory')",
        '        raise RuntimeError("Last error: CUDA out of memory")',
    ],
)
def test_an_error_that_a_line_quotes_is_as_harmless_as_the_line(line):
    assert cause(line) is None


@pytest.mark.parametrize("tag", ["[default3]:", "[rank3]: ", "[3]:"])
def test_a_launcher_tags_the_lines_of_a_rank(tag):
    """torchrun's `--tee` writes the role before the number, and roles may have no name."""
    found = cause(f"{tag}Traceback (most recent call last):\n{tag}RuntimeError: CUDA out of memory.")
    assert found is not None
    assert (found.klass, found.ranks) == ("cuda_oom", (3,))


@pytest.mark.parametrize(
    "said",
    [
        "eval.py: error: mean=0.23 median=0.20",
        "score.py: error: 4.1 %",
        "train.py: error: relative L2: 0.013",
        "Could not find the config file /etc/job.yaml; continuing with default",
        "Could not find an option for tf32, using the default",
        "Waiting for lock on /scratch/hub/.lock ... acquired",
        "waiting on lock /scratch/a.lock: lock acquired after 3.1 s",
    ],
)
def test_what_goes_well_is_no_cause(said):
    found = cause(said)
    assert found is None or found.klass not in ("user_arguments", "lock_held"), found


@pytest.mark.parametrize(
    ("said", "klass"),
    [
        ("train.py: error: --corpus needs --tokenizer", "user_arguments"),
        ("train.py: error: argument --lr: invalid float value: 'a'", "user_arguments"),
        ("Could not find 'optimizer' in the config", "user_arguments"),
        ("Waiting for lock on /scratch/hub/.lock", "lock_held"),
    ],
)
def test_and_what_does_not_still_is(said, klass):
    found = cause(said)
    assert found is not None
    assert found.klass == klass


@pytest.mark.parametrize(
    ("register", "code"), [("timeout. Will cause a leak of a command resource", "ES-IB04"), ("failed", None)]
)
def test_a_register_of_the_network_card_is_noise_only_if_the_card_answers(register, code):
    found = cause(f"mlx5_core 0000:9c:00.0: wait_func:1151:(pid 4212): ACCESS_REG(0x805) {register}")
    assert (found.code if found else None) == code
