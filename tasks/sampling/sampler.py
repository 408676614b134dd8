"""Sample completions from a model folder: one interface over transformers (any device) and vLLM (GPU).

Used by the format gate, pass rates, checkpoint choice and evaluation, so that all decode exactly as TRL's trainer does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from pipeline_config.pipeline import PipelineConfig
from tasks.preflight.shape import read_config, shape_of
from tasks.process.gpu import visible_gpus
from tasks.sampling.choice import engine_pays, rows_that_fit
from tasks.training.loading import compute_dtype, device_of, load_model

NEUTRAL = {
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
}
"""Said, because what is left unsaid comes from the model's own generation_config.json (Qwen2.5 has a repetition penalty there), of which
GRPO's rollouts and vLLM know nothing."""
CPU_ROWS = 64
"""Completions sampled at once on a CPU, by a model that is being trained, and where the free memory of a GPU is not known, unless
`evaluation.batch_size` says otherwise."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Completion:
    """One sampled completion.

    Attributes:
        text: decoded as the trainer decodes, `skip_special_tokens=True`.
        tokens: its length, EOS included.
        truncated: it reached the length limit without EOS.
        ids: its token ids, EOS included, special tokens that the text hides as well.
    """

    text: str
    tokens: int
    truncated: bool
    ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class SamplingSettings:
    """temperature 0 is greedy; top_k 0, top_p 1 and min_p None are off."""

    temperature: float
    max_new_tokens: int
    n: int = 1
    top_p: float = 1.0
    top_k: int = 0
    min_p: float | None = None
    seed: int = 0


def rollout_settings(config: PipelineConfig, n: int, seed: int) -> SamplingSettings:
    """GRPO's own sampling, with `n` completions per prompt."""
    grpo = config.grpo
    return SamplingSettings(
        temperature=grpo.temperature,
        top_p=grpo.top_p,
        top_k=grpo.top_k,
        min_p=grpo.min_p,
        max_new_tokens=grpo.max_completion_length,
        n=n,
        seed=seed,
    )


