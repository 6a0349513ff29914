"""Small foreign files that would take all time or memory if they were believed: each is refused in a line, at once."""

import json
import resource
from pathlib import Path

import pytest

from everstep.fabric.readers import hostlist, own
from everstep.fabric.readers.find import read_topology
from everstep.fabric.readers.text import yaml_of
from everstep.fabric.topology import tree
from everstep.fabric.topology.graph import Graph
from everstep.fabric.topology.values import FabricError

DOCTYPE = '<?xml version="1.0" encoding="{}"?><!DOCTYPE a [<!ENTITY b "c">]><system><gpu/>&b;</system>'
HEAD = "[[hosts]]\n"
BOMBS: dict[str, tuple[str, bytes, str]] = {
    "names as long as a book": ("x.conf", b"SwitchName=s Nodes=" + b"n" * 100_000 + b"[0-998]", "characters"),
    "width of a number": ("x.conf", b"SwitchName=s Nodes=n[" + b"0" * 100_000 + b"-9999]", "not a number"),
    "digits without end": ("x.conf", b"SwitchName=s Nodes=n[1-" + b"9" * 100_000 + b"]", "not a number"),
    "ranges without end": ("x.conf", b"SwitchName=s Nodes=n[" + b"0-9998," * 10_000 + b"1]", "not a usable range"),
    "brackets without end": ("x.conf", b"SwitchName=s Nodes=n" + b"[0-999]" * 10_000, "names"),
    "lists again and again": (
        "x.conf", b"".join(b"SwitchName=s%d Nodes=n[0-8999]\n" % each for each in range(1000)), "names"),
    "switches with everything": ("x.conf", b"SwitchName=s[0-8999] Nodes=n[0-8999]\n", "names"),
    "empty lines": ("x.yaml", b"a:" + b"\n" * 100_000 + b" 1", "none of the known"),
    "a chain of switches": (
        "x.conf", b"".join(b"SwitchName=s%d Switches=s%d\n" % (n, n + 1) for n in range(5000))
        + b"SwitchName=s5000 Nodes=n1\n", "tier"),
    "a number to base 60": ("x.yaml", b"a: 1" + b":00" * 400_000, "64 digits"),
    "a number of many digits": ("x.yaml", b"kind: Node\n" + b"9" * 900 + b": 1", "64 digits"),
    "a number by its tag": ("x.yaml", b'a: !!int "1' + b":00" * 400_000 + b'"', "tags"),
    "lists in lists": ("x.yaml", b"a: " + b"[" * 200_000, "YAML"),
    "mappings in mappings": ("x.yaml", b"".join(b" " * n + b"a:\n" for n in range(500)), "levels"),
    "a document type in UTF-16": ("x.xml", b"<" + DOCTYPE.format("utf-16").encode("utf-16-le")[2:], "not XML"),
    "a document type in EBCDIC": (
        "x.xml", DOCTYPE.format("cp037").split("<!")[0].encode() + ("<!" + DOCTYPE.split("<!", 1)[1]).encode("cp037"),
        "not text in UTF-8"),
    "groups in groups": (
        "x.json", json.dumps({"instances": [{"id": "n", "network_layers": [str(n) for n in range(20_000)]}]}).encode(),
        "levels"),
    "levels of Kueue": (
        "x.json", json.dumps({"kind": "List", "items": [
            {"kind": "Topology", "spec": {"levels": [{"nodeLabel": str(n)} for n in range(20_000)]}},
            {"metadata": {"name": "n", "labels": {str(n): "x" for n in range(20_000)}}}]}).encode(), "levels"),
    "NICs of all hosts": ("x.toml", (HEAD + 'names = "n[0-999]"\nnics = 100000').encode(), "NICs"),
    "hosts again and again": (
        "x.toml", b"".join(HEAD.encode() + b'names = "n%d-[0-8999]"\n' % n for n in range(1000)), "hosts"),
    "a tier": ("x.toml", b'[[switches]]\nnames = "s"\ntier = 90000', "tier"),
    "a tier in JSON": (
        "x.json", b'{"source":"","hosts":[],"cables":[],"switches":[{"name":"s","tier":99999999}]}', "tier"),
    "a number of thousands of digits": ("x.json", b'{"instances": [{"id": ' + b"9" * 5000 + b"}]}", "not JSON"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundredth of the real ones."""
    monkeypatch.setattr(hostlist, "MAX_NAMES", 10_000)
    monkeypatch.setattr(own, "MAX_NAMES", 10_000)
    monkeypatch.setattr(tree, "MAX_NAMES", 20_000)


def test_a_wide_network_is_none_of_them(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    layers = {"instances": [{"id": f"n{n}", "network_layers": [f"leaf{n}", "core"]} for n in range(3000)]}
    path.write_text(json.dumps(layers))
    assert Graph(read_topology(path)).num_hosts == 3000


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_takes_neither_time_nor_memory(tmp_path: Path, name: str) -> None:
    file, data, expected = BOMBS[name]
    path = tmp_path / file
    path.write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF)
    with pytest.raises(FabricError, match=expected) as caught:
        Graph(read_topology(path))
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert after.ru_utime - before.ru_utime < 8.0
    assert after.ru_maxrss - before.ru_maxrss < 1 << 20  # KiB


def test_long_texts_of_yaml_are_texts() -> None:
    assert yaml_of("a: " + "leaf0," * 1000, "x") == [{"a": "leaf0," * 1000}]
