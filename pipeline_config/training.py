"""SFT and GRPO settings. Names and units are TRL's where TRL has the setting."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from pipeline_config.base import Section
from pipeline_config.rewards import RewardConfig

Scheduler = Literal["linear", "cosine", "constant", "constant_with_warmup"]
Optimizer = Literal["adamw_torch", "adamw_torch_fused", "adamw_8bit"]
LossType = Literal["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"]
MAX_GROUP, MAX_BATCH = 1024, 65_536
ALL_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class LoraSettings(Section):
    """Low-rank adapter (arXiv 2106.09685)."""

    r: int = Field(32, ge=1, le=512)
    """Rank."""
    alpha: int = Field(64, ge=1, le=2048)
    """Scale numerator: the update is multiplied by alpha / r."""
    dropout: float = Field(0.0, ge=0.0, lt=1.0)
    """Dropout on the adapter's input; must be 0 for GRPO, where it would make old and new log-probabilities differ."""
    target_modules: tuple[str, ...] = Field(ALL_PROJECTIONS, min_length=1)
    """Linear layers that get an adapter; all attention and MLP projections by default."""


class Optimization(Section):
    """What SFT and GRPO share."""

    method: Literal["full", "lora"] = "lora"
    """Train all weights, or a LoRA adapter that is merged at the end."""
    lora: LoraSettings = LoraSettings()
    """Adapter settings, read when `method` is `lora`."""
    optim: Optimizer = "adamw_torch"
    """Optimizer, by its transformers name."""
    weight_decay: float = Field(0.0, ge=0.0, le=1.0)
    """Decoupled weight decay."""
    max_grad_norm: float = Field(1.0, gt=0.0, le=1000.0)
    """Gradients are scaled down to this norm."""
    lr_scheduler_type: Scheduler = "linear"
    """Learning-rate schedule."""
    warmup_steps: int = Field(5, ge=0, le=100_000)
    """Optimizer steps of linear warm-up."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about 30 % more time."""
    logging_steps: int = Field(1, ge=1, le=1000)
    """Optimizer steps between logged rows. Does not change the result."""
    save_total_limit: int = Field(2, ge=2, le=1000)
    """Checkpoints kept in the work directory while the stage runs. GRPO keeps `checkpoint_choice.candidates` + 1 at least."""


class SFTSettings(Optimization):
    """Supervised fine-tuning on worked traces: it teaches the format."""

    learning_rate: float = Field(2e-4, gt=0.0, le=1.0)
    """Peak learning rate."""
    num_train_epochs: float = Field(2.0, gt=0.0, le=1000.0)
    """Passes over the traces."""
    max_steps: int = Field(-1, ge=-1, le=10_000_000)
    """Optimizer steps; -1 lets the epochs decide."""
    per_device_train_batch_size: int = Field(8, ge=1, le=4096)
    """Rows per forward pass and device."""
    gradient_accumulation_steps: int = Field(1, ge=1, le=4096)
    """Forward passes per optimizer step."""
    max_length: int = Field(1024, ge=16, le=1_048_576)
    """Longest row in tokens. A row whose closing tag or EOS would not fit is refused and counted, never cut."""
    save_steps: int = Field(100, ge=1, le=1_000_000)
    """Optimizer steps between checkpoints. Does not change the result."""


class RemedyBounds(Section):
    """How far remedies may go in one run."""

    max_steps: int = Field(4, ge=1, le=20)
    """Remedies in one run; each restarts the trainer."""
    max_refills: int = Field(3, ge=1, le=16)
    """What `max_refills` is set to when groups are dead."""
    max_temperature: float = Field(1.2, gt=0.0, le=2.0)
    """Highest sampling temperature; above 1 it is raised by 0.1 at a time."""
    max_num_generations: int = Field(32, ge=2, le=MAX_GROUP)
    """Largest group; it is doubled while the batch holds two of them."""
    min_learning_rate_share: float = Field(0.0625, gt=0.0, le=1.0)
    """Smallest share of `learning_rate`, which is halved at a time."""
    max_beta: float = Field(0.1, ge=0.0, le=10.0)
    """Largest KL weight."""
    min_prompts_share: float = Field(0.25, gt=0.0, le=1.0)
    """Share of the training prompts that must be left when dead ones are set aside."""


