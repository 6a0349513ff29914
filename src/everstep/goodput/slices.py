"""Where the seconds of all ranks went in parts of a run: a day each, or a week of a fleet. Pure."""

from collections.abc import Sequence

from everstep.goodput.account import account_rank
from everstep.goodput.buckets import Bucket
from everstep.goodput.history import History

Seconds = dict[Bucket, float]


def slices_of(history: History, edges: Sequence[float]) -> list[Seconds]:
    """Between each two neighbours of `edges` (times, ascending); what lies outside of the run is nowhere."""
    found: list[Seconds] = [dict.fromkeys(Bucket, 0.0) for _ in edges[1:]]
    for rank in range(history.world_size):
        place = 0
        for span in account_rank(history, rank):
            begin, end = history.begun_at + span.begin_s, history.begun_at + span.end_s
            while place < len(found) and edges[place + 1] <= begin:
                place += 1
            for index in range(place, len(found)):
                length_s = min(end, edges[index + 1]) - max(begin, edges[index])
                if edges[index] >= end:
                    break
                if length_s > 0.0:
                    for bucket, share in span.shares:
                        found[index][bucket] += length_s * share
    return found
