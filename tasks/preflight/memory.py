"""How much memory and disk a run needs, from its configuration and the shape of its model. Plain arithmetic, no torch.

An estimate has a *certain* part (weights, gradients, optimizer states, what vLLM reserves), which is exact, and a
part that depends on lengths (activations, logits, key-value cache), taken at the longest prompt and completion.

Activations: bytes kept per token and layer for the backward pass of a Llama-like layer (counted with
`torch.autograd.graph.saved_tensors_hooks` on transformers 5.17 and liger-kernel 0.8.5; h hidden, q query and k key-value width, i intermediate
size; the second column is what norms of the query and key heads add, as in Qwen3):

    float32                              24 h + 8 q + 8 k + 16 i      8 (q + k)
    bfloat16 autocast, 32-bit weights    26 h + 4 q + 4 k +  8 i      6 (q + k)
      with fused kernels                 18 h + 4 q + 4 k +  6 i      2 (q + k)
    bfloat16, LoRA                       12 h + 4 q + 4 k +  8 i      4 (q + k)
      with fused kernels                  8 h + 4 q + 4 k +  6 i      2 (q + k)

Where attention has a mask (padding in SFT, and in GRPO wherever `tasks/grpo/chunked.py` steps aside), keys and values are repeated for every
query head and kept so: 4 (q - k) more, in float32 8.

Logits: 12 bytes per token and vocabulary entry (two copies and a gradient of 4 bytes), in GRPO of a chunk of
`LOGITS_CHUNK` tokens where `tasks/grpo/chunked.py` computes them (one process, plain LM head, without unsloth), otherwise of
all completion tokens of a micro-batch. TRL's SFT loss works in chunks of 256 tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline_config.pipeline import PipelineConfig
from pipeline_config.training import Optimization
from tasks.grpo.arithmetic import LOGITS_CHUNK, checkpoints_kept

LOGIT_BYTES = 12
SFT_CHUNK = 256
UNSLOTH_KEEPS = 5 / 6
"""Its layers, without padding, kept 1.9 GB where the formula with fused kernels says 2.3 (SmolLM2-135M, LoRA of rank 32 on all projections, one H200)."""
LIBRARIES = 1_000_000_000
"""Python, torch and transformers on the host; the CUDA context and its work space on a GPU."""
MAX_CONTEXT = 2**20


@dataclass(frozen=True)
class ModelShape:
    """What the arithmetic needs to know of a model.

    Attributes:
        parameters: all weights.
        layers, hidden, intermediate, vocab: sizes.
        kv_width: key-value heads times head dimension.
        linear: name of the linear layers (`q_proj`) -> sum of their inputs and outputs over all layers; a LoRA
            adapter of rank r has r times this many weights.
        linear_parameters: weights in those layers, which QLoRA keeps in 4 bits.
        plain_head: logits are nothing but the LM head of the last hidden states (`tasks.grpo.arithmetic.plain_head`).
    """

    parameters: int
    layers: int
    hidden: int
    intermediate: int
    vocab: int
    kv_width: int
    linear: Mapping[str, int]
    linear_parameters: int
    plain_head: bool = False
    head_norms: bool = False
    """Whether queries and keys are normalized."""
    q_width: int = 0
    """Query heads times head dimension; 0 for as wide as `hidden`."""


@dataclass(frozen=True)
class Scene:
    """Where the run computes and the longest texts of its data, in tokens."""

    longest_prompt: int
    longest_example: int
    gpu_bytes: int = 0
    """Memory of the smallest GPU; 0 when the CPU computes."""
    vllm: bool = False
    unsloth: bool = False
    liger: bool = True
    """Whether liger-kernel is there, which counts on a GPU."""


def memory_plan(config: PipelineConfig, shape: ModelShape, scene: Scene) -> dict[str, Any]:
    """Bytes that SFT and GRPO need on the device that computes.

    Returns:
        `stages`: per stage the parts, `certain` and `total`; `peak_stage`, `peak` and `certain` over both stages;
        `host`: bytes on the host (equal to the peak on the CPU); `arithmetic`: one sentence per stage.

    Worked example: 100 M weights trained whole on the CPU hold 100 M x (4 + 4 + 8) = 1.6 GB of weights, gradients
    and AdamW states before the first activation.
    """
    stages = {"sft": _sft(config, shape, scene), "grpo": _grpo(config, shape, scene)}
    for parts in stages.values():
        parts["certain"] = sum(parts[name] for name in _CERTAIN if name in parts)
        # Sampling and the backward pass come one after the other.
        parts["total"] = parts["certain"] + LIBRARIES + max(parts["activations"] + parts["logits"], parts["kv_cache"])
    peak = max(stages, key=lambda name: stages[name]["total"])
    together = 1 if scene.gpu_bytes else config.parallel.processes  # on the CPU all processes share the host
    # On a GPU the host holds the weights once, while they are read and while they are merged and saved.
    host = stages[peak]["total"] * together
    if scene.gpu_bytes:
        host = config.parallel.processes * (LIBRARIES + 4 * shape.parameters)
    return {
        "stages": stages,
        "peak_stage": peak,
        "peak": stages[peak]["total"] * together,
        "certain": max(parts["certain"] for parts in stages.values()) * together,
        "host": host,
        "arithmetic": [f"{name}: {_sentence(parts)}" for name, parts in stages.items()],
    }


def disk_plan(config: PipelineConfig, shape: ModelShape, export_bytes: int) -> dict[str, int]:
    """Bytes that a whole run writes below `run.home`: two merged 16-bit models with adapters, the checkpoints of the
    larger training stage (removed once it is stored), and the GGUF files."""
    adapters = sum(4 * _trained(s, shape) for s in (config.sft, config.grpo) if s.method == "lora")
    # Those that are kept, and one that exists while it is written.
    kept = ((config.sft, config.sft.save_total_limit), (config.grpo, checkpoints_kept(config.grpo)))
    checkpoints = max((number + 1) * _trained(s, shape) * (4 + _optimizer_bytes(s)) for s, number in kept)
    parts = {
        "models": 2 * 2 * shape.parameters,
        "adapters": adapters,
        "checkpoints": checkpoints,
        "export": export_bytes,
    }
    return {**parts, "total": sum(parts.values())}


def gigabytes(size: float) -> str:
    """For example 1.60 GB (10^9 bytes)."""
    return f"{size / 1e9:.2f} GB"


_CERTAIN = ("weights", "gradients", "optimizer", "adapter", "reference", "engine")


def _trained(settings: Optimization, shape: ModelShape) -> int:
    """Weights that get a gradient."""
    if settings.method == "full":
        return shape.parameters
    return settings.lora.r * sum(shape.linear.get(name, 0) for name in settings.lora.target_modules)


def _optimizer_bytes(settings: Optimization) -> int:
    """Per trained weight: AdamW keeps two moments, in 4 bytes or in one."""
    return 2 if settings.optim == "adamw_8bit" else 8


def _static(config: PipelineConfig, settings: Optimization, shape: ModelShape, scene: Scene) -> dict[str, int]:
    """Weights, gradients and optimizer states, as `tasks/sft` and `tasks/grpo` load them."""
    trained = _trained(settings, shape)
    if settings.method == "full" or not scene.gpu_bytes:
        weights = 4 * shape.parameters
    elif config.model.load_in_4bit:
        # 4 bits and a scale of one byte per 64 weights; embeddings and norms stay 16 bits wide.
        weights = shape.linear_parameters * 33 // 64 + 2 * (shape.parameters - shape.linear_parameters)
    else:
        weights = 2 * shape.parameters
    return {
        "weights": weights,
        "adapter": 4 * trained if settings.method == "lora" else 0,
        "gradients": 4 * trained,
        "optimizer": _optimizer_bytes(settings) * trained,
    }


def _layer(settings: Optimization, shape: ModelShape, scene: Scene, masked: bool) -> int:
    """Bytes that one layer keeps of a token: the table at the top."""
    h, k, i = shape.hidden, shape.kv_width, shape.intermediate
    q = shape.q_width or h
    full = settings.method == "full"
    if not scene.gpu_bytes:
        layer, norms = 24 * h + 8 * q + 8 * k + 16 * i, 8
    elif scene.unsloth or (scene.liger and shape.plain_head):
        layer, norms = (18 if full else 8) * h + 4 * q + 4 * k + 6 * i, 2
    else:
        layer, norms = (26 if full else 12) * h + 4 * q + 4 * k + 8 * i, 6 if full else 4
    layer += norms * (q + k) if shape.head_norms else 0
    if scene.unsloth:
        return int(layer * UNSLOTH_KEEPS)
    return layer + (4 if scene.gpu_bytes else 8) * max(0, q - k) * masked


def _without_mask(config: PipelineConfig, shape: ModelShape, scene: Scene) -> bool:
    """Whether GRPO's log-probabilities are computed by `tasks/grpo/chunked.py`."""
    return shape.plain_head and config.parallel.processes == 1 and not scene.unsloth


