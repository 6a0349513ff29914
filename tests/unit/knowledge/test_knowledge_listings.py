"""Printed tables of messages are no faults, and faults that were printed as records are: both ways, many forms."""

import json
import random
import re
from collections.abc import Callable

import pytest
from built_in import BASE, ENGINE

from everstep.knowledge.causality.ranking import choose_verdict, rank_findings
from everstep.knowledge.findings import Finding
from everstep.knowledge.matcher import Matcher

NOW = 1_795_000_000.0

MESSAGES = (
    "CUDA out of memory. Tried to allocate 2.00 GiB.",
    "RuntimeError: CUDA error: device-side assert triggered",
    "NVRM: Xid (PCI:0000:4b:00): 79, pid=901, GPU has fallen off the bus.",
    "OSError: [Errno 28] No space left on device",
    "OSError: [Errno 116] Stale file handle",
    "DataLoader worker (pid 4242) is killed by signal: Killed.",
    "OpenBLAS blas_thread_init: pthread_create failed for thread 3 of 8: Resource temporarily unavailable",
    "Out of memory: Killed process 812 (python) total-vm:9000kB, anon-rss:80kB",
    "nfs: server fs01 not responding, timed out",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0",
    "socket.gaierror: [Errno -3] Temporary failure in name resolution",
    "uncorrectable ECC error encountered",
)
MORE = (
    "loss is fine",
    "all is well",
    "the cache was cold",
    "an index was written",
    "nothing to see",
    "weights are random",
)


def quoted(text: str) -> str:
    return json.dumps(text)


def python_dict(rng: random.Random, texts: list[str]) -> str:
    """As programs keep messages by name."""
    keys = [
        f'"{word} {number}"' for number, word in enumerate(["printed xid", "web retry", "disk", "loader", "gloo"] * 9)
    ]
    rows = "".join(f"    {key}: {quoted(text)},\n" for key, text in zip(keys, texts, strict=False))
    name = rng.choice(["PRINTED", "_known", "KNOWN_FAULTS: dict[str, str]", "self.MESSAGES"])
    return f"{name} = {{\n{rows}}}\n"


def python_tuple(rng: random.Random, texts: list[str]) -> str:
    rows = "".join(f"    {rng.choice(['', 'r', 'b'])}{quoted(text)},\n" for text in texts)
    return f"SIGNS = (\n{rows})\n"


def python_pairs(rng: random.Random, texts: list[str]) -> str:
    rows = "".join(
        f'    ("{rng.choice("abc")}", {quoted(text)}, Blame.MACHINE),  # {number}\n'
        for number, text in enumerate(texts)
    )
    return f"CASES = [\n{rows}]\n"


def python_nested(_rng: random.Random, texts: list[str]) -> str:
    rows = "".join(
        f'        "{number}": (\n            {quoted(text)}\n        ),\n' for number, text in enumerate(texts)
    )
    return f'HELP = {{\n    "faults": {{\n{rows}    }},\n}}\n'


def python_local(_rng: random.Random, texts: list[str]) -> str:
    rows = "".join(f"        {quoted(text)},\n" for text in texts)
    return f"import re\nfrom job import find\n\ndef known():\n    faults = [\n{rows}    ]\n    return find(faults)\n"


def raised(_rng: random.Random, texts: list[str]) -> str:
    return "".join(f"        raise RuntimeError(\n            {quoted(text)}\n        )\n" for text in texts)


def docstring(_rng: random.Random, texts: list[str]) -> str:
    rows = "".join(f"    {text}\n" for text in texts)
    return f'def known(line):\n    """What a log may say.\n\n{rows}    """\n    return line in KNOWN\n'


def doctest(_rng: random.Random, texts: list[str]) -> str:
    rows = "".join(
        f"    >>> fail()\n    Traceback (most recent call last):\n    ValueError: {text}\n" for text in texts
    )
    return f'def fail():\n    r"""Fails.\n\n{rows}    """\n'


