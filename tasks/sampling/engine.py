"""vLLM behind the sampler. Imported only when a GPU and vllm are there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase
from vllm import LLM, SamplingParams, TokensPrompt

from pipeline_config.pipeline import PipelineConfig
from tasks.grpo.compile_cache import leave_path_out

if TYPE_CHECKING:
    from tasks.sampling.sampler import Completion, SamplingSettings

# Above the largest captured CUDA graph (512 sequences) decoding falls back to eager steps and throughput drops.
MAX_SEQUENCES = 512


def start_engine(folder: Path, config: PipelineConfig) -> Any:
    """Start an engine that has the GPU to itself: no trainer runs beside the gate or evaluation.

    It runs in this process, as GRPO's does: a process of its own would import everything once more.
    """
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    leave_path_out()
    return LLM(
        model=str(folder),
        dtype="auto" if config.model.dtype == "auto" else config.model.dtype,
        max_model_len=config.model.max_context,
        max_num_seqs=MAX_SEQUENCES,
        gpu_memory_utilization=0.85,
        enforce_eager=config.vllm.enforce_eager,
        trust_remote_code=config.model.trust_remote_code,
        seed=config.seed,
    )


def sample_with_engine(
    engine: Any, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Sequence[int]], settings: SamplingSettings
) -> list[list[Completion]]:
    """All prompts at once; the engine batches them. Text is decoded by the trainer's tokenizer, not by vLLM."""
    from tasks.sampling.sampler import Completion

    parameters = SamplingParams(
        n=settings.n,
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k or -1,
        min_p=settings.min_p or 0.0,
        max_tokens=settings.max_new_tokens,
        stop_token_ids=[int(tokenizer.eos_token_id)],
        detokenize=False,
    )
    outputs = engine.generate([TokensPrompt(prompt_token_ids=list(ids)) for ids in prompts], parameters, use_tqdm=False)
    found = []
    for output in outputs:
        found.append(
            [
                Completion(
                    str(tokenizer.decode(list(sample.token_ids), skip_special_tokens=True)),
                    len(sample.token_ids),
                    truncated=sample.finish_reason == "length",
                    ids=tuple(sample.token_ids),
                )
                for sample in output.outputs
            ]
        )
    return found
