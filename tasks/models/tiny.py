"""The tiny model: a randomly initialised Llama of about two million parameters that the SFT stage trains from scratch.

It makes the whole chain (SFT, GRPO, evaluation, GGUF) run for real in minutes on two CPU cores. It knows nothing before SFT.
"""

from __future__ import annotations

from pathlib import Path

from tasks.models.vocabulary import write_vocabulary

CONTEXT = 512
SHAPE = {
    "hidden_size": 256,  # a multiple of 256, so that the k-quants of GGUF apply
    "intermediate_size": 768,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
}


def build_tiny(dest: Path, seed: int) -> None:
    """Write the tiny model as a Hugging Face folder; the same seed gives the same bytes.

    Args:
        dest: folder to write into; made if absent.
        seed: seed of the random weights. The vocabulary does not depend on it.
    """
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    dest.mkdir(parents=True, exist_ok=True)
    size = write_vocabulary(dest, context=CONTEXT)
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
    config = LlamaConfig(
        vocab_size=size,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
        dtype="float32",
        **tokens,
        **SHAPE,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(**tokens)
    model.save_pretrained(dest, safe_serialization=True)
