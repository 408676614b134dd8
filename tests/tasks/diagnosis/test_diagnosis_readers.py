"""Logs of every form become the same rows."""

from __future__ import annotations

import base64
import gzip
import json
import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.diagnosis.formats import read_groups, read_stdout
from tasks.diagnosis.keys import canonical, held_out_accuracy
from tasks.diagnosis.readers import read_log
from tasks.diagnosis.rows import clean_row, number
from tasks.errors import DataError

# Written by TensorBoard 2.21's EventFileWriter: train/reward -2.0 and NaN as simple values, train/kl 0.25 as tensors, steps 5 and 10.
EVENTS = (
    "SAAAAAAAAAD+kkidCYvg+LVZw9pBGg1icmFpbi5FdmVudDoyUi4KLHRlbnNvcmJvYXJkLnN1bW1hcnkud3JpdGVyLmV2ZW50X2ZpbGVfd3JpdGVy4cVgbRkAAAAAAAAAi/EIKBAFKhUK"
    "EwoMdHJhaW4vcmV3YXJkFQAAAMAG0MH4GgAAAAAAAAASm9gtEAUqFgoUCgh0cmFpbi9rbEIICAEqBAAAgD4BWO+1GQAAAAAAAACL8QgoEAoqFQoTCgx0cmFpbi9yZXdhcmQVAADAf1LS"
    "aRAaAAAAAAAAABKb2C0QCioWChQKCHRyYWluL2tsQggIASoEAACAPnn7e0U="
)

# On a busy machine the time of one example says nothing.
some = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_trainer_state_with_bare_nan(tmp_path: Path) -> None:
    text = '{"global_step": 10, "log_history": [{"reward": -2.0, "grad_norm": NaN, "kl": null, "step": 5, "epoch": 0.1}, {"eval_accuracy": 0.5, "step": 5}]}'
    rows = read_log(write(tmp_path, "trainer_state.json", text))
    assert (
        rows[0]["reward"] == -2.0
        and math.isnan(rows[0]["grad_norm"])
        and rows[0]["kl"] is None
        and rows[0]["step"] == 5
    )
    assert rows[1] == {"eval_accuracy": 0.5, "step": 5}


def test_folder_takes_the_newest_checkpoint(tmp_path: Path) -> None:
    for step in (9, 100, 20):
        state = {"log_history": [{"reward": float(step), "step": step}]}
        write(tmp_path, f"checkpoint-{step}/trainer_state.json", json.dumps(state))
    assert read_log(tmp_path)[0]["reward"] == 100
    assert read_log(tmp_path / "checkpoint-9")[0]["reward"] == 9


def test_our_metrics_file_names_what_was_not_finite(tmp_path: Path) -> None:
    lines = '{"reward": 1.0, "grad_norm": null, "step": 3, "nonfinite": ["grad_norm"]}\n{"reward": 0.5, "kl": null, "step": 4}\n'
    write(tmp_path, "metrics.jsonl", lines)
    rows = read_log(tmp_path)
    assert math.isnan(rows[0]["grad_norm"])
    assert rows[1]["kl"] is None and rows[1]["step"] == 4


def test_half_written_last_line_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, "m.jsonl", '{"step": 1, "reward": 1.0}\n{"step": 2, "rew')
    assert [row["step"] for row in read_log(path)] == [1]


def test_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "m.jsonl", '{"step": 1, "reward": 1.0}\n{"step": 2, "rew\n{"step": 3, "reward": 1.0}\n')
    with pytest.raises(DataError, match=r"m\.jsonl, line 2"):
        read_log(path)


