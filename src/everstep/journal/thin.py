"""Lines of a long journal that need not be decoded to know the state of the run.

Agents report cumulative accounts every two seconds, so nearly all of a long journal is accounts that a later one of the
same node and generation replaces. A run of a day has a hundred thousand of them; `everstep status` has 150 ms. Only
`load_run` skips; a controller that resumes the journal decodes every line.
"""

import re
from collections.abc import Sequence

KEEP_NEWEST = 200
"""Accounts that are decoded in any case: the step time is measured between them. Fewer make its median jump."""

_ACCOUNT = re.compile(
    rb'\{"seq":(\d+),"at":[0-9.e+-]+,"gen":-?\d+,'
    rb'"event":\{"type":"ProgressReported",(?:"at":[0-9.e+-]+,)?"node":"([^"\\]*)","generation":(-?\d+),"accounts":\['
)


def superseded_lines(lines: Sequence[bytes]) -> dict[int, int]:
    """Index of each line that can be skipped -> its record's sequence number.

    A line on which something was decided is never among them, nor is one in another form than this version writes.
    """
    accounts: list[tuple[int, int, tuple[bytes, bytes]]] = []
    newest: dict[tuple[bytes, bytes], int] = {}
    for index, line in enumerate(lines):
        match = _ACCOUNT.match(line)
        if match and line.endswith(b"}") and b'"actions":' not in line:
            key = (match[2], match[3])
            accounts.append((index, int(match[1]), key))
            newest[key] = index
    skipped = accounts[:-KEEP_NEWEST]
    return {index: seq for index, seq, key in skipped if newest[key] != index}
