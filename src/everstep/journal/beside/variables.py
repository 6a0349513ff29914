"""Values of environment variables that an update gave, in a file of their own: the journal has the names alone.

The journal is shown, sent and kept; a value may be a key. Written by the controller, read by the agents that start the
version. Raises OSError.
"""

from pathlib import Path

import msgspec

from everstep.linux.files import write_whole
from everstep.model.versions import Version

FOLDER = "variables"


def save_values(run_dir: Path, version: str, values: dict[str, str]) -> None:
    folder = run_dir / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    write_whole(folder / f"{version}.json", msgspec.json.encode(values), mode=0o600, is_synced=True)


def values_of(run_dir: Path, version: Version | None) -> dict[str, str]:
    """The values of all variables that this version has from updates."""
    found: dict[str, str] = {}
    if version is None:
        return found
    for kept_by in dict.fromkeys(version.variables.values()):
        path = run_dir / FOLDER / f"{kept_by}.json"
        try:
            values = msgspec.json.decode(path.read_bytes(), type=dict[str, str])
            found |= {name: values[name] for name, owner in version.variables.items() if owner == kept_by}
        except (msgspec.MsgspecError, UnicodeDecodeError, KeyError) as error:
            raise OSError(0, f"not the variables of {kept_by}: {error}", str(path)) from error
    return found