@pytest.mark.parametrize(
    "line",
    [
        "{'loss': '0.02', 'reward': '-2', 'grad_norm': 'nan', 'kl': None, 'learning_rate': '4.9e-06'}",
        "{'loss': 0.02, 'reward': -2.0, 'grad_norm': nan, 'kl': None, 'learning_rate': 4.9e-06}",
        ' 10%|█   | 5/50 [00:10<01:30,  2.0s/it]{"loss": 0.02, "reward": -2.0, "grad_norm": NaN, "kl": null, "learning_rate": 4.9e-06}',
        "2026-01-01 INFO {'loss': 0.02, 'train/reward': -2, 'grad_norm': nan, 'kl': None, 'learning_rate': 4.9e-06} done",
    ],
)
def test_printed_rows(tmp_path: Path, line: str) -> None:
    path = write(tmp_path, "out.txt", f"starting\n{{'some': 'setting'}}\n{line}\n")
    (row,) = read_log(path)
    assert (
        row["reward"] == -2.0 and math.isnan(row["grad_norm"]) and row["kl"] is None and row["learning_rate"] == 4.9e-06
    )
    assert row["step"] == 1  # the first row: the log has no steps


def test_rows_without_steps_are_counted(tmp_path: Path) -> None:
    text = "{'loss': 1, 'reward': 1}\n{'eval_accuracy': '0.5'}\n{'loss': 1, 'reward': 2}\n{'train_runtime': '9', 'train_loss': '0.1'}\n"
    rows = read_stdout(write(tmp_path, "o.log", text))
    assert [(row["step"], row.get("reward")) for row in rows] == [(1, 1.0), (1, None), (2, 2.0)]


def test_csv_with_empty_cells_and_its_long_form(tmp_path: Path) -> None:
    wide = write(tmp_path, "a.csv", "step,train/reward,eval/accuracy,kl\n5,-2,,nan\n5,,0.5,\n10,-1.5,,0.1\n10,-1")
    rows = read_log(wide)
    assert [set(row) for row in rows] == [{"step", "reward", "kl"}, {"step", "eval/accuracy"}, {"step", "reward", "kl"}]
    assert math.isnan(rows[0]["kl"])
    long = write(tmp_path, "b.csv", "Step,Metric,Value\n5,reward,-2\n5,kl,0.1\n10,reward,-1\n")
    assert read_log(long) == [{"step": 5, "reward": -2.0, "kl": 0.1}, {"step": 10, "reward": -1.0}]


def test_csv_row_of_the_wrong_length_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"row 3.*2 cells"):
        read_log(write(tmp_path, "a.csv", "step,reward,kl\n1,2,3\n2,3\n3,4,5\n"))


def test_tensorboard_file_without_tensorboard(tmp_path: Path) -> None:
    data = base64.b64decode(EVENTS)
    (tmp_path / "events.out.tfevents.1").write_bytes(data)
    rows = read_log(tmp_path)
    assert [row["step"] for row in rows] == [5, 10] and rows[0]["reward"] == -2.0 and rows[1]["kl"] == 0.25
    assert math.isnan(rows[1]["reward"])
    (tmp_path / "events.out.tfevents.1").write_bytes(data[:-7])  # still being written
    assert "kl" not in read_log(tmp_path)[1]


