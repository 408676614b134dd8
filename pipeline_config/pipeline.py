"""The whole configuration, and the rules that hold between its sections."""

from __future__ import annotations

from math import gcd

from pydantic import Field, model_validator

from pipeline_config.base import Section
from pipeline_config.contract import ContractConfig
from pipeline_config.data import DataConfig
from pipeline_config.evaluation import EvaluationConfig
from pipeline_config.export import ExportConfig
from pipeline_config.gate import GateSettings, PassRateSettings
from pipeline_config.model import ModelConfig
from pipeline_config.parallel import ParallelConfig
from pipeline_config.preflight import PreflightConfig
from pipeline_config.promotion import PromotionConfig
from pipeline_config.run import RunConfig
from pipeline_config.training import MAX_BATCH, MAX_GROUP, GRPOSettings, SFTSettings, VLLMSettings


class PipelineConfig(Section):
    """Everything a run depends on. Sections are read by the stage of the same name and those after it."""

    model: ModelConfig = ModelConfig()
    """Base model."""
    contract: ContractConfig = ContractConfig()
    """Tags and system prompt."""
    data: DataConfig = DataConfig()
    """Problems, golds and worked traces."""
    preflight: PreflightConfig = PreflightConfig()
    """What is checked before anything trains."""
    sft: SFTSettings = SFTSettings()
    """Supervised fine-tuning."""
    gate: GateSettings = GateSettings()
    """Format gate between SFT and GRPO."""
    pass_rates: PassRateSettings = PassRateSettings()
    """Which training prompts GRPO gets."""
    grpo: GRPOSettings = GRPOSettings()
    """Group relative policy optimization."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Held-out evaluation."""
    export: ExportConfig = ExportConfig()
    """GGUF export."""
    promotion: PromotionConfig = PromotionConfig()
    """When the trained model replaces the one in production; changes no stage's result."""
    vllm: VLLMSettings = VLLMSettings()
    """Rollout engine on a GPU."""
    parallel: ParallelConfig = ParallelConfig()
    """Training on several processes."""
    run: RunConfig = RunConfig()
    """Where and how; of it only `backend` and `device` can change a result."""
    seed: int = Field(3407, ge=0, lt=2**31)
    """Seed of data order, initialisation and sampling."""

    @model_validator(mode="after")
    def _batch_holds_whole_groups(self) -> PipelineConfig:
        batch, steps, group = (
            self.grpo.per_device_train_batch_size,
            self.grpo.gradient_accumulation_steps,
            self.grpo.num_generations,
        )
        processes = self.parallel.processes
        if batch * steps * processes % group:
            product = "grpo.per_device_train_batch_size x grpo.gradient_accumulation_steps"
            shown = f"{batch} x {steps}"
            if processes > 1:
                product, shown = f"{product} x parallel.processes", f"{shown} x {processes}"
            raise ValueError(
                f"{product} = {shown} = {batch * steps * processes} "
                f"completions per step is not a multiple of grpo.num_generations = {group}; "
                f"{legal_batches(batch, steps, group, processes)}"
            )
        return self

    @model_validator(mode="after")
    def _sampling_settings_fit(self) -> PipelineConfig:
        if self.grpo.method == "lora" and self.grpo.lora.dropout > 0:
            raise ValueError(
                "grpo.lora.dropout must be 0: with dropout the policy's log-probabilities differ between two passes, "
                "and the probability ratio no longer starts at 1"
            )
        if self.grpo.epsilon_high is not None and self.grpo.epsilon_high < self.grpo.epsilon:
            raise ValueError(
                f"grpo.epsilon_high = {self.grpo.epsilon_high} is below grpo.epsilon = {self.grpo.epsilon}"
            )
        return self

    @model_validator(mode="after")
    def _unsloth_does_not_refill(self) -> PipelineConfig:
        # It rewrites the trainer's sampling from TRL's source; refilling inside that has not been run.
        if self.run.backend == "unsloth" and self.grpo.max_refills:
            raise ValueError(
                "grpo.max_refills needs run.backend = trl: refilling was not run inside unsloth's own trainer"
            )
        return self

    @model_validator(mode="after")
    def _lengths_fit(self) -> PipelineConfig:
        if self.grpo.max_completion_length >= self.model.max_context:
            raise ValueError(
                f"grpo.max_completion_length = {self.grpo.max_completion_length} leaves no room for a prompt in "
                f"model.max_context = {self.model.max_context}"
            )
        limits = {"evaluation": self.evaluation.max_new_tokens}
        limits |= {f"evaluation.sets[{i}]": one.max_new_tokens for i, one in enumerate(self.evaluation.sets)}
        for name, longest in limits.items():
            if longest is not None and longest >= self.model.max_context:
                raise ValueError(
                    f"{name}.max_new_tokens = {longest} leaves no room for a prompt in "
                    f"model.max_context = {self.model.max_context}"
                )
        if self.sft.max_length > self.model.max_context:
            raise ValueError(
                f"sft.max_length = {self.sft.max_length} is above model.max_context = {self.model.max_context}"
            )
        return self

    @model_validator(mode="after")
    def _enough_problems(self) -> PipelineConfig:
        if self.gate.enabled and self.gate.prompts > self.data.gate_rows:
            raise ValueError(f"gate.prompts = {self.gate.prompts} is more than data.gate_rows = {self.data.gate_rows}")
        if self.grpo.eval_steps and self.grpo.eval_problems > self.data.gate_rows:
            raise ValueError(
                f"grpo.eval_problems = {self.grpo.eval_problems} is more than data.gate_rows = {self.data.gate_rows}: "
                "lower the one or raise the other"
            )
        if self.data.eval_rows != "all" and self.evaluation.problems > self.data.eval_rows:
            raise ValueError(
                f"evaluation.problems = {self.evaluation.problems} is more than data.eval_rows = {self.data.eval_rows}: "
                "lower the one or raise the other"
            )
        return self

    @model_validator(mode="after")
    def _several_processes_fit(self) -> PipelineConfig:
        several = self.parallel.processes > 1
        if several and self.run.backend == "unsloth":
            raise ValueError("run.backend = unsloth trains on one GPU: set parallel.processes=1, or run.backend=trl")
        if several and self.grpo.max_refills:
            raise ValueError("grpo.max_refills works on one process: set it to 0, or parallel.processes=1")
        if self.parallel.strategy == "fsdp" and "lora" in (self.sft.method, self.grpo.method):
            raise ValueError(
                "parallel.strategy = fsdp trains all weights: set sft.method and grpo.method to full, or use ddp"
            )
        if self.parallel.strategy != "ddp" and self.run.device == "cpu":
            raise ValueError(f"parallel.strategy = {self.parallel.strategy} needs GPUs: use ddp on the CPU")
        if self.vllm.mode == "server" and self.run.backend == "unsloth":
            raise ValueError(
                "run.backend = unsloth samples from its own weights: set vllm.mode=colocate, or run.backend=trl"
            )
        return self

    @model_validator(mode="after")
    def _four_bit_needs_an_adapter(self) -> PipelineConfig:
        if self.model.load_in_4bit and "full" in (self.sft.method, self.grpo.method):
            raise ValueError("model.load_in_4bit trains an adapter only: set sft.method and grpo.method to lora")
        return self


def legal_batches(batch: int, steps: int, group: int, processes: int = 1) -> str:
    """Name the nearest legal values of each of the three numbers, the other two kept.

    `batch * steps * processes` must be a multiple of `group`, so the batch must be a multiple of
    group / gcd(group, steps * processes).
    """

    def nearest(value: int, unit: int) -> list[int]:
        below = value // unit * unit
        return [n for n in (below, below + unit) if 0 < n <= MAX_BATCH]

    batches = nearest(batch, group // gcd(group, steps * processes))
    accumulations = nearest(steps, group // gcd(group, batch * processes))
    total = batch * steps * processes
    divisors = [d for d in range(2, min(total, MAX_GROUP) + 1) if total % d == 0]
    groups = sorted(sorted(divisors, key=lambda d: (abs(d - group), d))[:2])
    parts = [
        f"nearest legal per_device_train_batch_size: {' or '.join(map(str, batches))}",
        f"gradient_accumulation_steps: {' or '.join(map(str, accumulations))}",
    ]
    if groups:
        parts.append(f"num_generations: {' or '.join(map(str, groups))}")
    return "; ".join(parts)