class CheckpointChoice(Section):
    """Which checkpoint is kept: the last, unless an earlier one is better on held-out problems by more than noise."""

    enabled: bool = True
    """Off keeps the last step, whatever became of it."""
    candidates: int = Field(3, ge=2, le=50)
    """Models compared: the last step and the checkpoints at the newest multiples of `save_steps`, all of which stay on disk
    while the stage runs."""
    problems: int = Field(64, ge=8, le=100_000)
    """Held-out problems for that: the first of the gate's, which neither SFT nor GRPO trains on; at most what there is."""
    samples: int = Field(4, ge=1, le=1024)
    """Completions per problem and candidate, at GRPO's own sampling settings."""
    alpha: float = Field(0.05, gt=0.0, lt=0.5)
    """How often an earlier checkpoint replaces a last one that is as good (one-sided, over all candidates together)."""


class GRPOSettings(Optimization):
    """Group relative policy optimization (arXiv 2402.03300) from the merged SFT model, which is also the reference policy."""

    learning_rate: float = Field(5e-6, gt=0.0, le=1.0)
    """Peak learning rate."""
    max_steps: int = Field(100, ge=1, le=10_000_000)
    """Optimizer steps."""
    num_generations: int = Field(8, ge=2, le=MAX_GROUP)
    """Group size G: completions sampled per prompt."""
    per_device_train_batch_size: int = Field(8, ge=1, le=MAX_BATCH)
    """Completions (not prompts) per forward pass and device."""
    gradient_accumulation_steps: int = Field(1, ge=1, le=MAX_BATCH)
    """Forward passes per optimizer step. batch x accumulation x devices must be a multiple of `num_generations`."""
    num_iterations: int = Field(1, ge=1, le=64)
    """Optimizer passes over each batch of rollouts (mu in the paper)."""
    max_completion_length: int = Field(1024, ge=4, le=1_048_576)
    """Longest completion in tokens; a completion that reaches it is truncated and cannot be right."""
    temperature: float = Field(1.0, gt=0.0, le=5.0)
    """Sampling temperature of rollouts, of the gate and of evaluation's pass@1."""
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    """Nucleus; 1.0 keeps the sampled distribution equal to the trained one."""
    top_k: int = Field(0, ge=0, le=1_000_000)
    """Keep the k likeliest tokens; 0 is off."""
    min_p: float | None = Field(None, ge=0.0, le=1.0)
    """Drop tokens below this share of the likeliest one's probability."""
    beta: float = Field(0.0, ge=0.0, le=10.0)
    """KL weight against the SFT model. 0 (TRL's default) needs no reference pass and logs no KL."""
    loss_type: LossType = "dapo"
    """Loss variant; `dapo` (arXiv 2503.14476) is TRL's default, `dr_grpo` is arXiv 2503.20783."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """Advantages are divided by this standard deviation."""
    epsilon: float = Field(0.2, gt=0.0, lt=1.0)
    """Lower clip range of the probability ratio."""
    epsilon_high: float | None = Field(None, gt=0.0, le=10.0)
    """Upper clip range; unset means `epsilon`. DAPO uses 0.28."""
    mask_truncated_completions: bool = False
    """Leave truncated completions out of the loss."""
    rewards: RewardConfig = RewardConfig()
    """What a completion is paid for."""
    max_initial_kl: float = Field(0.01, gt=0.0, le=10.0)
    """With beta > 0: the run stops when KL at step 1 exceeds this, since the reference is then not the SFT model."""
    canary_steps: int = Field(20, ge=0, le=1_000_000)
    """With vLLM: optimizer steps between two comparisons of the trainer's and the engine's log-probabilities on fixed
    completions; 0 is off. Does not change the result."""
    max_canary_gap: float = Field(0.2, gt=0.0, le=10.0)
    """Mean difference of those log-probabilities, in nats per token, above which the run stops as `stale_rollout_weights`. Measured
    with SmolLM2-135M on an H200 (docs/gpu.md): 0.03 to 0.05 under trl and 0.065 under unsloth, from 16-bit arithmetic alone."""
    save_steps: int = Field(20, ge=1, le=1_000_000)
    """Optimizer steps between checkpoints, rounded up so that none falls inside a generation window. Changes the result only by what
    `checkpoint_choice` can choose from."""
    checkpoint_choice: CheckpointChoice = CheckpointChoice()
    """Choice of the checkpoint by held-out accuracy. While it is on, `save_steps` is part of what the result depends on."""
    max_refills: int = Field(0, ge=0, le=16)
    """Dynamic sampling (arXiv 2503.14476): rounds per batch in which groups that cannot teach are replaced by groups of other prompts.
    Each round samples at most as many completions as the batch has; 0 is off."""
    live_when: Literal["mixed", "spread"] | None = None
    """Which groups count as live. `mixed`: some right and some not, and the rewards differ (as in the paper). `spread`: the rewards
    differ. Unset: `mixed` with a preset reward, `spread` with functions of your own only, whose idea of right is not known."""
    eval_steps: int = Field(0, ge=0, le=1_000_000)
    """Optimizer steps between looks at held-out accuracy, which show a reward that is hacked; 0 is off."""
    eval_problems: int = Field(48, ge=8, le=10_000)
    """Held-out problems for that: the first of the gate's, which neither SFT nor GRPO trains on. Each is sampled once."""
    watchdog: Literal["stop", "warn", "off"] = "stop"
    """What a named failure in the training log does once no remedy is left."""
    remedies: Literal["act", "suggest", "off"] = "act"
    """What the watchdog does about a failure before it stops the run: take the next step of the remedy ladder (docs/remedies.md), or
    only name it. It acts only where `watchdog` is `stop`."""
    remedy_bounds: RemedyBounds = RemedyBounds()
    """How far remedies may go."""

    @property
    def live_rule(self) -> Literal["mixed", "spread"]:
        """`live_when`, or what it is when unset."""
        return self.live_when or ("mixed" if self.rewards.preset else "spread")

    @property
    def acts(self) -> bool:
        """Whether a remedy may change this run."""
        return self.remedies == "act" and self.watchdog == "stop"


