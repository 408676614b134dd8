"""The weights that sample are the weights that are trained: log-probabilities of both, compared while training.

A rollout engine holds its own copy of the weights, pushed to it before every batch of rollouts. When that push is lost (a level-2 sleep, an
adapter that is not mounted, a renamed tensor), the run goes on and learns from a policy that no longer exists. Two
instruments, both in nats per token, mean over tokens of |trainer - engine|:

- `canary/gap`, every `grpo.canary_steps`: the same fixed prompts and completions scored by both, right after the push.
- TRL's own `sampling/sampling_logp_difference/mean`, in every logged row: of the tokens just sampled. It is there with vLLM in any mode.

Above `grpo.max_canary_gap` the run stops as `stale_rollout_weights`. It also does when the gap is small but the trainer
has moved since the first look by more than the gap and the engine has not moved at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from pipeline_config.pipeline import PipelineConfig
from tasks.contract.prompts import completion_text, encode_prompt, turn_end_id
from tasks.errors import RunStopped
from tasks.training.merge import logits_wanted

SAMPLED_GAP = "sampling/sampling_logp_difference/mean"
ROWS = 2
"""Logged rows in a row with a sampled gap above the limit: one batch of odd completions is not a lost push."""
CLEARLY = 5.0
"""The trainer has clearly moved when it is this many times as far from its start as the two were from one another there."""
STILL = 0.2
"""The engine has not moved when it went less than this share of the trainer's way."""
PROBLEMS = 4


@dataclass(frozen=True)
class Probe:
    """One fixed sequence: token ids of prompt and completion, and where the completion begins."""

    ids: tuple[int, ...]
    start: int


Scorer = Callable[[Sequence[Probe]], list[list[float]]]
"""Log-probability of every completion token of every probe, in nats, at temperature 1."""


def probes(tokenizer: Any, rows: Sequence[dict[str, Any]], config: PipelineConfig) -> list[Probe]:
    """The first problems with their golds in perfect completions."""
    found = []
    for row in rows[:PROBLEMS]:
        prompt = encode_prompt(tokenizer, config.contract, str(row["question"]))
        text = completion_text(config.contract, "Step by step.", str(row["answer"]))
        completion = [*tokenizer(text, add_special_tokens=False)["input_ids"], turn_end_id(tokenizer)]
        found.append(Probe((*prompt, *(int(token) for token in completion)), len(prompt)))
    return found


def model_scorer(model: Any) -> Scorer:
    """Scores with a transformers model as it is at the time of the call."""

    @torch.no_grad()
    def score(sequences: Sequence[Probe]) -> list[list[float]]:
        found = []
        for probe in sequences:
            ids = torch.tensor([probe.ids], device=model.device)
            with logits_wanted():
                logits = model(input_ids=ids).logits[0, probe.start - 1 : -1].float()
            picked = torch.log_softmax(logits, dim=-1).gather(1, ids[0, probe.start :, None])
            found.append([float(value) for value in picked[:, 0]])
        return found

    return score


def vllm_scorer(llm: Any, adapter: Callable[[], Any] | None = None) -> Scorer:
    """Scores with a vLLM engine by the log-probabilities of its prompt tokens.

    Args:
        adapter: makes the request for the adapter that the rollouts are sampled with; None for an engine that holds the trained weights
            themselves.
    """

    def score(sequences: Sequence[Probe]) -> list[list[float]]:
        from vllm import SamplingParams, TokensPrompt

        parameters = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        prompts = [TokensPrompt(prompt_token_ids=list(probe.ids)) for probe in sequences]
        more = {"lora_request": adapter()} if adapter else {}
        outputs = llm.generate(prompts, parameters, use_tqdm=False, **more)
        return [
            [float(output.prompt_logprobs[at][probe.ids[at]].logprob) for at in range(probe.start, len(probe.ids))]
            for probe, output in zip(sequences, outputs, strict=True)
        ]

    return score


def rollout_adapter(llm: Any, model: Any, folder: Path) -> Callable[[], Any] | None:
    """How to ask an engine for the trained policy: None where the weights are pushed to it.

    Unsloth's engine has the base weights, shared with the trainer, and gets the adapter with every call.

    Args:
        folder: where unsloth writes the adapter's configuration, once per process; the tensors are handed over in memory.
    """
    if not getattr(llm, "shared_weights", False):
        return None
    return partial(model.load_lora, str(folder), load_tensors=True)