def c_table(rng: random.Random, texts: list[str]) -> str:
    rows = "".join(f"    {{ {number}, {quoted(text)}, FATAL }},\n" for number, text in enumerate(texts))
    opening = rng.choice(["static const struct fault faults[] = {", "static const struct fault faults[] =\n{"])
    return f"{opening}\n{rows}}};\n"


def go_map(_rng: random.Random, texts: list[str]) -> str:
    rows = "".join(f"\t{number}: {quoted(text)},\n" for number, text in enumerate(texts))
    return f"var faults = map[int]string{{\n{rows}}}\n"


def shell_case(_rng: random.Random, texts: list[str]) -> str:
    arms = "".join(f'    *"{text}"*) kind=fault ;;\n' for text in texts)
    return f'case "$line" in\n{arms}    *) kind=none ;;\nesac\n'


def json_patterns(_rng: random.Random, texts: list[str]) -> str:
    return "".join(json.dumps({"pattern": text, "fix": "look at the node"}) + "\n" for text in texts)


def yaml_patterns(rng: random.Random, texts: list[str]) -> str:
    rows = "".join(f"  - {quoted(text)}\n" for text in texts)
    return f"{rng.choice(['patterns', 'retry_on', 'known_errors'])}:\n{rows}"


def yaml_remedies(_rng: random.Random, texts: list[str]) -> str:
    return "faults:\n" + "".join(f"  - message: {quoted(text)}\n    fix: look at the node\n" for text in texts)


def markdown(_rng: random.Random, texts: list[str]) -> str:
    rows = "".join(f"| {text} | look at the node |\n" for text in texts)
    return f"| Message | What to do |\n| --- | --- |\n{rows}"


def bullets(_rng: random.Random, texts: list[str]) -> str:
    return "".join(f"- `{text}`: look at the node\n" for text in texts)


def option_help(_rng: random.Random, texts: list[str]) -> str:
    return "".join(f"  --on-{number} ACTION   what to do after {text}\n" for number, text in enumerate(texts))


TABLES = (
    *(python_dict, python_tuple, python_pairs, python_nested, python_local, raised, docstring, doctest),
    *(c_table, go_map, shell_case, json_patterns, yaml_patterns, yaml_remedies, markdown, bullets, option_help),
)

NEED_WHAT_FOLLOWS = (bullets, yaml_remedies)
"""What these are is said below the message."""


def json_line(_rng: random.Random, text: str) -> str:
    return json.dumps({"level": "error", "ts": 1795000000.1, "rank": 3, "message": text}) + "\n"


def json_pretty(_rng: random.Random, text: str) -> str:
    return json.dumps({"level": "error", "rank": 3, "error": text, "code": 1}, indent=2) + "\n"


def json_of_several(_rng: random.Random, text: str) -> str:
    return json.dumps({"failures": [{"rank": 3, "reason": text}, {"rank": 4, "reason": "ended"}]}, indent=4) + "\n"


def python_repr(_rng: random.Random, text: str) -> str:
    return f"{{'rank': 3,\n 'error': {text!r},\n 'step': 12}}\n"


def named_record(_rng: random.Random, text: str) -> str:
    return f"result = {json.dumps({'rank': 3, 'error': text}, indent=2)}\n"


def yaml_status(_rng: random.Random, text: str) -> str:
    return f"lastState:\n  terminated:\n    exitCode: 1\n    message: {quoted(text)}\n    reason: Error\n"


def yaml_conditions(_rng: random.Random, text: str) -> str:
    return f"conditions:\n- type: Failed\n  message: {quoted(text)}\n  status: 'True'\n"


def report_table(_rng: random.Random, text: str) -> str:
    return f"| rank | node | error |\n|------|------|-------|\n| 3 | n0 | {text} |\n"


def ruled_table(_rng: random.Random, text: str) -> str:
    return f"+------+-------+\n| rank | error |\n+------+-------+\n| 3    | {text} |\n+------+-------+\n"