class Sampler:
    """A loaded model that completes prompts given as token ids.

    Args:
        new_tokens: most tokens that will be sampled, all completions together. With `vllm.enabled: auto` an engine is started
            only for so many that it pays (`tasks.sampling.choice`).
    """

    def __init__(
        self, folder: Path, tokenizer: PreTrainedTokenizerBase, config: PipelineConfig, new_tokens: int
    ) -> None:
        self.tokenizer, self.config = tokenizer, config
        self.device = device_of(config)
        self.engine: Any = None
        self.model: PreTrainedModel | None = None
        self.rows = config.evaluation.batch_size or CPU_ROWS
        with_engine = uses_vllm(config, self.device)
        if self.device.type == "cuda":
            trusted = config.model.trust_remote_code
            shape = shape_of(read_config(folder, trusted), trusted)
            memory = gpu_memory()
            if config.evaluation.batch_size is None and memory is not None:
                self.rows = rows_that_fit(shape, config, memory)
            with_engine &= config.vllm.enabled == "on" or engine_pays(shape, self.rows, new_tokens)
        if with_engine:
            from tasks.sampling.engine import start_engine

            self.engine = start_engine(folder, config)
        else:
            self.model = load_model(folder, config, self.device, compute_dtype(config, self.device)).eval()

    @classmethod
    def around(cls, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: PipelineConfig) -> Sampler:
        """A sampler of a model that is in memory already, on its device and through transformers."""
        sampler = cls.__new__(cls)
        sampler.tokenizer, sampler.config = tokenizer, config
        sampler.device, sampler.engine, sampler.model = model.device, None, model
        sampler.rows = config.evaluation.batch_size or CPU_ROWS
        return sampler

    @property
    def name(self) -> str:
        """`vllm` or `transformers`, for the manifest."""
        return "vllm" if self.engine is not None else "transformers"

    def sample(
        self, prompts: Sequence[Sequence[int]], settings: SamplingSettings, progress: Progress | None = None
    ) -> list[list[Completion]]:
        """Completions for every prompt, `settings.n` each, in the order of the prompts."""
        if self.engine is not None:
            from tasks.sampling.engine import sample_with_engine

            return sample_with_engine(self.engine, self.tokenizer, prompts, settings)
        return self._sample_with_transformers(prompts, settings, progress)

    def _sample_with_transformers(
        self, prompts: Sequence[Sequence[int]], settings: SamplingSettings, progress: Progress | None
    ) -> list[list[Completion]]:
        assert self.model is not None
        torch.manual_seed(settings.seed)
        greedy = settings.temperature == 0
        generation = GenerationConfig(
            max_new_tokens=settings.max_new_tokens,
            do_sample=not greedy,
            pad_token_id=self.tokenizer.pad_token_id,
            eos_token_id=self.tokenizer.eos_token_id,
            **NEUTRAL,
            **(
                {}
                if greedy
                else {
                    "temperature": settings.temperature,
                    "top_p": settings.top_p,
                    "top_k": settings.top_k,
                    "min_p": settings.min_p,
                }
            ),
        )
        # Prompts of like length together waste the least on padding.
        order = sorted((i for i in range(len(prompts)) for _ in range(settings.n)), key=lambda i: (len(prompts[i]), i))
        found: list[list[Completion]] = [[] for _ in prompts]
        start = 0
        while start < len(order):
            batch = order[start : start + self.rows]
            try:
                completions = self._complete([prompts[i] for i in batch], generation)
            except torch.OutOfMemoryError:
                if self.config.evaluation.batch_size is not None or len(batch) == 1:
                    raise
                completions = []
            if not completions:  # not in the handler: the exception holds what is to be freed
                self.rows = len(batch) // 2
                torch.cuda.empty_cache()
                continue
            for i, completion in zip(batch, completions, strict=True):
                found[i].append(completion)
            start += len(batch)
            if progress:
                progress(start, len(order))
        return found

    @torch.inference_mode()
    def _complete(self, prompts: Sequence[Sequence[int]], generation: GenerationConfig) -> list[Completion]:
        assert self.model is not None
        longest = max(len(ids) for ids in prompts)
        pad = int(self.tokenizer.pad_token_id)
        ids = torch.tensor([[pad] * (longest - len(p)) + list(p) for p in prompts], device=self.device)
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=self.device)
        output = self.model.generate(input_ids=ids, attention_mask=mask, generation_config=generation)
        eos = self.tokenizer.eos_token_id
        completions = []
        for row in output[:, longest:].tolist():
            ended = eos in row
            kept = row[: row.index(eos) + 1] if ended else row
            text = self.tokenizer.decode(kept, skip_special_tokens=True)
            completions.append(Completion(str(text), len(kept), truncated=not ended, ids=tuple(kept)))
        return completions


def gpu_memory() -> int | None:
    """Bytes of this process's GPU, None if that cannot be read: there is no nvidia-smi, or it says `[N/A]`, as on a GPU that
    shares the host's memory. All of it, not what is free at the moment, so that the same work is sampled alike on the same
    machine. Not from torch, which would take memory of the GPU for the answer."""
    gpu = next(iter(visible_gpus()), None)
    return int(gpu["total"]) * 2**20 if gpu is not None and gpu["total"].isdigit() else None


def uses_vllm(config: PipelineConfig, device: torch.device) -> bool:
    """Whether rollouts go through vLLM, by `vllm.enabled` and what is installed."""
    from importlib.util import find_spec

    from tasks.errors import ConfigError

    available = device.type == "cuda" and find_spec("vllm") is not None
    if config.vllm.enabled == "on" and not available:
        raise ConfigError(
            "vLLM was asked for, but there is no GPU or vllm is not installed",
            where="vllm.enabled",
            fix="set vllm.enabled=auto, or install the gpu requirements",
        )
    return available and config.vllm.enabled != "off"
