"""The configuration against the installed libraries: every fault that can be seen before a trainer is built."""

from __future__ import annotations

import dataclasses
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from pipeline_config.loading import load_config
from pipeline_config.pipeline import PipelineConfig
from tasks.errors import ConfigError
from tasks.findings import Finding
from tasks.preflight import settings
from tasks.process.context import StageContext

pytest.importorskip("trl")


def config(*overrides: str) -> PipelineConfig:
    return load_config("tiny", overrides=list(overrides))


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


# -- the installed signatures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["tiny", "smollm2-135m", "smollm2-135m-gpu"])
def test_the_installed_trl_takes_the_arguments_of_the_profiles(tmp_path: Path, profile: str) -> None:
    ctx = StageContext(load_config(profile), {}, tmp_path)
    findings = by_name(settings.check_arguments(ctx))
    assert {name: finding.status for name, finding in findings.items()} == {
        "config.sft_arguments": "ok",
        "config.grpo_arguments": "ok",
    }
    grpo = ctx.config.grpo
    groups = grpo.per_device_train_batch_size * grpo.gradient_accumulation_steps // grpo.num_generations
    assert f"{groups} groups of {grpo.num_generations}" in findings["config.grpo_arguments"].evidence


def test_an_argument_that_the_installed_library_does_not_have() -> None:
    @dataclasses.dataclass
    class OldConfig:
        learning_rate: float = 0.0

    finding = settings.check_names("x", {"learning_rate": 1.0, "max_prompt_length": 2}, OldConfig, "trl 0")
    assert finding.status == "fail" and "OldConfig of trl 0 has no max_prompt_length" in finding.evidence


def test_what_trl_refuses_is_named(tmp_path: Path) -> None:
    broken = config().model_copy(update={"grpo": config().grpo.model_copy(update={"num_generations": 7})})
    finding = by_name(settings.check_arguments(StageContext(broken, {}, tmp_path)))["config.grpo_arguments"]
    assert finding.status == "fail" and "must be divisible by num_generations (7)" in finding.evidence


# -- choices ------------------------------------------------------------------------------------------------------


class OldTrainer:
    def __init__(self, args: Any) -> None:
        self.loss_type = args.loss_type

    def loss(self) -> int:
        if self.loss_type == "grpo":
            return 1
        if self.loss_type in ["bnpo", "dr_grpo"]:
            return 2
        raise ValueError(f"Unknown loss type: {self.loss_type}")


def test_literals_that_a_trainer_compares_with() -> None:
    assert settings.compared_literals(OldTrainer, "loss_type") == {"grpo", "bnpo", "dr_grpo"}
    assert settings.compared_literals(OldTrainer, "beta") == frozenset()
    assert settings.compared_literals(int, "loss_type") == frozenset()


def test_a_loss_that_the_installed_trainer_does_not_know() -> None:
    finding = by_name(settings.check_choices(config().grpo, OldTrainer, vllm=False))["config.loss_type"]
    assert finding.status == "fail" and "does not know 'dapo'" in finding.evidence
    assert finding.fix == "grpo.loss_type: one of bnpo, dr_grpo, grpo"


@pytest.mark.parametrize("loss", ["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"])
def test_the_installed_trainer_knows_every_loss_of_the_configuration(loss: str) -> None:
    from trl import GRPOTrainer

    found = by_name(settings.check_choices(config(f"grpo.loss_type={loss}").grpo, GRPOTrainer, vllm=False))
    assert found["config.loss_type"].status == ("warn" if loss == "luspo" else "ok")
    assert found["config.scale_rewards"].status == "ok"


