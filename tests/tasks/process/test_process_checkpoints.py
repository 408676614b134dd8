"""Only complete checkpoints are resumed from."""

from __future__ import annotations

from pathlib import Path

from tasks.process.checkpoints import mark_complete, newest_complete, why_incomplete


def checkpoint(root: Path, step: int, complete: bool = True) -> Path:
    folder = root / f"checkpoint-{step}"
    (folder / "sub").mkdir(parents=True)
    (folder / "trainer_state.json").write_text('{"global_step": 1}')
    (folder / "model.safetensors").write_bytes(b"0" * 100)
    (folder / "sub" / "rng.pth").write_bytes(b"1" * 10)
    if complete:
        mark_complete(folder)
    return folder


def test_the_highest_complete_step_wins(tmp_path: Path) -> None:
    for step in (2, 10, 9):
        checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-x").mkdir()
    log: list[str] = []
    assert newest_complete(tmp_path, log.append) == tmp_path / "checkpoint-10"
    assert log == []


def test_incomplete_and_damaged_ones_are_passed_over_with_a_reason(tmp_path: Path) -> None:
    checkpoint(tmp_path, 1)
    (checkpoint(tmp_path, 2) / "model.safetensors").write_bytes(b"0" * 99)
    (checkpoint(tmp_path, 3) / "sub" / "rng.pth").unlink()
    (checkpoint(tmp_path, 4) / "trainer_state.json").write_text('{"global_step": ?}')
    mark_complete(tmp_path / "checkpoint-4")
    (checkpoint(tmp_path, 5) / "complete.json").write_text('{"files": ')
    checkpoint(tmp_path, 6, complete=False)
    (checkpoint(tmp_path, 7) / "model.safetensors").write_bytes(b"0" * 99 + b"1")
    (checkpoint(tmp_path, 8) / "complete.json").write_text('{"files": {"model.safetensors": 100}}')
    log: list[str] = []
    assert newest_complete(tmp_path, log.append) == tmp_path / "checkpoint-1"
    assert [line.removeprefix("checkpoint ") for line in log] == [
        "checkpoint-8 is passed over: complete.json is damaged, or of another version",
        "checkpoint-7 is passed over: model.safetensors has changed since it was saved",
        "checkpoint-6 is passed over: complete.json is missing or damaged: the save did not finish",
        "checkpoint-5 is passed over: complete.json is missing or damaged: the save did not finish",
        "checkpoint-4 is passed over: trainer_state.json is missing or not JSON",
        "checkpoint-3 is passed over: sub/rng.pth is missing",
        "checkpoint-2 is passed over: model.safetensors has 99 bytes instead of 100",
    ]


def test_nothing_to_resume_from(tmp_path: Path) -> None:
    assert newest_complete(tmp_path, print) is None
    assert newest_complete(tmp_path / "missing", print) is None


def test_an_empty_checkpoint_is_not_complete(tmp_path: Path) -> None:
    mark_complete(tmp_path)
    assert why_incomplete(tmp_path) == "trainer_state.json is missing or not JSON"


def test_marking_again_after_a_change(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, 1)
    (folder / "extra.bin").write_bytes(b"2")
    (folder / "model.safetensors").write_bytes(b"3" * 7)
    mark_complete(folder)
    assert why_incomplete(folder) == ""
