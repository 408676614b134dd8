"""The frozen evaluation spec: everything that a score depends on beside the model, with one digest. No torch.

Two scores may be compared when their specs agree; `differences` says which part does not. The engine that writes the
completions (transformers, vLLM, llama.cpp) is recorded beside the spec and is no part of it: it belongs to what is
measured, as a GGUF file against its 16-bit model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from artifacts.fingerprint import changed_terms, fingerprint
from pipeline_config.contract import ContractConfig

GRADER_VERSION = 2
"""Of extraction and verification (`tasks/contract`). Raise it when a verdict changes; a test holds the verdicts of a
corpus against it."""
VERIFIERS = ("math-verify", "latex2sympy2_extended", "sympy")
"""Libraries that take part in verdicts on LaTeX golds."""
GREEDY = ("problems", "prompt", "limits", "grading")
"""Parts that a greedy score depends on; a sampled one depends on `sampling` too."""


def make_spec(
    rows: Sequence[Mapping[str, Any]],
    contract: ContractConfig,
    chat_template: str,
    *,
    max_new_tokens: int,
    max_context: int,
    samples: int = 0,
    sampler: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """The spec as JSON data, with its `digest`, and the `greedy_digest` over what greedy scores depend on.

    Args:
        rows: the problems in order, with `question` and `answer`.
        chat_template: of the tokenizer, as the prompt is rendered with it.
        sampler: temperature, top_p, top_k and min_p of the sampled completions, when there are any.
    """
    parts: dict[str, Any] = {
        "problems": {"n": len(rows), "digest": problems_digest(rows)},
        "prompt": {
            "contract": contract.model_dump(mode="json"),
            "chat_template": hashlib.sha256(chat_template.encode("utf-8")).hexdigest(),
        },
        "limits": {"max_new_tokens": max_new_tokens, "max_context": max_context},
        "grading": {"version": GRADER_VERSION, **{name: _version(name) for name in VERIFIERS}},
        "sampling": {"samples": samples, "seed": seed, **dict(sampler or {})} if samples else None,
    }
    return {**parts, "greedy_digest": _digest(parts, greedy=True), "digest": _digest(parts, greedy=False)}


def problems_digest(rows: Sequence[Mapping[str, Any]]) -> str:
    """sha256 over questions and golds, in order."""
    return fingerprint({"problems": [[str(row["question"]), str(row["answer"])] for row in rows]})


def differences(first: Mapping[str, Any], second: Mapping[str, Any], *, greedy: bool = False) -> list[str]:
    """What differs between two specs, one line each (`limits.max_new_tokens: 256 -> 512`); empty when they agree.

    Args:
        greedy: leave out how the sampled completions are drawn, which greedy scores do not depend on.
    """
    wanted = GREEDY if greedy else (*GREEDY, "sampling")
    return changed_terms({key: first.get(key) for key in wanted}, {key: second.get(key) for key in wanted})


def _digest(parts: Mapping[str, Any], *, greedy: bool) -> str:
    return fingerprint({key: parts[key] for key in (GREEDY if greedy else (*GREEDY, "sampling"))})


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"
