"""Three small stages under the real `execute`: real supervisor, locks and store; only the work itself is a few lines.

    python fake_chain.py <folder> <stage> [key=value ...]    carries one stage out, in a process of its own

`<folder>/<stage>.behave` tells the next processes of a stage what to do instead of working; see `WORK`.
`<folder>/starts` gets a line for every stage process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tasks.execution
from artifacts.manifest import Manifest
from artifacts.store import open_store
from pipeline_config.loading import load_config
from pipeline_config.pipeline import PipelineConfig
from tasks.execution import execute
from tasks.stage import Outcome, Settings, Stage, file_digest

WORK = """
import json, os, sys, time
from pathlib import Path

folder, work = Path(sys.argv[1]), Path(sys.argv[2]).parent
spec = json.loads((work / "spec.json").read_text())
stage, attempt, out = spec["stage"], spec["attempt"], work / "out"
with (folder / "starts").open("a") as file:
    file.write(f"{stage} {attempt}\\n")
behave = folder / f"{stage}.behave"
what = behave.read_text() if behave.exists() else ""
saved = work / "checkpoints" / "step"
resumed = int(saved.read_text()) if saved.exists() else None
print("working, resumed from", resumed, flush=True)
if what == "break":
    behave.unlink()
    saved.write_text("3")
    error = {"exit_code": 75, "cause": "network", "message": "the hub was gone", "where": "step 3", "fix": "wait"}
    (work / "error.json").write_text(json.dumps(error))
    sys.exit(75)
if what == "again":
    behave.unlink()
    saved.write_text("4")
    (work / "error.json").write_text(json.dumps({"exit_code": 76, "cause": "late_nan", "message": "remedy 1 at step 4"}))
    sys.exit(76)
if what.startswith("oom"):
    most = int(what.split()[1])
    batch = spec["config"]["grpo"]["per_device_train_batch_size"]
    if batch > most:
        saved.write_text("6")
        message = f"OutOfMemoryError: CUDA out of memory with {batch}"
        (work / "error.json").write_text(json.dumps({"exit_code": 30, "cause": "out_of_memory", "message": message}))
        sys.exit(30)
if what == "die":
    (out / "half.txt").write_text("half of")
    os.kill(os.getpid(), 9)
if what == "hang":
    saved.write_text("5")
    (folder / "hangs").touch()
    time.sleep(60)
if what == "pause":
    (folder / "pauses").touch()
    while not (folder / "go").exists():
        time.sleep(0.05)
if what == "silent":
    sys.exit(0)
read = {name: (Path(path) / "value.txt").read_text() for name, path in spec["inputs"].items()}
grpo = spec["config"]["grpo"]
value = {"one": f"beta {grpo['beta']}", "two": f"epsilon {grpo['epsilon']}", "three": "end"}.get(stage, f"{grpo['per_device_train_batch_size']} x {grpo['gradient_accumulation_steps']}")
(out / "value.txt").write_text(f"{value} of {sorted(read.items())}")
(work / "metrics.jsonl").write_text('{"step": 1}\\n')
result = {"metrics": {"resumed_from_step": resumed, "score": 0.5}, "notes": ["well"]}
(work / "result.json").write_text(json.dumps(result))
"""


def value_of(parents: Mapping[str, Manifest], name: str) -> str:
    return file_digest(parents[name], "value.txt")


ONE = Stage("one", "one", 1, (), lambda config, parents: {"grpo": {"beta": config.grpo.beta}})
TWO = Stage(
    "two",
    "two",
    1,
    ("one",),
    lambda config, parents: {"grpo": {"epsilon": config.grpo.epsilon}, "input": value_of(parents, "one")},
)
THREE = Stage("three", "three", 1, ("two",), lambda config, parents: {"input": value_of(parents, "two")})
CHAIN = (ONE, TWO, THREE)


class Bench:
    """The stages in one folder, with the log lines of every run."""

    def __init__(self, folder: Path, log: Callable[[str], None] | None = None) -> None:
        self.folder, self.lines = folder, list[str]()
        self.log = log or self.lines.append
        self.store = open_store(str(folder / "store"))
        folder.mkdir(exist_ok=True)
        (folder / "work.py").write_text(WORK)

    def install(self, replace: Callable[[Any, str, Any], None]) -> None:
        """Have stage processes run `WORK`; `replace` is like `setattr`."""
        script = str(self.folder / "work.py")
        argv = [sys.executable, "-S", script, str(self.folder)]
        replace(tasks.execution, "stage_argv", lambda spec: [*argv, str(spec)])

    def settings(self, run_id: str = "run", **changed: Any) -> Settings:
        overrides = [f"{key.replace('__', '.')}={value}" for key, value in changed.items()]
        overrides += [f"run.home={self.folder}", "run.grace_s=1"]
        config: PipelineConfig = load_config("tiny", overrides=overrides)
        return Settings(config, self.store, run_id, log=self.log, warn=self.log)

    def run(self, run_id: str = "run", force: str = "", **changed: Any) -> dict[str, Outcome]:
        """The whole chain, with settings such as `grpo__beta=0.1`."""
        settings, outcomes = self.settings(run_id, **changed), dict[str, Outcome]()
        self.lines.clear()
        for stage in CHAIN:
            parents = {name: outcomes[name].manifest for name in stage.parents}
            outcomes[stage.name] = execute(stage, settings, parents, force=stage.name == force)
        return outcomes

    def behave(self, stage: str, what: str) -> None:
        (self.folder / f"{stage}.behave").write_text(what)

    def starts(self) -> list[str]:
        """`stage attempt` of every stage process so far; forgets them."""
        path = self.folder / "starts"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines


if __name__ == "__main__":
    bench = Bench(Path(sys.argv[1]), lambda line: print(line, flush=True))
    bench.install(setattr)
    (stage,) = [stage for stage in CHAIN if stage.name == sys.argv[2]]
    outcome = execute(stage, bench.settings(**dict(text.split("=") for text in sys.argv[3:])), {})
    print(f"DONE reused={outcome.reused} attempt={outcome.manifest.attempt}", flush=True)
