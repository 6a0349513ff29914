"""What the kernel says about waiting for a CPU."""

import pytest

from everstep.linux import pressure, proc


@pytest.mark.parametrize(
    ("text", "share"),
    [
        (b"some avg10=83.29 avg60=63.62 avg300=43.15 total=95\nfull avg10=1.00 avg60=0 avg300=0 total=0\n", 0.8329),
        (b"some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n", 0.0),
        (b"some avg10=1.2.3 avg60=0.00 avg300=0.00 total=0\n", None),
        (b"full avg10=1.00 avg60=0 avg300=0 total=0\n", None),
        (b"\xff\x00", None),
        (b"", None),
    ],
)
def test_the_machines_share_is_read_and_what_cannot_be_read_is_unknown(monkeypatch, text, share):
    monkeypatch.setattr(proc, "read_or_nothing", lambda path: text if path.startswith("/proc/pressure") else b"")
    assert pressure.cpu_wait_share() == (None if share is None else pytest.approx(share))


def test_in_a_container_its_own_cgroup_counts_too(monkeypatch):
    files = {
        "/proc/pressure/cpu": b"some avg10=10.00 avg60=0\n",
        "/proc/self/cgroup": b"4:cpu:/x\n0::/pods/a\n",
        "/sys/fs/cgroup/cpu.pressure": b"some avg10=99.00 avg60=0\n",
    }
    monkeypatch.setattr(proc, "read_or_nothing", lambda path: files.get(path, b""))
    assert pressure.cpu_wait_share() == pytest.approx(0.99)
