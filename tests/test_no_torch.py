"""The flow process stays light: nothing that it imports brings torch or transformers along."""

from __future__ import annotations

import subprocess
import sys

MODULES = (
    "flows.cli",
    "flows.inspect_cli",
    "flows.models_cli",
    "flows.preflight_cli",
    "flows.pipeline",
    "flows.carry_out",
    "flows.local",
    "flows.server",
    "flows.report",
    "tasks.execution",
    "tasks.stage",
    "tasks.plan",
    "tasks.chain",
    "tasks.storage",
    "tasks.promote.evaluation",
    "tasks.preflight.local",
    "tasks.models.resolve",
    "tasks.format_gate.measure",
    "tasks.format_gate.verdict",
    "tasks.sft_rounds",
    "tasks.evaluate.scores",
    "tasks.grpo.arithmetic",
    "tasks.process.gpu",
    "tasks.process.supervisor",
    "tasks.process.context",
    "tasks.report.build",
    "tasks.dataset.identity",
    "pipeline_config.loading",
    "artifacts.store",
    "artifacts.registry",
    "artifacts.gc",
    "artifacts.remote_backend",
)
HEAVY = ("torch", "transformers", "trl", "peft", "datasets", "vllm", "unsloth", "llama_cpp", "swanlab")


def test_the_flow_process_never_imports_torch() -> None:
    code = f"""
import importlib, sys
for module in {MODULES!r}:
    importlib.import_module(module)
    heavy = sorted(set({HEAVY!r}) & set(sys.modules))
    if heavy:
        sys.exit(f"{{module}} imports {{', '.join(heavy)}}")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
