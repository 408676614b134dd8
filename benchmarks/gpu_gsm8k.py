"""GSM8K's 1,319 test problems, greedy, by SmolLM2-135M-Instruct: seconds of the whole evaluation stage, start-up included.

    python benchmarks/gpu_gsm8k.py --problems ../shared/data/gsm8k/test.jsonl --work /tmp/gsm8k     # needs a GPU; writes benchmarks/gpu_gsm8k.json

The stage runs as the flow runs it, as a process of its own, once with vLLM and once with transformers; the stages before it are
not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pipeline_config.loading import load_config  # noqa: E402
from pipeline_config.pipeline import PipelineConfig  # noqa: E402
from tasks.process.context import StageSpec, write_spec  # noqa: E402
from tasks.process.launch import stage_argv  # noqa: E402

RESULT = ROOT / "benchmarks" / "gpu_gsm8k.json"
BEFORE = {"model": (), "dataset": ("model",), "evaluation_sets": ("model", "dataset")}


def settings(problems: Path, engine: str, more: list[str]) -> PipelineConfig:
    one = (
        f"{{name: gsm8k, source: {{kind: file, url: '{problems}', layout: gsm8k}}, problems: all, max_new_tokens: 256}}"
    )
    sets = [f"evaluation.sets=[{one}]", "evaluation.problems=1", "model.max_context=1024", f"vllm.enabled={engine}"]
    small = ["data.sft_rows=8", "data.train_rows=8", "data.eval_rows=1", "data.gate_rows=8", "gate.prompts=8"]
    return load_config("smollm2-135m-gpu", overrides=[*sets, *small, *more])


def stage(name: str, config: PipelineConfig, inputs: dict[str, str], work: Path) -> float:
    """Run one stage as a process of its own and return its seconds."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    spec = StageSpec(
        stage=name, fingerprint="benchmark", config=config.model_dump(mode="json"), inputs=inputs, work_dir=work
    )
    line = stage_argv(write_spec(spec))
    began = time.perf_counter()
    subprocess.run(
        line,
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
    )
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=Path, required=True, help="GSM8K's test.jsonl")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument(
        "--engines", nargs="+", default=["on", "off"], choices=("on", "off"), help="values of vllm.enabled"
    )
    parser.add_argument("--set", action="append", default=[], dest="more")
    parser.add_argument("--result", type=Path, default=RESULT)
    arguments = parser.parse_args()
    problems, work = arguments.problems.resolve(), arguments.work.resolve()
    if not problems.is_file():
        sys.exit(f"GSM8K is not at hand: there is no {problems}")
    config = settings(problems, "auto", arguments.more)
    for name, parents in BEFORE.items():
        stage(name, config, {parent: str(work / parent / "out") for parent in parents}, work / name)
    found: dict[str, Any] = {}
    inputs = {name: str(work / name / "out") for name in ("model", "evaluation_sets")}
    for engine in arguments.engines:
        folder = work / f"evaluate-{engine}"
        seconds = stage("evaluate", settings(problems, engine, arguments.more), inputs, folder)
        scores = json.loads((folder / "out" / "scores.json").read_text(encoding="utf-8"))["sets"]["gsm8k"]
        kept = {key: scores[key] for key in ("engine", "strict", "lenient", "format", "mean_tokens") if key in scores}
        found[f"vllm.enabled={engine}"] = {"seconds": round(seconds, 1), **kept}
        print(json.dumps(found), flush=True)
    arguments.result.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
