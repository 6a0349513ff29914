"""Policy: presets exist, nonsense is refused with the key in the message."""

import pytest

from everstep.core.state.policy import PRESETS, Policy, preset
from everstep.errors import ConfigError


def test_presets_carry_their_names() -> None:
    assert {name: policy.name for name, policy in PRESETS.items()} == {name: name for name in PRESETS}


def test_an_unknown_preset_names_those_that_exist() -> None:
    with pytest.raises(ConfigError, match="no policy 'bold'; there are: conservative, default, aggressive"):
        preset("bold")


@pytest.mark.parametrize("field", ["max_restarts", "stop_grace_s", "budget_window_s"])
def test_negative_values_are_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=f"policy {field} = -1"):
        Policy(**{field: -1})


def test_nan_is_refused() -> None:
    with pytest.raises(ConfigError, match="settle_s"):
        Policy(settle_s=float("nan"))
