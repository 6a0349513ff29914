"""Takes secrets out of text that leaves this machine: known values, and what looks like a key, a password or a token.

Linear in the length of any text (RE2). It hides too much rather than too little; what it cannot know is a secret that
looks like nothing and is not among the known values. Pure.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

import re2

HIDDEN = "***"
MIN_CHARS = 6
"""A known value that is shorter would hide every "true" and "1234" of a log."""

_SPACE = r"[\s\p{Z}]"
_NAMES = (
    r"(?i:pass(?:word|wd|phrase)?|pwd|secret|token|api[ _-]?key|access[_-]?key|secret[_-]?key|private[_-]?key|auth|"
    r"authorization|credentials?|signature|session[_-]?id|cookie|webhook|dsn|license[_-]?key)"
)
# At the end of any word, as in PGPASSWORD, accessToken and SharedAccessKey.
_ENDINGS = (
    r"(?i:[A-Za-z0-9_.-]*(?:pass(?:word|wd|phrase)?|pwd|secret|token|credentials?|"
    r"(?:api|access|account|shared|secret|private|license|storage|signing|encryption|master|auth|client)[_-]?key))"
)
_NAME = r"((?:(?:[A-Za-z0-9_.-]*[_.-]|\b)" + _NAMES + r"|\b" + _ENDINGS + r")(?:_?(?i:id|value|url|header))?)"
_NAMED = re2.compile(
    _NAME + r"(\\?[\"']?" + _SPACE + r"{0,8}[=:]" + _SPACE + r"{0,8}(?:(?i:bearer|basic|token)\s{1,3})?\\?[\"']?)"
    r"([^\s\p{Z}\"'\\,;&}\])]{3,})"
)
_QUOTED = re2.compile(r"(" + _NAME + r"\\?[\"']?" + _SPACE + r"{0,8}[=:]" + _SPACE + r"{0,8}\\?\")([^\"\\\n]{3,})")
_FLAG = re2.compile(r"(--?[A-Za-z0-9_-]*" + _NAMES + r"(?:\"\s*,\s*\"|'\s*,\s*'|\s{1,3}))([^\s\"'\\-][^\s\"'\\]{2,})")
_IN_URL = re2.compile(r"([?&](?i:sig|key)=)([^&\s\"'\\]{3,})")
_SPOKEN = re2.compile(r"(\b(?i:password|passwd|passphrase)\s{1,3}(?i:is\s{1,3})?)([^\s\"'\\=:]{6,})")
_GLUED = re2.compile(r"((?:^|[\s\"'])-p)([^\s\"'\\,]{8,})")  # as mysql wants it
_FORMS = re2.compile(
    r"(?i:bearer|basic)\s+[A-Za-z0-9+/=._~-]{8,}"
    r"|hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{20,}"
    r"|glpat-[A-Za-z0-9_-]{16,}|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30,}|xox[abeprs]-[A-Za-z0-9-]{8,}"
    r"|npm_[A-Za-z0-9]{16,}|pypi-[A-Za-z0-9_-]{16,}|dckr_pat_[A-Za-z0-9_-]{10,}|ya29\.[A-Za-z0-9_-]{16,}"
    r"|GOCSPX-[A-Za-z0-9_-]{10,}|\br8_[A-Za-z0-9]{16,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*|https://hooks\.slack\.com/[A-Za-z0-9/_-]+"
    r"|https://[a-z.]*discord(?:app)?\.com/api/webhooks/[A-Za-z0-9/_-]+"
    r"|https://[A-Za-z0-9.-]*\.(?:webhook\.office|logic\.azure)\.com/[^\s\"'\\]+"
)
_USERINFO = re2.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^\s/@\"'\\]+@")
_PRIVATE_KEY = r"[A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
_PEM = re2.compile(r"(-----BEGIN " + _PRIVATE_KEY + r")[\s\S]*?(-----END " + _PRIVATE_KEY + r"|$)")
_PEM_REST = re2.compile(r"(?:[A-Za-z0-9+/=]{4,}(?:\s|\\n|\\r)+)+(-----END " + _PRIVATE_KEY + r")")
"""The rest of a key whose begin was cut off."""

_NO_SECRET = frozenset({"null", "true", "false", "none", "unset", HIDDEN})


class Mask:
    """`values`: known secrets. `number`: how many places were hidden so far."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        known = {line for value in values for line in (value, *value.splitlines()) if len(line) >= MIN_CHARS}
        forms = {form for value in known for form in (value, *_in_json(value))}
        self._values = sorted(forms, key=lambda value: (-len(value), value))
        self.number = 0

    def __call__(self, text: str) -> str:
        for value in self._values:
            if value in text:
                self.number += text.count(value)
                text = text.replace(value, HIDDEN)
        text = self._sub(_PEM, text, lambda m: f"{m[1]} {HIDDEN} {m[2]}")
        text = self._sub(_PEM_REST, text, lambda m: f"{HIDDEN} {m[1]}")
        text = self._sub(_FORMS, text, lambda _: HIDDEN)
        text = self._sub(_USERINFO, text, lambda m: f"{m[1]}{HIDDEN}@")
        text = self._sub(_IN_URL, text, lambda m: m[0] if m[2] == HIDDEN else f"{m[1]}{HIDDEN}")
        text = self._sub(_QUOTED, text, lambda m: m[0] if m[3] == HIDDEN else f"{m[1]}{HIDDEN}")
        text = self._sub(_NAMED, text, self._named)
        text = self._sub(_SPOKEN, text, lambda m: f"{m[1]}{HIDDEN}" if any(map(str.isdigit, m[2])) else m[0])
        text = self._sub(_GLUED, text, lambda m: f"{m[1]}{HIDDEN}" if _is_mixed(m[2]) else m[0])
        return self._sub(_FLAG, text, lambda m: m[0] if m[2] == HIDDEN else f"{m[1]}{HIDDEN}")

    def deep(self, value: Any) -> Any:  # noqa: ANN401  (whatever JSON can hold)
        """Return the value with each text in it masked, before it is written in a form that spells texts otherwise."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, dict):
            return {key: self._under(key, each) for key, each in value.items()}
        return [self.deep(each) for each in value] if isinstance(value, list | tuple) else value

    def _under(self, key: Any, value: Any) -> Any:  # noqa: ANN401
        if isinstance(key, str) and isinstance(value, str) and self(f"{key}={value}") == f"{key}={HIDDEN}":
            return HIDDEN
        return self.deep(value)

    def _named(self, match: Any) -> str:  # noqa: ANN401  (RE2 has no types)
        value, is_json_number = match[3], ":" in match[2] and '"' not in match[2].partition(":")[2]
        if value.lower() in _NO_SECRET or (is_json_number and value.replace(".", "", 1).isdigit()):
            return str(match[0])
        return f"{match[1]}{match[2]}{HIDDEN}"

    def _sub(self, pattern: Any, text: str, by: Callable[[Any], str]) -> str:  # noqa: ANN401
        def hide(match: Any) -> str:  # noqa: ANN401
            hidden = str(by(match))
            self.number += hidden != match[0]
            return hidden

        return str(pattern.sub(hide, text))


def _is_mixed(text: str) -> bool:
    """Whether it has letters of both cases and digits, as a password has, and the name of a file or a port has not."""
    return all(any(map(kind, text)) for kind in (str.islower, str.isupper, str.isdigit))


def _in_json(value: str) -> tuple[str, str]:
    return json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]
