"""What each GPU profile needs, and the longest context that fits, by the memory planner. Nothing is downloaded and no GPU is used.

    python benchmarks/memory_needs.py            # prints a table
    python benchmarks/memory_needs.py --write    # and writes benchmarks/memory_needs.json

The shapes are those of the published config.json files; the model is built on torch's meta device, without memory.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pipeline_config.loading import load_config
from tasks.preflight.memory import ModelShape, Scene, needed_on

QWEN3 = {"head_dim": 128, "num_key_value_heads": 8, "vocab_size": 151936}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2.5-0.5b-gsm8k": (
        "Qwen2Config",
        {
            "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
            "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
        },
    ),
    "qwen3-0.6b": (
        "Qwen3Config",
        {
            **QWEN3, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3-4b-24gb": (
        "Qwen3Config",
        {
            **QWEN3, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3-8b-80gb": (
        "Qwen3Config",
        {
            **QWEN3, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
            "tie_word_embeddings": False,
        },
    ),
}  # fmt: skip
CARDS = {"qwen2.5-0.5b-gsm8k": 24, "qwen3-0.6b": 24, "qwen3-4b-24gb": 24, "qwen3-8b-80gb": 80}
"""GiB of the card that a profile is meant for."""
LONGEST_PROMPT = 256
"""Tokens, template and system prompt included; the 90 % quantile of the prompts of these sets is about 200."""


def shape(profile: str) -> ModelShape:
    """Sizes of a profile's model."""
    import transformers

    from tasks.preflight.shape import shape_of

    kind, sizes = SHAPES[profile]
    return shape_of(getattr(transformers, kind)(**sizes), trust_remote_code=False)


def needs(profile: str, gib: float) -> dict[str, Any]:
    """The plan of a profile on a card of `gib` GiB, in GB, and the longest context that fits."""
    config, sizes = load_config(profile), shape(profile)
    scene = Scene(LONGEST_PROMPT, config.sft.max_length)
    found = needed_on(config, sizes, scene, int(gib * 2**30))
    plan = found["plan"]
    return {
        "profile": profile,
        "card_gib": gib,
        "parameters": sizes.parameters,
        "fits": found["fits"],
        "limit": found["limit"],
        "longest_context": found["longest_context"],
        "card_gb": round(gib * 2**30 / 1e9, 1),
        "stages_gb": {
            stage: {name: round(size / 1e9, 2) for name, size in parts.items() if size}
            for stage, parts in plan["stages"].items()
        },
    }


def main() -> None:
    rows = [needs(profile, gib) for profile in SHAPES for gib in sorted({CARDS[profile], 24, 80, 141})]
    print(f"{'profile':<20} {'card':>8} {'SFT GB':>7} {'GRPO GB':>8} {'fits':>5} {'longest context':>16}")
    for row in rows:
        stages = row["stages_gb"]
        print(
            f"{row['profile']:<20} {row['card_gib']:>4} GiB {stages['sft']['total']:>7} {stages['grpo']['total']:>8} "
            f"{row['fits']!s:>5} {row['longest_context']:>16}"
        )
    if "--write" in sys.argv:
        data = {
            "command": "python benchmarks/memory_needs.py --write",
            "what": "computed by tasks.preflight.memory, not measured; longest prompt of 256 tokens, settings of the profiles",
            "rows": rows,
        }
        path = Path(__file__).with_suffix(".json")
        path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
