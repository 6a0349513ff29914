"""Reads foreign files: bounded, UTF-8, YAML without aliases, XML without entities. Raises FabricError with the file."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from everstep.fabric.topology.values import FabricError
from everstep.linux.regular import regular

MAX_BYTES = 256 << 20
MAX_YAML_BYTES = 32 << 20
"""PyYAML needs about a second for each megabyte."""

MAX_YAML_DEPTH = 100
MAX_XML_BYTES = 8 << 20
"""NCCL's files have some kilobytes; in memory each byte takes up to fifty."""

_LONG_NUMBER = re.compile(r"[-+0-9a-fA-Fxob_:.]{65,}")


def read_bytes(path: Path, what: str = "topology") -> bytes:
    """`what`: the expected kind of file, for the message about a wrong one. Raises FabricError."""
    try:
        with regular(path) as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise FabricError(f"{what}: {path}: cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise FabricError(f"{what}: {path}: larger than {MAX_BYTES >> 20} MB")
    return data


def text_of(data: bytes, source: str, what: str = "topology") -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise FabricError(f"{what}: {source}: not text in UTF-8") from None


def yaml_of(text: str, source: str) -> list[Any]:
    """All documents of the file. Raises FabricError."""
    try:
        import yaml
    except ImportError:
        raise FabricError(f"topology: {source}: reading YAML needs PyYAML: pip install 'everstep[fabric]'") from None
    if len(text) > MAX_YAML_BYTES:
        raise FabricError(f"topology: {source}: YAML larger than {MAX_YAML_BYTES >> 20} MB")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        depth = 0
        for event in yaml.parse(text, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            why = _why_not(event, yaml, depth)
            if why:
                raise FabricError(f"topology: {source}: YAML with {why} is not read")
        return [each for each in yaml.load_all(text, Loader=loader) if each is not None]
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = "" if line is None else f" in line {line + 1}"
        raise FabricError(f"topology: {source}: not YAML: {getattr(error, 'problem', error)}{where}") from None
    except (RecursionError, ValueError) as error:
        raise FabricError(f"topology: {source}: not YAML that can be used: {type(error).__name__}") from None


def _why_not(event: Any, yaml: Any, depth: int) -> str:  # noqa: ANN401 - PyYAML's
    """Why an event is refused: it costs more than its bytes, or does more than hold data. Empty: it is not."""
    if isinstance(event, yaml.AliasEvent):  # a few lines of them expand to gigabytes
        return "aliases"
    if depth > MAX_YAML_DEPTH:
        return f"more than {MAX_YAML_DEPTH} levels"
    if getattr(event, "tag", None) is not None:
        return "tags"
    if isinstance(event, yaml.ScalarEvent) and _LONG_NUMBER.fullmatch(event.value):  # 1:00:00... is a number to base 60
        return "numbers of more than 64 digits"
    return ""


def xml_of(data: bytes, source: str) -> ElementTree.Element:
    if len(data) > MAX_XML_BYTES:
        raise FabricError(f"topology: {source}: XML larger than {MAX_XML_BYTES >> 20} MB")
    text = text_of(data, source)  # in another encoding a document type would look different
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise FabricError(f"topology: {source}: XML with a document type is not read")
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise FabricError(f"topology: {source}: not XML: {error}") from None


def mapping(value: Any, what: str, source: str) -> dict[str, Any]:  # noqa: ANN401 - what YAML or JSON can hold
    """A mapping with text keys: YAML reads `1101` as a number."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise FabricError(f"topology: {source}: {what}: must be a mapping, not {_kind(value)}")
    return {str(key): each for key, each in value.items()}


def items(value: Any, what: str, source: str) -> Iterator[Any]:  # noqa: ANN401
    if value is None:
        return
    if not isinstance(value, list):
        raise FabricError(f"topology: {source}: {what}: must be a list, not {_kind(value)}")
    yield from value


def names(value: Any, what: str, source: str) -> list[str]:  # noqa: ANN401
    """Names from a list, or from a single value."""
    if isinstance(value, str | int):
        return [str(value)]
    found = list(items(value, what, source))
    for each in found:
        if not isinstance(each, str | int):
            raise FabricError(f"topology: {source}: {what}: must be names, not {_kind(each)}")
    return [str(each) for each in found]


def _kind(value: object) -> str:
    kinds = {dict: "a mapping", list: "a list", str: "text", int: "a number", float: "a number", bool: "true or false"}
    return kinds.get(type(value), "nothing" if value is None else type(value).__name__)
