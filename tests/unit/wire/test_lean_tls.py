"""What our processes leave out when they start."""

import subprocess
import sys

import pytest

READ = """
import ssl, sys
reads = []
read = ssl.SSLContext.set_default_verify_paths
def counted(context):
    read(context)
    reads.append(context.cert_store_stats()["x509"])
ssl.SSLContext.set_default_verify_paths = counted
if sys.argv[1] == "lean":
    from everstep.wire.lean_tls import import_aiohttp
    import_aiohttp()
import aiohttp
print(sum(reads))
"""


def _num_read(how: str) -> int:
    return int(subprocess.check_output([sys.executable, "-c", READ, how]))


def test_no_certificate_of_an_authority_is_read_when_a_process_starts() -> None:
    if _num_read("as aiohttp does") == 0:
        pytest.skip("aiohttp reads none here when it is imported")
    assert _num_read("lean") == 0
