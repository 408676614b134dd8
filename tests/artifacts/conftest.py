"""Stores of each kind, a real S3 server, and a way to make artifacts."""

from __future__ import annotations

import itertools
import logging
import os
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from moto.server import ThreadedMotoServer

from artifacts.fingerprint import fingerprint
from artifacts.manifest import Manifest, ManifestDraft
from artifacts.store import Store, open_store

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
KEYS = {"key": "AKIATESTACCESSKEY", "secret": "very-secret-value-in-tests"}

MakeDraft = Callable[..., ManifestDraft]
MakeFolder = Callable[..., Path]


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_options(s3_endpoint: str) -> dict[str, Any]:
    return {**KEYS, "endpoint_url": s3_endpoint, "client_kwargs": {"region_name": "us-east-1"}}


@pytest.fixture
def s3_url(s3_endpoint: str) -> str:
    bucket = f"bucket-{uuid.uuid4().hex}"
    httpx.put(f"{s3_endpoint}/{bucket}").raise_for_status()
    return f"s3://{bucket}/team/store"


@pytest.fixture
def local_store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def s3_store(s3_url: str, s3_options: dict[str, Any], tmp_path: Path) -> Store:
    return open_store(s3_url, storage_options=s3_options, cache=tmp_path / "cache")


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test cuts the power."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture(params=["local", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "memory":
        return open_store(f"memory://{uuid.uuid4().hex}/store", cache=tmp_path / "cache")
    return request.getfixturevalue(f"{request.param}_store")


@pytest.fixture
def draft() -> MakeDraft:
    """`draft(stage, seed=..., parents={name: manifest}, finished=NOON, **fields)`."""

    def make(
        stage: str = "sft",
        *,
        seed: int = 0,
        parents: dict[str, Manifest] | None = None,
        finished: datetime = NOON,
        **fields: Any,
    ) -> ManifestDraft:
        references = {name: parent.as_parent() for name, parent in (parents or {}).items()}
        terms = {
            "stage": stage,
            "seed": seed,
            "inputs": {name: parent.content_digest for name, parent in references.items()},
        }
        return ManifestDraft(
            stage=stage,
            stage_version=1,
            fingerprint=fingerprint(terms),
            terms=terms,
            parents=references,
            started_at=finished - timedelta(seconds=90),
            finished_at=finished,
            duration_s=90.0,
            **fields,
        )

    return make


@pytest.fixture
def folder(tmp_path: Path) -> MakeFolder:
    """`folder({"a/b.txt": "content"})` makes a folder such as a stage leaves behind."""
    counter = itertools.count()

    def make(files: dict[str, str | bytes] | None = None) -> Path:
        made = tmp_path / f"out-{next(counter)}"
        made.mkdir()
        for name, content in ({"model.bin": "weights", "sub/log.txt": "a log"} if files is None else files).items():
            path = made / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return made

    return make
