"""Hub data sets are pinned to the commit where they are, against a small hub of our own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from flows.revisions import pin_revisions
from pipeline_config.loading import load_config
from pipeline_config.pipeline import PipelineConfig
from pipeline_config.sources import HubSource
from tasks.errors import DataError, Retryable

COMMITS = {"main": "a" * 40, "v2": "b" * 40}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Paths of data sets that were asked for; it knows `openai/gsm8k` with the branches of `COMMITS`."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/api/datasets/"):  # the client may ask for things of its own
                asked.append(self.path)
            name, _, revision = self.path.partition("?")[0].removeprefix("/api/datasets/").partition("/revision/")
            commit = COMMITS.get(revision or "main") if name == "openai/gsm8k" else None
            self.send_response(200 if commit else 404)
            if not commit:
                self.send_header("X-Error-Code", "RevisionNotFound" if name == "openai/gsm8k" else "RepoNotFound")
            self.end_headers()
            self.wfile.write(json.dumps({"id": name, "sha": commit, "siblings": []}).encode() if commit else b"{}")

        def log_message(self, *arguments: Any) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield asked
        server.shutdown()


def config(*sources: str, **more: str) -> PipelineConfig:
    lists = {"train": f"[{', '.join(sources)}]", **more}
    return load_config("tiny", overrides=[f"data.{name}={text}" for name, text in lists.items()])


def revisions(found: PipelineConfig) -> list[str | None]:
    return [source.revision for source in found.data.train if isinstance(source, HubSource)]


def test_branches_and_nothing_become_commits_and_each_is_asked_once(hub: list[str]) -> None:
    newest, tagged = "{kind: hub, dataset: openai/gsm8k}", "{kind: hub, dataset: openai/gsm8k, revision: v2}"
    fixed = f"{{kind: hub, dataset: openai/gsm8k, revision: {'c' * 40}}}"
    before = config(newest, tagged, fixed, "{kind: generated, problem: sum}", eval=f"[{newest}]", sft=f"[{newest}]")
    said: list[str] = []
    after = pin_revisions(before, said.append)
    assert revisions(after) == ["a" * 40, "b" * 40, "c" * 40]
    assert [source.revision for source in (*after.data.eval, *after.data.sft) if isinstance(source, HubSource)] == [
        "a" * 40
    ] * 2
    assert len(hub) == 2 and said[0] == "openai/gsm8k (newest) is at commit aaaaaaaaaaaa"
    assert PipelineConfig.model_validate(after.model_dump(mode="json")) == after


def test_what_is_not_there(hub: list[str]) -> None:
    with pytest.raises(DataError, match="no such revision"):
        pin_revisions(config("{kind: hub, dataset: openai/gsm8k, revision: v9}"), print)
    missing = "{kind: hub, dataset: nobody/nothing, columns: {question: q, working: w}}"
    with pytest.raises(DataError, match="nobody/nothing"):
        pin_revisions(config(missing), print)


def test_offline_local_or_no_hub_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    local = config(f"{{kind: hub, dataset: {tmp_path}, columns: {{working: w}}}}")
    assert pin_revisions(local, print) == local
    remote = config("{kind: hub, dataset: openai/gsm8k}")
    with pytest.raises(Retryable, match="the hub does not answer"):
        pin_revisions(remote, print)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert pin_revisions(remote, print) == remote
