"""Every format that is read: what it means, and one clear line for what cannot be used."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.fabric.readers.find import read_topology
from everstep.fabric.readers.here import read_host
from everstep.fabric.readers.hostlist import compress, expand
from everstep.fabric.readers.own import speed_of
from everstep.fabric.topology.graph import Graph
from everstep.fabric.topology.values import FabricError

TREE = "SwitchName=leaf0 Nodes=n[0-1]\nSwitchName=leaf1 Nodes=n[2-3] # x\nSwitchName=spine \\\n Switches=leaf[0-1]\n"
LAB = """
[[hosts]]
names = "n[0-3]"
nics = 2
[[switches]]
names = "leaf[0-1]"
[[switches]]
names = "spine"
[[cables]]
from = "n[0-3]"
nic = "nic0"
to = "leaf0"
speed = "100G"
[[cables]]
from = "n[0-3]"
nic = "nic1"
to = "leaf1"
speed = "100G"
[[cables]]
from = "leaf[0-1]"
to = "spine"
speed = "400G"
"""


def read(tmp_path: Path, text: str, name: str = "topology.conf") -> Graph:
    path = tmp_path / name
    path.write_text(text)
    return Graph(read_topology(path))


def shape(graph: Graph) -> list[tuple[int, ...]]:
    """Groups of each host, numbered in order of appearance."""
    columns = list(zip(*graph.levels, strict=True))
    return [
        tuple(list(dict.fromkeys(column)).index(path[at]) for at, column in enumerate(columns)) for path in graph.levels
    ]


PAIRS = [(0, 0), (0, 0), (1, 0), (1, 0)]


def test_slurm_tree(tmp_path: Path) -> None:
    graph = read(tmp_path, TREE)
    assert graph.topology.host_names() == ("n0", "n1", "n2", "n3")
    assert shape(graph) == PAIRS
    assert graph.topology.cables[0].bps is None, "a tree does not say how fast"


def test_slurm_yaml_and_block(tmp_path: Path) -> None:
    text = """
- topology: flat
  flat: true
- topology: main
  cluster_default: true
  tree:
    switches:
      - {switch: spine, children: "leaf[0-1]"}
      - {switch: leaf0, nodes: "n[0-1]"}
      - {switch: leaf1, nodes: "n[2-3]"}
"""
    assert shape(read(tmp_path, text, "topology.yaml")) == PAIRS
    block = read(tmp_path, "BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n[3-4]\nBlockSizes=2,4\n")
    assert shape(block) == [(0,), (0,), (1,), (1,)]


def test_topograph_model_and_graph(tmp_path: Path) -> None:
    model = """
switches:
  top: {switches: [a, b], labels: {zone: z}}
