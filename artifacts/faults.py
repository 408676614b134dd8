"""What goes wrong with a disk or an object store, as errors that a user can act on, without secrets in them."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tasks.errors import PipelineError, Retryable, StoreError

_PERMANENT: dict[int, tuple[str, str]] = {
    errno.ENOSPC: ("there is no space left", "free some space (`artifacts gc` lists what can go) or use another disk"),
    errno.EDQUOT: ("the disk quota is used up", "free some space or raise the quota"),
    errno.EROFS: ("it is read-only", "mount it writable, or choose another place"),
    errno.EACCES: ("access is denied", "check the permissions or the credentials"),
    errno.EPERM: ("the operation is not permitted", "check the permissions or the credentials"),
    errno.ENOTDIR: ("a file is where a folder should be", "move the file away, or choose another place"),
    errno.EEXIST: ("a file is where a folder should be", "move the file away, or choose another place"),
    errno.EISDIR: ("a folder is where a file should be", "move the folder away, or choose another place"),
    errno.ENAMETOOLONG: ("a name is too long", "use a shorter name or prefix"),
    errno.EMFILE: ("too many files are open", "raise the limit (`ulimit -n`)"),
    errno.EIO: ("reading or writing failed (I/O error)", "check the disk or the object store"),
    errno.ELOOP: ("a symbolic link leads back to itself", "replace the link by what it should point to"),
}
_TRANSIENT = {
    errno.ETIMEDOUT,
    errno.ECONNRESET,
    errno.ECONNREFUSED,
    errno.ECONNABORTED,
    errno.EPIPE,
    errno.EHOSTUNREACH,
    errno.EHOSTDOWN,
    errno.ENETUNREACH,
    errno.ENETDOWN,
    errno.ENETRESET,
    errno.EBUSY,
    errno.EAGAIN,
    errno.ESTALE,
    errno.EREMOTEIO,
}
_TRANSIENT_CODES = {"SlowDown", "RequestTimeout", "ServiceUnavailable", "InternalError", "Throttling", "429"}
_TRANSIENT_NAMES = {
    "EndpointConnectionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "ConnectionClosedError",
    "ConnectionError",
    "HTTPClientError",
    "IncompleteReadError",
    "ResponseStreamingError",
    "ResponseParserError",
    "ProxyConnectionError",
}
_NETWORK_FIX = "check the network and the endpoint; a retry may succeed"
_CREDENTIALS_FIX = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or a profile or role), and check the bucket's policy"
)

_SECRET_KEY = re.compile(r"(?i)key|secret|token|pass|cred|auth|sas|sign|connection_string")
_SECRET_ENV = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID")
_USERINFO = re.compile(r"(?<=://)[^/@\s]+@")
_QUERY = re.compile(r"(?i)((?:signature|token|secret|credential|password|accesskeyid)[^=&\s]*=)[^&\s]+")


class Redactor:
    """Replaces secret values by `***` in any text that leaves this package."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._secrets = sorted(set(_secret_values(options)), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        secrets = [*self._secrets, *(value for name in _SECRET_ENV if len(value := os.environ.get(name, "")) >= 6)]
        for secret in secrets:
            text = text.replace(secret, "***")
        return _QUERY.sub(r"\1***", _USERINFO.sub("***@", text))


def _secret_values(value: Any, key: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _secret_values(item, str(name))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _secret_values(item, key)
    elif hasattr(value, "get_secret_value"):
        yield from _secret_values(value.get_secret_value(), "secret")
    elif isinstance(value, str) and len(value) >= 6 and _SECRET_KEY.search(key):
        # Shorter ones ("test") would blank out ordinary words, and protect nothing.
        yield value


@contextlib.contextmanager
def translated(where: str, doing: str, redact: Redactor | None = None) -> Iterator[None]:
    """Turn errors of the operating system, fsspec and S3 clients into StoreError or Retryable.

    Args:
        where: the path or URL, for the message.
        doing: "cannot <doing>: <reason>".
        redact: removes secrets; without one, only user names and passwords in URLs are removed.
    """
    redact = redact or Redactor({})
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        translation = _translate(error, redact(where), doing, redact)
        if translation is None:
            raise
        # The original's text and traceback would be printed below ours: keep it only if it holds no secret.
        shown = "".join(str(link) for link in _chain(error))
        raise translation from (error if redact(shown) == shown else None)


def _translate(error: Exception, where: str, doing: str, redact: Redactor) -> PipelineError | None:
    links = _chain(error)
    for link in links:
        verdict = _of_client(link)
        if verdict is not None:
            reason, fix, transient = verdict
            kind = Retryable if transient else StoreError
            return kind(f"cannot {doing}: {redact(reason)}", where=where, fix=fix)
    if isinstance(error, (TimeoutError, ConnectionError)):
        return Retryable(f"cannot {doing}: {_reason(error, redact)}", where=where, fix=_NETWORK_FIX)
    if isinstance(error, OSError):
        number = error.errno or _errno_of_type(error)
        if number in _TRANSIENT:
            return Retryable(f"cannot {doing}: {_reason(error, redact)}", where=where, fix=_NETWORK_FIX)
        reason, fix = _PERMANENT.get(number, (_reason(error, redact), "check that the place exists and is writable"))
        return StoreError(f"cannot {doing}: {reason}", where=where, fix=fix)
    return None


def _of_client(error: BaseException) -> tuple[str, str, bool] | None:
    """(reason, fix, goes away by itself) for an error of botocore or aiohttp, which are not imported here."""
    module = type(error).__module__.split(".")[0]
    response = getattr(error, "response", None)
    if module == "botocore" and isinstance(response, dict):
        code = str(response.get("Error", {}).get("Code", ""))
        status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0)
        reason = f"the object store answered {code or status}: {response.get('Error', {}).get('Message', '')}"
        if status >= 500 or status == 429 or code in _TRANSIENT_CODES:
            return reason, _NETWORK_FIX, True
        if code == "NoSuchBucket":
            return "the bucket does not exist", "create the bucket, or correct the store's URL", False
        if status in (401, 403) or code in ("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch"):
            return reason, _CREDENTIALS_FIX, False
        return reason, "check the store's URL and options", False
    if module in ("botocore", "aiobotocore") and type(error).__name__ in (
        "NoCredentialsError",
        "PartialCredentialsError",
    ):
        return "there are no credentials for the object store", _CREDENTIALS_FIX, False
    if _is_network(error):
        return str(error) or "no answer in time", _NETWORK_FIX, True
    if module == "botocore":
        return str(error), "check the store's URL and options", False
    return None


def _is_network(error: BaseException) -> bool:
    module = type(error).__module__.split(".")[0]
    if module in ("botocore", "aiobotocore"):
        return any(kind.__name__ in _TRANSIENT_NAMES for kind in type(error).__mro__)
    return module in ("aiohttp", "urllib3") or type(error).__name__ == "FSTimeoutError"


def _errno_of_type(error: OSError) -> int:
    """fsspec raises PermissionError("text") and the like, without a number."""
    for kind, number in ((PermissionError, errno.EACCES), (NotADirectoryError, errno.ENOTDIR)):
        if isinstance(error, kind):
            return number
    return errno.EISDIR if isinstance(error, IsADirectoryError) else 0


def _reason(error: BaseException, redact: Redactor) -> str:
    text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return redact(text)


def _chain(error: BaseException) -> list[BaseException]:
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links:
        links.append(link)
        link = link.__cause__ or link.__context__
    return links