def test_groups_become_rows(tmp_path: Path) -> None:
    """Step 1: groups (1, 1) and (0, 2): mean 1, sample deviation sqrt(2/3), one group of two without spread."""
    lines = [{"prompt_id": "a", "step": 1, "rewards": [1, 1]}, {"prompt_id": "b", "step": 1, "rewards": [0, 2]}]
    path = write(tmp_path, "groups.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    (row,) = read_groups(path)
    assert row == {"step": 1, "reward": 1.0, "reward_std": pytest.approx(math.sqrt(2 / 3)), "frac_reward_zero_std": 0.5}
    assert read_log(path) == [row]


def test_a_resumed_run_counts_once(tmp_path: Path) -> None:
    steps = [1, 2, 3, 2, 3, 4]
    path = write(tmp_path, "m.jsonl", "".join(f'{{"step": {s}, "reward": {i}}}\n' for i, s in enumerate(steps)))
    assert [(row["step"], row["reward"]) for row in read_log(path)] == [(1, 0), (2, 3), (3, 4), (4, 5)]


@pytest.mark.parametrize("order", [lambda s: -s, str], ids=["newest first", "sorted as text"])
def test_a_log_in_another_order_keeps_all_its_rows(tmp_path: Path, order: Callable[[int], Any]) -> None:
    steps = sorted(range(1, 201), key=order)
    path = write(tmp_path, "m.jsonl", "".join(f'{{"step": {s}, "reward": {s}, "eval_acc": 0.5}}\n' for s in steps))
    assert [(row["step"], row["reward"]) for row in read_log(path)] == [(s, s) for s in range(1, 201)]


def test_a_resumed_run_logged_newest_first_counts_once_too(tmp_path: Path) -> None:
    steps = [1, 2, 3, 4, 3, 4, 5]
    lines = [f'{{"step": {s}, "reward": {i}}}\n' for i, s in enumerate(steps)]
    rows = read_log(write(tmp_path, "m.jsonl", "".join(reversed(lines))))
    assert [(row["step"], row["reward"]) for row in rows] == [(1, 0), (2, 1), (3, 4), (4, 5), (5, 6)]


def test_a_few_rows_out_of_order_are_not_dropped(tmp_path: Path) -> None:
    steps = [1, 3, 2, 4, 6, 5, 7, 9, 8]
    path = write(tmp_path, "m.jsonl", "".join(f'{{"step": {s}, "reward": 1}}\n' for s in steps))
    assert [row["step"] for row in read_log(path)] == sorted(steps)


def test_metrics_of_a_step_in_rows_of_their_own_stand_beside_its_reward(tmp_path: Path) -> None:
    lines = (
        '{"step": 1, "kl": 0.5}\n{"step": 1, "reward": 1}\n{"step": 1, "reward_std": 0, "kl": 9, "eval_accuracy": 1}\n'
    )
    path = write(tmp_path, "m.jsonl", lines)
    (row,) = [row for row in read_log(path) if "reward" in row]
    assert row == {"step": 1, "reward": 1.0, "kl": 0.5, "reward_std": 0.0}
    lines = "{'loss': 1, 'reward': 1}\n{'kl': 5, 'eval_loss': 2}\n"
    assert "kl" not in read_log(write(tmp_path, "o.txt", lines))[0], (
        "rows that are only counted are not known to belong together"
    )


def test_steps_that_stand_still_are_counted_instead(tmp_path: Path) -> None:
    path = write(tmp_path, "m.csv", "step,reward\n" + "".join(f"0,{i}\n" for i in range(6)))
    assert [(row["step"], row["reward"]) for row in read_log(path)] == [(i + 1, i) for i in range(6)]


def test_packed_logs_and_those_of_powershell(tmp_path: Path) -> None:
    text = "".join(f'{{"step": {s}, "reward": 1.0}}\n' for s in range(1, 4))
    printed = "".join("{'reward': 1.0, 'loss': 0.0}\n" for _ in range(3))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "tfevents.gz").write_bytes(gzip.compress(base64.b64decode(EVENTS)))
    assert [row["step"] for row in read_log(tmp_path / "a.jsonl.gz")] == [1, 2, 3]
    assert [row["step"] for row in read_log(tmp_path / "tfevents.gz")] == [5, 10]
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(text.encode())[:-9])
    with pytest.raises(DataError, match="half written gzip"):
        read_log(tmp_path / "a.jsonl.gz")
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"):
        path = tmp_path / f"{encoding}.txt"
        path.write_bytes(printed.encode(encoding))
        assert len(read_log(path)) == 3, encoding


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("{'reward': 1.0, 'loss': 0.0}\n",))
    writer.start()
    assert read_log(pipe)[0]["reward"] == 1.0
    writer.join()