class VLLMSettings(Section):
    """Rollouts through vLLM; used when a GPU and vllm are there, unless switched off."""

    enabled: Literal["auto", "on", "off"] = "auto"
    """`auto` uses vLLM when the device is a GPU and vllm is installed; for the gate, pass rates and evaluation only where that is
    expected to take less time than transformers, the engine's start included. `on` uses it everywhere."""
    mode: Literal["colocate", "server"] = "colocate"
    """Where GRPO's rollouts are sampled: beside the trainer on its GPU, or by a `vllm serve` (`trl vllm-serve`) that runs already on
    GPUs of its own. The gate and the evaluation start an engine of their own in both cases."""
    server_url: str | None = Field(None, max_length=500, pattern=r"^https?://[^\s/]+(:\d+)?/?$")
    """Base URL of the server, such as `http://localhost:8000`; needed in mode `server`, and only there."""
    gpu_memory_utilization: float = Field(0.3, gt=0.0, lt=1.0)
    """Share of GPU memory that the engine may take, next to the trainer."""
    sleep_mode: bool = False
    """Give the engine's memory back during the update (weights are pushed again each step)."""
    enforce_eager: bool = True
    """Skip compilation and CUDA graphs in the gate's and evaluation's engine: they decode for seconds, compiling takes a minute.
    GRPO's engine always compiles."""

    @model_validator(mode="after")
    def _server_has_a_url(self) -> VLLMSettings:
        if self.mode == "server" and not self.server_url:
            raise ValueError("mode server needs server_url, such as http://localhost:8000")
        if self.mode == "colocate" and self.server_url:
            raise ValueError("server_url is read in mode server only: set mode: server, or leave it out")
        return self