blocks:
- {switch: a, nodes: ["[1101-1102]"], annotations: {accelerator.topology.test/domain: nvl1}}
- {switch: b, nodes: [1201, x7], annotations: {accelerator.topology.test/domain: nvl2}}
"""
    graph = read(tmp_path, model, "model.yaml")
    assert graph.topology.host_names() == ("1101", "1102", "1201", "x7")
    assert graph.topology.hosts[2].domain == "nvl2"
    layers = [{"id": f"n{n}", "network_layers": [f"leaf{n // 2}", "spine"]} for n in range(4)]
    assert shape(read(tmp_path, json.dumps({"instances": layers}), "graph.json")) == PAIRS


@pytest.mark.parametrize(
    "keys",
    [
        ("fabric.topograph.run/tier-0", "fabric.topograph.run/tier-1"),
        ("topology.k8s.aws/network-node-layer-3", "topology.k8s.aws/network-node-layer-2"),
        ("oci.oraclecloud.com/host.rack_id", "oci.oraclecloud.com/host.network_block_id"),
    ],
)
def test_labels_of_nodes(tmp_path: Path, keys: tuple[str, str]) -> None:
    nodes = [
        {"kind": "Node", "metadata": {"name": f"n{n}", "labels": {keys[0]: f"r{n // 2}", keys[1]: "b"}}}
        for n in range(4)
    ]
    assert shape(read(tmp_path, json.dumps({"kind": "List", "items": nodes}), "nodes.json")) == PAIRS


def test_levels_of_kueue_are_coarsest_first(tmp_path: Path) -> None:
    levels = [{"nodeLabel": key} for key in ("block", "rack", "kubernetes.io/hostname")]
    topology = {"kind": "Topology", "spec": {"levels": levels}}
    nodes = [
        {"kind": "Node", "metadata": {"name": f"n{n}", "labels": {"rack": f"r{n // 2}", "block": "b"}}}
        for n in range(4)
    ]
    text = json.dumps({"kind": "List", "items": [topology, *nodes]})
    assert shape(read(tmp_path, text, "nodes.json")) == PAIRS


def test_a_group_of_one_name_below_two_others_is_two_groups(tmp_path: Path) -> None:
    layers = [{"id": f"n{n}", "network_layers": ["leaf", f"pod{n // 2}"]} for n in range(4)]
    graph = read(tmp_path, json.dumps({"instances": layers}), "graph.json")
    assert [switch.name for switch in graph.topology.switches if switch.tier == 1] == ["pod0/leaf", "pod1/leaf"]


def test_nccl_xml(tmp_path: Path) -> None:
    text = """<system version="1"><cpu numaid="0"><pci class="0x030200"><gpu dev="0"/></pci><nic>
      <net name="mlx5_1" dev="1" speed="200000"/><net name="mlx5_0" dev="0" speed="0"/></nic></cpu></system>"""
    (host,) = read(tmp_path, text, "node7.xml").topology.hosts
    assert (host.name, host.chips) == ("node7", 1)
    assert [(nic.name, nic.rail, nic.bps) for nic in host.nics] == [("mlx5_0", 0, None), ("mlx5_1", 1, 200e9)]


@pytest.mark.parametrize("collapsed", [False, True])
def test_lldp(tmp_path: Path, collapsed: bool) -> None:
    if collapsed:
        body = {
            "lldp": {
                "interface": {
                    "eth0": {
                        "chassis": {"leaf3": {"id": {"type": "mac", "value": "x"}}},
                        "port": {"id": {"value": "Ethernet8"}},
                    }
                }
            }
        }
    else:
        body = {
            "lldp": [
                {
                    "interface": [
                        {
                            "name": "eth0",
                            "chassis": [{"name": [{"value": "leaf3"}]}],
                            "port": [{"id": [{"value": "Ethernet8"}]}],
                        }
                    ]
                }
            ]
        }
    (cable,) = read(tmp_path, json.dumps(body), "n4.json").topology.cables
    assert (cable.one.label, cable.other.node, cable.other.name) == ("n4:eth0", "leaf3", "Ethernet8")


def test_own_file_comes_back_from_json(tmp_path: Path) -> None:
    import msgspec

    graph = read(tmp_path, LAB, "lab.toml")
    assert graph.num_hosts == 4
    assert {cable.bps for cable in graph.topology.cables} == {100e9, 400e9}
    again = read(tmp_path, msgspec.json.encode(graph.topology).decode(), "lab.json")
    assert again.topology.cables == graph.topology.cables
    assert again.topology.hosts == graph.topology.hosts


BAD = {
    "empty": ("", "x.conf", "empty"),
    "cycle": (
        "SwitchName=a Switches=b\nSwitchName=b Switches=c\nSwitchName=c Switches=a\n",
        "x.conf", "cyclic topology: a > b > c > a"),
    "self": ("SwitchName=a Switches=a\n", "x.conf", "cyclic topology: a > a"),
    "host twice": (
        "SwitchName=a Nodes=n1\nSwitchName=b Nodes=n[0-2]\n",
        "x.conf", "duplicate name: n1: on a and on b"),
    "switch twice": ("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2\n", "x.conf", "duplicate name: a"),
    "host as switch": ("SwitchName=a Nodes=a\n", "x.conf", "duplicate name: a: a host and a switch"),
    "switch below is missing": ("SwitchName=a Switches=b\n", "x.conf", "unknown switch: b"),
    "key": ("SwitchName=a Node=n1\n", "x.conf", "x.conf:1: 'Node=n1': not a key"),
    "bracket": ("SwitchName=a Nodes=n[1-\n", "x.conf", "brackets do not match"),
    "huge list": ("SwitchName=a Nodes=n[0-9999999999]\n", "x.conf", "not a usable range"),
    "huge product": ("SwitchName=a Nodes=n[0-9999]x[0-9999]\n", "x.conf", "more than 1000000 names"),
    "yaml": ("a: [1, 2\n", "x.yaml", "not YAML"),
    "aliases": ("a: &x [1]\nb: [*x, *x]\n", "x.yaml", "aliases"),
    "other yaml": ("hello: world\n", "x.yaml", "none of the known formats"),
    "entities": ('<!DOCTYPE a [<!ENTITY b "c">]><system>&b;</system>', "x.xml", "document type"),
    "other xml": ("<html></html>", "x.xml", "not of NCCL"),
    "broken xml": ("<system><cpu></system>", "x.xml", "not XML"),
    "json": ("{", "x.json", "not JSON"),
    "deep json": ("[" * 100_000, "x.json", "not JSON"),
    "no level": (
        '{"kind": "List", "items": [{"kind": "Node", "metadata": {"name": "n"}}]}',
        "x.json", "no node has a label"),
    "node twice": (
        '{"kind": "List", "items": [{"metadata": {"name": "n"}}, {"metadata": {"name": "n"}}]}',
        "x.json", "duplicate name: n"),
    "unknown NIC": (
        LAB.replace('nic = "nic1"', 'nic = "nic9"'),
        "x.toml", "unknown NIC: n0:nic9: the host has nic0, nic1"),
    "two cables": (LAB.replace('nic = "nic1"', 'nic = "nic0"'), "x.toml", "port n0:nic0 has two cables"),
    "unknown end": (LAB.replace('to = "spine"', 'to = "spline"'), "x.toml", "no host or switch has that name"),
    "speed": (LAB.replace("400G", "fast"), "x.toml", "speed 'fast'"),
    "toml key": (LAB.replace("speed", "sped"), "x.toml", "unknown key 'sped'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_used_is_one_clear_line(tmp_path: Path, name: str) -> None:
    text, file, expected = BAD[name]
    with pytest.raises(FabricError) as caught:
        read(tmp_path, text, file)
    message = str(caught.value)
    assert expected in message
    assert "\n" not in message
    assert len(message) < 300


@given(st.binary(max_size=400), st.sampled_from(["x.conf", "x.yaml", "x.json", "x.toml", "x.xml"]))
def test_garbage_is_refused_or_read(tmp_path_factory: pytest.TempPathFactory, data: bytes, name: str) -> None:
    path = tmp_path_factory.mktemp("garbage") / name
    path.write_bytes(data)
    try:
        Graph(read_topology(path))
    except FabricError:
        pass


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FabricError, match="cannot be read: No such file"):
        read_topology(tmp_path / "none")


@given(
    st.lists(st.tuples(st.sampled_from(["n", "rack-1-", "a7b"]), st.integers(0, 3000), st.integers(1, 5)), max_size=60)
)
def test_lists_come_back(parts: list[tuple[str, int, int]]) -> None:
    names = list(dict.fromkeys(f"{head}{number:0{width}d}" for head, number, width in parts))
    assert sorted(expand(compress(names), "x")) == sorted(names)


def test_lists_as_slurm_writes_them() -> None:
    assert expand("n[0-2,7],a, rack[1-2]n[08-10]", "x") == [
        "n0", "n1", "n2", "n7", "a",
        "rack1n08", "rack1n09", "rack1n10", "rack2n08", "rack2n09", "rack2n10"]  # fmt: skip
    assert compress(["n10", "n8", "n9", "login"]) == "login,n[8-10]"


def test_speeds() -> None:
    assert (speed_of("400G", ""), speed_of("25Gbit/s", ""), speed_of(1000, "")) == (400e9, 25e9, 1000.0)
    for bad in ("", "-1G", "0", "1e9", "G", True, None):
        with pytest.raises(FabricError):
            speed_of(bad, "x")


def test_this_host_from_sys(tmp_path: Path) -> None:
    net, port = tmp_path / "class/net/eth0", tmp_path / "class/infiniband/mlx5_0/ports/1"
    for folder in (net / "device", port, tmp_path / "class/net/lo", tmp_path / "class/net/veth1"):
        folder.mkdir(parents=True)
    for name, text in {"speed": "25000", "mtu": "9000", "duplex": "full", "operstate": "up"}.items():
        (net / name).write_text(text + "\n")
    for other in ("lo", "veth1"):
        (tmp_path / "class/net" / other / "operstate").write_text("up\n")
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    (port / "state").write_text("1: DOWN\n")
    (host,) = read_host(tmp_path, "n1").hosts
    eth, ib = host.nics
    assert (eth.name, eth.bps, eth.mtu, eth.duplex, eth.is_up) == ("eth0", 25e9, 9000, "full", True)
    assert (ib.name, ib.bps, ib.is_up) == ("mlx5_0/1", 400e9, False)


def test_a_speed_that_the_driver_does_not_know_is_unknown(tmp_path: Path) -> None:
    net = tmp_path / "class/net/eth0"
    net.mkdir(parents=True)
    for name, text in {"speed": "-1", "operstate": "unknown"}.items():
        (net / name).write_text(text)
    ((nic,),) = (host.nics for host in read_host(tmp_path, "n1").hosts)
    assert (nic.bps, nic.mtu, nic.duplex, nic.is_up) == (None, None, None, None)


@pytest.mark.parametrize("name", ["small-tree", "medium", "nvl72", "dual-xclr-irregular"])
def test_public_models(name: str) -> None:
    path = Path(os.environ.get("EVERSTEP_TOPOLOGIES", "")) / f"{name}.yaml"
    if not path.exists():
        pytest.skip("EVERSTEP_TOPOLOGIES names no folder with topograph's public models")
    graph = Graph(read_topology(path))
    graph.require_connected()
    assert graph.num_hosts == {"small-tree": 6, "medium": 8, "nvl72": 72, "dual-xclr-irregular": 255}[name]