def test_what_a_trainer_cannot_hold_is_infinite_and_deep_dicts_are_left_out() -> None:
    deep: dict[str, Any] = {"kl": 1.0}
    for _ in range(5000):
        deep = {"in": deep}
    assert clean_row({"reward": 1e308, "kl": -(10**400), "loss": 3e38, "deep": deep}) == {
        "reward": math.inf,
        "kl": -math.inf,
        "loss": 3e38,
    }
    assert canonical("train/" * 5000 + "reward").startswith("train/")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("trainer_state.json", "{", "not valid JSON"),
        ("trainer_state.json", '{"a": 1}', "log_history"),
        ("trainer_state.json", '{"log_history": [1]}', "row 1"),
        ("a.jsonl", "[1]\n", "line 1"),
        ("a.jsonl", "", "no row"),
        ("a.csv", "step,reward\n", "no row below"),
        ("a.txt", "hello {world}\n", "no printed row"),
        ("x.tfevents", "this is no event file at all", "not a TensorBoard"),
        ("g.jsonl", '{"rewards": [1], "step": 1}\n', "line 1"),
        ("trainer_state.json", "[" * 100_000, "nested too deeply"),
        ("a.jsonl", "[" * 100_000 + "\n{}\n", "line 1: .*nested too deeply"),
        ("a.zip", "PK\x03\x04", "packed .zip."),
        ("w.csv", "Step,a - train/reward,b - train/reward\n1,2,3\n", "several runs: 'a - train/reward' and 'b"),
    ],
)
def test_unreadable_files_say_where(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        read_log(write(tmp_path, name, text))
    assert name in str(error.value)


def test_missing_file_and_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_log(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="neither"):
        read_log(tmp_path)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("train/reward", "reward"),
        ("reward/mean", "reward"),
        ("kl_loss", "kl"),
        ("completion_length", "completions/mean_length"),
        ("train/completions/mean_length", "completions/mean_length"),
        ("rewards/check_answer", "rewards/check_answer/mean"),
        ("rewards/check_answer/std", "rewards/check_answer/std"),
        ("train/eval_accuracy", "eval_accuracy"),
        ("train_loss", "train_loss"),
        ("train/global_step", "step"),
        ("Step", "step"),
        ("my run - 2 - train/reward", "reward"),
        ("my run - train/global_step", "step"),
        ("my run - train/rewards/check/mean", "rewards/check/mean"),
        ("my run - eval/accuracy", "eval/accuracy"),
        ("my run - train/reward__MIN", "my run - train/reward__MIN"),
        ("my run - _runtime", "my run - _runtime"),
    ],
)
def test_names(key: str, name: str) -> None:
    assert canonical(key) == name


def test_held_out_accuracy_is_not_the_reward() -> None:
    assert all(
        map(
            held_out_accuracy,
            ("eval_accuracy", "eval/accuracy", "val/acc", "eval_gsm8k_accuracy", "test/pass@1", "heldout_exact_match"),
        )
    )
    assert not any(
        map(
            held_out_accuracy,
            ("eval_reward", "eval_rewards/accuracy_reward/mean", "accuracy_reward", "eval_runtime", "evaluate"),
        )
    )


@some
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
        lambda c: st.lists(c) | st.dictionaries(st.text(), c),
        max_leaves=8,
    )
)
def test_number_takes_anything(value: object) -> None:
    result = number(value)
    assert result is None or isinstance(result, float)


@some
@given(st.dictionaries(st.text(max_size=20), st.none() | st.floats() | st.text(max_size=10), max_size=8))
def test_clean_row_keeps_numbers_and_none_only(raw: dict[str, object]) -> None:
    row = clean_row(raw)
    assert all(value is None or isinstance(value, (int, float)) for value in row.values())


@some
@given(st.text(max_size=300))
def test_any_output_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("out") / "out.txt"
    path.write_text(text, encoding="utf-8")
    try:
        read_log(path)
    except DataError as error:
        assert "out.txt" in str(error)