def quoted_line(_rng: random.Random, text: str) -> str:
    return f"> {text}\n"


def in_backticks(_rng: random.Random, text: str) -> str:
    return f"It ends with this and I do not know why:\n```\n{text}\n```\n"


def behind_a_listing(rng: random.Random, text: str) -> str:
    return python_dict(rng, list(MORE)) + 'TEXT = """a\nb\n"""\n' + f"{text}\n"


def after_examples(_rng: random.Random, text: str) -> str:
    return f"examples:\n  - a\n  - b\n{text}\n"


def json_with_counts(_rng: random.Random, text: str) -> str:
    return json.dumps({"examples": 3200, "matches": 12, "error": text}) + "\n"


def json_that_explains(rng: random.Random, text: str) -> str:
    when = rng.choice(({"ts": "2026-01-02T03:04:05Z"}, {"rank": 3}, {"level": "error"}, {"step": 12}))
    return json.dumps({**when, "msg": text, "signature": "a1b2", "explanation": "a peer is gone"}) + "\n"


RECORDS = (
    *(
        json_with_counts,
        json_that_explains,
        json_line,
        json_pretty,
        json_of_several,
        python_repr,
        named_record,
        yaml_status,
        yaml_conditions,
    ),
    *(report_table, ruled_table, quoted_line, in_backticks, behind_a_listing, after_examples),
)


def numbered(text: str) -> str:
    return "".join(f"{number:4d}: {line}\n" for number, line in enumerate(text.splitlines(), 1))


def tagged(text: str) -> str:
    return re.sub(r"(?m)^", "[rank0]: ", text.rstrip("\n")) + "\n"


def as_it_is(text: str) -> str:
    return text


def cause(text: str, rng: random.Random | None) -> Finding | None:
    """Read in pieces of any length; None: all at once."""
    matcher, data, at = Matcher(BASE, now=NOW, engine=ENGINE), text.encode(), 0
    while at < len(data):
        size = rng.choice((17, 200, 1 << 20)) if rng is not None else 1 << 20
        matcher.feed("log", data[at : at + size])
        at += size
    return choose_verdict(rank_findings(matcher.finish())).finding


@pytest.mark.parametrize("text", MESSAGES)
def test_each_message_alone_is_a_cause(text: str):
    assert cause(text + "\n", random.Random(1)) is not None


@pytest.mark.parametrize("shown", [as_it_is, numbered, tagged])
@pytest.mark.parametrize("table", TABLES)
def test_a_printed_table_is_no_fault(table: Callable[..., str], shown: Callable[[str], str]):
    for seed in range(12):
        rng = random.Random(seed)
        texts = rng.sample([*MESSAGES, *MORE], rng.randrange(4, 14))
        printed = shown(table(rng, texts))
        found = cause(f"starting\n{printed}ready\n", None if table in NEED_WHAT_FOLLOWS else rng)
        assert found is None, (found.code, found.text, printed)


@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("message", MESSAGES)
def test_a_fault_in_a_record_is_found(record: Callable[..., str], message: str):
    """As it was found before tables were known: a record is not taken for one."""
    for seed in range(3):
        rng = random.Random(seed)
        assert cause(f"starting\n{record(rng, message)}", rng) is not None, record(rng, message)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("message", MESSAGES)
def test_a_fault_below_a_table_is_found(table: Callable[..., str], message: str):
    rng = random.Random(len(message))
    printed = table(rng, rng.sample(list(MESSAGES), 5))
    found = cause(f"{printed}{message}\n", None)
    assert found is not None
    assert found.text.endswith(message[-20:])


@pytest.mark.slow
def test_a_long_table_is_read_in_linear_time():
    """Each line asks what opened the table: it asks the line before it."""
    rows = "".join(f'    "{number}": {quoted(MESSAGES[number % 12])},\n' for number in range(20_000))
    assert cause(f"KNOWN = {{\n{rows}}}\n", random.Random(1)) is None
