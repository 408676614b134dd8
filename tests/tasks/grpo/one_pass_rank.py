"""What every process of test_one_pass.py's two runs: both trainers on its share of the same batches. Arguments: model folder, work folder."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from side_by_side import differences, run
from trl import GRPOTrainer

from tasks.grpo.trainer import LeanTrainer

model, work = Path(sys.argv[1]), Path(sys.argv[2])
settings = {"loss_type": "dapo", "gradient_accumulation_steps": 2, "per_device_train_batch_size": 4}
ours = run(LeanTrainer, model, work / "ours", ddp_find_unused_parameters=False, **settings)
theirs = run(GRPOTrainer, model, work / "trl", ddp_find_unused_parameters=False, **settings)
assert max(differences(ours, theirs).values()) < 1e-5, differences(ours, theirs)
assert any("sampling/importance_sampling_ratio/mean" in row for row in ours.logged)
assert theirs.forwards - ours.forwards == 6
assert ours.largest_logits == theirs.largest_logits  # several processes: whole logits, TRL's way
print("same", flush=True)
