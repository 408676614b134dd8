"""The GGUF export: which files are written, and the test that each must pass to be released."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from pipeline_config.base import Section

GgufFormat = Literal["f16", "bf16", "q8_0", "q5_k_m", "q4_k_m"]


class ExportConfig(Section):
    """GGUF files of the trained model, each proved through llama.cpp before it is released."""

    formats: list[GgufFormat] = Field(["f16", "q4_k_m"], min_length=1, max_length=5)
    """Files to write: f16 and bf16 by the converter, q8_0, q5_k_m and q4_k_m quantized from the 16-bit file."""
    proof_problems: int = Field(200, ge=1, le=100_000)
    """Held-out problems answered greedily through llama.cpp and compared with the 16-bit model's answers. With 64 a good file is
    released with a warning more often than not; docs/export.md has the table."""
    parity_problems: int = Field(32, ge=1, le=10_000)
    """Prompts whose text and token ids must be the same in training and in the file."""
    logprob_problems: int = Field(8, ge=0, le=1000)
    """Completions whose log-probabilities are compared with the 16-bit model's; 0 turns that off."""
    max_tokens: int | None = Field(None, ge=1, le=1_048_576)
    """Longest completion asked of llama.cpp, in tokens; unset means the evaluation's, for a fair comparison."""
    n_ctx: int | None = Field(None, ge=64, le=1_048_576)
    """Context length written to the Ollama Modelfile; unset means `model.max_context`."""
    parallel: int = Field(16, ge=1, le=256)
    """Problems decoded together by llama.cpp."""
    threads: int = Field(0, ge=0, le=1024)
    """Threads of quantization and of llama.cpp; 0 takes the processor cores that this process may use."""
    alpha: float = Field(0.05, gt=0.0, lt=0.5)
    """Error rate of the release test: how often a file that is no worse is called worse."""
    margin: float = Field(0.05, gt=0.0, lt=1.0)
    """Largest loss of accuracy that is acceptable (0.05 is five points). A file that is significantly worse by more is
    refused; one for which a loss of this size cannot be ruled out is released with a warning."""
    on_refused: Literal["fail", "warn"] = "fail"
    """What a refused file does: stop the run with the reason, or keep the file and report the refusal."""

    @field_validator("formats")
    @classmethod
    def _no_format_twice(cls, formats: list[GgufFormat]) -> list[GgufFormat]:
        repeated = sorted({name for name in formats if formats.count(name) > 1})
        if repeated:
            raise ValueError(f"{', '.join(repeated)} is named more than once; name each format once")
        return formats
