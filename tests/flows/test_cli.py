"""The command line without Prefect: one clear message and a documented exit code for bad input, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from artifacts.fingerprint import fingerprint
from artifacts.manifest import Manifest, ManifestDraft
from artifacts.store import Store, open_store
from flows import cli
from flows.record import now
from pipeline_config.loading import load_config
from tasks.chain import stages_for


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli.out, "width", 200)
    (tmp_path / "file").write_text("a file")


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments), env={"NO_COLOR": "1", "TERM": "dumb"})


def json_of(*arguments: str) -> Any:
    result = call(*arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


# -- bad input ----------------------------------------------------------------------------------------------------

TABLE = "data.train=[{kind: file, url: none.jsonl, columns: {working: w}}]"


@pytest.mark.parametrize("command", ["plan", "run"])
@pytest.mark.parametrize(
    ("arguments", "code", "cause", "parts"),
    [
        (["--set", "grpo.beeta=1"], 10, "config", ["grpo.beeta: there is no such key", "did you mean grpo.beta?"]),
        (["--set", "grpo.beta=-1"], 10, "config", ["grpo.beta: Input should be greater than or equal to 0 (got -1)"]),
        (
            ["--set", "grpo.per_device_train_batch_size=10", "--set", "grpo.num_generations=8"],
            10,
            "config",
            ["is not a multiple of grpo.num_generations = 8", "nearest legal per_device_train_batch_size: 8 or 16"],
        ),
        (["--set", "grpo.beta"], 10, "config", ["--set: 'grpo.beta' is not of the form a.b=value"]),
        (["--profile", "tinny"], 10, "config", ["profile: there is no profile 'tinny'", "did you mean tiny?"]),
        (["--config", "none.yaml"], 10, "config", ["none.yaml: cannot be read: No such file or directory"]),
        (["--config", "file"], 10, "config", ["file: holds a str, not a mapping of sections"]),
        (["--start-from", "training"], 10, "config", ["there is no stage 'training'", "model, dataset"]),
        (["--stop-after", "training"], 10, "config", ["there is no stage 'training'"]),
        (["--force", "training"], 10, "config", ["there is no stage 'training'"]),
        (["--start-from", "grpo", "--stop-after", "sft"], 10, "config", ["comes before --start-from grpo"]),
        (
            ["--set", "model.chat_template=none.jinja"],
            10,
            "config",
            ["model.chat_template (none.jinja)", "No such file"],
        ),
        (["--set", TABLE], 11, "data", ["none.jsonl: there is no such file"]),
        (["--set", "model.source=./none"], 12, "model", ["model.source (./none): there is no such model folder"]),
        (["--set", "run.home=file"], 13, "store", ["run.home", "cannot be written: File exists"]),
        (["--set", "run.store=file/store"], 13, "store", ["file/store", "a file is where a folder should be"]),
        (["--set", "run.min_free_gb=99999"], 13, "disk", ["run.min_free_gb asks for 99999", "artifacts gc"]),
        (["--start-from", "grpo"], 13, "store", ["there is no artifact of sft yet"]),
        (["--resume-from", "abcdef12"], 13, "store", ["no artifact's fingerprint begins with 'abcdef12'"]),
    ],
)
def test_bad_input_ends_at_once_with_one_message(
    command: str, arguments: list[str], code: int, cause: str, parts: list[str]
) -> None:
    result = call(command, *(["--profile", "tiny"] if "--profile" not in arguments else []), *arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert result.stderr.startswith(f"error [{cause}] ") and result.stderr.count("what to do:") == 1
    assert "Traceback" not in result.stderr
    for part in parts:
        assert part in result.stderr


def test_messages_keep_their_square_brackets() -> None:
    """Rich takes [word] for markup; a path or a value may look like that."""
    result = call("plan", "--profile", "tiny", "--config", "[bold]x[red].yaml")
    assert "[bold]x[red].yaml: cannot be read" in result.stderr


def test_usage_errors_are_not_ours() -> None:
    assert call("plan", "--no-such-option").exit_code == 2
    assert call("no-such-command").exit_code == 2
    assert "Usage" in call("--help").stdout


# -- config -------------------------------------------------------------------------------------------------------


def test_config_show_is_a_file_that_loads_again(tmp_path: Path) -> None:
    shown = call("config", "show", "--profile", "tiny", "--set", "grpo.beta=0.02")
    (tmp_path / "again.yaml").write_text(shown.stdout)
    assert yaml.safe_load(shown.stdout)["grpo"]["beta"] == 0.02
    again = json_of("config", "show", "--config", "again.yaml", "--json")
    assert again == load_config("tiny", overrides=["grpo.beta=0.02"]).model_dump(mode="json")


def test_config_schema_describes_every_key() -> None:
    schema = json_of("config", "schema")
    beta = schema["$defs"]["GRPOSettings"]["properties"]["beta"]
    assert (beta["minimum"], beta["maximum"], beta["default"]) == (0.0, 10.0, 0.0) and "KL weight" in beta[
        "description"
    ]
    lacking = [
        f"{name}.{key}"
        for name, section in schema["$defs"].items()
        for key, field in section.get("properties", {}).items()
        if "description" not in field
    ]
    assert lacking == []


def test_config_profiles() -> None:
    text = call("config", "profiles").stdout
    assert "tiny" in text and "smollm2-135m" in text


# -- plan ---------------------------------------------------------------------------------------------------------


def test_plan_for_machines_and_for_people() -> None:
    steps = json_of("plan", "--profile", "tiny", "--json")
    assert [step["stage"] for step in steps] == [stage.name for stage in stages_for(load_config("tiny"))]
    assert steps[0] | {"fingerprint": ""} == {
        "stage": "model",
        "action": "run",
        "reason": "nothing stored yet",
        "fingerprint": "",
    }
    assert len(steps[0]["fingerprint"]) == 64 and steps[1]["action"] == "wait"
    text = call("plan", "--profile", "tiny", "--stop-after", "dataset").stdout
    assert "plan, profile tiny" in text and "nothing stored yet" in text and "grpo" not in text


# -- artifacts ----------------------------------------------------------------------------------------------------


def put(store: Store, stage: str, seed: int, **files: str) -> Manifest:
    folder = Path(f"out-{stage}-{seed}")
    folder.mkdir()
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    terms = {"stage": stage, "seed": seed}
    when = now()
    return store.commit(
        ManifestDraft(
            stage=stage,
            stage_version=1,
            fingerprint=fingerprint(terms),
            terms=terms,
            metrics={"score": 0.5},
            started_at=when,
            finished_at=f"2026-05-0{seed + 1}T12:00:00Z",
            duration_s=12.0,
        ),
        folder,
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """The store that the commands take by default."""
    return open_store(str(tmp_path / "grpo-runs" / "store"))


def test_artifacts_ls(store: Store) -> None:
    old, new = put(store, "sft", 0, a="x"), put(store, "sft", 1, a="y", b="z")
    put(store, "grpo", 2, a="x")
    listed = json_of("artifacts", "ls", "sft", "--json")
    assert [item["fingerprint"] for item in listed] == [new.fingerprint, old.fingerprint]
    assert "terms" not in listed[0] and listed[0]["metrics"] == {"score": 0.5}
    text = call("artifacts", "ls").stdout
    assert text.index("grpo") < text.index(new.fingerprint[:16]) < text.index(old.fingerprint[:16])
    assert json_of("artifacts", "ls", "--json", "--store", "elsewhere") == []


def test_artifacts_show(store: Store) -> None:
    made = put(store, "sft", 0, a="x")
    for reference in (made.fingerprint[:8], f"sft/{made.fingerprint[:8]}", "sft:latest", "latest", store.uri(made)):
        assert json_of("artifacts", "show", reference)["content_digest"] == made.content_digest
    result = call("artifacts", "show", "beef0000")
    assert result.exit_code == 13 and "begins with 'beef0000'" in result.stderr


def test_artifacts_verify(store: Store) -> None:
    good, bad = put(store, "sft", 0, a="x"), put(store, "grpo", 1, a="x")
    assert call("artifacts", "verify").exit_code == 0
    (store.local_folder(bad) / "a.txt").unlink()
    result = call("artifacts", "verify")
    assert result.exit_code == 13
    assert f"ok sft/{good.fingerprint[:16]}" in result.stdout
    assert f"damaged grpo/{bad.fingerprint[:16]}" in result.stdout and "a.txt: missing" in result.stdout
    assert call("artifacts", "verify", "sft:latest").exit_code == 0


def test_artifacts_gc_says_what_would_go_and_deletes_only_when_told(store: Store) -> None:
    made = [put(store, "sft", seed, a="x" * 1000) for seed in range(3)]
    said = call("artifacts", "gc", "--keep-last", "1").stdout
    for manifest in made[:2]:
        assert f"would delete artifact sft/{manifest.fingerprint[:16]}, 0.0 MB: finished 2026-05-0" in said
    assert "2 to delete (add --delete), 0.0 MB" in said
    assert len(list(store.list())) == 3
    assert "2 deleted, 0.0 MB" in call("artifacts", "gc", "--keep-last", "1", "--delete").stdout
    assert list(store.list()) == [made[2]]
    assert "0 to delete" in call("artifacts", "gc").stdout
