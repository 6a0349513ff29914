"""The census compares the same fact in the same place, and knows what may differ by nature."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from sameness.census_compare import Difference, Place, compare, explain, read_listed

HERE = Place("bare", 0, 0, 0)


def places(runs: int = 1, ranks: int = 2) -> list[Place]:
    return [
        Place("bare", run, generation, rank) for run in range(runs) for generation in (0, 1) for rank in range(ranks)
    ]


def found(torchrun: dict[Place, dict[str, str]], everstep: dict[Place, dict[str, str]]) -> dict[str, Difference]:
    return {each.name: each for each in compare(torchrun, everstep)}


def everywhere(facts: dict[str, str], runs: int = 1) -> dict[Place, dict[str, str]]:
    return {place: dict(facts) for place in places(runs)}


def test_the_same_facts_do_not_differ() -> None:
    assert compare(everywhere({"start/stack.depth": "3"}), everywhere({"start/stack.depth": "3"}, runs=2)) == []


def test_a_fact_of_one_rank_in_one_generation_and_run() -> None:
    everstep = everywhere({"start/stack.depth": "3"}, runs=2)
    odd = Place("bare", 1, 1, 1)
    everstep[odd]["start/stack.depth"] = "9"
    difference = found(everywhere({"start/stack.depth": "3"}), everstep)["start/stack.depth"]
    assert (difference.torchrun, difference.everstep, difference.places) == ("3", "9", [odd])


def test_a_variable_more_and_one_less_are_differences() -> None:
    names = found(everywhere({"start/env.A": "1"}), everywhere({"start/env.B": "1"}))
    assert {name: (each.torchrun, each.everstep) for name, each in names.items()} == {
        "start/env.A": ("1", "—"),
        "start/env.B": ("—", "1"),
    }


def test_a_generation_that_is_missing_is_a_difference() -> None:
    everstep = everywhere({"start/env.A": "1"})
    del everstep[Place("bare", 0, 1, 0)]
    assert found(everywhere({"start/env.A": "1"}), everstep)["facts"].everstep == "missing"


def test_what_torchrun_answers_otherwise_each_time_is_compared_by_its_shape() -> None:
    torchrun = everywhere({"start/env.FILE": "/tmp/x_aabbccdd/1"}, runs=2)
    for place in places(runs=2)[4:]:
        torchrun[place]["start/env.FILE"] = "/tmp/x_11223344/2"
    same, other = everywhere({"start/env.FILE": "/tmp/x_zzyyxxww/7"}), everywhere({"start/env.FILE": "/home/7"})
    assert found(torchrun, same) == {}
    assert "start/env.FILE" in found(torchrun, other)


def test_random_facts_must_differ_where_torchruns_do() -> None:
    fact = "start/random.torch seed"
    drawn = {place: {fact: str(number)} for number, place in enumerate(places())}
    alike = {place: {fact: str(place.generation)} for place in places()}
    assert found(drawn, {place: {fact: f"other {number}"} for number, place in enumerate(places())}) == {}
    assert set(found(drawn, alike)) == {f"{fact} differs between ranks"}


def test_a_seed_that_the_program_sets_is_alike_in_both() -> None:
    seeded = everywhere({"end/random.torch seed": "1"}, runs=2)
    assert found(seeded, seeded) == {}
    assert found(everywhere({"end/random.torch seed": "1"}), seeded) == {}


def test_modules_tell_what_is_there_alone_and_where_the_order_parts() -> None:
    names = found(everywhere({"start/modules.libraries": "a b c"}), everywhere({"start/modules.libraries": "b a c d"}))
    difference = names["start/modules.libraries"]
    assert "module 0 is a" in difference.torchrun
    assert "only here: 1: d; module 0 is b" in difference.everstep


def test_an_order_that_torchrun_has_another_one_of_each_time_is_compared_as_far_as_it_is_steady() -> None:
    name = "start/modules.libraries"
    torchrun = everywhere({name: "a b c d"})
    for place in torchrun:
        torchrun[place][name] = "a b c d" if place.generation == 0 else "a b d c"
    assert found(torchrun, everywhere({name: "a b d c"})) == {}
    assert set(found(torchrun, everywhere({name: "b a c d"}))) == {name}
    assert set(found(torchrun, everywhere({name: "a b d c e"}))) == {name}
    assert set(found(everywhere({name: "a b c d"}), everywhere({name: "a b d c"}))) == {name}


def test_the_page_names_a_reason_and_what_it_names_in_vain_is_said() -> None:
    listed = read_listed("| fact | difference | why |\n|---|---|---|\n| `*/env.OURS_*`, `*/x` | more | needed |\n")
    differences = compare(everywhere({}), everywhere({"start/env.OURS_A": "1", "start/env.B": "1"}))
    unused = explain(differences, listed)
    assert {each.name: each.reason for each in differences} == {"start/env.OURS_A": "needed", "start/env.B": None}
    assert [row.pattern for row in unused] == ["*/x"]


def test_what_is_meant_of_ranks_that_came_back_is_not_meant_of_others() -> None:
    listed = read_listed("| fact | difference | why |\n|---|---|---|\n| `again:*/x` | earlier | its twin waited |\n")
    fact = {"imported/x": "loaded"}
    late = {place: fact if place.generation else {} for place in places()}
    for facts, reason in ((late, "its twin waited"), (everywhere(fact), None)):
        differences = compare(everywhere({}), facts)
        explain(differences, listed)
        assert [each.reason for each in differences] == [reason]