def _activations(settings: Optimization, shape: ModelShape, scene: Scene, tokens: int, masked: bool) -> int:
    """Kept for the backward pass of one batch of `tokens` tokens."""
    h, layer = shape.hidden, _layer(settings, shape, scene, masked)
    residual = (2 if scene.gpu_bytes and settings.method == "lora" else 4) * h
    # With checkpointing a layer keeps only its input, and one layer at a time is computed again.
    numbers = shape.layers * residual + layer if settings.gradient_checkpointing else shape.layers * layer
    copies = 2 * shape.parameters if scene.gpu_bytes and settings.method == "full" else 0  # autocast's 16-bit weights
    return tokens * numbers + copies


def _sft(config: PipelineConfig, shape: ModelShape, scene: Scene) -> dict[str, int]:
    tokens = config.sft.per_device_train_batch_size * scene.longest_example
    return {
        **_static(config, config.sft, shape, scene),
        "activations": _activations(
            config.sft, shape, scene, tokens, masked=config.sft.per_device_train_batch_size > 1
        ),
        "logits": LOGIT_BYTES * SFT_CHUNK * shape.vocab,
        "kv_cache": 0,
    }


def _grpo(config: PipelineConfig, shape: ModelShape, scene: Scene) -> dict[str, int]:
    settings = config.grpo
    parts = _static(config, settings, shape, scene)
    if settings.method == "full" and settings.beta > 0:
        parts["reference"] = parts["weights"]
    length = scene.longest_prompt + settings.max_completion_length
    batch = settings.per_device_train_batch_size
    parts["activations"] = _activations(
        settings, shape, scene, batch * length, masked=not _without_mask(config, shape, scene)
    )
    tokens = batch * settings.max_completion_length
    if _without_mask(config, shape, scene):
        tokens = min(tokens, LOGITS_CHUNK)
    parts["logits"] = LOGIT_BYTES * tokens * shape.vocab
    parts["kv_cache"] = 0
    if scene.vllm:
        parts["engine"] = int(config.vllm.gpu_memory_utilization * scene.gpu_bytes)
        if config.vllm.sleep_mode:
            # Asleep, it gives its memory back, but its weights return before the trainer's activations are freed.
            parts["engine"] = min(parts["engine"], _engine_weights(parts, shape, scene))
        if scene.unsloth:
            parts["weights"] = 0  # the engine's own are trained
    else:
        width = parts["weights"] // max(1, shape.parameters) or 2
        sequences = batch * settings.gradient_accumulation_steps
        parts["kv_cache"] = cache_bytes(shape, sequences * length, width)
    return parts


