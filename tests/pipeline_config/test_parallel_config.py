"""Several processes: the batch arithmetic counts them, and what does not go together is refused with its reason."""

from __future__ import annotations

import pytest

from pipeline_config.loading import load_config
from tasks.errors import ConfigError

SMALL = ["grpo.per_device_train_batch_size=4", "grpo.num_generations=8"]


def test_processes_count_in_the_batch() -> None:
    with pytest.raises(ConfigError, match="4 x 1 = 4 completions per step is not a multiple"):
        load_config("tiny", overrides=SMALL)
    assert load_config("tiny", overrides=[*SMALL, "parallel.processes=2"]).parallel.processes == 2
    with pytest.raises(ConfigError, match=r"4 x 1 x 3 = 12 .*nearest legal per_device_train_batch_size: 8"):
        load_config("tiny", overrides=[*SMALL, "parallel.processes=3"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["parallel.processes=2", "run.backend=unsloth"], "trains on one GPU"),
        (["parallel.processes=2", "grpo.max_refills=2"], "max_refills works on one process"),
        (["parallel.strategy=fsdp", "run.device=cpu"], "needs GPUs"),
        (["parallel.strategy=fsdp", "run.device=auto", "sft.method=lora"], "trains all weights"),
        (["vllm.mode=server"], "needs server_url"),
        (["vllm.server_url=http://localhost:8000"], "read in mode server only"),
        (["vllm.mode=server", "vllm.server_url=localhost:8000"], "server_url"),
        (
            ["vllm.mode=server", "vllm.server_url=http://localhost:8000", "run.backend=unsloth"],
            "samples from its own weights",
        ),
    ],
)
def test_what_does_not_go_together(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config("tiny", overrides=overrides)


def test_a_server_for_the_rollouts() -> None:
    config = load_config("tiny", overrides=["vllm.mode=server", "vllm.server_url=http://gpu-2:8000"])
    assert (config.vllm.mode, config.vllm.server_url) == ("server", "http://gpu-2:8000")
