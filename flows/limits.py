"""A limit on GPU stages over all hosts, kept by the Prefect server: `run.gpu_limit`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.exceptions import PrefectException

from tasks.errors import ConfigError, Retryable
from tasks.stage import Settings, Stage

LEASE_S = 60.0
"""A slot whose holder is dead is free again after this long; a living one renews it every 45 s."""

_UNREACHABLE = (httpx.HTTPError, PrefectException, OSError)


@contextmanager
def global_slots(stage: Stage, settings: Settings, count: int) -> Iterator[None]:
    """Hold `count` slots of `run.gpu_limit`, one per GPU, if a limit is named; waits while too many are taken.

    A slot that cannot be renewed, because the server is down or has forgotten it, is a warning: training goes on.

    Raises:
        ConfigError: there is no such limit.
        Retryable: the server does not answer.
    """
    name = settings.config.run.gpu_limit
    if name is None or count == 0:
        yield
        return
    settings.log(
        f"{stage.name}: asks for {count} of the slots of the global limit {name}, and waits while they are taken"
    )
    slot = concurrency(name, occupy=count, lease_duration=LEASE_S, strict=True, raise_on_lease_renewal_failure=False)
    try:
        slot.__enter__()
    except ConcurrencySlotAcquisitionError as error:
        if error.__cause__ is None:
            raise ConfigError(
                f"the Prefect server has no global limit {name!r}",
                where="run.gpu_limit",
                fix=f"grpo-pipeline ops setup --gpu-limit {name}=N",
            ) from error
        raise Retryable(
            f"the global limit {name!r} cannot be asked for slots: {error.__cause__}",
            where="run.gpu_limit",
            fix="check the Prefect server",
        ) from error
    settings.log(f"{stage.name}: holds {count} of {name}")
    try:
        yield
    finally:
        try:
            slot.__exit__(None, None, None)
        except _UNREACHABLE as error:
            settings.warn(
                f"the slots of {name} could not be given back ({type(error).__name__}): free in {LEASE_S:.0f} s"
            )
