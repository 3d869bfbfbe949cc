"""Command lines as they may be recorded: `***` in place of what looks like a secret.

Names decide, as in `--api-key X`: a value alone does not show that it is a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

REDACTED = "***"

_OPTION = re.compile(r"(?P<name>-{1,2}[^\W\d][^=\s]*)(?P<equals>=)?(?P<value>.*)", re.DOTALL)
_ASSIGNMENT = re.compile(r"(?P<name>[+~]*[^\W\d][\w.-]*)=(?P<value>.*)", re.DOTALL)
_URL_PASSWORD = re.compile(r"(?P<user>[A-Za-z][A-Za-z0-9+.-]*://[^/\s:@]*:)[^/\s]*@")
_URL_PARAMETER = re.compile(r"(?P<name>[?&;](?P<bare>[\w.-]+)=)[^&;#\s]+")
_BEARER = re.compile(r"(?P<kind>\bBearer\s+)\S+", re.IGNORECASE)
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

_ANYWHERE = {"password", "passwords", "passwd", "passphrase", "pwd", "secret", "secrets"}
_LAST = {"key", "keys", "apikey", "token", "credential", "credentials", "signature"}
_AUTH = "auth"
_NOT_AUTH = {"author", "authors"}
_PLACES = {"file", "path", "dir"}
"""`--token-file PATH` names a file. The path is no secret."""


def redact(words: Sequence[str]) -> list[str]:
    """The words of a command line, with `***` in place of what looks like a secret.

    Args:
        words: options and arguments, as `sys.argv` holds them.
    """
    return list(_redacted(words))


def _redacted(words: Sequence[str]) -> Iterator[str]:
    is_value = False
    for word in words:
        # An option follows a switch such as `--use-auth`; it is not its value.
        if is_value and not word.startswith("--"):
            is_value = False
            yield REDACTED
            continue
        match = _OPTION.fullmatch(word) or _ASSIGNMENT.fullmatch(word)
        is_value = False
        if match is None or not _is_secret(match["name"]):
            yield redact_text(word)
        elif "=" in word:
            yield f"{match['name']}={REDACTED}"
        else:
            is_value = True
            yield word


def redact_text(text: str) -> str:
    """A text with `***` in place of passwords and tokens of URLs, and of bearer tokens."""
    text = _URL_PASSWORD.sub(rf"\g<user>{REDACTED}@", text)
    text = _BEARER.sub(rf"\g<kind>{REDACTED}", text)
    return _URL_PARAMETER.sub(
        lambda match: match["name"] + REDACTED if _is_secret(match["bare"]) else match[0], text
    )


def _is_secret(name: str) -> bool:
    parts = [part.lower() for part in _PARTS.findall(name)]
    if not parts or parts[-1] in _PLACES:
        return False
    return (
        parts[-1] in _LAST
        or not _ANYWHERE.isdisjoint(parts)
        or any(part.startswith(_AUTH) and part not in _NOT_AUTH for part in parts)
    )
