"""`ops check` on this machine: disk, GPUs with a stand-in for nvidia-smi, the hub."""

from __future__ import annotations

import http.server
import os
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from flows.ops.check_host import check_host
from pipeline_config.loading import load_config
from tasks.findings import Finding
from tasks.process.gpu import take_gpu


@pytest.fixture
def look(tmp_path: Path) -> Any:
    def found(*overrides: str) -> dict[str, Finding]:
        config = load_config("tiny", overrides=[f"run.home={tmp_path / 'home'}", "run.min_free_gb=0", *overrides])
        return {finding.name: finding for finding in check_host(config)}

    return found


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs; a process of somebody else's on the second."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "gpus").write_text("0, GPU-aaa, 3, 81559\n1, GPU-bbb, 1024, 81559\n")
    (tmp_path / "users").write_text("GPU-bbb, 4321, /usr/bin/python3, 1000 MiB\n")
    script = tmp_path / "nvidia-smi"
    cases = f"*memory.total*) cat {tmp_path}/gpus;; *compute-apps*) cat {tmp_path}/users;;"
    script.write_text(f'#!/bin/sh\ncase "$1" in {cases} esac\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


@pytest.mark.usefixtures("machine")
def test_gpus_free_taken_and_used_by_others(look: Any) -> None:
    found = look("run.device=auto")
    assert (found["gpu.0"].status, found["gpu.0"].evidence) == ("ok", "free, 3 of 81559 MiB in use")
    assert found["gpu.1"].status == "warn" and "4321, /usr/bin/python3, 1000 MiB" in found["gpu.1"].evidence
    with ExitStack() as stack:
        take_gpu(stack, print)
        taken = look("run.device=auto")["gpu.0"]
    assert taken.status == "ok" and f"a stage holds it: process {os.getpid()}" in taken.evidence


@pytest.mark.parametrize(("device", "status"), [("auto", "not_measured"), ("cuda", "fail"), ("cpu", "ok")])
def test_no_driver(device: str, status: str, look: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert look(f"run.device={device}")["gpu"].status == status


def test_disk(look: Any, tmp_path: Path) -> None:
    assert look()["disk"].status == "ok"
    assert look("run.min_free_gb=100000")["disk"].status == "fail"
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize / 1e9
    assert look(f"run.min_free_gb={free / 2}")["disk"].status == "warn"


def test_a_store_that_is_a_file(look: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert look(f"run.store={tmp_path / 'file'}")["store"].status == "fail"


def test_hub_needed_offline_unreachable_and_there(look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert look()["hub"].evidence == "not needed: model and data are local"
    hub = "data.eval=[{kind: hub, dataset: openai/gsm8k}]"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert look(hub)["hub"].evidence == "offline by choice (HF_HUB_OFFLINE); openai/gsm8k must be in the local cache"
    also = "evaluation.sets=[{name: math, source: {kind: hub, dataset: HuggingFaceH4/MATH-500}}]"
    assert (
        look(also)["hub"].evidence
        == "offline by choice (HF_HUB_OFFLINE); HuggingFaceH4/MATH-500 must be in the local cache"
    )
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    gone = look(hub)["hub"]
    assert gone.status == "fail" and "does not answer (ConnectError); needed for openai/gsm8k" in gone.evidence
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{served.server_port}")
        assert look(hub)["hub"].status == "ok"
        served.shutdown()
