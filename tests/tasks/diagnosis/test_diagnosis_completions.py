"""Completions beside a log: found, counted, and shown for the verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.diagnosis.completions import copies, sampled, telling
from tasks.diagnosis.doctor import diagnose, render_html, render_text

FLAT = {"reward": 0.0, "reward_std": 0.0, "frac_reward_zero_std": 1.0, "outcomes/right": 0.5, "grad_norm": 0.0}


def a_run(folder: Path) -> Path:
    """Ten flat rows, and four completions of one prompt, two of them the same."""
    (folder / "metrics.jsonl").write_text("".join(json.dumps({**FLAT, "step": i}) + "\n" for i in range(1, 11)))
    texts = ["<b>7", "<b>7", "9" * 400, "8"]
    rows = [{"step": 8, "question": "3 + 4", "answer": "7", "completion": t, "reward": 0.0} for t in texts]
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 10, "comp')
    return folder


def test_a_failed_run_shows_what_it_wrote(tmp_path: Path) -> None:
    found = diagnose(a_run(tmp_path))
    assert found.verdict == "extraction_failed"
    assert [item["completion"][:4] for item in found.completions] == ["8", "…999", "<b>7"]
    assert len(found.completions[1]["completion"]) == 301
    assert found.evidence["copies_among_sampled"] == 1 / 3  # one repeat among the three that could be
    assert "completion, step 9, reward 0: '8'" in render_text(found)
    assert "<b>7" not in render_html(found) and "&lt;b&gt;7" in render_html(found)
    # The same from the file itself; a log alone is judged as before.
    assert diagnose(tmp_path / "metrics.jsonl").completions == found.completions
    (tmp_path / "rollouts.jsonl").unlink()
    assert diagnose(tmp_path).completions == ()


def test_the_files_that_trl_writes(tmp_path: Path) -> None:
    (tmp_path / "completions").mkdir()
    for step in (1, 2):
        rows = [
            {
                "step": step,
                "prompt": "q",
                "completion": f"c{step}{i}",
                "right": float(i),
                "short": 0.5,
                "advantage": 0.0,
            }
            for i in range(3)
        ]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "completions" / f"completions_{step:05d}.parquet")
    (tmp_path / "checkpoint-2").mkdir()
    samples = sampled(tmp_path / "checkpoint-2")
    assert [(s["step"], s["completion"], s["reward"]) for s in samples] == [
        (2, "c20", 0.5),
        (2, "c21", 1.5),
        (2, "c22", 2.5),
    ]
    assert copies(samples) == 0.0
    assert [s["completion"] for s in telling(samples, "reward_hacking")] == ["c22", "c21", "c20"]
    (tmp_path / "completions" / "completions_00003.parquet").write_bytes(b"torn")
    assert sampled(tmp_path) == []


def test_one_completion_a_prompt_has_no_copies_to_count() -> None:
    assert copies([{"step": 1, "prompt": str(i), "completion": "x", "reward": None} for i in range(3)]) is None
    assert copies([]) is None and telling([], "all_wrong") == []
