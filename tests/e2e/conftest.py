"""One run of the whole `tiny` chain, shared by the end-to-end tests. It takes a few minutes on two cores."""

from __future__ import annotations

import pytest
from chain_support import Chain


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    made = Chain(tmp_path_factory.mktemp("chain"))
    done = made.call("run", *made.options)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    return made
