"""SwanLab tracking: what arrives, that attempts make one curve, and that nothing it meets harms the stage."""

from __future__ import annotations

import io
import json
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline_config.pipeline import PipelineConfig
from tasks.errors import Interrupted
from tasks.process.context import StageContext, StageSpec, write_spec
from tasks.process.metrics import read_metrics
from tasks.training import swanlab_setup, tracking
from tasks.training.swanlab_setup import dashboard_installed, group_of, open_in_place, run_id_of, stage_name
from tasks.training.tracking import Tail, Tracker, cell, in_order, numbers, open_tracker

ROOT = Path(__file__).resolve().parents[3]
FINGERPRINT = "0123456789abcdef" * 4
KEY = "key-of-the-tests-0123456789"

needs_dashboard = pytest.mark.skipif(not dashboard_installed(), reason="swanboard is not installed")


def context(tmp_path: Path, mode: str, stage: str = "grpo", **config: Any) -> StageContext:
    """A stage's context, with a tracker."""
    work_dir = tmp_path / "work" / f"{stage}-{FINGERPRINT[:16]}"
    (work_dir / "out").mkdir(parents=True, exist_ok=True)
    settings = PipelineConfig.model_validate({"run": {"tracking": mode, "home": str(tmp_path)}, **config})
    ctx = StageContext(config=settings, inputs={}, work_dir=work_dir, stage=stage, fingerprint=FINGERPRINT)
    ctx.tracker = open_tracker(ctx)
    return ctx


def tracker(ctx: StageContext) -> Tracker:
    assert isinstance(ctx.tracker, Tracker)
    return ctx.tracker


def train(ctx: StageContext, steps: range, scale: float = 1.0) -> None:
    """Rows {"loss": scale * step} and, as the reward function writes them, rollouts beside them."""
    for step in steps:
        with (ctx.work_dir / "rollouts.jsonl").open("a") as file:
            for i in range(2):
                row = {"step": step - 1, "question": "1 + 1 = ?", "answer": "2", "completion": f"{scale}", "reward": i}
                file.write(json.dumps(row) + "\n")
        ctx.metric(step, {"loss": scale * step, "grad_norm": float("nan"), "name": "x"})


def folders(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "swanlab").glob("run-*"))


def records(folder: Path) -> list[Any]:
    """What SwanLab's file of a run holds."""
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    reader = DataStoreReader()
    reader.open(next(folder.glob("*.swanlab")))
    return [Record.FromString(data) for data in reader]


def scalars(folder: Path) -> dict[tuple[str, int], float]:
    found = [record.scalar for record in records(folder) if record.HasField("scalar")]
    assert len({(s.key, s.step) for s in found}) == len(found)
    return {(s.key, s.step): s.value.number for s in found}


def tracking_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def test_off_and_stages_without_curves() -> None:
    off = PipelineConfig.model_validate({"run": {"tracking": "off"}})
    assert open_tracker(StageContext(off, {}, Path("w"), stage="grpo", fingerprint=FINGERPRINT)) is None
    assert open_tracker(StageContext(PipelineConfig(), {}, Path("w"), stage="model", fingerprint=FINGERPRINT)) is None


def test_nothing_starts_without_rows_or_numbers(tmp_path: Path) -> None:
    ctx = context(tmp_path, "offline")
    tracker(ctx).finish(error=ValueError("bad row"))
    context(tmp_path, "offline")
    tracker(ctx).finish({})
    assert not (tmp_path / "swanlab").exists()


