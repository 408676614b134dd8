"""`grpo-pipeline doctor`: a log of any trainer, or a run of ours by its name, also one that never came to GRPO."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from artifacts.locks import file_lock
from artifacts.store import open_store
from flows import cli, doctor_cli
from flows.record import RunRecord
from pipeline_config.loading import load_config
from tasks.errors import GateRefused, OutOfMemory


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ["doctor", *arguments], env={"NO_COLOR": "1", "TERM": "dumb"})


def row(step: int, reward: float, **more: float) -> dict[str, Any]:
    """Half of the answers right, a steady length, groups with spread: nothing to find, unless `more` says so."""
    healthy = {"reward_std": 0.4, "frac_reward_zero_std": 0.1, "entropy": 0.5, "grad_norm": 0.3}
    lengths = {"completions/mean_length": 20.0, "completions/clipped_ratio": 0.0}
    return {"step": step, "reward": reward, **healthy, **lengths, **more}


def run_in(
    stage: str, error: BaseException | None = None, rows: list[dict[str, Any]] | None = None, home: str = "grpo-runs"
) -> str:
    """A run that was in `stage` when it ended (or, without an error, when it was last heard of), with this log; its id."""
    record = RunRecord.start(load_config("tiny"))
    record.stage_started(stage)
    record.works_in(f"{stage}-0123456789abcdef")
    work = Path(home, "work", f"{stage}-0123456789abcdef")
    work.mkdir(parents=True)
    if rows is not None:
        (work / "metrics.jsonl").write_text("".join(json.dumps(item) + "\n" for item in rows))
    if error is not None:
        record.fail(error)
        record.finish()
    open_store(str(Path(home, "store").resolve())).write_record(f"runs/{record.run_id}.json", record.to_json())
    return record.run_id


REFUSAL = GateRefused("whole format 3.1%", cause="more_sft", where="format_gate", fix="more traces")


def test_a_run_that_the_gate_refused_is_named_by_the_gates_cause() -> None:
    run_id = run_in("format_gate", REFUSAL)
    for reference in ("latest", run_id, run_id[:15], "grpo-runs", "grpo-runs/latest", f"grpo-runs/{run_id}"):
        result = call(reference)
        assert result.exit_code == doctor_cli.UNHEALTHY, result.output
        assert result.stdout.startswith("more_sft: The run was refused after format_gate\n  whole format 3.1%")
        assert "first: more traces" in result.stdout
    found = json.loads(call("latest", "--json").stdout)
    assert (found["verdict"], found["headline"], found["first_step"]) == (
        "more_sft",
        "whole format 3.1%",
        "more traces",
    )


def test_the_log_of_grpo_comes_before_how_the_run_ended() -> None:
    """The machine ran out of memory, but long before that every group was dead at the reward of a wrong answer (0.25)."""
    flat = {"reward_std": 0.0, "frac_reward_zero_std": 1.0, "rewards/sound/mean": 0.25, "rewards/sound/std": 0.0}
    dead = [row(step, 0.25, **flat) for step in range(1, 13)]
    run_in("grpo", OutOfMemory("no memory", where="grpo"), dead)
    assert call("latest").stdout.startswith("all_wrong: ")


def test_a_healthy_log_of_a_run_that_failed_gives_the_error() -> None:
    run_in(
        "grpo", OutOfMemory("out of GPU memory", where="grpo", fix="a smaller batch"), [row(n, 0.6) for n in range(12)]
    )
    result = call("latest")
    assert result.exit_code == doctor_cli.UNHEALTHY and result.stdout.startswith(
        "out_of_memory: The run failed in grpo"
    )
    assert "first: a smaller batch" in result.stdout


def test_a_run_that_goes_on_and_one_that_was_killed() -> None:
    run_in("sft")
    with file_lock(Path("grpo-runs/locks/sft-0123456789abcdef.lock")):
        result = call("latest")
        assert result.exit_code == 0 and result.stdout.startswith("not judged: Too early to tell")
        assert "the stage sft is running" in result.stdout
    result = call("latest")
    assert result.exit_code == doctor_cli.UNHEALTHY and result.stdout.startswith("killed: The run was killed in sft")
    assert "give the command of the run again" in result.stdout


def test_a_run_that_a_signal_ended_was_asked_to_stop() -> None:
    class TerminationSignal(BaseException):
        """Prefect's, which says nothing."""

    run_in("grpo", TerminationSignal(), [row(n, 0.6) for n in range(12)])
    result = call("latest")
    assert result.exit_code == doctor_cli.UNHEALTHY
    assert result.stdout.startswith("interrupted: The run was interrupted in grpo\n  the run was asked to stop")


@pytest.mark.parametrize("option", ["--run-info", "--groups"])
def test_what_a_runs_own_record_says_is_not_to_be_given(option: str) -> None:
    run_in("format_gate", REFUSAL)
    Path("more.json").write_text("{}")
    result = call("latest", option, "more.json")
    assert result.exit_code == 10 and f"{option}: is for a log" in result.stderr and "leave it out" in result.stderr


