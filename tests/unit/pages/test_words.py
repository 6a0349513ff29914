"""What Everstep prints is the English of its field: the rules that a machine can check.

A string that has to stay says why in `STAYS`. `printed.py` says what counts as printed.
"""

import re

import pytest
from printed import SOURCE, Printed, printed

NOT_ENGLISH_OF_THE_FIELD = {
    r"nobody|somebody|whoever|nobody's": "name the component or the user that acts",
    r"(?<!there )\bis no (?!longer|more\b)\w+|(?<!there )\bis none\b": "'is not a directory', not 'is no directory'",
    r"no number(?! of)": "NaN, or 'not a number'",
    r"for want of|a want of": "lack of",
    r"gone on|went on|goes on|comes it|gone on with": "continue, resume",
    r"(?<!was )(?<!were )told|tells": "report, say, show",
    r"folders?": "directory",
    r"(?<!GPU system )processors?": "CPU",
    r"interpreter lock": "GIL",
    r"control groups?": "cgroup",
    r"stuck": "hung",
    r"please|sorry|oops": "say what to do",
    r"simply|just|obviously|of course": "leave it out",
    r"can not": "cannot",
    r"thus|hence|herewith|thereof|whereby|whilst|utili[sz]e": "a common word",
}

STAYS = {
    "launcher/arguments/torchrun.py: The rendezvous backend": "torch's own words, which its users know",
    "launcher/arguments/torch_parts.py: No module named": "Python's own words",
    "worker/boot/sitecustomize.py: No module named": "Python's own words",
    "health/store.py: CREATE TABLE": "SQL",
    "health/store.py: DELETE FROM": "SQL",
    "knowledge/live.py: [rank3]: Traceback (most ": "a log of NCCL, as an example",
    "analyzer/reading/tool_text.py: got stuck": "words of PyTorch's watchdog, which are looked for",
    "analyzer/reading/tool_text.py: watchdog got stuck": "words of PyTorch's watchdog, which are looked for",
    "preflight/shown/html.py: ": "JavaScript",
}

LONGEST = 25
"""Words between two stops (. : ; ? !). More have to be read twice."""


def _stays(found: Printed) -> bool:
    name = found.where.split(":")[0]
    return any(f"{name}: {found.text}".startswith(start) for start in STAYS)


@pytest.mark.parametrize("words", NOT_ENGLISH_OF_THE_FIELD)
def test_no_printed_string_has_words_that_the_field_does_not_use(words: str) -> None:
    pattern = re.compile(rf"(?<![\w`$/-])(?:{words})(?![\w-])", re.IGNORECASE)
    found = [f"{each.where}: {m.group(0)!r} in {each.text[:200]!r}"
             for each in printed() if not _stays(each) and (m := pattern.search(each.text))]  # fmt: skip
    assert not found, f"better: {NOT_ENGLISH_OF_THE_FIELD[words]}\n" + "\n".join(found)


def _sentences(text: str) -> list[str]:
    """Also the cells of a table, which nobody reads in one breath."""
    return re.split(r"(?<=[.;:?!])\s+|\s\|\s|\n", text)


def test_no_printed_sentence_has_to_be_read_twice() -> None:
    found = [f"{each.where}: {len(sentence.split())} words: {sentence}"
             for each in printed() if not _stays(each)
             for sentence in _sentences(each.text) if len(sentence.split()) > LONGEST]  # fmt: skip
    assert not found, "\n".join(found)


def _has_wrong_form(text: str) -> str:
    """`what failed: object: cause. what was done. what to do`: what a machine can see of it."""
    first, *others = re.split(r"(?<=[.?!])\s+", text)
    if re.match(r"(The|A|An|There|It|This|No|Cannot|Could|Failed|Unable|Invalid|Error|Your|You)\b", first):
        return "begins in lower case"
    if not others and re.search(r"(?<!\.)\.$", first):
        return "one sentence has no full stop"
    if "!" in re.sub(r"!=|<!|!r\b", "", text):
        return "has no exclamation mark"
    if re.match(r"(error|failure|exception)\b:?", first, re.IGNORECASE):
        return "begins with what failed"
    return ""


def test_errors_and_warnings_have_the_form_of_errors() -> None:
    found = [f"{each.where}: {why}: {each.text[:200]!r}"
             for each in printed()
             if each.is_error and not _stays(each) and (why := _has_wrong_form(each.text))]  # fmt: skip
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "is_wrong"),
    [
        ("cannot read {}: {}", False),
        ("journal: {}: not writable. Nothing was changed. Choose another directory.", False),
        ("Cannot read the journal", True),
        ("the journal cannot be read.", True),
        ("the journal cannot be read!", True),
        ("error: the journal", True),
        ("State({}=...): {} has size {}", False),
    ],
)
def test_the_form_is_recognised(text: str, is_wrong: bool) -> None:
    assert bool(_has_wrong_form(text)) == is_wrong


def test_every_exception_is_needed() -> None:
    told = [f"{each.where.split(':')[0]}: {each.text}" for each in printed()]
    assert not [start for start in STAYS if not any(text.startswith(start) for text in told)]


def test_what_is_printed_is_found() -> None:
    """Otherwise all of the above would pass on nothing."""
    assert len(printed()) > 3000
    assert sum(each.is_error for each in printed()) > 400
    text = (SOURCE / "cli/act/stop.py").read_text()
    assert any(each.where == "cli/act/stop.py:1" and each.text in text for each in printed()), "the help of a verb"
