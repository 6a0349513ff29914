"""Every transcript in this folder, played again."""

from pathlib import Path

import pytest

from everstep.testing import ScenarioError, run_scenario

FILES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text()
    answered = run_scenario(text)
    if request.config.getoption("--rewrite-scenarios"):
        path.write_text(answered)
    assert path.read_text() == answered


def test_there_are_scenarios() -> None:
    assert len(FILES) >= 10


def test_an_unknown_command_is_named_with_its_line() -> None:
    with pytest.raises(ScenarioError, match=r"line 3: no command 'jump'; there are: agree, alert, anomaly, answer"):
        run_scenario("run ranks=2\n\njump 3\n")


def test_a_scenario_that_does_not_begin_with_run_says_so() -> None:
    with pytest.raises(ScenarioError, match="begins with `run"):
        run_scenario("kill 2\n")