def mean_gap(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> float:
    """Mean over all tokens of |a - b|.

    Worked example: [[-1.0, -2.0]] and [[-1.5, -2.0]] are 0.25 apart.
    """
    pairs = [(x, y) for left, right in zip(a, b, strict=True) for x, y in zip(left, right, strict=True)]
    return sum(abs(x - y) for x, y in pairs) / max(1, len(pairs))


class Canary:
    """Compares two scorers on fixed probes, and remembers how both began.

    Args:
        trainer: scores with the weights that are trained.
        engine: scores with the weights that sample.
        sequences: the probes.
        limit: largest mean gap, in nats per token.
    """

    def __init__(self, trainer: Scorer, engine: Scorer, sequences: Sequence[Probe], limit: float) -> None:
        self.trainer, self.engine, self.sequences, self.limit = trainer, engine, sequences, limit
        self.first: tuple[list[list[float]], list[list[float]]] | None = None

    def look(self, step: int) -> dict[str, float]:
        """Compare now.

        Returns:
            `canary/gap` between the two, and `canary/moved`, `canary/engine_moved`: how far trainer and engine are from the first look. An
            engine with 16-bit weights moves less while the updates are smaller than half a step of that type.

        Raises:
            RunStopped: as `stale_rollout_weights`.
        """
        ours, theirs = self.trainer(self.sequences), self.engine(self.sequences)
        self.first = self.first or (ours, theirs)
        gap, moved = mean_gap(ours, theirs), mean_gap(ours, self.first[0])
        if gap > self.limit:
            raise stale(step, f"they differ by {gap:.3g} nats a token, above {self.limit:g}")
        engine_moved, at_first = mean_gap(theirs, self.first[1]), mean_gap(*self.first)
        if moved > CLEARLY * max(at_first, 1e-4) and engine_moved < STILL * moved:
            raise stale(
                step,
                f"the trainer has moved by {moved:.3g} nats a token since the first look, the engine by {engine_moved:.3g}",
            )
        return {"canary/gap": gap, "canary/moved": moved, "canary/engine_moved": engine_moved}


def stale(step: int, how: str) -> RunStopped:
    return RunStopped(
        f"the rollout engine does not sample from the weights that are trained: {how}",
        where=f"grpo step {step}",
        fix="set vllm.sleep_mode=false or vllm.enabled=off, check that TRL and vLLM fit together (requirements/gpu.txt); the last "
        "checkpoint was trained on rollouts of older weights",
        cause="stale_rollout_weights",
    )


def watch_rollouts(trainer: Any, canary: Canary, every: int, log: Callable[[str], None]) -> None:
    """Look at the canary right after the rollouts of every `every`-th step, when the engine has just got its weights.

    An engine that cannot score probes is no reason to stop: it is said once, and TRL's own gap remains.
    """
    sample = trainer._generate_single_turn
    state = {"next": 0}

    def sample_and_look(*args: Any, **kwargs: Any) -> Any:
        output = sample(*args, **kwargs)
        step = trainer.state.global_step
        if every and step >= state["next"] and trainer.model.training:
            state["next"] = step + every
            try:
                found = canary.look(step + 1)
            except (AttributeError, TypeError, KeyError, ImportError, ValueError) as error:
                state["next"] = 2**62
                log(
                    f"canary: not measured, the engine cannot score a fixed completion ({type(error).__name__}: {error})"
                )
                return output
            for name, value in found.items():
                trainer._metrics["train"][name].append(value)
        return output

    trainer._generate_single_turn = sample_and_look


class SampledGap(TrainerCallback):
    """Stops on TRL's own difference between the log-probabilities of trainer and vLLM on the sampled tokens."""

    def __init__(self, limit: float) -> None:
        self.limit, self.rows = limit, 0

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        gap = (logs or {}).get(SAMPLED_GAP)
        if not isinstance(gap, float):
            return
        self.rows = self.rows + 1 if gap > self.limit else 0
        if self.rows >= ROWS:
            how = f"on the sampled tokens they differ by {gap:.3g} nats a token in {ROWS} logged rows, above {self.limit:g}"
            raise stale(state.global_step, how)


def add_canary(
    trainer: Any, tokenizer: Any, rows: Sequence[dict[str, Any]], config: PipelineConfig, log: Callable[[str], None]
) -> str:
    """Watch a trainer whose rollouts come from vLLM; returns what is watched, for the manifest.

    Without vLLM the trained model itself samples, and there is nothing to compare. Truncated sampling (top_p, top_k,
    min_p) makes vLLM report other log-probabilities on purpose, so that only the fixed probes count then. A server and a
    sleeping engine score no probes, so that only the sampled tokens count there.
    """
    grpo = config.grpo
    if not trainer.use_vllm or not grpo.canary_steps:
        return "off" if trainer.use_vllm else "not needed: the trained model itself samples"
    watched = []
    if grpo.top_p == 1.0 and not grpo.top_k and not grpo.min_p:
        trainer.add_callback(SampledGap(grpo.max_canary_gap))
        watched.append("sampled tokens")
    llm = getattr(getattr(trainer, "vllm_generation", None), "llm", None)
    if config.vllm.mode == "colocate" and not config.vllm.sleep_mode and llm is not None:
        model = trainer.accelerator.unwrap_model(trainer.model)
        engine = vllm_scorer(llm, rollout_adapter(llm, model, Path(trainer.args.output_dir) / "canary"))
        canary = Canary(model_scorer(model), engine, probes(tokenizer, rows, config), grpo.max_canary_gap)
        watch_rollouts(trainer, canary, grpo.canary_steps, log)
        watched.append("fixed completions")
    return " and ".join(watched) or "nothing can be compared with these settings"
