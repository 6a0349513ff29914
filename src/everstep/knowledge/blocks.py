"""Blocks of several lines that say one thing: Python tracebacks and torchrun's account of a failure.

Each block is a small state machine fed with the lines of one speaker (one rank tag of one source); lines of other
ranks in between go to their own. Bounded: a block that does not end is given up. Called by `matcher`.
"""

import enum
import re
from dataclasses import dataclass

MAX_BLOCK_LINES = 4000
"""Longer "tracebacks" are something else, or recursion to the limit: Python itself folds repeated frames."""

_FRAME = re.compile(rb'\s*File "([^"\n]{1,400})", line (\d{1,8}), in ')
_NOT_THE_USERS = re.compile(
    rb"/(?:site|dist)-packages/|/lib(?:64)?/python3|^<|importlib|/torch/|runpy\.py$|/bin/[\w.-]+$"
)
_PYTHON = rb"/python3[\d.]*/"
_PACKAGES = rb"/(?:site|dist)-packages/"
IN_PIPE = b"In a pipe to another process: "
PLACES = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        (
            b"In a client of an object store: ",
            _PACKAGES + rb"(?:botocore|aiobotocore|boto3|s3transfer|gcsfs|s3fs|adlfs|oss2|minio|s3torchconnector\w*"
            rb"|azure/storage|google/(?:cloud/storage|resumable_media))/",
        ),
        (
            b"In a network client: ",
            _PACKAGES
            + rb"(?:urllib3|requests|httpx|httpcore|h11|aiohttp|websockets?|grpc|paramiko|huggingface_hub|redis"
            rb"|pymongo|psycopg2?|wandb)/"
            rb"|" + _PYTHON + rb"(?:(?:urllib|http|xmlrpc)/\w+|socket|ssl|smtplib|ftplib|imaplib"
            rb"|poplib|asyncio/(?:streams|selector_events|sslproto))\.py$",
        ),
        (
            b"In a compiler: ",
            _PACKAGES
            + rb"(?:triton|torch/(?:_dynamo|_inductor|_functorch|fx|utils/cpp_extension)|deepspeed/ops/op_builder"
            rb"|numba|jax/_src/interpreters)\b",
        ),
        (
            b"In saving or loading a checkpoint: ",
            rb"/torch/(?:serialization\.py|distributed/checkpoint/)|/safetensors/|/orbax/|/tensorstore/|/dist_checkpointing/",
        ),
        (
            b"In a reader of data files: ",
            _PACKAGES + rb"(?:PIL|pyarrow|h5py|zarr|lmdb|webdataset|soundfile|librosa|torchaudio/(?:io|_backend)"
            rb"|torchvision/io|decord|av|cv2|imageio|tifffile|nibabel|rasterio|numpy/lib|pandas/io|msgpack|tfrecord|streaming/base/format)\b"
            rb"|" + _PYTHON + rb"(?:tarfile|zipfile|gzip|bz2|lzma|_compression|json/decoder|csv|pickle)\b",
        ),
        (
            b"In joining the others: ",
            rb"/torch/distributed/(?:rendezvous\.py|elastic/rendezvous/)",
        ),
        (
            IN_PIPE,
            rb"/multiprocessing/(?:connection|managers|queues|resource_sharer|synchronize|popen_\w+)\.py$"
            rb"|/concurrent/futures/|" + _PACKAGES + rb"ray/",
        ),
        (b"In opening a device: ", rb"/torch/(?:cuda|xpu|mtia|mps)/__init__\.py$|/torch_npu/npu/__init__\.py$"),
    )
)
"""Files that say what was being done when an exception was raised in them, and how the reader puts that before it."""
_FINALIZER = re.compile(rb'\s*File "[^"\n]{1,400}/multiprocessing/util\.py", line \d{1,8}, in _run_finalizers')
"""The outermost frame where Python prints what went wrong while it tidies up at its end, and continues."""
_GROUP_BAR = re.compile(rb"^\s*(?:\|\s?|\+-\+-{4,}.*$|\+-{4,}.*$)")
_AGENT_KEY = re.compile(rb"\s*(?:\[\d+\]:\s*)?(time|host|rank|exitcode|error_file|traceback)\s*: ?(.*)")
_BOX = ("\N{BOX DRAWINGS LIGHT VERTICAL}".encode(), "\N{BOX DRAWINGS LIGHT ARC UP AND RIGHT}".encode())
"""How the lines of a traceback drawn by rich begin. The exception stands below the box."""
_EXCEPTION = re.compile(rb"[A-Za-z_][\w.]*(?:[: ]|$)|" + rb"\*\*[A-Za-z_]")
"""How the last line of a traceback begins: the name of a class, or one of the sentences that link two tracebacks."""
_FLAT_FRAME = re.compile(rb'File "[^"\n]{1,400}", line \d{1,8}, in\b')
_NAMED = re.compile(
    rb"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Failed|Failure|Fault|Interrupt|Exit|Timeout|Expired|NotFound)(?::|$)"
)
"""The last line of a traceback whose indentation got lost on the way: only what looks like a class of exceptions."""
_HOLDS_ANOTHER = b": Traceback (most recent call last)"
"""An exception whose text is the whole traceback of another process, as older data loaders raise it."""
_PACKED = re.compile(
    rb"(?:\\n|\s|^)((?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception|Interrupt)(?:: [^\\]{1,2000})?)"
)
_ERROR_FILE = re.compile(
    rb"\\{0,4}\"message\\{0,4}\": ?\\{0,4}\""
    rb"((?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception|Interrupt|Exit)\b"
    rb"(?:\([^\"\\]{0,500}|: [^\"\\]{0,2000})?)"
)
"""The exception in what torchelastic's `record` writes for the launcher, as it is or within another text of JSON."""
_OF_ERROR_FILE = (b"py_callstack", b"extraInfo", b"torchelastic.worker.status", b'"timestamp"')
_LITERAL = re.compile(rb"\s*(?:\w{1,40} = )?[bfru]{0,2}[\"']\Z")
"""What stands before the text of a program that prints its own source."""
_CODE = re.compile(rb"(-?\d+)(?: \(pid: (\d+)\))?")