def test_vespo_does_not_work_with_vllms_correction() -> None:
    from trl import GRPOTrainer

    found = by_name(settings.check_choices(config("grpo.loss_type=vespo").grpo, GRPOTrainer, vllm=True))
    assert found["config.loss_type"].status == "fail"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("grpo.loss_type=nonsense", "grpo.loss_type"),
        ("grpo.per_device_train_batch_size=12", "not a multiple of grpo.num_generations = 8"),
        ("grpo.scale_rewards=sometimes", "grpo.scale_rewards"),
        ("grpo.max_prompt_length=512", "grpo.max_prompt_length"),
    ],
)
def test_what_the_configuration_refuses_by_itself(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(override)
    assert message in str(caught.value)


# -- batch --------------------------------------------------------------------------------------------------------


def test_batch_arithmetic() -> None:
    asked = config("grpo.per_device_train_batch_size=16", "grpo.gradient_accumulation_steps=2", "grpo.max_steps=30")
    batch, rows = settings.check_batch(asked.grpo, devices=3, rows=48)
    assert (batch.status, rows.status) == ("ok", "ok")
    assert batch.evidence == "16 per device x 2 accumulated x 3 devices = 96 completions = 12 groups of 8"
    assert rows.evidence == "48 problems, 360 are sampled in 30 steps (7.5 passes)"


def test_a_batch_that_does_not_hold_whole_groups_on_all_devices() -> None:
    grpo = config().grpo.model_copy(update={"per_device_train_batch_size": 5, "num_generations": 8})
    (finding,) = settings.check_batch(grpo, devices=2, rows=1000)
    assert (finding.name, finding.status) == ("config.batch", "fail")
    assert "5 per device x 1 accumulated x 2 devices = 10 completions, not whole groups of 8" in finding.evidence


def test_fewer_problems_than_one_step_takes() -> None:
    grpo = config("grpo.per_device_train_batch_size=64").grpo
    assert by_name(settings.check_batch(grpo, 1, rows=8))["config.rows"].status == "ok"
    finding = by_name(settings.check_batch(grpo, 1, rows=7))["config.rows"]
    assert finding.status == "fail" and "one step takes 8 problems and there are 7" in finding.evidence


# -- sampling, back end, devices ----------------------------------------------------------------------------------


@pytest.mark.parametrize("override", ["grpo.top_p=0.9", "grpo.top_k=50", "grpo.min_p=0.1"])
def test_truncated_sampling_biases_vllms_correction(override: str) -> None:
    finding = settings.check_sampling(config(override).grpo, vllm=True)
    assert (finding.name, finding.status) == ("config.sampling", "warn")
    assert override.removeprefix("grpo.") in finding.evidence
    assert "importance sampling correction is biased" in finding.evidence
    assert settings.check_sampling(config(override).grpo, vllm=False).status == "warn"
    assert settings.check_sampling(config("grpo.min_p=0").grpo, vllm=True).status == "ok"


def test_devices() -> None:
    assert by_name(settings.check_devices(config(), 0, False))["config.device"].status == "ok"
    for gpus, build in ((0, True), (1, False)):
        finding = by_name(settings.check_devices(config("run.device=cuda"), gpus, build))["config.device"]
        assert finding.status == "fail" and finding.fix == "set run.device=auto or cpu"
    assert by_name(settings.check_devices(config("run.device=auto"), 1, False))["config.device"].status == "warn"


def test_several_devices_and_processes() -> None:
    def devices(processes: int, gpus: int) -> Finding | None:
        asked = config("run.device=auto", f"parallel.processes={processes}")
        return by_name(settings.check_devices(asked, gpus, True)).get("config.devices")

    eight = devices(8, 4)
    assert devices(1, 4) is None and devices(4, 4) is None
    assert eight is not None and eight.status == "fail" and "8 and 4 GPU(s)" in eight.evidence
    assert devices(2, 0) is None  # on the CPU


def test_a_strategy_whose_package_is_missing() -> None:
    asked = config("run.device=auto", "parallel.processes=2", "parallel.strategy=deepspeed")
    finding = by_name(settings.check_devices(asked, 2, True))["config.strategy"]
    assert finding.status == "fail" and "deepspeed is not installed" in finding.evidence
    asked = config("run.device=auto", "parallel.processes=2", "parallel.strategy=fsdp")
    finding = by_name(settings.check_devices(asked, 0, False))["config.strategy"]
    assert finding.status == "fail" and "needs GPUs" in finding.evidence


def test_a_server_that_answers_and_one_that_does_not() -> None:
    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Silent."""

    assert settings.check_server(config().vllm) == []
    with HTTPServer(("127.0.0.1", 0), Health) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        asked = config("vllm.mode=server", f"vllm.server_url={url}").vllm
        assert [finding.status for finding in settings.check_server(asked)] == ["ok"]
    (finding,) = settings.check_server(asked, timeout_s=0.5)
    assert (finding.name, finding.status) == ("config.vllm_server", "warn") and "does not answer" in finding.evidence


def test_a_batch_that_only_several_processes_make_whole(tmp_path: Path) -> None:
    overrides = ["grpo.per_device_train_batch_size=4", "grpo.num_generations=8"]
    with pytest.raises(ConfigError, match=r"not a multiple of grpo\.num_generations = 8"):
        config(*overrides)
    ctx = StageContext(config(*overrides, "parallel.processes=2"), {}, tmp_path)
    findings = by_name(settings.check_arguments(ctx))
    assert findings["config.grpo_arguments"].status == "ok"
    assert "1 groups of 8" in findings["config.grpo_arguments"].evidence


def test_what_needs_a_gpu_without_one() -> None:
    lora = [
        "sft.method=lora",
        "grpo.method=lora",
        "model.load_in_4bit=true",
        "grpo.optim=adamw_8bit",
        "vllm.enabled=on",
    ]
    found = by_name(settings.check_devices(config(*lora), 0, False))
    failed = {name for name, finding in found.items() if finding.status == "fail"}
    assert failed == {"config.load_in_4bit", "config.grpo_optim", "config.vllm"}
    assert "adamw_8bit needs a GPU" in found["config.grpo_optim"].evidence


def test_layers_that_get_an_adapter() -> None:
    linear = {"q_proj": 1, "fc1": 1}
    lora = config("grpo.method=lora", "grpo.lora.target_modules=[q_proj]").grpo
    assert settings.check_adapter("grpo", config().grpo, linear) == []
    assert settings.check_adapter("grpo", lora, linear)[0].status == "ok"
    some = config("grpo.method=lora", "grpo.lora.target_modules=[q_proj,v_proj]").grpo
    (finding,) = settings.check_adapter("grpo", some, linear)
    assert finding.status == "warn" and "no layers v_proj" in finding.evidence
    none = config("grpo.method=lora", "grpo.lora.target_modules=[v_proj]").grpo
    (finding,) = settings.check_adapter("grpo", none, linear)
    assert (finding.name, finding.status) == ("config.grpo_lora", "fail")
    assert finding.fix == "grpo.lora.target_modules: of fc1, q_proj"
