"""Scenario files are reviewed as a diff: `pytest tests/scenarios --rewrite-scenarios` writes today's answers."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-scenarios", action="store_true", help="write the answers that the brain gives now")
