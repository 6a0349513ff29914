"""From the results of healthy.py and certain.py to the standstills that `everstep policies` prices.

python bench/standstills.py healthy.json hangs.json doubtful.json > src/everstep/simulate/standstills.json
"""

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jobs.healthy_kinds import COMPUTING

STEPS_AT_RISK = 1000
"""What a plain program has done since its beginning. The benchmark's programs are young; a real one is not."""


def main(argv: Sequence[str]) -> int:
    rows = [row for path in argv for row in json.loads(Path(path).read_text())]
    found = [one for row in rows if (one := standstill(row)) is not None]
    found.sort(key=lambda one: (one["what"], one.get("saved", False), one.get("lasted_s", 0.0)))
    lines = ",\n".join(json.dumps(one) for one in found)
    print(f"[\n{lines}\n]")
    return 0


def standstill(row: dict[str, Any]) -> dict[str, Any] | None:
    """None of what ended loudly, or had no verdict or no end. What is false or nothing is left out."""
    hang = row.get("hang")
    if hang is not None:
        if row.get("loud") or not row["certainty"]:
            return None
        one = {"what": hang["kind"], "certain": row["certainty"] == "certain", "saved": hang["mode"] == "state"}
        one["computes"] = hang["kind"].startswith("loop-")
    elif row["waits"] and not row.get("trouble"):
        one = {"what": row["kind"], "saved": row["mode"] == "state", "computes": row["kind"] in COMPUTING}
        one["lasted_s"] = round(statistics.median(row["waits"]), 1)
        one["times"] = row["times"]
    else:
        return None
    if not one["saved"]:
        one["at_risk_steps"] = STEPS_AT_RISK
    return {key: value for key, value in one.items() if value}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
