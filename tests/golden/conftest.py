"""`pytest tests/golden --rewrite-golden` writes what is printed now; the review is the diff."""

from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-golden", action="store_true", help="write the golden outputs anew")


@pytest.fixture
def check_golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with tests/golden/<name>, or write it."""

    def check(name: str, text: str) -> None:
        path = FOLDER / name
        if request.config.getoption("--rewrite-golden", default=False):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"no {path.name}; write it with --rewrite-golden"
        assert text == path.read_text()

    return check