LINK_CAUSE = b"The above exception was the direct cause"
LINK_CONTEXT = b"During handling of the above exception"


class Verdict(enum.Enum):
    """What a block made of a line."""

    MORE = "more"  # belongs to the block
    END = "end"  # the line that names the exception
    NOT_MINE = "not mine"  # the block ended without a name


class _Frame(enum.Enum):
    """What the innermost frame of a traceback does, as far as its text is there."""

    UNREAD = "unread"  # of the program's, its line has not come
    FAILS = "fails"
    RAISES = "raises"  # it says itself what it makes of what it caught
    OF_LIBRARY = "of a library"


def what_links(before: bytes) -> bytes:
    """The sentence in the text before a traceback that ties it to the one before, or nothing."""
    return next((link for link in (LINK_CAUSE, LINK_CONTEXT) if link in before), b"")


def packed_exception(before: bytes, rest: bytes) -> bytes:
    """The exception of a traceback in one line, as structured logs and broken pastes have it. `before` and `rest`: the
    text around its head. Empty: the traceback continues in the next line, no exception is named, or a program is being
    listed that has one as a text."""
    names = [] if _LITERAL.match(before) else _PACKED.findall(rest)
    return names[-1].strip() if names else b""


def recorded_exception(message: bytes) -> bytes:
    """The exception that a line of torchelastic's error file names; empty: it is none, or names none. Where the file
    was printed over several lines, that line has nothing else."""
    found = _ERROR_FILE.search(message)
    if found is None:
        return b""
    is_alone = message.strip().startswith(b'"message"') and message.rstrip().endswith((b'",', b'"'))
    return found[1] if is_alone or any(word in message for word in _OF_ERROR_FILE) else b""


def is_named(message: bytes) -> bool:
    """Whether this is what stands last in a traceback: the name of an exception, and perhaps its text."""
    return _NAMED.match(message) is not None