@pytest.mark.parametrize("options", [("--home", "elsewhere"), ("--set", "seed=2"), ("-c", "more.yaml")])
def test_where_runs_are_stored_is_not_to_be_given_with_a_log(options: tuple[str, str]) -> None:
    Path("metrics.jsonl").write_text("".join(json.dumps(row(n, 0.6)) + "\n" for n in range(8)))
    Path("more.yaml").write_text("{}")
    result = call("metrics.jsonl", *options)
    assert result.exit_code == 10 and options[0] in result.stderr and "give `latest`" in result.stderr, result.output


def test_what_is_neither_a_log_nor_a_run() -> None:
    missing = call("trainer_state.json")
    assert missing.exit_code == 11 and "there is no such file or folder" in missing.stderr
    unknown = call("20260101-000000")
    assert unknown.exit_code == 13 and "error [no_such_run]" in unknown.stderr
    assert not Path("grpo-runs").exists(), "looking makes no folders"


def test_a_page_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    Path("metrics.jsonl").write_text("".join(json.dumps(row(n, 0.6)) + "\n" for n in range(8)))
    for page in (tmp_path, Path("metrics.jsonl") / "page.html"):
        result = call("metrics.jsonl", "--html", str(page))
        assert result.exit_code == 13 and "cannot write the page" in result.stderr and "what to do" in result.stderr
    assert call("metrics.jsonl", "--html", "new/page.html").exit_code == 0 and Path("new/page.html").is_file()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"zz": 1}', "zz: is not known"),
        ('{"reward_functions": {"f": {"rihgt": 1}}}', "rewards.f.rihgt: is not known"),
        ('{"num_generations": Infinity}', "num_generations: inf is no number"),
        ('{"fp16": "false"}', "fp16: 'false' is neither true nor false"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_said_of_a_run_is_checked(text: str, said: str) -> None:
    Path("metrics.jsonl").write_text("".join(json.dumps(row(n, 0.6)) + "\n" for n in range(8)))
    Path("info.json").write_text(text)
    result = call("metrics.jsonl", "--run-info", "info.json")
    assert result.exit_code == 11 and "info.json" in result.stderr and said in result.stderr, result.output
    assert "known are" in result.stderr or "see docs/diagnosis.md" in result.stderr


def test_a_name_that_no_file_can_have_is_no_log() -> None:
    result = call("x" * 5000)
    assert result.exit_code == 11 and "cannot be read" in result.stderr


def test_following_ends_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on; then it has completed, and there is nothing left to wait for."""
    run_id = run_in("grpo", rows=[row(n, 0.6) for n in range(8)])
    store = open_store(str(Path("grpo-runs/store").resolve()))

    def completes(seconds: float) -> None:
        record = store.read_record(f"runs/{run_id}.json")
        assert record is not None
        store.write_record(f"runs/{run_id}.json", {**record, "status": "completed"})

    monkeypatch.setattr(doctor_cli.time, "sleep", completes)
    with file_lock(Path("grpo-runs/locks/grpo-0123456789abcdef.lock")):
        result = call("latest", "--follow")
    assert (result.exit_code, result.stdout.count("no failure found in 8 rows")) == (0, 1), result.output


def test_following_waits_for_the_first_rows_and_then_says_one_line_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not there; too few rows; enough; one more; the last ones without spread and cut off: failed, and the end."""
    log = Path("metrics.jsonl")
    cut = {"completions/clipped_ratio": 1.0, "reward_std": 0.0, "frac_reward_zero_std": 1.0}
    looks = iter(
        [
            [row(n, 0.6) for n in range(3)],
            [row(n, 0.6) for n in range(8)],
            [row(n, 0.6) for n in range(9)],
            [row(n, 0.6) for n in range(9)] + [row(n, 0.0, **cut) for n in range(9, 15)],
        ]
    )

    def later(seconds: float) -> None:
        log.write_text("".join(json.dumps(item) + "\n" for item in next(looks)))

    monkeypatch.setattr(doctor_cli.time, "sleep", later)
    result = call("metrics.jsonl", "--follow", "--html", "page.html")
    assert result.exit_code == doctor_cli.UNHEALTHY, result.output
    starts = [line for line in result.stdout.splitlines() if line.startswith(("not judged", "healthy", "truncation"))]
    assert starts[0].startswith("not judged: Too early") and "there is no such file or folder; waiting" in result.stdout
    assert starts[1] == "not judged: 3 logged rows: too few to judge, 5 are needed"
    assert starts[3].startswith("healthy: no failure found in 9 rows")
    assert starts[4].startswith("truncation_spiral: ") and len(starts) == 5
    assert "truncation_spiral" in Path("page.html").read_text()
