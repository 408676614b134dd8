"""The base of every configuration model: frozen, bounded, and closed to unknown keys."""

from __future__ import annotations

import os
import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen part of the configuration; a key that it does not know is an error."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        # A refused value may be a secret in the wrong place; our own messages show values without them.
        hide_input_in_errors=True,
    )


_PASSWORD = re.compile(r"(?i)(://[^/\s:@?#]*:|https?://)[^/\s@?#]+(?=@)")
_SIGNATURE = re.compile(
    r"(?i)([?&](?:[^=&#\s]*(?:signature|token|secret|credential|password|passwd|key)|sig|sas|auth)=)[^&#\s'\"]+"
)


def without_secrets(text: str) -> str:
    """`text` with `***` for the passwords, signatures and tokens in its URLs."""
    return _SIGNATURE.sub(r"\1***", _PASSWORD.sub(r"\1***", text))


def _no_secret(url: str) -> str:
    if without_secrets(url) != url:
        raise ValueError(
            "holds a password, key or signature, and settings are stored with every artifact and shown by Prefect; give it "
            "in the environment instead: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or fsspec's FSSPEC_<PROTOCOL>"
        )
    return url


def _no_tilde(path: str) -> str:
    if "\0" in path:
        raise ValueError("holds a NUL byte, which no path can have")
    full = os.path.expanduser(path)
    if full.startswith("~"):
        raise ValueError(
            "begins with ~, and that home folder is not known; write the path in full, or ./~ for a file named so"
        )
    return full


LocalPath = Annotated[str, AfterValidator(_no_tilde)]
"""A local path, or a name that stands where one can; `~` becomes the home folder."""

SecretFreeUrl = Annotated[str, AfterValidator(_no_secret), AfterValidator(_no_tilde)]
"""A path or URL without credentials in it; `~` becomes the home folder."""
