"""A client for the configured Prefect server, with errors that say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL

from tasks.errors import ConfigError, Retryable
from tasks.process.secrets import hide

if TYPE_CHECKING:
    from prefect.client.schemas.objects import WorkPool

START = "start one with `prefect server start`, then `prefect config set PREFECT_API_URL=http://HOST:4200/api`"


@contextmanager
def api() -> Iterator[SyncPrefectClient]:
    """A client within this block.

    Raises:
        ConfigError: no server is configured, or it does not accept us.
        Retryable: it does not answer.
    """
    url = PREFECT_API_URL.value()
    if not url:
        raise ConfigError("no Prefect server is configured", where="PREFECT_API_URL", fix=START)
    shown = hide(str(url), ())
    try:
        with get_client(sync_client=True) as client:
            yield client
    except PrefectHTTPStatusError as error:
        if error.response.status_code in (401, 403):
            raise ConfigError(
                f"the Prefect server refuses us (HTTP {error.response.status_code})",
                where=shown,
                fix="set PREFECT_API_AUTH_STRING to the server's PREFECT_SERVER_API_AUTH_STRING",
                cause="unauthorized",
            ) from None
        raise ConfigError(
            f"the Prefect server answers {error.response.status_code}: {error.response.text[:500]}", where=shown
        ) from error
    except (httpx.HTTPError, OSError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "Failed to reach API" not in str(error):
            raise
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise Retryable(f"the Prefect server does not answer: {reason}", where=shown, fix=START) from error


def pool_named(client: SyncPrefectClient, name: str) -> WorkPool | None:
    """The work pool of this name, if there is one."""
    return next((pool for pool in client.read_work_pools() if pool.name == name), None)
