"""TRL's own trainer and ours on the same rollouts from an engine that is not there: completions and their log-probabilities are fixed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

EOS, LENGTH, GROUP = 2, 12, 4


class FakeEngine:
    """Stands in for TRL's vLLM: ragged completions, some without an end, one token without a log-probability."""

    def __init__(self, **_: Any) -> None:
        self.chance = random.Random(5)

    def sync_weights(self) -> None:
        """The completions are fixed: no weights are needed."""

    def generate(self, prompts: list[list[int]], images: Any, num_generations: int, profiler: Any) -> Any:
        ids, logps = [], []
        for row in range(len(prompts)):
            length = self.chance.randint(1, LENGTH - 1) if row % 3 else LENGTH
            tokens = [self.chance.randrange(5, 60) for _ in range(length)]
            ids.append(tokens if row % 3 == 0 else [*tokens, EOS])
            logps.append([[self.chance.gauss(-6.2, 0.4)] for _ in ids[-1]])
        logps[0][1] = [None]  # type: ignore[list-item]
        return prompts, ids, logps, None


@dataclass
class Record:
    """What a run of three steps left."""

    logged: list[dict[str, Any]]
    gradients: list[dict[str, Any]]
    weights: dict[str, Any]
    forwards: int = 0
    largest_logits: int = 0
    shapes: set[tuple[int, ...]] = field(default_factory=set)


def rewarded(completions: list[Any], **_: Any) -> list[float]:
    return [float(sum(map(ord, completion[0]["content"])) % 7) for completion in completions]


def run(
    trainer_class: Any, model: Path, out: Path, lora: bool = False, evaluate: bool = False, **settings: Any
) -> Record:
    """Three steps of plain SGD on 8 completions a micro-batch; `settings` are TRL's."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoTokenizer, PrinterCallback, TrainerCallback
    from trl import GRPOConfig
    from trl.trainer import grpo_trainer

    gradients: list[dict[str, Any]] = []

    class Keep(TrainerCallback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, *_: Any, model: Any, **__: Any) -> None:
            gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})

    rows = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": "1" * (i % 5 + 1)}], "answer": "1", "id": f"p{i}"} for i in range(40)]
    )
    arguments: dict[str, Any] = {
        "max_steps": 3, "learning_rate": 0.05, "lr_scheduler_type": "constant", "optim": "sgd", "logging_steps": 1,
        "per_device_train_batch_size": 8, "num_generations": GROUP, "max_completion_length": LENGTH, "temperature": 0.7,
        "use_vllm": True, "vllm_mode": "colocate", "use_cpu": True, "bf16": False, "seed": 1, "report_to": [],
        "save_strategy": "no", "model_init_kwargs": {"dtype": "float32"}, "gradient_checkpointing": False, "disable_tqdm": True,
        **({"eval_strategy": "steps", "eval_steps": 2, "num_generations_eval": 1, "per_device_eval_batch_size": 4} if evaluate else {}),
        **settings,
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(grpo_trainer, "VLLMGeneration", FakeEngine)
        torch.manual_seed(0)
        trainer = trainer_class(
            model=str(model),
            reward_funcs=rewarded,
            args=GRPOConfig(str(out), **arguments),
            train_dataset=rows,
            eval_dataset=rows.select(range(4)) if evaluate else None,
            processing_class=AutoTokenizer.from_pretrained(str(model)),
            peft_config=LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
            if lora
            else None,
            callbacks=[Keep()],
        )
        trainer.remove_callback(PrinterCallback)
    record = Record([], gradients, {})
    policy = trainer.accelerator.unwrap_model(trainer.model)
    models = [policy, *([trainer.ref_model] if trainer.ref_model is not None else [])]
    for whole in models:
        causal = whole.base_model.model if lora else whole

        def counted(*_: Any) -> None:
            record.forwards += 1

        def measured(_: Any, __: Any, logits: Any) -> None:
            record.shapes.add(tuple(logits.shape))
            record.largest_logits = max(record.largest_logits, logits.numel())

        causal.model.register_forward_hook(counted)
        causal.lm_head.register_forward_hook(measured)
    trainer.train()
    record.logged = trainer.state.log_history
    record.weights = {name: p.detach().clone() for name, p in policy.named_parameters()}
    return record


def differences(ours: Record, theirs: Record) -> dict[str, float]:
    """Largest differences of logged values (without times; relative above 1), gradients and weights."""
    found = {"logged": 0.0, "gradients": 0.0, "weights": 0.0}
    assert all(
        max(float(g.abs().max()) for g in step.values()) > 1e-4 for step in theirs.gradients
    )  # something is learnt
    assert len(ours.logged) == len(theirs.logged) and len(ours.gradients) == len(theirs.gradients) == 3
    for mine, other in zip(ours.logged, theirs.logged, strict=True):
        assert mine.keys() == other.keys()
        for name, value in mine.items():
            timed = any(part in name for part in ("time", "runtime", "per_second", "flos"))
            if isinstance(value, float) and not timed:
                found["logged"] = max(found["logged"], abs(value - other[name]) / max(1.0, abs(value)))
    for mine, other in zip(ours.gradients, theirs.gradients, strict=True):
        assert mine.keys() == other.keys() and mine
        found["gradients"] = max([found["gradients"], *(float((mine[n] - other[n]).abs().max()) for n in mine)])
    found["weights"] = max(float((ours.weights[n] - theirs.weights[n]).abs().max()) for n in ours.weights)
    return found
