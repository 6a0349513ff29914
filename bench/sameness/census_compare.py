"""Which facts differ between two launchers. Pure: facts in, differences out, no process and no file.

A fact of one place (run, generation, rank) is compared with the same fact of the same place under torchrun. What
torchrun itself does not answer twice alike is compared by its shape (digits and random names aside). What must be
drawn anew by every rank is not compared: whether it *is* drawn anew between ranks, generations and runs is.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple

ABSENT = "—"
RANDOM = "/random."
ORDERS = ("/modules.libraries", "/modules.standard")
BY_NATURE = {"env.MASTER_PORT"}
"""Another value each time, whoever chooses it."""

_NOISE = re.compile(r"0x[0-9a-f]+|[0-9a-f]{12,}|\d+|(?<=[_-])[a-z0-9_]{8}\b")


class Place(NamedTuple):
    """Where a fact was taken. Runs and generations count from 0."""

    program: str
    run: int
    generation: int
    rank: int


Facts = Mapping[Place, Mapping[str, str]]


@dataclass(slots=True)
class Difference:
    """One fact that is not the same, at least in one place; `torchrun` and `everstep`: what the first place says."""

    name: str
    torchrun: str
    everstep: str
    places: list[Place] = field(default_factory=list)
    reason: str | None = None


def compare(torchrun: Facts, everstep: Facts) -> list[Difference]:
    """`torchrun` may have fewer runs than `everstep`: a later run is compared with the last there is."""
    found: dict[str, Difference] = {}
    unsteady, steady_for = _unsteady(torchrun), _steady_for(torchrun)
    last_run = {program: max(p.run for p in torchrun if p.program == program) for program in _programs(torchrun)}
    for place, facts in sorted(everstep.items()):
        expected = torchrun.get(place._replace(run=min(place.run, last_run.get(place.program, 0))))
        if expected is None:
            _add(found, "facts", "taken", "a generation that torchrun does not have", place)
            continue
        for name in {**expected, **facts}:
            one, other = expected.get(name, ABSENT), facts.get(name, ABSENT)
            if RANDOM in name or _is_same(name, one, other, unsteady):
                continue
            if name.endswith(ORDERS) and ABSENT not in (one, other):
                if _is_same_order(one.split(), other.split(), steady_for[place.program, name, place.rank]):
                    continue
                one, other = _orders(one.split(), other.split())
            elif one.startswith("[") and other.startswith("["):
                one, other = _lists(one, other)
            _add(found, name, one, other, place)
    runs = {(place.program, place.run) for place in everstep}
    for place in sorted(set(torchrun) - set(everstep)):
        if (place.program, place.run) in runs:
            _add(found, "facts", "taken", "missing", place)
    for name, one, other, place in _drawn(torchrun, everstep):
        _add(found, name, one, other, place)
    return sorted(found.values(), key=lambda each: each.name)


def _add(found: dict[str, Difference], name: str, one: str, other: str, place: Place) -> None:
    found.setdefault(name, Difference(name, one, other)).places.append(place)


def _programs(facts: Facts) -> set[str]:
    return {place.program for place in facts}


def _is_same(name: str, one: str, other: str, unsteady: set[tuple[str, str]]) -> bool:
    if one == other:
        return True
    if "/functions." in name and ABSENT in (one, other):  # that a module is loaded is a fact of its own
        return True
    if name.partition("/")[2] in BY_NATURE:
        return shape(one) == shape(other)
    return (name, shape(one)) in unsteady and shape(one) == shape(other)


def shape(value: str) -> str:
    """A value without what is new each time: numbers, addresses, random names."""
    return _NOISE.sub("#", value)


def _unsteady(torchrun: Facts) -> set[tuple[str, str]]:
    """Facts of which torchrun gives two answers in the same place of two runs, with the shape that both have."""
    found = set()
    for place, facts in torchrun.items():
        again = torchrun.get(place._replace(run=place.run + 1))
        for name, value in facts.items():
            if again is not None and again.get(name) != value and shape(again.get(name, ABSENT)) == shape(value):
                found.add((name, shape(value)))
    return found


def _steady_for(torchrun: Facts) -> dict[tuple[str, str, int], int]:
    """For how many modules torchrun's own runs and generations of a rank import in one order: a library that imports
    the members of a set does so in another one each time."""
    answers: dict[tuple[str, str, int], list[list[str]]] = defaultdict(list)
    for place, facts in torchrun.items():
        for name in (each for each in facts if each.endswith(ORDERS)):
            answers[place.program, name, place.rank].append(facts[name].split())
    return {
        key: next(
            (n for n, each in enumerate(zip(*several, strict=False)) if len(set(each)) > 1), min(map(len, several))
        )
        for key, several in answers.items()
    }


def _is_same_order(one: list[str], other: list[str], steady_for: int) -> bool:
    """The same modules, in the same order for as long as torchrun has one."""
    return one[:steady_for] == other[:steady_for] and sorted(one) == sorted(other)


def _orders(one: list[str], other: list[str]) -> tuple[str, str]:
    """What each has alone, and where the order of the rest parts."""
    left = [name for name in one if name not in set(other)]
    right = [name for name in other if name not in set(one)]
    common_one = [name for name in one if name not in set(left)]
    common_other = [name for name in other if name not in set(right)]
    words = [_few("only here", left)], [_few("only here", right)]
    for number, (a, b) in enumerate(zip(common_one, common_other, strict=True)):
        if a != b:
            words[0].append(f"module {number} is {a}")
            words[1].append(f"module {number} is {b}")
            break
    return tuple("; ".join(word for word in each if word) or "the same" for each in words)  # type: ignore[return-value]


def _lists(one: str, other: str) -> tuple[str, str]:
    """Two lists, each without what both begin and end with. Text: entries need not be literals."""
    a, b = one.strip("[]").split(", "), other.strip("[]").split(", ")
    first = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    same = zip(reversed(a[first:]), reversed(b[first:]), strict=False)
    last = next((n for n, (x, y) in enumerate(same) if x != y), min(len(a), len(b)) - first)
    left, right = (", ".join(each[first : len(each) - last]) or "nothing" for each in (a, b))
    return f"[… {left} …] (from entry {first} of {len(a)})", f"[… {right} …] (of {len(b)})"


def _few(title: str, names: list[str]) -> str:
    return f"{title}: {len(names)}: {', '.join(names[:6])}" if names else ""


def _drawn(torchrun: Facts, everstep: Facts) -> Iterable[tuple[str, str, str, Place]]:
    """Random facts: between which places they differ. With one run of torchrun, runs are expected to
    differ where its generations do: a seed that the program sets is alike in both."""
    one, other = _differing(torchrun), _differing(everstep)
    for (program, name, between), (answer, place) in sorted(other.items()):
        expected = (one.get((program, name, between)) or one.get((program, name, "generations"), ("always", place)))[0]
        if answer != expected:
            yield f"{name} differs between {between}", expected, answer, place


def _differing(facts: Facts) -> dict[tuple[str, str, str], tuple[str, Place]]:
    groups: dict[tuple[str, str, str, tuple[int, ...]], list[tuple[str, Place]]] = defaultdict(list)
    for place, values in sorted(facts.items()):
        for name in (each for each in values if RANDOM in each):
            value = values[name], place
            groups[place.program, name, "ranks", (place.run, place.generation)].append(value)
            groups[place.program, name, "generations", (place.run, place.rank)].append(value)
            groups[place.program, name, "runs", (place.generation, place.rank)].append(value)
    answers: dict[tuple[str, str, str], list[tuple[bool, Place]]] = defaultdict(list)
    for (program, name, between, _), members in groups.items():
        if len(members) > 1:
            alike = len({value for value, _ in members}) < len(members)
            answers[program, name, between].append((not alike, members[-1][1]))
    found = {}
    for key, several in answers.items():
        said = {answer for answer, _ in several}
        first_alike = next((place for answer, place in several if not answer), several[0][1])
        found[key] = ("always" if said == {True} else "never" if said == {False} else "sometimes"), first_alike
    return found


AGAIN = "again:"


class Listed(NamedTuple):
    """A difference that is meant: pattern of fact names, and why. A pattern that begins with `again:` is meant in ranks
    that came back only."""

    pattern: str
    reason: str

    def names(self, difference: Difference) -> bool:
        if self.pattern.startswith(AGAIN) and not all(place.generation for place in difference.places):
            return False
        return fnmatchcase(difference.name, self.pattern.removeprefix(AGAIN))


def read_listed(text: str) -> list[Listed]:
    """The rows of the page's table whose first cell is one or more patterns in backticks; the last is the reason."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        if line.startswith("| `") and len(cells) >= 3:
            found += [Listed(pattern, cells[-1]) for pattern in re.findall(r"`([^`]+)`", cells[0])]
    return found


def explain(differences: list[Difference], listed: list[Listed]) -> list[Listed]:
    """Give each difference the reason of the row that names it. Returns the rows that name none."""
    used = set()
    for difference in differences:
        for row in listed:
            if row.names(difference):
                difference.reason = row.reason
                used.add(row)
                break
    return [row for row in listed if row not in used]
