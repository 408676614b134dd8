"""Which typed error an exception of a stage is, by type names and messages, without importing the libraries."""

from __future__ import annotations

import errno
import shutil
import traceback
from collections.abc import Iterator
from pathlib import Path

from tasks.errors import Interrupted, NonFinite, OutOfMemory, PipelineError, Retryable, StoreError

MEMORY_TYPES = {"OutOfMemoryError", "MemoryError"}
MEMORY_TEXTS = (
    "cuda out of memory",
    "hip out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "no available memory for the cache blocks",
)
NETWORK_TYPES = {
    "ConnectError",
    "ConnectTimeout",
    "ConnectionError",
    "ConnectionTimeout",
    "ChunkedEncodingError",
    "DistBackendError",
    "DistNetworkError",
    "IncompleteRead",
    "LocalEntryNotFoundError",
    "MaxRetryError",
    "NewConnectionError",
    "PoolTimeout",
    "ProtocolError",
    "ProxyError",
    "ReadError",
    "ReadTimeout",
    "ReadTimeoutError",
    "RemoteProtocolError",
    "SSLError",
    "TimeoutError",
}
DEVICE_TEXTS = (
    "nccl error",
    "nccl communicator",
    "ncclsystemerror",
    "ncclremoteerror",
    "uncorrectable ecc error",
    "unspecified launch failure",
    "all cuda-capable devices are busy",
    "cudaerrordevicesunavailable",
    # vLLM measures its memory while it starts; another process on the same GPU that frees some spoils that.
    "error in memory profiling",
)
# torch.multinomial, when the weights that a rollout samples from are no longer finite.
NONFINITE_TEXTS = ("probability tensor contains either",)
FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
# Libraries in Rust and C++ put the number or the words into an exception of their own.
FULL_DISK_TEXTS = (
    "no space left on device",
    "os error 28",
    "disk quota exceeded",
    "os error 122",
    "read-only file system",
)
FULL_BYTES = 2**20


def classify(error: BaseException) -> PipelineError:
    """The typed error for what a stage raised; one that is not recognised becomes a plain PipelineError (exit 1)."""
    if isinstance(error, PipelineError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("the stage was interrupted")
    for cause in _causes(error):
        # A library wraps ours, too: transformers makes any error during a lazy import a ModuleNotFoundError.
        known = cause if isinstance(cause, PipelineError) else _known(cause)
        if known is not None:
            return known
    return PipelineError(
        f"{_describe(error)}",
        where=last_frame(error),
        fix="this is not a known error: see the end of stage.log for the whole traceback",
        cause="unexpected",
    )


def blame_full_disk(known: PipelineError, work_dir: Path) -> PipelineError:
    """`known`, or, when that says nothing and the disk of the work directory is full, that the disk is full.

    torch reports a write that failed as "iostream error" or "unexpected pos", whatever the reason was.
    """
    if type(known) is not PipelineError:
        return known
    try:
        free = shutil.disk_usage(work_dir).free
    except OSError:
        return known
    if free >= FULL_BYTES:
        return known
    return StoreError(
        f"the disk is full ({known.message})",
        where=str(work_dir),
        fix="free disk space or choose another run.home; the run then goes on from the newest complete checkpoint",
        cause="disk",
    )


def last_frame(error: BaseException) -> str:
    """`file:line in function` where the error was raised, empty when it has no traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    frame = frames[-1]
    return f"{frame.filename}:{frame.lineno} in {frame.name}"


def _known(error: BaseException) -> PipelineError | None:
    names = {kind.__name__ for kind in type(error).__mro__}
    text, where = str(error).lower(), last_frame(error)
    if names & MEMORY_TYPES or any(part in text for part in MEMORY_TEXTS):
        return OutOfMemory(_describe(error), where=where, fix="lower the batch size, the lengths or the model's size")
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return OutOfMemory(_describe(error), where=where, fix="free host memory or lower the number of workers")
    if (isinstance(error, OSError) and error.errno in FULL_DISK) or any(part in text for part in FULL_DISK_TEXTS):
        return StoreError(_describe(error), where=where, fix="free disk space or choose another work folder")
    if isinstance(error, FloatingPointError) or any(part in text for part in NONFINITE_TEXTS):
        return NonFinite(_describe(error), where=where, fix="lower the learning rate; see metrics.jsonl for the step")
    if _is_transient(error, names) or any(part in text for part in DEVICE_TEXTS):
        return Retryable(_describe(error), where=where, fix="run again; if it stays, check the network and the devices")
    return None


def _is_transient(error: BaseException, names: set[str]) -> bool:
    """Network errors by name; an answer with an HTTP status only when that is 429 or 5xx."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int):
        return status == 429 or status >= 500
    return bool(names & NETWORK_TYPES)


def _describe(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was explicitly raised from."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__