@dataclass(slots=True)
class Traceback:
    """From "Traceback (most recent call last):" to the line that names the exception."""

    first_line: int
    indent: int  # spaces that the block as a whole is moved to the right
    ignored: bool  # "Exception ignored in": Python continued
    place: str = ""
    num_lines: int = 0
    raised_in: bytes = b""  # below the program's own frames: what a known library was doing, as in `PLACES`
    link: bytes = b""  # the sentence that ties it to the traceback before it
    last_frame: _Frame = _Frame.UNREAD
    is_flat: bool = False  # its frames are not indented
    is_of_spawn: bool = False  # a new process was reading what its parent hands it

    def feed(self, message: bytes) -> Verdict:
        self.num_lines += 1
        if self.num_lines > MAX_BLOCK_LINES:
            return Verdict.NOT_MINE
        if message.lstrip().startswith(_BOX):
            return Verdict.MORE
        body = _GROUP_BAR.sub(b"", message) if b"|" in message[:40] or b"+-" in message[:40] else message
        if body is message and self.indent and message[: self.indent].isspace():
            body = message[self.indent :]
        if not body.strip():
            return Verdict.MORE
        if body[:1] in b" \t":
            frame = _FRAME.match(body)
            if frame:
                self.ignored = self.ignored or (self.num_lines == 1 and _FINALIZER.match(body) is not None)
                self._note_frame(frame[1], int(frame[2]))
            elif self.last_frame is _Frame.UNREAD:
                self.last_frame = _Frame.RAISES if body.lstrip().startswith(b"raise") else _Frame.FAILS
            return Verdict.MORE
        if body.startswith((b"Traceback (", b"Exception Group Traceback")) or _HOLDS_ANOTHER in body:
            return Verdict.MORE
        if _FLAT_FRAME.match(body):
            self.is_flat = True
        if self.is_flat:
            return Verdict.END if _NAMED.match(body) else Verdict.MORE
        # Notebooks and other printers put lines of their own between the head and the exception.
        return Verdict.END if _EXCEPTION.match(body) else Verdict.NOT_MINE

    def _note_frame(self, path: bytes, line: int) -> None:
        self.last_frame = _Frame.OF_LIBRARY
        self.is_of_spawn = path.endswith(b"/multiprocessing/spawn.py")
        place = next((name for name, files in PLACES if files.search(path)), b"")
        if place:
            self.raised_in = place
        elif not _NOT_THE_USERS.search(path):
            self.raised_in = b""
            self.last_frame = _Frame.UNREAD
            self.place = f"{path.rsplit(b'/', 1)[-1].decode('utf-8', 'replace')}:{line}"

    def fails_in_handler(self, is_of_program: bool) -> bool:
        """Whether the program had caught the exception before it, and made a mistake then. `is_of_program`: this one
        is an exception that Python raises about the program."""
        return self.link == LINK_CONTEXT and is_of_program and self.last_frame is _Frame.FAILS

    def name(self, message: bytes) -> bytes:
        """The exception line without the bars of an exception group."""
        return _GROUP_BAR.sub(b"", message).strip()


@dataclass(slots=True)
class AgentBlock:
    """torchrun's "Root Cause (first observed failure)": which rank ended first, and how."""

    first_line: int
    rank: int | None = None
    host: str = ""
    exitcode: int | None = None
    num_lines: int = 0

    def feed(self, message: bytes) -> Verdict:
        self.num_lines += 1
        if message.startswith(b"=====") or self.num_lines > MAX_BLOCK_LINES:
            return Verdict.END
        match = _AGENT_KEY.match(message)
        if match is None:
            return Verdict.MORE
        key, value = match[1], match[2].strip()
        number = _CODE.match(value)
        if key == b"host":
            self.host = value[:200].decode("utf-8", "replace")
        elif key == b"rank" and number:
            self.rank = int(number[1][:9])
        elif key == b"exitcode" and number:
            self.exitcode = int(number[1][:9])
        return Verdict.MORE

    def as_line(self) -> bytes:
        """One line that the signatures of torch.distributed know."""
        return b"Root Cause (first observed failure): rank %s exitcode : %s host %s" % (
            str(self.rank).encode(),
            str(self.exitcode).encode(),
            self.host.encode(),
        )
