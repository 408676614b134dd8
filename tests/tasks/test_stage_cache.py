"""When a stage is made, reused, made again, resumed or waited for: real processes, locks and store, tiny work."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tasks.execution
from tasks.errors import OutOfMemory, PipelineError, Retryable, StoreError
from tasks.execution import execute
from tasks.stage import Stage, file_digest, folder_digest

FAKE = Path(__file__).with_name("fake_chain.py")
ROOT = Path(__file__).resolve().parents[2]


def load_fake() -> Any:
    spec = importlib.util.spec_from_file_location("fake_chain", FAKE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["fake_chain"] = module
    spec.loader.exec_module(module)
    return module


fake = load_fake()


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = fake.Bench(tmp_path / "home")
    made.install(monkeypatch.setattr)
    return made


def reused(outcomes: dict[str, Any]) -> list[bool]:
    return [outcome.reused for outcome in outcomes.values()]


def test_made_once_then_reused_without_a_process(bench: Any) -> None:
    first = bench.run()
    assert reused(first) == [False] * 3 and bench.starts() == ["one 1", "two 1", "three 1"]
    assert "one: runs (nothing stored yet)" in bench.lines
    assert "one | working, resumed from None" in bench.lines
    manifest = first["two"].manifest
    assert [entry.path for entry in manifest.files] == ["metrics.jsonl", "stage.log", "value.txt"]
    assert manifest.parents["one"] == first["one"].manifest.as_parent()
    assert manifest.metrics == {"score": 0.5} and manifest.notes == ["well"]
    assert (manifest.attempt, manifest.resumed_from_step) == (1, None)
    assert not list((bench.folder / "work").iterdir())

    second = bench.run(run_id="another")
    assert reused(second) == [True] * 3 and bench.starts() == [] and bench.lines == []
    assert [outcome.manifest for outcome in second.values()] == [outcome.manifest for outcome in first.values()]


def test_a_changed_term_reruns_its_stage_and_what_depends_on_it(bench: Any) -> None:
    bench.run()
    bench.starts()
    outcomes = bench.run(grpo__epsilon=0.3)
    assert reused(outcomes) == [True, False, False] and bench.starts() == ["two 1", "three 1"]
    assert "two: runs (grpo.epsilon: 0.2 -> 0.3)" in bench.lines
    (line,) = [line for line in bench.lines if line.startswith("three: runs")]
    assert line.startswith("three: runs (input: ")
    # Back to the first value: everything is still there.
    assert reused(bench.run()) == [True] * 3


def test_settings_that_are_no_terms_rerun_nothing(bench: Any) -> None:
    bench.run()
    outcomes = bench.run(
        grpo__logging_steps=7, grpo__save_steps=3, run__language="zh", run__retries=0, run__tracking="off"
    )
    assert reused(outcomes) == [True] * 3


def test_equal_content_stops_a_rerun_from_spreading(bench: Any) -> None:
    """`one` is made again and its log differs, but not the one file of it that `two` reads."""
    bench.run()
    outcomes = bench.run(force="one")
    assert reused(outcomes) == [False, True, True] and "one: runs (forced)" in bench.lines


def damage_missing(path: Path) -> None:
    path.unlink()


def damage_truncated(path: Path) -> None:
    path.chmod(0o644)
    path.write_text(path.read_text()[:-1])


def damage_altered(path: Path) -> None:
    """As many bytes as before, and the old time."""
    seen = path.stat()
    path.chmod(0o644)
    path.write_text(path.read_text().replace("epsilon", "EPSILON"))
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))


@pytest.mark.parametrize(
    ("damage", "word"),
    [(damage_missing, "missing"), (damage_truncated, "size"), (damage_altered, "sha256")],
)
def test_a_damaged_file_is_noticed_and_only_its_stage_reruns(
    bench: Any, damage: Callable[[Path], None], word: str
) -> None:
    first = bench.run()
    bench.starts()
    damage(bench.store.local_folder(first["two"].manifest) / "value.txt")
    outcomes = bench.run()
    assert reused(outcomes) == [True, False, True] and bench.starts() == ["two 1"]
    (line,) = [line for line in bench.lines if line.startswith("two: runs")]
    assert "the stored artifact is damaged: value.txt" in line and word in line
    assert bench.store.verify(outcomes["two"].manifest, deep=True) == []
    assert reused(bench.run()) == [True] * 3


def test_a_lost_manifest_is_a_lost_artifact(bench: Any) -> None:
    first = bench.run()["three"].manifest
    Path(bench.store.uri(first)).unlink()
    assert reused(bench.run()) == [True, True, False]


def test_force_replaces_the_stored_artifact(bench: Any) -> None:
    first = bench.run()["one"].manifest
    second = bench.run(run_id="again", force="one")["one"].manifest
    assert second.fingerprint == first.fingerprint and second.finished_at > first.finished_at
    assert bench.store.lookup("one", first.fingerprint) == second


def test_a_killed_stage_leaves_nothing_that_could_be_taken_for_a_result(bench: Any) -> None:
    bench.behave("two", "die")
    with pytest.raises(Retryable, match="the stage was killed") as caught:
        bench.run()
    assert caught.value.retryable and "working, resumed from None" in caught.value.__notes__[0]
    assert [manifest.stage for manifest in bench.store.list()] == ["one"]
    bench.behave("two", "")
    manifest = bench.run()["two"].manifest
    assert "half.txt" not in [entry.path for entry in manifest.files]
    assert manifest.attempt == 2


def test_a_retry_resumes_and_counts_its_attempts(bench: Any) -> None:
    bench.behave("one", "break")
    with pytest.raises(Retryable, match="step 3: the hub was gone") as caught:
        bench.run()
    assert (caught.value.cause, caught.value.fix, caught.value.exit_code) == ("network", "wait", 75)
    manifest = bench.run()["one"].manifest
    assert (manifest.attempt, manifest.resumed_from_step) == (2, 3)
    assert bench.starts()[:2] == ["one 1", "one 2"]
    log = (bench.store.local_folder(manifest) / "stage.log").read_text()
    assert log.splitlines() == ["working, resumed from None", "working, resumed from 3"]


def test_a_stage_that_asks_for_it_is_started_again_at_once(bench: Any) -> None:
    bench.behave("one", "again")
    outcome = bench.run()["one"]
    assert bench.starts()[:2] == ["one 1", "one 2"] and outcome.manifest.resumed_from_step == 4
    assert "one: remedy 1 at step 4" in bench.lines


def test_a_forced_stage_starts_over_once_a_run_and_its_retry_resumes(bench: Any) -> None:
    bench.behave("one", "break")
    with pytest.raises(Retryable):
        bench.run(run_id="first")
    bench.behave("one", "break")
    with pytest.raises(Retryable):
        bench.run(run_id="second", force="one")
    assert bench.starts() == ["one 1", "one 1"]
    assert bench.lines[-1] == "one | working, resumed from None"
    manifest = bench.run(run_id="second", force="one")["one"].manifest
    assert (manifest.attempt, manifest.resumed_from_step) == (2, 3)


def test_a_stage_without_a_result_is_an_error_of_its_own(bench: Any) -> None:
    bench.behave("one", "silent")
    with pytest.raises(PipelineError, match="ended without a result") as caught:
        bench.run()
    assert (caught.value.cause, caught.value.retryable) == ("no_result", False)
    assert list(bench.store.list()) == []


def test_a_work_directory_that_cannot_be_written(bench: Any) -> None:
    (bench.folder / "work").write_text("a file where the folder should be")
    with pytest.raises(StoreError, match="the work directory cannot be written"):
        bench.run()


def test_a_finished_stage_that_could_not_be_stored_is_only_stored_again(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise StoreError("there is no space left", where="the store")

    with monkeypatch.context() as patched:
        patched.setattr(bench.store, "commit", full)
        with pytest.raises(StoreError, match="no space left"):
            bench.run()
    manifest = bench.run()["one"].manifest
    assert bench.starts()[:2] == ["one 1", "two 1"]
    assert (manifest.attempt, manifest.metrics) == (1, {"score": 0.5})
    assert bench.store.verify(manifest, deep=True) == []


def test_a_finished_stage_whose_files_went_missing_runs_again(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(draft: Any, folder: Path, **_: Any) -> None:
        (folder / "value.txt").unlink()
        (folder / "left.txt").touch()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(bench.store, "commit", killed)
        with pytest.raises(KeyboardInterrupt):
            bench.run()
    manifest = bench.run()["one"].manifest
    assert bench.starts()[:2] == ["one 1", "one 2"]
    assert [entry.path for entry in manifest.files] == ["metrics.jsonl", "stage.log", "value.txt"]


@pytest.mark.parametrize("draft", ["", ', "draft": null', ', "draft": {"stage": "one"}'])
def test_a_damaged_finished_file_costs_a_rerun_only(bench: Any, monkeypatch: pytest.MonkeyPatch, draft: str) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise StoreError("there is no space left", where="the store")

    with monkeypatch.context() as patched:
        patched.setattr(bench.store, "commit", full)
        with pytest.raises(StoreError):
            bench.run()
    (work,) = (bench.folder / "work").iterdir()
    sizes = {path.name: path.stat().st_size for path in (work / "out").iterdir()}
    (work / "finished.json").write_text(f'{{"files": {json.dumps(sizes)}{draft}}}')
    assert bench.run()["one"].manifest.attempt == 2


@pytest.mark.parametrize("step", ["count_attempt", "write_spec", "mark_finished"])
def test_a_full_work_disk_is_named(bench: Any, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(tasks.execution, step, full)
        with pytest.raises(StoreError, match="cannot write the work directory: there is no space left"):
            bench.run()
    assert list(bench.store.list()) == []
    assert reused(bench.run()) == [False] * 3


def test_digests_of_what_an_artifact_lacks(bench: Any) -> None:
    manifest = bench.run()["one"].manifest
    with pytest.raises(StoreError, match=r"artifact one/[0-9a-f]{16}: has no file x\.txt"):
        file_digest(manifest, "x.txt")
    with pytest.raises(StoreError, match="has no folder model"):
        folder_digest(manifest, "model")


# -- several runs at once -----------------------------------------------------------------------------------------


@contextmanager
def other_run(bench: Any, log: Path, *settings: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another run's process that carries out the stage `one`."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, str(FAKE), str(bench.folder), "one", *settings],
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(path: Path, text: str = "", limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not path.exists() or text not in path.read_text(errors="replace"):
        assert time.monotonic() < deadline, f"no {text!r} in {path}" + (path.read_text() if path.exists() else "")
        time.sleep(0.05)


def test_two_runs_at_once_one_makes_and_the_other_waits_and_reuses(bench: Any, tmp_path: Path) -> None:
    bench.behave("one", "pause")
    a, b = tmp_path / "a.log", tmp_path / "b.log"
    with other_run(bench, a) as first:
        wait_for(bench.folder / "pauses")
        with other_run(bench, b) as second:
            wait_for(b, f"held by process {first.pid}")
            (bench.folder / "go").touch()
            assert first.wait(60) == 0 and second.wait(60) == 0
    assert "DONE reused=False attempt=1" in a.read_text()
    assert "DONE reused=True attempt=1" in b.read_text()
    assert bench.starts() == ["one 1"]


def test_after_kill_9_of_the_first_run_the_second_takes_over_and_resumes(bench: Any, tmp_path: Path) -> None:
    bench.behave("one", "hang")
    a, b = tmp_path / "a.log", tmp_path / "b.log"
    with other_run(bench, a) as first:
        wait_for(bench.folder / "hangs")
        bench.behave("one", "")
        with other_run(bench, b) as second:
            wait_for(b, f"held by process {first.pid}")
            os.kill(first.pid, signal.SIGKILL)
            killed = time.monotonic()
            assert second.wait(60) == 0
    assert time.monotonic() - killed < 20
    assert "DONE reused=False attempt=2" in b.read_text()
    (manifest,) = bench.store.list()
    assert manifest.resumed_from_step == 5


def test_runs_with_homes_of_their_own_share_a_store(bench: Any, tmp_path: Path) -> None:
    """The lock is the artifact's too, not only the work directory's."""
    elsewhere = fake.Bench(tmp_path / "elsewhere")
    elsewhere.store = bench.store
    settings = elsewhere.settings()
    bench.behave("one", "pause")
    with other_run(bench, tmp_path / "a.log") as first:
        wait_for(bench.folder / "pauses")

        def go(line: str) -> None:
            elsewhere.lines.append(line)
            (bench.folder / "go").touch()

        outcome = execute(fake.ONE, type(settings)(settings.config, bench.store, "r", log=go, warn=go), {})
        assert first.wait(60) == 0
    assert outcome.reused and "held by" in elsewhere.lines[0]


def test_a_stage_may_take_parts_from_its_earlier_artifacts(bench: Any) -> None:
    """The stage process finds them among its inputs; a damaged one is not offered, and a forced stage gets none."""

    def earlier(terms: Any, known: Any) -> dict[str, Any]:
        return {"earlier/part": max(known, key=lambda manifest: manifest.finished_at)} if known else {}

    stage = replace(fake.ONE, earlier=earlier)

    def value(force: bool = False, **changed: Any) -> str:
        settings = bench.settings(**changed)
        manifest = execute(stage, settings, {}, force=force).manifest
        return str((bench.store.local_folder(manifest) / "value.txt").read_text())

    first = value(grpo__beta=0.1)
    assert first == "beta 0.1 of []"
    assert value(grpo__beta=0.2) == f"beta 0.2 of {[('earlier/part', first)]}"
    assert value(grpo__beta=0.2, force=True) == "beta 0.2 of []"
    newest = max(bench.store.list("one"), key=lambda manifest: manifest.finished_at)
    (bench.store.local_folder(newest) / "value.txt").write_text("changed by hand")
    assert value(grpo__beta=0.3) == "beta 0.3 of []"


def test_a_stage_that_runs_out_of_memory_goes_on_with_less(bench: Any) -> None:
    grpo = Stage("grpo", "grpo", 1, (), lambda config, parents: {"grpo": config.grpo.per_device_train_batch_size})
    bench.behave("grpo", "oom 64")
    outcome = execute(grpo, bench.settings(grpo__per_device_train_batch_size=256), {})
    assert bench.starts() == ["grpo 1", "grpo 2", "grpo 3"]
    manifest = outcome.manifest
    assert (bench.store.local_folder(manifest) / "value.txt").read_text() == "64 x 4 of []"
    assert manifest.resumed_from_step == 6  # of the checkpoint before it ran out
    assert manifest.config["grpo"]["per_device_train_batch_size"] == 256  # what was asked for, and its fingerprint
    steps = manifest.effective_config["memory_steps"]
    assert [step["changes"]["grpo.per_device_train_batch_size"] for step in steps] == [[256, 128], [128, 64]]
    assert "CUDA out of memory with 256" in steps[0]["because"]
    assert manifest.notes[0].startswith("out of memory: grpo.per_device_train_batch_size 256 -> 128")
    assert any("once more with grpo.per_device_train_batch_size 128 -> 64" in line for line in bench.lines)


def test_a_stage_that_cannot_do_with_less_ends_as_out_of_memory(bench: Any) -> None:
    grpo = Stage("grpo", "grpo", 1, (), lambda config, parents: {})
    bench.behave("grpo", "oom 1")
    with pytest.raises(OutOfMemory, match="CUDA out of memory with 24"):
        execute(grpo, bench.settings(grpo__per_device_train_batch_size=24, grpo__loss_type="bnpo"), {})
    assert bench.starts() == ["grpo 1"]
