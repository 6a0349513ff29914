"""Each reader of foreign bytes as one function, for the property tests and for `bench/fuzz.py`.

A function gets any bytes and lets nothing out but what its callers expect; what it lets out otherwise is a fault.
"""

import asyncio
import atexit
import contextlib
import functools
import logging
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from foreign_files import FILES

from everstep.agent.processes.error_reports import last_output, last_words, read_error
from everstep.analyzer.overall import overall
from everstep.checkpoint.backups import Backups
from everstep.checkpoint.persist.form import form
from everstep.checkpoint.transport import Server, frames
from everstep.checkpoint.transport.handshake import HandshakeError, Secret, admit
from everstep.checkpoint.transport.outcome import Refusal
from everstep.checkpoint.transport.stream import StreamError
from everstep.controller.record.spec_file import SpecFile, load_spec
from everstep.engines.hosts.admission import Shape, objection
from everstep.engines.hosts.files import Received
from everstep.errors import EverstepError, JournalError, WireError
from everstep.evidence.folder import read_folder
from everstep.goodput.figures import goodput_of
from everstep.journal.history import history_of
from everstep.journal.load import load_run
from everstep.knowledge.ending import end_of_rank
from everstep.launcher.hosts.local_run import LocalRun
from everstep.launcher.output.teed import TeedLines
from everstep.model.facts import ErrorReport
from everstep.report.asjson import status_json
from everstep.report.now.status import render_status
from everstep.report.parts.asked import Asked
from everstep.report.picture.overview import Overview
from everstep.web.server import Ui
from everstep.wire import allowed, joining, local, websocket
from everstep.wire.codec import decode_from_controller, decode_from_peer
from everstep.wire.messages import Report

Reader = Callable[[bytes], None]
MEMORY_BYTES = 32 << 20
"""That a stranger's offer may take in the transport."""


