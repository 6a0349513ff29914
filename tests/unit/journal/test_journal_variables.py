"""Values of variables are kept beside the journal, not in it."""

import pytest

from everstep.journal.beside.variables import save_values, values_of
from everstep.model.versions import Version


def test_what_was_kept_is_what_a_version_gets(tmp_path):
    save_values(tmp_path, "v1", {"A": "1", "B": "ü\n="})
    save_values(tmp_path, "v2", {"B": "2"})
    version = Version(id="v3", variables={"A": "v1", "B": "v2"})
    assert values_of(tmp_path, version) == {"A": "1", "B": "2"}
    assert values_of(tmp_path, None) == values_of(tmp_path, Version()) == {}


def test_they_are_for_their_user_alone(tmp_path):
    save_values(tmp_path, "v1", {"KEY": "secret"})
    assert (tmp_path / "variables").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "variables" / "v1.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("data", [None, b"", b"[]", b'{"A": 1}', b'{"B": "1"}', b"\xff"])
def test_values_that_are_gone_or_damaged_are_an_error_and_never_empty(tmp_path, data):
    if data is not None:
        save_values(tmp_path, "v1", {})
        (tmp_path / "variables" / "v1.json").write_bytes(data)
    with pytest.raises(OSError, match="v1"):
        values_of(tmp_path, Version(id="v1", variables={"A": "v1"}))