def test_offline(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE_SECRET", "hunter2hunter2")
    ctx = context(tmp_path, "offline", contract={"system_prompt": "say hunter2hunter2"})
    train(ctx, range(1, 4))
    tracker(ctx).finish({"last": 3, "rates": {"strict": 0.5, "note": "x"}, "none": None})
    (folder,) = folders(tmp_path)
    assert scalars(folder) == {
        ("loss", 1): 1.0,
        ("loss", 2): 2.0,
        ("loss", 3): 3.0,
        ("grpo/last", 3): 3.0,
        ("grpo/rates/strict", 3): 0.5,
    }
    start = next(record.start for record in records(folder) if record.HasField("start"))
    assert (start.project, start.name, start.id) == ("grpo-pipeline", "grpo-01234567", run_id_of(ctx))
    assert (start.group, start.job_type) == (group_of(ctx.config), "grpo")
    tables = sorted((folder / "media" / "echarts").glob("*.json"))
    assert [path.name[:3] for path in tables] == ["001", "002", "003"]
    assert json.loads(tables[0].read_text())["rowData"] == [
        {"question": "1 + 1 = ?", "answer": "2", "completion": "1.0", "reward": "0"},
        {"question": "1 + 1 = ?", "answer": "2", "completion": "1.0", "reward": "1"},
    ]
    saved = (folder / "files" / "config.yaml").read_text()
    assert "say ***" in saved and "hunter2" not in saved
    output = capfd.readouterr()
    assert output.err == ""
    (line,) = tracking_lines(output.out)
    assert line == (
        f"tracking: SwanLab experiment grpo-01234567, offline; to upload it: swanlab sync --id {run_id_of(ctx)} {folder}"
    )


def test_a_retry_makes_one_whole_experiment(tmp_path: Path) -> None:
    """Killed at step 5 with a checkpoint at 3: steps 4 and 5 come from the second attempt, 1 to 3 from the first."""
    ctx = context(tmp_path, "offline")
    train(ctx, range(1, 6), scale=1)
    tracker(ctx).finish(error=Interrupted("stopped"))
    (first,) = folders(tmp_path)
    again = context(tmp_path, "offline")
    again.truncate_metrics(3)
    train(again, range(4, 7), scale=10)
    tracker(again).finish({"last": 60})
    (second,) = folders(tmp_path)
    assert second.name.rpartition("-")[2] == first.name.rpartition("-")[2] == run_id_of(ctx)
    losses = {step: value for (key, step), value in scalars(second).items() if key == "loss"}
    assert losses == {1: 1, 2: 2, 3: 3, 4: 40, 5: 50, 6: 60}
    fourth = next((second / "media" / "echarts").glob("004-*.json"))
    assert [row["completion"] for row in json.loads(fourth.read_text())["rowData"]][-2:] == ["10", "10"]


def test_work_from_nothing_is_an_experiment_of_its_own(tmp_path: Path) -> None:
    ctx = context(tmp_path, "offline")
    first = run_id_of(ctx)
    assert run_id_of(ctx) == first and first.startswith(FINGERPRINT[:16])
    (ctx.work_dir / "swanlab_id").unlink()
    assert run_id_of(ctx) != first


@needs_dashboard
def test_local_dashboard(tmp_path: Path) -> None:
    ctx = context(tmp_path, "local")
    train(ctx, range(1, 4))
    tracker(ctx).finish(error=RuntimeError("killed"))
    again = context(tmp_path, "local")
    again.truncate_metrics(2)
    train(again, range(3, 5), scale=10)
    tracker(again).finish({"last": 4})
    (folder,) = folders(tmp_path)
    with sqlite3.connect(tmp_path / "swanlab" / "runs.swanlab") as db:
        assert db.execute("select name, status, run_id from experiment").fetchall() == [
            ("grpo-01234567", 1, folder.name)
        ]
        tags = dict(db.execute("select name, folder from tag").fetchall())
    assert set(tags) == {"loss", "completions", "grpo/last"}
    rows = [json.loads(line) for line in (folder / "logs" / tags["loss"] / "1000.log").read_text().splitlines()]
    assert [(row["index"], row["data"]) for row in rows] == [(1, 1), (2, 2), (3, 30), (4, 40)]
    text = json.loads((folder / "logs" / tags["completions"] / "1000.log").read_text().splitlines()[0])
    assert text["data"][1] == "1 + 1 = ?\n\n1.0"
    assert text["more"][1] == {"caption": "reward 1 | answer 2"}


def test_local_without_the_dashboard_is_kept_offline(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.training.swanlab_setup.dashboard_installed", lambda: False)
    ctx = context(tmp_path, "local", "evaluate")
    (ctx.out / "items.jsonl").write_text('{"question": "q", "completion": "c", "right": true}\n')
    tracker(ctx).finish({"strict": {"rate": 0.25}})
    (folder,) = folders(tmp_path)
    assert scalars(folder) == {("evaluate/strict/rate", 0): 0.25}
    assert "needs the package swanboard" in capfd.readouterr().out


def test_cloud_and_its_resume(tmp_path: Path, service: Any, capfd: pytest.CaptureFixture[str]) -> None:
    ctx = context(tmp_path, "cloud")
    train(ctx, range(1, 4))
    tracker(ctx).finish(error=Interrupted("stopped"))
    again = context(tmp_path, "cloud")
    again.truncate_metrics(2)
    train(again, range(3, 6))
    tracker(again).finish({"last": 5})
    assert list(service.experiments) == [run_id_of(ctx)]
    losses = [(step, value) for _, key, step, value in service.scalars if key == "loss"]
    assert losses == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (5, 5.0)]
    assert len(service.uploads) >= 5
    assert service.states == ["ABORTED", "FINISHED"]
    files = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    output = capfd.readouterr()
    assert KEY.encode() not in files and KEY not in service.seen + output.out + output.err
    assert all(line.startswith("tracking: SwanLab experiment") for line in tracking_lines(output.out))


def test_a_service_that_dies_costs_a_bounded_wait(
    tmp_path: Path, service: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "ONLINE_S", 0.8)
    ctx = context(tmp_path, "cloud")
    train(ctx, range(1, 2))
    until(lambda: service.scalars)
    service.dead = True
    train(ctx, range(2, 50))
    began = time.monotonic()
    tracker(ctx).finish({"last": 49})
    assert time.monotonic() - began < 4
    lines = tracking_lines(capfd.readouterr().out)
    assert f"swanlab sync --id {run_id_of(ctx)}" in lines[-1] and len(lines) <= 3
    assert len(read_metrics(ctx.metrics_path)) == 49
    (folder,) = folders(tmp_path)
    assert len([key for key in scalars(folder) if key[0] == "loss"]) == 49


def test_a_network_that_swallows_everything_holds_up_nothing(
    tmp_path: Path, service: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address that takes connections and never says a word: a blackholed route, seen from above TCP."""
    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen(64)
        monkeypatch.setenv("SWANLAB_API_HOST", f"http://127.0.0.1:{hole.getsockname()[1]}")
        monkeypatch.setattr(swanlab_setup, "REACH_S", 60.0)
        monkeypatch.setattr(tracking, "ONLINE_S", 30.0)
        ctx = context(tmp_path, "cloud")
        train(ctx, range(1, 201))
        # All steps are done while SwanLab still waits for an answer.
        assert tracker(ctx)._mode == "" and not tracker(ctx)._done.is_set()
    # The route is given up: connections that were never answered are reset, as after the time limit.
    tracker(ctx).finish({"last": 200})
    assert len(read_metrics(ctx.metrics_path)) == 200
    (folder,) = folders(tmp_path)
    assert len([key for key in scalars(folder) if key[0] == "loss"]) == 200 and scalars(folder)["grpo/last", 200] == 200
    lines = tracking_lines(capfd.readouterr().out)
    assert "does not answer" in lines[0] and "kept offline instead" in lines[0] and len(lines) == 2
    assert service.experiments == {}


def test_a_service_that_falls_silent_costs_a_bounded_wait(
    tmp_path: Path, service: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "ONLINE_S", 0.8)
    ctx = context(tmp_path, "cloud")
    train(ctx, range(1, 2))
    until(lambda: service.scalars, 30)
    service.silent.clear()
    train(ctx, range(2, 50))
    tracker(ctx).finish({"last": 49})
    lines = tracking_lines(capfd.readouterr().out)
    assert f"swanlab sync --id {run_id_of(ctx)}" in lines[-1]
    assert len(read_metrics(ctx.metrics_path)) == 49
    (folder,) = folders(tmp_path)
    assert len([key for key in scalars(folder) if key[0] == "loss"]) == 49
    service.silent.set()


@pytest.mark.parametrize("trouble", ["no key", "no network", "wrong key"])
def test_cloud_that_cannot_be_used_is_kept_offline(
    tmp_path: Path, service: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    if trouble == "no key":
        monkeypatch.setenv("SWANLAB_API_KEY", " ")
        monkeypatch.setattr(sys, "stdin", io.StringIO())
    elif trouble == "no network":
        monkeypatch.setenv("SWANLAB_API_HOST", "http://127.0.0.1:9")
    else:
        service.refuse = True
    ctx = context(tmp_path, "cloud")
    train(ctx, range(1, 3))
    tracker(ctx).finish({"last": 2})
    (folder,) = folders(tmp_path)[-1:]
    assert scalars(folder)["loss", 2] == 2
    lines = tracking_lines(capfd.readouterr().out)
    assert any("kept offline instead" in line for line in lines) and len(lines) <= 3
    assert service.experiments == {}


def until(condition: Any, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def fill_the_disk(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """SwanLab's file takes `after` records and no more."""
    from swanlab.sdk.internal.core_python.store import DataStoreWriter

    write, written = DataStoreWriter.write, []

    def full(self: DataStoreWriter, data: bytes) -> None:
        if len(written) >= after:
            raise OSError(28, "No space left on device")
        written.append(data)
        write(self, data)

    monkeypatch.setattr(DataStoreWriter, "write", full)


def broken_log(*_: object, **__: object) -> None:
    raise RuntimeError("log is broken")


@pytest.mark.parametrize(
    "trouble", ["not a folder", "not writable", "disk full", "disk fills up", "log raises", "not installed"]
)
def test_no_trouble_reaches_the_stage(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    ctx = context(tmp_path, "offline")
    if trouble == "not a folder":
        (tmp_path / "swanlab").write_text("")
    elif trouble == "not writable":
        # Holds for root as well.
        ctx.config = PipelineConfig.model_validate({"run": {"tracking": "offline", "home": "/proc/none"}})
    elif trouble.startswith("disk"):
        fill_the_disk(monkeypatch, after=0 if trouble == "disk full" else 5)
    elif trouble == "log raises":
        monkeypatch.setattr("swanlab.sdk.internal.run.Run.log", broken_log)
    else:
        monkeypatch.setitem(sys.modules, "swanlab", None)
    train(ctx, range(1, 21))
    tracker(ctx).finish({"last": 20})
    assert len(read_metrics(ctx.metrics_path)) == 20
    output = capfd.readouterr()
    lines = tracking_lines(output.out)
    assert output.err == "" and any("metrics.jsonl is whole" in line for line in lines) and len(lines) <= 3
    leave_no_run()


def leave_no_run() -> None:
    """An experiment that broke may still be open; the next test needs none."""
    module = sys.modules.get("swanlab")
    if module is not None:
        module.sdk.clear_run()


def test_a_hanging_service_holds_up_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import swanlab

    gate = threading.Event()

    def hang(**_: object) -> None:
        gate.wait(20)
        raise RuntimeError("at last")

    monkeypatch.setattr(swanlab, "init", hang)
    monkeypatch.setattr(tracking, "LOCAL_S", 0.3)
    ctx = context(tmp_path, "offline")
    began = time.monotonic()
    train(ctx, range(1, 101))
    tracker(ctx).finish({"last": 100})
    assert time.monotonic() - began < 3
    gate.set()
    assert tracker(ctx)._done.wait(10)


def test_a_stage_that_fails_keeps_its_exit_code(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom tasks.errors import DataError\n"
        "from tasks.process import stage_main\n"
        "def entry(ctx):\n    ctx.metric(1, {'loss': 0.5})\n    raise DataError('no gold', where='row 7')\n"
        "stage_main.exit_with(stage_main.run_spec(Path(sys.argv[1]), lambda stage: entry))\n"
    )
    config = {"run": {"tracking": "offline", "home": str(tmp_path)}}
    work_dir = tmp_path / "work" / f"sft-{FINGERPRINT[:16]}"
    spec = write_spec(StageSpec(stage="sft", fingerprint=FINGERPRINT, config=config, work_dir=work_dir))
    done = subprocess.run([sys.executable, "-c", script, str(spec)], cwd=ROOT, env=dict(os.environ), check=False)
    assert done.returncode == 11
    (folder,) = folders(tmp_path)
    finish = records(folder)[-1].finish
    assert finish.error == "row 7: no gold" and scalars(folder) == {("loss", 1): 0.5}


def test_numbers() -> None:
    row = {"a": 1, "b": {"c": 0.5, "d": {"e": 2}}, "x": "1", "n": None, "t": True, "nan": float("nan"), "l": [1]}
    assert numbers(row, "s/") == {"s/a": 1, "s/b/c": 0.5, "s/b/d/e": 2}


def test_telling_charts_come_first() -> None:
    row = dict.fromkeys(("loss", "num_tokens", "outcomes/hedged", "outcomes/right", "reward", "epoch"), 0.0)
    assert list(in_order(row)) == ["reward", "outcomes/right", "loss", "outcomes/hedged", "num_tokens", "epoch"]


def test_cells_are_cut() -> None:
    assert cell("x" * 4003) == "x" * 4000 + "... (3 more characters)"
    assert (cell(None), cell(0.123456), cell(True)) == ("", 0.1235, "True")


def test_tail_reads_whole_lines_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    tail = Tail(path)
    assert tail.read() == []
    path.write_text('{"a": 1}\n[1]\nnot json\n{"a": 2')
    assert tail.read() == [{"a": 1}]
    with path.open("a") as file:
        file.write("}\n")
    assert tail.read() == [{"a": 2}]
    assert Tail(path).read(limit=1) == [{"a": 1}]


def test_names(tmp_path: Path) -> None:
    work_dir = tmp_path / f"evaluate_sft-{FINGERPRINT[:16]}"
    ctx = StageContext(PipelineConfig(), {}, work_dir, stage="evaluate", fingerprint=FINGERPRINT)
    assert stage_name(ctx) == "evaluate_sft"
    assert stage_name(StageContext(PipelineConfig(), {}, tmp_path, stage="sft", fingerprint=FINGERPRINT)) == "sft"
    elsewhere = PipelineConfig.model_validate({"run": {"home": "elsewhere", "tracking": "off"}})
    assert group_of(elsewhere) == group_of(PipelineConfig())
    assert group_of(PipelineConfig.model_validate({"seed": 1})) != group_of(PipelineConfig())


def test_files_written_in_place_hold_what_was_written_last(tmp_path: Path) -> None:
    path = tmp_path / "_summary.json"
    for text in ('{"num": 100, "max": 0.25}', '{"num": 101}'):
        with open_in_place(path, "w", encoding="utf-8") as file:
            file.write(text)
        assert path.read_text() == text
    with open_in_place(path, "a") as file:
        file.write("\n")
    assert path.read_text() == '{"num": 101}\n'
