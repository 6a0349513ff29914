"""`pg_status` of a flight record, by group name. Pure; used by `reading.flight`.

torch numbers the groups in `pg_status` by the order of their creation on this rank and names them in `pg_config`. An
entry shows both for its group. For groups without an entry the order decides, where names are numbers: both grow in
the order of creation. Otherwise the status of a group stays unknown.
"""

from collections.abc import Mapping

from everstep.analyzer.observations.records import GroupStatus
from everstep.analyzer.reading.fields import integer

MAX_GROUPS = 20_000


def read_status(status: object, config: object, shown: Mapping[str, str]) -> tuple[GroupStatus, ...]:
    """One status per group whose name is known. `shown`: names by number, as entries show them."""
    if not isinstance(status, dict) or len(status) > MAX_GROUPS:
        return ()
    names = _names(status, config, shown)
    found = []
    for key, value in status.items():
        name = names.get(str(key))
        if name is not None and isinstance(value, dict):
            found.append(
                GroupStatus(
                    group=name,
                    enqueued=_number(value.get("last_enqueued_collective")),
                    started=_number(value.get("last_started_collective")),
                    completed=_number(value.get("last_completed_collective")),
                )
            )
    return tuple(found)


def _number(value: object) -> int | None:
    """-1 is "none yet"."""
    number = integer(value)
    return None if number is None or number < -1 else max(0, number)


def _names(status: dict[object, object], config: object, shown: Mapping[str, str]) -> Mapping[str, str]:
    ordered = _by_order(status, config)
    agrees = all(shown.get(number, name) == name for number, name in ordered.items())
    return {**ordered, **shown} if agrees else shown


def _by_order(status: dict[object, object], config: object) -> dict[str, str]:
    """Creation order on both sides; nothing where a name is no number or one side has more groups."""
    if not isinstance(config, dict) or len(config) != len(status):
        return {}
    numbers = [integer(key) for key in status]
    names = [integer(key) for key in config]
    if None in numbers or None in names:
        return {}
    known = sorted(n for n in numbers if n is not None)
    return dict(zip(map(str, known), map(str, sorted(n for n in names if n is not None)), strict=True))
