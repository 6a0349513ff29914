"""What others write is read or refused: parts of checkpoints, headers of requests. Nothing else comes out."""

import shutil
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict

from everstep.checkpoint.persist.form import form
from everstep.checkpoint.persist.read.verifying import verify
from everstep.web import browsers

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)
PART = {
    "version": 1, "step": 40, "generation": 0, "rank": 0, "world_size": 1, "length": 8,
    "skeleton": [8, 1, "x", "ab" * 16, 0],
    "tensors": [["torch.float32", [2], [[0, 8, "x", "ab" * 16, 0, 8, 0, [0], [2]]]]],
    "named": [[["model", "w"], 0, [2], [0], False]],
    "values": [[["at", "lr"], "x", "cd" * 16, 0, 8]],
    "opaque": [], "objects": {"ab" * 16: 100, "cd" * 16: 100},
}  # fmt: skip


def sealed(value):
    body = msgspec.json.encode(value)
    return b'{"sum":"' + form.checksum(body).encode() + b'","body":' + body + b"}\n"


@st.composite
def parts(draw):
    """A part in which one value, anywhere, is something else; the checksum is right."""
    whole = msgspec.json.decode(msgspec.json.encode(PART))
    at = whole
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = draw(st.sampled_from(keys))
        if not isinstance(at[key], dict | list) or not at[key] or draw(st.booleans()):
            at[key] = draw(JSON | st.sampled_from(["../" * 9 + "etc/passwd", -1, 1 << 62, "a" * 32, []]))
            return whole
        at = at[key]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    path = tmp_path_factory.mktemp("theirs") / "root"
    (path / form.step_name(40)).mkdir(parents=True)
    yield path
    shutil.rmtree(path)


@given(parts())
@settings(deadline=None, max_examples=60)
def test_a_part_with_anything_in_it_is_read_or_damaged_and_verify_ends(root, whole):
    data = sealed(whole)
    try:
        part = form.unseal("p", data, form.RankPart)
    except form.DamagedFileError:
        part = None
    if part is not None:
        assert all(form.is_object(name) for name in part.objects)
    folder = root / form.step_name(40)
    (folder / "rank-00000.json").write_bytes(data)
    (folder / ".metadata").write_bytes(b"")
    fields = {"step": 40, "generation": 0, "world_size": 1, "at": 1.0, "size_bytes": 1}
    manifest = form.Manifest(**fields, parts=(form.checksum(data),), metadata=form.checksum(b""))
    (folder / "manifest.json").write_bytes(form.seal(manifest))
    assert verify(str(root), 40), "its objects are not there"


LABEL = st.text("abcdefgh0123456789-", min_size=1, max_size=12).filter(lambda text: not text.isdigit())
NAMES = st.lists(LABEL, min_size=1, max_size=4).map(".".join).filter(lambda name: name not in ("localhost",))


def request(host=None, origin=None, path="/api/status"):
    headers = CIMultiDict([(name, value) for name, value in (("Host", host), ("Origin", origin)) if value is not None])
    return SimpleNamespace(headers=headers, raw_path=path)


@given(NAMES, st.sampled_from(["", ":80", ":0", ":x", "."]))
@settings(deadline=None)
def test_no_name_but_localhost_is_ours(name, end):
    assert browsers.why_foreign(request(host=f"{name}{end}"))
    assert browsers.why_foreign(request(host="127.0.0.1", path=f"http://{name}/"))


@given(st.ip_addresses(), st.integers(0, 65535))
@settings(deadline=None)
def test_every_address_is(address, port):
    host = f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"
    assert browsers.why_foreign(request(host=host)) == ""
    assert browsers.why_foreign(request(host=host, origin=f"http://{host}")) == ""
    assert browsers.why_foreign(request(host=host, origin="http://localhost:1"))


@pytest.mark.parametrize(
    "host",
    [
        "[::1]evil.example",
        "[::1]220.1[::1]:%:22=t",
        "127.0.0.1%evil.example",
        "[127.0.0.1",
        "[localhost]",
        "1.2.3.4:80:80",
    ],
)
def test_what_has_not_the_form_of_a_host_is_nobodys(host):
    assert browsers.why_foreign(request(host=host))
    assert browsers.cookie_name(request(host=host)) == "everstep-read-80"


@given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=60))
@settings(deadline=None)
def test_headers_of_any_kind_have_an_answer(host, origin, path):
    try:
        assert isinstance(browsers.why_foreign(request(host, origin, path)), str)
    except ValueError:
        pass  # what `api` answers with 400
