"""One line of a journal file to a value and back.

Answers: is this line a record, a record of a kind that this version does not know, or damage? It opens no
file and holds no state. Called by the writer and by the reader, so that both agree on what a line is.

Additive evolution: within one schema version new event and action types may appear. A record with an unknown
event is kept as `UnknownRecord`, unknown actions of a known event are kept aside in `PartialRecord`; neither
is an error.
"""

from typing import Any, TypeAlias, get_args

import msgspec

from everstep.errors import JournalError
from everstep.model.actions import Action
from everstep.model.events import Event
from everstep.model.record import SCHEMA_VERSION, Header, Record
from everstep.model.text import without_surrogates

HEADER_KIND = "everstep-journal"


class UnknownRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A well-formed record whose event type a newer version added. `raw` is the whole line as it stands."""

    seq: int
    at: float
    gen: int
    type: str
    raw: dict[str, Any]


class PartialRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A record some of whose actions are unknown here; `actions` holds the known ones."""

    unknown_actions: tuple[dict[str, Any], ...] = ()


Entry: TypeAlias = Record | UnknownRecord


class LineError(Exception):
    """Not a line of a journal. `torn` when it is not even JSON, as a write that was cut off leaves it."""

    def __init__(self, why: str, *, torn: bool) -> None:
        super().__init__(why)
        self.why = why
        self.torn = torn


def _tags(union: object) -> frozenset[str]:
    return frozenset(str(t.__struct_config__.tag) for t in get_args(union))


EVENT_TYPES = _tags(Event)
ACTION_TYPES = _tags(Action)

_encoder = msgspec.json.Encoder()
_record_decoder = msgspec.json.Decoder(Record)
_header_decoder = msgspec.json.Decoder(Header)


def encode_header(header: Header) -> bytes:
    return _encode(header)


def encode_record(record: Record) -> bytes:
    """The line, with its newline. Raises ValueError for a record that could not be read again (NaN as a
    time)."""
    line = _encode(record)
    try:
        decode_record(line)
    except LineError as error:
        raise ValueError(f"record {record.seq} cannot be written so that it can be read again: {error.why}") from error
    return line


def decode_header(line: bytes) -> Header:
    """Raises LineError, or JournalError for a newer schema."""
    raw = _object(line)
    if raw.get("kind") != HEADER_KIND:
        raise LineError("the first line is not an everstep journal header", torn=False)
    _refuse_newer(raw)
    try:
        return _header_decoder.decode(line)
    except msgspec.MsgspecError as error:
        raise LineError(f"the header is damaged: {error}", torn=False) from error


def decode_record(line: bytes) -> Entry:
    """Raises LineError, or JournalError for a newer schema."""
    try:
        record = _record_decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return _decode_unfamiliar(line, str(error))
    if record.v > SCHEMA_VERSION:
        _refuse_newer({"v": record.v})
    return record


def _encode(value: Header | Record) -> bytes:
    try:
        return _encoder.encode(value) + b"\n"
    except UnicodeEncodeError:
        return _encoder.encode(without_surrogates(msgspec.to_builtins(value))) + b"\n"


def _object(line: bytes) -> dict[str, Any]:
    try:
        raw = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise LineError(f"not JSON: {error}", torn=True) from error
    if not isinstance(raw, dict):
        raise LineError("not a JSON object", torn=True)
    return raw


def _decode_unfamiliar(line: bytes, why: str) -> Entry:
    raw = _object(line)
    _refuse_newer(raw)
    event = raw.get("event")
    kind = event.get("type") if isinstance(event, dict) else None
    if isinstance(kind, str) and kind not in EVENT_TYPES:
        try:
            return msgspec.convert({**raw, "type": kind, "raw": raw}, UnknownRecord)
        except msgspec.ValidationError as error:
            raise LineError(str(error), torn=False) from error
    actions = raw.get("actions")
    unknown = tuple(a for a in actions if _is_unknown_action(a)) if isinstance(actions, list) else ()
    if not unknown:
        raise LineError(why, torn=False)
    known = [a for a in raw["actions"] if not _is_unknown_action(a)]
    try:
        return msgspec.convert({**raw, "actions": known, "unknown_actions": unknown}, PartialRecord)
    except msgspec.ValidationError as error:
        raise LineError(str(error), torn=False) from error


def _is_unknown_action(raw: object) -> bool:
    return isinstance(raw, dict) and isinstance(raw.get("type"), str) and raw["type"] not in ACTION_TYPES


def _refuse_newer(raw: dict[str, Any]) -> None:
    version = raw.get("v", SCHEMA_VERSION)
    if isinstance(version, int) and version > SCHEMA_VERSION:
        by = f", written by everstep {raw['everstep_version']}" if "everstep_version" in raw else ""
        raise JournalError(
            f"it has schema version {version}{by}; this everstep reads up to version {SCHEMA_VERSION}. "
            "Nothing was changed. Use the everstep that wrote it, or a newer one."
        )
