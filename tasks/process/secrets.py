"""Keeping the values of secret environment variables out of logs and error files."""

from __future__ import annotations

import re
from collections.abc import Mapping

SECRET_SUFFIXES = (
    *("TOKEN", "KEY", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "_PASS", "_PAT"),
    *("CREDENTIAL", "CREDENTIALS", "_AUTH", "COOKIE", "_DSN", "WEBHOOK", "WEBHOOK_URL", "CONNECTION_STRING"),
)
MASK = "***"
# A shorter value ("1", "true", "abc") would mask ordinary words all over the log.
MIN_SECRET_LENGTH = 6

_URL_PASSWORD = re.compile(r"(://[^/\s:@]+:)[^/\s@]+(?=@)")


def secret_values(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The values to hide, longest first: those of variables whose name ends in one of `SECRET_SUFFIXES`."""
    values = {
        value.strip()
        for name, value in environ.items()
        if name.upper().endswith(SECRET_SUFFIXES) and len(value.strip()) >= MIN_SECRET_LENGTH
    }
    return tuple(sorted(values, key=lambda value: (-len(value), value)))


def hide(text: str, values: tuple[str, ...]) -> str:
    """Replace every value of `values` in `text`, and every password inside a URL, by `MASK`."""
    for value in values:
        if value in text:
            text = text.replace(value, MASK)
    return _URL_PASSWORD.sub(rf"\g<1>{MASK}", text) if "://" in text else text


def mask_secrets(text: str, environ: Mapping[str, str]) -> str:
    """`text` without the values of `environ`'s secret variables and without passwords in URLs."""
    return hide(text, secret_values(environ))