@functools.cache
def place() -> Path:
    """A file for each input. Not in /dev/shm: other tests watch that nothing is left there."""
    made = tempfile.mkdtemp(prefix="everstep-fuzz-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


def wire(data: bytes) -> None:
    for decode in (decode_from_peer, decode_from_controller):
        with contextlib.suppress(WireError):
            message = decode(data)
            if isinstance(message, Report):
                allowed.objection("agent", "n0", message.event)
    reader = local.FrameReader(1 << 20)
    with contextlib.suppress(local.FrameError):
        for at in range(0, len(data), 97):
            reader.feed(data[at : at + 97])
            while reader.next() is not None:
                pass
            assert reader.wanted > 0


def websockets(data: bytes) -> None:
    head, _, rest = data.partition(b"\r\n\r\n")
    with contextlib.suppress(WireError):
        websocket.switching(websocket.parse_request(head)[1])
    whole, found = websocket.Incoming(4096), []
    for piece in (rest, data):
        with contextlib.suppress(WireError):
            for at in range(0, len(piece), 61):
                found += whole.feed(piece[at : at + 61])
    assert sum(len(payload) for _, payload in found) <= 2 * len(data)


def journal(data: bytes) -> None:
    path = place() / "journal.jsonl"
    path.write_bytes(data)
    try:
        view = load_run(path)
    except JournalError:
        return
    asked = Asked(at=time.time(), controller_pid=None)
    goodput = goodput_of(history_of(view, None))
    render_status(view, goodput, asked)
    msgspec.json.encode(status_json(view, goodput, asked))
    overview = Overview()
    for _ in overview.settle(view):
        pass
    msgspec.json.encode(overview.rows(view, asked))


class Tape:
    """A `Stream` whose other side has said all of it."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def hurry(self, limit_s: float | None) -> None:
        pass

    def receive(self, num_bytes: int) -> bytes:
        data = bytearray(num_bytes)
        self.receive_into(memoryview(data))
        return bytes(data)

    def receive_into(self, view: memoryview) -> None:
        if self._at + len(view) > len(self._data):
            raise StreamError("closed the connection")
        view[:] = self._data[self._at : self._at + len(view)]
        self._at += len(view)

    def send(self, data: bytes, *, more: bool = False) -> None:
        pass

    def abort(self) -> None:
        self._at = len(self._data)


def transport(data: bytes) -> None:
    tape = Tape(data)
    with contextlib.suppress(StreamError, HandshakeError):
        admit(tape, Secret("a token of this test"), "127.0.0.1:1")  # type: ignore[arg-type]
    tape = Tape(data)
    shelf = Backups(lambda: MEMORY_BYTES)
    server = Server("a token of this test", shelf, dict[int, int]().items)
    server._own_duplicates = lambda rank: []  # type: ignore[method-assign]  # asks an event loop, and here is none
    with contextlib.suppress(StreamError, Refusal):
        for _ in range(8):
            match frames.hear(tape, frames.Push, frames.Fetch, frames.Drop):  # type: ignore[arg-type]
                case frames.Push(offer=offer):
                    server._take(tape, offer)  # type: ignore[arg-type]
                case frames.Fetch(rank=rank, step=step):
                    server._give(tape, rank, step)  # type: ignore[arg-type]
                case frames.Drop(rank=rank, generation=generation):
                    shelf.let_go(rank, generation)
    shelf.close()


def evidence(data: bytes, name: str = "rank-1-flight.json") -> None:
    """As the child does that reads what ranks left (`evidence.child`)."""
    folder = place() / "evidence"
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    (folder / name).write_bytes(data)
    found = read_folder(folder, 1.8e9)
    overall(msgspec.structs.replace(found.case, world=(0, 1, 2)), found.points, found.known)


def logs(data: bytes) -> None:
    evidence(data, "rank-1.log")
    lines = TeedLines("[rank1]: ")
    for at in range(0, len(data), 113):
        lines.feed(data[at : at + 113])
    lines.finish()
    path = place() / "stdout.log"
    path.write_bytes(data)
    end_of_rank(last_output(last_words(path)), None, rank=1, at=1.8e9)


def errors(data: bytes) -> None:
    path = place() / "rank-1.json"
    path.write_bytes(data)
    found = read_error(path)
    if found is not None:
        assert isinstance(found, ErrorReport)
        end_of_rank("", found, rank=1, at=1.8e9)
        msgspec.json.encode(found)


def specs(data: bytes) -> None:
    path = place() / "spec.json"
    path.write_bytes(data)
    with contextlib.suppress(EverstepError):
        load_spec(place())
    for kind in (form.RankPart, form.Manifest):
        with contextlib.suppress(form.DamagedFileError):
            form.unseal("part", data, kind)
        with contextlib.suppress(form.DamagedFileError):  # with a sum that is right
            form.unseal("part", b'{"sum":"' + form.checksum(data).encode() + b'","body":' + data + b"}\n", kind)


SHAPE = Shape(num_hosts=2, num_standby=1, nproc=1, program="t.py", everstep_version="0", torch_version="0")


def joins(data: bytes) -> None:
    """What a host says to the first one, and the first one to a host."""
    folder = place() / "received"
    folder.mkdir(exist_ok=True)
    asyncio.run(_joins(data, Received(folder, lambda generation, rank: "n1" if rank == 3 else None)))


async def _joins(data: bytes, received: Received) -> None:
    for hear in (joining.from_host, joining.from_head):
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        with contextlib.suppress(WireError, EOFError):
            while True:
                _hear(await hear(reader, 4096), received)


def _hear(message: object, received: Received) -> None:
    match message:
        case joining.Join():
            objection(SHAPE, [], message)
        case joining.Piece():
            with contextlib.suppress(WireError, OSError):
                received.take("s", frozenset({"n1"}), message)
        case joining.Admitted(spec=spec):
            with contextlib.suppress(EverstepError, msgspec.MsgspecError, UnicodeDecodeError):
                msgspec.json.decode(spec, type=SpecFile)
                LocalRun.make(message, "h:1")


class _Transport(asyncio.Transport):
    """Of a client that has sent its bytes, and reads all that comes."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.num_bytes, self._closing = 0, False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.num_bytes += len(data)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


class _Faults(logging.Handler):
    """What aiohttp says of handlers that broke: it answers 500, and nobody would see it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        cause = record.exc_info[1] if record.exc_info else None
        if cause is not None and not isinstance(cause, HttpProcessingError):
            self.found.append(cause)


class _Pages:
    """`everstep ui` without a socket, with a token that is short enough to be found."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        folder = place() / "runs"
        folder.mkdir(exist_ok=True)
        self._faults = _Faults()
        logger = logging.Logger("everstep.fuzz")
        logger.addHandler(self._faults)
        self._runner = web.AppRunner(Ui(folder, "t").app(), access_log=None, handle_signals=False, logger=logger)
        self._loop.run_until_complete(self._runner.setup())

    def ask(self, data: bytes) -> None:
        self._loop.run_until_complete(self._ask(data))
        if self._faults.found:
            raise self._faults.found.pop()

    async def _ask(self, data: bytes) -> None:
        assert self._runner.server is not None
        protocol, transport = self._runner.server(), _Transport()
        protocol.connection_made(transport)
        with contextlib.suppress(ConnectionError):
            protocol.data_received(data)
        for _ in range(20):
            await asyncio.sleep(0)
        if not transport.is_closing():
            protocol.eof_received()
        protocol.connection_lost(None)
        await asyncio.sleep(0)


@functools.cache
def _pages() -> _Pages:
    return _Pages()


def requests(data: bytes) -> None:
    _pages().ask(data)


def _in_place(read: Callable[[bytes, Path], None], data: bytes) -> None:
    read(data, place())


READERS: dict[str, Reader] = {
    "wire": wire,
    "websocket": websockets,
    "journal": journal,
    "transport": transport,
    "flight": evidence,
    "errors": errors,
    "logs": logs,
    "specs": specs,
    "joining": joins,
    "requests": requests,
    **{name: functools.partial(_in_place, read) for name, read in FILES.items()},
}
"""By the name of their folder in tests/corpus."""
