"""A policy from the command line: a preset, and `--set key=value`. Shared by `simulate` and `replay`."""

import argparse
from collections.abc import Sequence

import msgspec

from everstep.core.policy import Policy, preset
from everstep.errors import ConfigError

_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")


def add_policy_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--policy", default=None, metavar="NAME", help="conservative, default or aggressive")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="one number of the policy; may be repeated"
    )


def policy_with(base: Policy | str, changes: Sequence[str]) -> Policy:
    """A preset by name, or a policy, with changes. Raises ConfigError with what there is."""
    policy = preset(base) if isinstance(base, str) else base
    fields = {field.name: field for field in msgspec.structs.fields(Policy) if field.name != "name"}
    for key, text in pairs(changes, "--set").items():
        if key not in fields:
            raise ConfigError(f"no policy setting {key!r}; there are: {', '.join(fields)}")
        policy = msgspec.structs.replace(policy, **{key: _value(key, text, fields[key].type)})
    return policy


def pairs(texts: Sequence[str], flag: str) -> dict[str, str]:
    """KEY=VALUE, each. Raises ConfigError."""
    found = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise ConfigError(f"{flag} {text!r}: must be KEY=VALUE")
        found[key.strip()] = value.strip()
    return found


def _value(key: str, text: str, wanted: type) -> float | int | bool:
    try:
        if wanted is bool:
            if text.lower() not in (*_TRUE, *_FALSE):
                raise ValueError
            return text.lower() in _TRUE
        return int(text) if wanted is int else float(text)
    except ValueError:
        kind = {bool: "true or false", int: "a whole number"}.get(wanted, "a number")
        raise ConfigError(f"--set {key}={text}: must be {kind}") from None
