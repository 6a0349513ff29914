"""JSON, as the pages and `--json` give it."""

from typing import Any

Json = dict[str, Any]