def _engine_weights(static: Mapping[str, int], shape: ModelShape, scene: Scene) -> int:
    """vLLM's own copy in 16 bits; under unsloth the trainer's weights, which may have 4."""
    return static["weights"] if scene.unsloth else 2 * shape.parameters


def needed_on(config: PipelineConfig, shape: ModelShape, scene: Scene, gpu_bytes: int) -> dict[str, Any]:
    """What if the run had one GPU of this size, with vLLM beside the trainer: the plan, and whether it fits.

    Returns:
        `plan` (as `memory_plan`), `fits`, `limit` (`memory`, `engine` or `` when it fits) and `longest_context` in tokens.
    """
    there = replace(scene, gpu_bytes=gpu_bytes, vllm=True)
    plan = memory_plan(config, shape, there)
    limit = _limit(config, shape, there)
    return {
        "plan": plan,
        "fits": not limit,
        "limit": limit,
        "longest_context": longest_context(config, shape, there),
    }


def longest_context(config: PipelineConfig, shape: ModelShape, scene: Scene) -> int:
    """The longest prompt + completion, in tokens, with which GRPO's whole need stays within the GPU; 0 when nothing fits.

    The prompt is the scene's longest; completions grow. Batch and vLLM's share stay as configured.
    """

    def fits(completion: int) -> bool:
        grpo = config.grpo.model_copy(update={"max_completion_length": completion})
        return not _limit(config.model_copy(update={"grpo": grpo}), shape, scene)

    if not fits(1):
        return 0
    low, high = 1, 2
    while high < MAX_CONTEXT and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return scene.longest_prompt + low


def _limit(config: PipelineConfig, shape: ModelShape, scene: Scene) -> str:
    """What GRPO lacks on this GPU: `memory` as a whole, room for one sequence in the `engine`, or nothing."""
    parts = _grpo(config, shape, scene)
    certain = sum(parts[name] for name in _CERTAIN if name in parts)
    if certain + LIBRARIES + parts["activations"] + parts["logits"] > scene.gpu_bytes:
        return "memory"
    share = config.vllm.gpu_memory_utilization * scene.gpu_bytes
    sequence = cache_bytes(shape, scene.longest_prompt + config.grpo.max_completion_length)
    weights = _engine_weights(_static(config, config.grpo, shape, scene), shape, scene)
    return "engine" if scene.vllm and weights + sequence > share else ""


def cache_bytes(shape: ModelShape, tokens: int, width: int = 2) -> int:
    """Keys and values of `tokens` tokens in numbers of `width` bytes."""
    return 2 * shape.layers * shape.kv_width * tokens * width


def _sentence(parts: Mapping[str, int]) -> str:
    names: Sequence[str] = [name for name in (*_CERTAIN, "activations", "logits", "kv_cache") if parts.get(name)]
    shown = " + ".join(f"{name.replace('_', ' ')} {parts[name] / 1e9:.2f}" for name in names)
    return f"{shown} + libraries {LIBRARIES / 1e9:.0f}, at most {gigabytes(parts['total'])} at once"
