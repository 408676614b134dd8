"""The unsloth back end: adapters over 16-bit or 4-bit weights, rollouts through vLLM on the same weights.

Unsloth patches TRL when it is imported, so `import_first` must run before anything imports trl or transformers.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pipeline_config.pipeline import PipelineConfig
from pipeline_config.training import Optimization
from tasks.errors import ConfigError

BACKEND_VARIABLE = "GRPO_PIPELINE_BACKEND"
MOST_SEQUENCES = 512
"""vLLM has no CUDA graphs for more sequences at once (its default), and decodes them more slowly."""
ITS_DEFAULT = 256
"""Unsloth takes this number of sequences for "not said", and chooses by free memory: at most 96 where vLLM has 40 GiB for its cache
(unsloth_zoo 2026.10.9, `load_vllm`)."""


def in_use() -> bool:
    """Whether this stage process trains with unsloth; the stage runner has then imported it first."""
    return os.environ.get(BACKEND_VARIABLE) == "unsloth"


def import_first() -> None:
    """Import unsloth, if this stage process trains with it, before anything imports trl or transformers."""
    if in_use():
        import unsloth  # noqa: F401


def sequences_at_once(completions: int) -> int:
    """How many sequences the engine decodes at once: all completions of a batch, as TRL asks of its own engine."""
    wanted = min(completions, MOST_SEQUENCES)
    return wanted + 1 if wanted == ITS_DEFAULT else wanted


def give_pad_a_token_of_its_own(tokenizer: Any) -> None:
    """Unsloth's GRPO finds padding by its id: with EOS as padding the end of an answer would never be trained, nor the ends of turns scored.

    Raises:
        ConfigError: the tokenizer has no other special token.
    """
    taken = {tokenizer.eos_token, tokenizer.bos_token}
    if tokenizer.pad_token not in taken:
        return
    special = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
    free = [token for token in special if token not in taken and token not in str(tokenizer.chat_template)]
    if not free:
        raise ConfigError(
            f"the tokenizer pads with {tokenizer.pad_token!r}, which also ends answers, and has no other special token; unsloth "
            "would train no ends of answers",
            where="run.backend",
            fix="set run.backend=trl, or add a padding token to the tokenizer",
        )
    tokenizer.pad_token = max(free, key=lambda token: ("pad" in token, "endoftext" in token))


def load_with_adapter(folder: Path, config: PipelineConfig, settings: Optimization, seed: int, rollouts: int) -> Any:
    """The model with a fresh adapter: switched off, it is the SFT model, so KL is measured against that.

    Args:
        rollouts: completions sampled at once, for which vLLM is started on the shared weights (GRPO); 0 for none (SFT).
    """
    from unsloth import FastLanguageModel

    lora = settings.lora
    engine = {"max_num_seqs": sequences_at_once(rollouts)} if rollouts else {}
    model, _ = FastLanguageModel.from_pretrained(
        model_name=str(folder),
        max_seq_length=config.model.max_context,
        load_in_4bit=config.model.load_in_4bit,
        fast_inference=rollouts > 0,
        max_lora_rank=lora.r,
        gpu_memory_utilization=config.vllm.gpu_memory_utilization,
        trust_remote_code=config.model.trust_remote_code,
        random_state=seed,
        **engine,
    )
    return FastLanguageModel.get_peft_model(
        model,
        r=lora.r,
        target_modules=list(lora.target_modules),
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        use_gradient_checkpointing="unsloth" if settings.gradient_checkpointing else False,
        random_state=seed,
    )
