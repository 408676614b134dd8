"""The GRPO stage with rollouts that do not depend on how many processes sample them; see test_world.py.

python two_processes.py <work dir>     carries out the stage of <work dir>/spec.json, on as many processes as it says
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tasks.process import ranks, stage_main


def fixed_rollouts() -> Any:
    """TRL's method that samples, replaced: the completion is a digit that depends on the prompt and on its place in the whole batch."""

    def single_turn(self: Any, prompt_ids: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        tokenizer = self.processing_class
        first = self.accelerator.process_index * len(prompt_ids)
        digits = [str((7 * at + sum(ids)) % 10) for at, ids in enumerate(prompt_ids, first)]
        return [[*tokenizer(d, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id] for d in digits], None

    return single_turn


if __name__ == "__main__":
    spec = Path(sys.argv[1]) / "spec.json"
    if "RANK" not in os.environ:
        sys.exit(ranks.run_ranks([sys.executable, *sys.argv], stage_main.processes_of(spec), spec.parent))
    from tasks.grpo.trainer import LedgerTrainer

    LedgerTrainer._generate_single_turn = fixed_rollouts()  # type: ignore[method-assign]
    stage_main.exit_with(stage_main.run_spec(spec, stage_main.load_entry))
