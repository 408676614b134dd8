"""S3 proper: a real server (moto) behind a proxy that answers 500, hangs, and cuts connections."""

from __future__ import annotations

import contextlib
import http.client
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from artifacts import remote_backend
from artifacts.store import Store, open_store
from tasks.errors import PipelineError, Retryable, StoreError

ONE_ATTEMPT = {"connect_timeout": 20, "read_timeout": 20, "retries": {"max_attempts": 0, "mode": "standard"}}

Fault = Callable[[str, str], str | None]


def no_fault(method: str, path: str) -> str | None:
    return None


class FaultyProxy(ThreadingHTTPServer):
    """Forwards to S3 what `fault(method, path)` lets through; otherwise does what it says: "500", "hang" or "cut"."""

    daemon_threads = True

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = urlsplit(target).netloc
        self.fault: Fault = no_fault
        self.seen: list[str] = []
        self.stop = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients hang up on us by design."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyProxy

    def _forward(self) -> None:
        self.server.seen.append(f"{self.command} {self.path.split('?')[0]}")
        fault = self.server.fault(self.command, self.path)
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            raise NotImplementedError
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if fault == "hang":
            self.server.stop.wait(20)
            self.close_connection = True
            return
        if fault == "500":
            self._answer(500, [("Content-Length", "0")], b"")
            return
        upstream = http.client.HTTPConnection(self.server.target, timeout=20)
        upstream.request(self.command, self.path, body, dict(self.headers))
        answer = upstream.getresponse()
        content = answer.read()
        upstream.close()
        headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in ("connection", "date")]
        if fault == "cut":
            self._answer(answer.status, headers, content[: len(content) // 2])
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self._answer(answer.status, headers, content)

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        self.wfile.flush()

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _forward


@pytest.fixture
def proxy(s3_endpoint: str) -> Iterator[FaultyProxy]:
    server = FaultyProxy(s3_endpoint)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.stop.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def shaky(proxy: FaultyProxy, s3_url: str, s3_options: dict[str, Any], tmp_path: Path) -> Store:
    """A store behind the proxy."""
    options = {**s3_options, "endpoint_url": proxy.url, "config_kwargs": ONE_ATTEMPT}
    return open_store(s3_url, storage_options=options, cache=tmp_path / "cache")


@contextlib.contextmanager
def faulty(proxy: FaultyProxy, fault: str, method: str, end: str) -> Iterator[None]:
    """`fault` for requests of `method` to paths that end in `end`; nobody waits long for one that hangs."""
    with pytest.MonkeyPatch.context() as patch:
        if fault == "hang":
            patch.setattr(remote_backend, "PATIENCE_S", 1.0)
        proxy.fault = lambda verb, path: fault if verb == method and path.split("?")[0].endswith(end) else None
        yield
        proxy.fault = no_fault


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_manifest_is_written_last(shaky: Store, proxy: FaultyProxy, draft: Any, folder: Any) -> None:
    shaky.commit(draft("sft"), folder())
    puts = [line for line in proxy.seen if line.startswith("PUT")]
    assert puts[-1].endswith("/manifest.json")
    assert sum(line.endswith("/manifest.json") for line in puts) == 1
    assert len(puts) == 4  # two files, their ETags, the manifest


@pytest.mark.parametrize("fault", ["500", "hang", "cut"])
@pytest.mark.parametrize("where", ["model.bin", "manifest.json"])
def test_a_broken_upload_loses_nothing(
    shaky: Store, proxy: FaultyProxy, draft: Any, folder: Any, fault: str, where: str
) -> None:
    made = folder()
    want = contents(made)
    with faulty(proxy, fault, "PUT", where):
        try:
            shaky.commit(draft("sft"), made)
        except PipelineError as error:
            assert isinstance(error, Retryable), error
            assert contents(made) == want
        else:
            assert fault == "cut"  # an answer without content cannot be cut in the middle
    stored = shaky.lookup("sft", draft("sft").fingerprint)
    assert stored is None or shaky.verify(stored, deep=True) == []
    manifest = shaky.commit(draft("sft"), made) if made.exists() else stored
    assert manifest is not None and shaky.verify(manifest, deep=True) == []
    assert contents(shaky.local_folder(manifest)) == want


def test_an_answer_that_got_lost_is_not_the_end_of_the_artifact(
    shaky: Store, proxy: FaultyProxy, draft: Any, folder: Any
) -> None:
    """The manifest arrived, but the answer did not: the files that it names must not be cleaned up."""
    made = folder()

    original = _Handler._answer

    def drop(self: _Handler, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        if self.command == "PUT" and self.path.endswith("/manifest.json"):
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        original(self, status, headers, content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Handler, "_answer", drop)
        with contextlib.suppress(Retryable):
            shaky.commit(draft("sft"), made, keep_source=True)
    stored = shaky.lookup("sft", draft("sft").fingerprint)
    assert stored is not None and shaky.verify(stored, deep=True) == []
    assert shaky.commit(draft("sft"), made) == stored


@pytest.mark.parametrize("fault", ["500", "hang", "cut"])
def test_a_broken_download_is_not_kept(shaky: Store, proxy: FaultyProxy, draft: Any, folder: Any, fault: str) -> None:
    manifest = shaky.commit(draft("sft"), folder({"model.bin": "x" * 100_000}), keep_source=True)
    with faulty(proxy, fault, "GET", "model.bin"), pytest.raises(Retryable) as caught:
        shaky.local_folder(manifest)
    assert "model.bin" in str(caught.value) and caught.value.fix
    assert contents(shaky.local_folder(manifest)) == {"model.bin": b"x" * 100_000}


def test_a_short_outage_is_ridden_out(
    proxy: FaultyProxy, s3_url: str, s3_options: dict[str, Any], tmp_path: Path, draft: Any
) -> None:
    config = {**ONE_ATTEMPT, "read_timeout": 1}
    options = {**s3_options, "endpoint_url": proxy.url, "config_kwargs": config}
    store = open_store(s3_url, storage_options=options, cache=tmp_path)
    answers = iter(["hang"])
    proxy.fault = lambda method, path: next(answers, None)
    assert store.lookup("sft", draft("sft").fingerprint) is None
    assert len(proxy.seen) > 1


def test_no_server_at_all(s3_url: str, s3_options: dict[str, Any], tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = {**s3_options, "endpoint_url": f"http://127.0.0.1:{port}", "config_kwargs": ONE_ATTEMPT}
    store = open_store(s3_url, storage_options=options, cache=tmp_path)
    start = time.monotonic()
    with pytest.raises(Retryable, match="network") as caught:
        store.check_writable()
    assert time.monotonic() - start < 20
    assert s3_url in str(caught.value)


def test_a_missing_bucket(s3_options: dict[str, Any], tmp_path: Path) -> None:
    store = open_store("s3://no-such-bucket/x", storage_options=s3_options, cache=tmp_path)
    with pytest.raises(StoreError, match="bucket does not exist") as caught:
        store.check_writable()
    assert "s3://no-such-bucket/x" in str(caught.value) and "create the bucket" in str(caught.value)


def test_no_secret_in_any_message(
    s3_url: str, s3_options: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture, draft: Any, folder: Any
) -> None:
    caplog.set_level(logging.DEBUG, logger="artifacts")
    options = {**s3_options, "endpoint_url": "http://user:pass-in-url@127.0.0.1:1", "config_kwargs": ONE_ATTEMPT}
    store = open_store(s3_url, storage_options=options, cache=tmp_path)
    texts = [repr(store), store.url]
    for action in (store.check_writable, lambda: store.commit(draft("sft"), folder())):
        with pytest.raises(PipelineError) as caught:
            action()
        link: BaseException | None = caught.value
        while link is not None:
            texts.append(str(link))
            link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    everything = "\n".join(texts) + caplog.text
    for secret in (s3_options["key"], s3_options["secret"], "pass-in-url"):
        assert secret not in everything


def test_two_hosts_share_a_store(
    s3_url: str, s3_options: dict[str, Any], tmp_path: Path, draft: Any, folder: Any
) -> None:
    one, two = (open_store(s3_url, storage_options=s3_options, cache=tmp_path / name) for name in ("one", "two"))
    manifest = one.commit(draft("sft"), folder())
    found = two.lookup("sft", manifest.fingerprint)
    assert found == manifest
    copy = two.local_folder(manifest)
    assert contents(copy) == {"model.bin": b"weights", "sub/log.txt": b"a log"}
    assert copy.is_relative_to(tmp_path / "two")
    assert two.local_folder(manifest) == copy
    one.write_record("registry/production.json", {"fingerprint": manifest.fingerprint})
    assert two.read_record("registry/production.json") == {"fingerprint": manifest.fingerprint}


def test_of_two_hosts_the_first_manifest_wins(
    s3_url: str, s3_options: dict[str, Any], tmp_path: Path, draft: Any, folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second host sees no manifest, and then the first one writes its own: the conditional write refuses."""
    one, two = (open_store(s3_url, storage_options=s3_options, cache=tmp_path / name) for name in ("one", "two"))
    backend = two._backend
    original = backend._mark  # type: ignore[attr-defined]
    first = []

    def mark(*args: Any) -> Any:
        read = backend.read

        def too_late(path: str) -> bytes | None:
            monkeypatch.setattr(backend, "read", read)
            first.append(one.commit(draft("sft"), folder({"x": "one"})))
            return None

        monkeypatch.setattr(backend, "read", too_late)
        return original(*args)

    monkeypatch.setattr(backend, "_mark", mark)
    assert two.commit(draft("sft"), folder({"x": "two"})) == first[0]
    assert contents(two.local_folder(first[0])) == {"x": b"one"}
    uploads = [name for name in backend.names(f"artifacts/sft/{first[0].fingerprint}") if name.startswith("files-")]
    assert sorted(uploads) == [first[0].files_at, f"{first[0].files_at}.json"]


def test_a_deep_check_of_untouched_files_downloads_nothing(
    shaky: Store, proxy: FaultyProxy, draft: Any, folder: Any
) -> None:
    manifest = shaky.commit(draft("sft"), folder())
    proxy.seen.clear()
    assert shaky.verify(manifest, deep=True) == []
    shaky.local_folder(manifest)
    assert not any("model.bin" in line for line in proxy.seen)


def test_without_etags_contents_are_compared(shaky: Store, proxy: FaultyProxy, draft: Any, folder: Any) -> None:
    manifest = shaky.commit(draft("sft"), folder())
    note = f"artifacts/sft/{manifest.fingerprint}/{manifest.files_at}.json"
    for data in (None, b"garbage", b'{"etags": 3}'):
        shaky._backend.delete(note) if data is None else shaky._backend.write(note, data)
        proxy.seen.clear()
        assert shaky.verify(manifest, deep=True) == []
        assert any("model.bin" in line for line in proxy.seen)


def test_a_damaged_local_copy_is_downloaded_again(s3_store: Store, draft: Any, folder: Any) -> None:
    manifest = s3_store.commit(draft("sft"), folder())
    copy = s3_store.local_folder(manifest)
    (copy / "model.bin").write_text("weightz")
    assert contents(s3_store.local_folder(manifest))["model.bin"] == b"weights"


def test_a_damaged_object_is_never_handed_out(s3_store: Store, draft: Any, folder: Any) -> None:
    manifest = s3_store.commit(draft("sft"), folder(), keep_source=True)
    s3_store._backend.write(f"artifacts/sft/{manifest.fingerprint}/{manifest.files_at}/model.bin", b"weightz")
    with pytest.raises(StoreError, match=r"damaged: model\.bin: sha256 differs"):
        s3_store.local_folder(manifest)


def test_the_endpoint_from_the_environment(
    s3_url: str, s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAFROMENVIRONMENT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-from-environment")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    open_store(s3_url, cache=tmp_path).check_writable()
