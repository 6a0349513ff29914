"""Every container has an exhaustive contract, and no two files or directories of it import each other in a circle."""

import configparser
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("everstep", cache_dir=None)


def children_of(graph: grimp.ImportGraph) -> dict[str, set[str]]:
    children: dict[str, set[str]] = defaultdict(set)
    for module in graph.modules:
        parent, dot, _ = module.rpartition(".")
        if dot:
            children[parent].add(module)
    return children


def test_every_container_is_under_an_exhaustive_contract(graph: grimp.ImportGraph) -> None:
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    exhaustive = {
        contracts[name]["containers"].strip()
        for name in contracts.sections()
        if contracts[name].get("type") == "layers" and contracts[name].getboolean("exhaustive", fallback=False)
    }
    children = children_of(graph)
    containers = {each for each, below in children.items() if any(child in children for child in below)}
    assert containers <= exhaustive, sorted(containers - exhaustive)


def test_no_file_imports_another_in_a_circle(graph: grimp.ImportGraph) -> None:
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))
