"""The event log: one winner per number on every kind of store, damage by name, old and newer events."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from artifacts import registry
from artifacts.registry import Event, Version
from artifacts.store import Store, open_store
from tasks.errors import ConfigError, Retryable, StoreError


@pytest.fixture
def version(draft: Any, folder: Any) -> Any:
    def make(store: Store, seed: int) -> Version:
        parts = {
            name: store.commit(draft(stage, seed=seed), folder({"file": f"{stage} {seed}"})).as_parent()
            for name, stage in (("export", "export"), ("model", "grpo"), ("evaluation", "evaluate_grpo"))
        }
        return Version(**parts)

    return make


def propose(store: Store, version: Version, name: str = "tiny") -> Event | None:
    return registry.change(
        store,
        name,
        lambda newest: registry.following(newest, kind="proposed", subject=version, candidate=version),
    )


def test_events_follow_one_another_with_their_state(store: Store, version: Any) -> None:
    assert registry.names(store) == [] and registry.current(store, "tiny") is None
    one, two = version(store, 1), version(store, 2)
    first = propose(store, one)
    second = registry.change(
        store,
        "tiny",
        lambda newest: registry.following(
            newest, kind="promoted", subject=two, production=two, promoted_by=2, decision={"p": float("nan")}
        ),
    )
    assert first and second and (first.number, second.number) == (1, 2)
    read = registry.current(store, "tiny")
    assert read and read.candidate == one and read.production == two and read.decision == {"p": None}
    assert [event.kind for event in registry.history(store, "tiny")] == ["promoted", "proposed"]
    assert registry.names(store) == ["tiny"]
    assert store.list_records("registry") == ["registry/tiny/000001.json", "registry/tiny/000002.json"]
    assert registry.change(store, "tiny", lambda newest: None) is None
    assert registry.referenced(store) == {*one.artifacts(), *two.artifacts()}


def test_a_number_is_taken_once(store: Store, version: Any) -> None:
    """Another process writes between our look and our write: we look again and decide anew."""
    one, two = version(store, 1), version(store, 2)
    seen = []

    def slow(newest: Event | None) -> Event:
        seen.append(newest and newest.number)
        if len(seen) == 1:
            propose(store, two)
        return registry.following(newest, kind="proposed", subject=one, candidate=one)

    made = registry.change(store, "tiny", slow)
    assert seen == [None, 1] and made and made.number == 2
    assert [event.subject for event in registry.history(store, "tiny")] == [one, two]
    record = {"any": "thing"}
    assert store.create_record("registry/x/000001.json", record)
    assert not store.create_record("registry/x/000001.json", {"other": 1})
    assert store.read_record("registry/x/000001.json") == record


def test_threads_that_write_at_once(store: Store, version: Any) -> None:
    versions = [version(store, seed) for seed in range(6)]
    threads = [threading.Thread(target=propose, args=(store, item)) for item in versions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = list(registry.history(store, "tiny"))
    assert [event.number for event in events] == [6, 5, 4, 3, 2, 1]
    assert {event.subject.export.fingerprint for event in events} == {item.export.fingerprint for item in versions}


def test_two_hosts_on_one_object_store(
    s3_url: str, s3_options: dict[str, Any], tmp_path: Any, version: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their locks are not shared; the conditional write is what keeps them apart, even after equal looks."""
    hosts = [open_store(s3_url, storage_options=s3_options, cache=tmp_path / f"host-{i}") for i in (0, 1)]
    one, two = version(hosts[0], 1), version(hosts[0], 2)
    backend = hosts[0]._backend
    original = type(backend).read

    def stale(self: Any, path: str) -> bytes | None:
        # What host 0 sees just before its write: the other one has not written yet.
        return None if self is backend and path == "registry/tiny/000001.json" and not looked else original(self, path)

    looked: list[int] = []
    monkeypatch.setattr(type(backend), "read", stale)

    def call(*args: Any, **kwargs: Any) -> Any:
        if args[0] == "pipe_file":
            looked.append(1)
            propose(hosts[1], two)
        return type(backend)._call(backend, *args, **kwargs)

    monkeypatch.setattr(backend, "_call", call)
    monkeypatch.setattr(registry, "ATTEMPTS", 1)
    with pytest.raises(Retryable, match="others changed tiny"):
        propose(hosts[0], one)
    assert [event.subject for event in registry.history(hosts[1], "tiny")] == [two]


def test_an_answer_that_got_lost_counts_as_written(
    s3_store: Store, version: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt arrives, its answer does not, and the client's second attempt is told that the file is there."""
    one, backend = version(s3_store, 1), s3_store._backend
    original = backend._call

    def twice(method: str, *args: Any, **kwargs: Any) -> Any:
        if method == "pipe_file":
            original(method, *args, **kwargs)
        return original(method, *args, **kwargs)

    monkeypatch.setattr(backend, "_call", twice)
    made = propose(s3_store, one)
    assert made and made.number == 1 and len(list(registry.history(s3_store, "tiny"))) == 1


def test_a_pointer_never_leads_to_what_is_gone(local_store: Store, version: Any) -> None:
    one = version(local_store, 1)
    local_store.gc(keep_last=0)
    with pytest.raises(StoreError, match=r"grpo/.* is not in the store any more") as caught:
        propose(local_store, one)
    assert caught.value.cause == "artifact_gone" and registry.names(local_store) == []


def test_gc_stops_when_a_model_is_promoted_meanwhile(
    local_store: Store, version: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = version(local_store, 1)
    original, asked = registry.referenced, []

    def referenced(store: Store, kept: int) -> set[tuple[str, str]]:
        asked.append(1)
        if len(asked) == 2:
            propose(open_store(str(store.root)), one)
        return original(store, kept)

    # Not under gc's own lock here, as the proposal would wait for it.
    monkeypatch.setattr("artifacts.gc._no_commit", lambda backend, dry_run: __import__("contextlib").nullcontext(0))
    monkeypatch.setattr(registry, "referenced", referenced)
    assert local_store.gc(keep_last=0) == []
    assert local_store.find("candidate").fingerprint == one.export.fingerprint


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"kind": "liked"}, "kind: Input should be"),
        ({"number": 7}, "it says that it is event 7"),
        ({"more": 1}, "more: Extra inputs"),
        ({"schema_version": 2}, "newer version of the pipeline"),
    ],
)
def test_damaged_and_newer_events_are_named(local_store: Store, version: Any, change: Any, problem: str) -> None:
    propose(local_store, version(local_store, 1))
    assert local_store.root is not None
    path = local_store.root / "registry" / "tiny" / "000001.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(StoreError, match=problem) as caught:
        registry.current(local_store, "tiny")
    assert "000001.json" in str(caught.value)


def test_without_hard_links_the_lock_keeps_writers_apart(
    local_store: Store, version: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("artifacts.staging._link", lambda source, place: False)
    one, two = version(local_store, 1), version(local_store, 2)
    propose(local_store, one)
    propose(local_store, two)
    assert [event.subject for event in registry.history(local_store, "tiny")] == [two, one]


def test_a_name_that_could_lead_elsewhere(local_store: Store, version: Any) -> None:
    one = version(local_store, 1)
    for name in ("../runs", "a/b", ".hidden", ""):
        with pytest.raises(ConfigError, match="cannot be the name of a model"):
            propose(local_store, one, name)
