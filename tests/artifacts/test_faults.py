from __future__ import annotations

import errno
import traceback

import pytest
from pydantic import SecretStr

from artifacts.faults import Redactor, translated
from tasks.errors import ConfigError, PipelineError, Retryable, StoreError


def outcome(error: Exception, redact: Redactor | None = None) -> PipelineError:
    with pytest.raises(PipelineError) as caught, translated("s3://bucket/x", "read the file", redact):
        raise error
    return caught.value


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), StoreError, "no space left"),
        (OSError(errno.EROFS, "Read-only file system"), StoreError, "read-only"),
        (PermissionError(errno.EACCES, "Permission denied"), StoreError, "access is denied"),
        (PermissionError("Forbidden"), StoreError, "access is denied"),
        (NotADirectoryError("x"), StoreError, "a file is where a folder should be"),
        (OSError("something odd"), StoreError, "something odd"),
        (OSError(errno.EBUSY, "Please reduce your request rate."), Retryable, "reduce your request rate"),
        (OSError(errno.EREMOTEIO, "Internal Error"), Retryable, "Internal Error"),
        (TimeoutError(), Retryable, "TimeoutError"),
        (ConnectionResetError(errno.ECONNRESET, "reset by peer"), Retryable, "reset by peer"),
        (BrokenPipeError(), Retryable, "BrokenPipeError"),
    ],
)
def test_translation(error: Exception, kind: type[PipelineError], reason: str) -> None:
    result = outcome(error)
    assert type(result) is kind
    assert reason in result.message
    assert result.where == "s3://bucket/x" and result.fix


@pytest.mark.parametrize(
    ("code", "status", "kind", "reason"),
    [
        ("InternalError", 500, Retryable, "InternalError"),
        ("SlowDown", 503, Retryable, "SlowDown"),
        ("RequestTimeout", 400, Retryable, "RequestTimeout"),
        ("TooManyRequests", 429, Retryable, "TooManyRequests"),
        ("AccessDenied", 403, StoreError, "AccessDenied"),
        ("NoSuchBucket", 404, StoreError, "bucket does not exist"),
        ("InvalidArgument", 400, StoreError, "InvalidArgument"),
    ],
)
def test_answers_of_an_object_store(code: str, status: int, kind: type[PipelineError], reason: str) -> None:
    from botocore.exceptions import ClientError
    from s3fs.errors import translate_boto_error

    answer = {"Error": {"Code": code, "Message": "told so"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    raw = ClientError(answer, "PutObject")  # type: ignore[arg-type]
    for error in (raw, translate_boto_error(raw)):
        result = outcome(error)
        assert type(result) is kind and reason in result.message


def test_network_errors_of_clients() -> None:
    import aiohttp
    from botocore.exceptions import EndpointConnectionError, NoCredentialsError, ReadTimeoutError
    from fsspec.exceptions import FSTimeoutError

    for error in (
        EndpointConnectionError(endpoint_url="http://h"),
        ReadTimeoutError(endpoint_url="http://h"),
        aiohttp.ClientPayloadError("cut"),
        FSTimeoutError(),
    ):
        assert type(outcome(error)) is Retryable
    assert "no credentials" in outcome(NoCredentialsError()).message


def test_other_errors_pass_through() -> None:
    with pytest.raises(ConfigError), translated("here", "read"):
        raise ConfigError("mine")
    with pytest.raises(ZeroDivisionError), translated("here", "read"):
        raise ZeroDivisionError


def test_redaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "from-the-environment")
    redact = Redactor(
        {
            "key": "AKIA12345",
            "client_kwargs": {"aws_session_token": "session-value", "region_name": "eu-central-1"},
            "wrapped": SecretStr("wrapped-value"),
            "headers": [{"Authorization": "Bearer abc.def"}],
            "endpoint_url": "http://minio:9000",
            "config_kwargs": {"s3": {"addressing_style": "virtual"}},
            "token": "abc",
        }
    )
    text = redact(
        "AKIA12345 session-value wrapped-value Bearer abc.def from-the-environment http://minio:9000 virtual eu-central-1 abc"
    )
    assert text == "*** *** *** *** *** http://minio:9000 virtual eu-central-1 abc"
    assert redact("https://me:pw@host/x?X-Amz-Signature=12ab&a=1") == "https://***@host/x?X-Amz-Signature=***&a=1"


def test_an_original_with_a_secret_is_not_shown_below_the_translation() -> None:
    redact = Redactor({"secret": "very-secret"})
    try:
        with translated("here", "read", redact):
            raise OSError(errno.EIO, "bad key very-secret")
    except StoreError as error:
        assert "very-secret" not in "".join(traceback.format_exception(error))
    try:
        with translated("here", "read", redact):
            raise OSError(errno.EIO, "harmless")
    except StoreError as error:
        assert "harmless" in "".join(traceback.format_exception(error))
