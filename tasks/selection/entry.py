"""Selection: the training prompts that can teach, by the band of pass rates; the others are set aside, not deleted.

Runs in the stage process, without torch. Output: train.parquet (what GRPO trains on, as the dataset stage writes it), selection.parquet
(every prompt with its rate, whether it is kept, and why), selection.json (numbers and histograms).
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.process.context import StageContext, StageResult
from tasks.selection.choose import choose, summary
from tasks.selection.switch import least_kept


def run(ctx: StageContext) -> StageResult:
    """Choose, and write both tables."""
    config, settings = ctx.config, ctx.config.pass_rates
    train = pq.read_table(ctx.inputs["dataset"] / "train.parquet")
    measured = {row["id"]: row for row in pq.read_table(ctx.inputs["pass_rates"] / "rates.parquet").to_pylist()}
    ids = train.column("id").to_pylist()
    unique = list(dict.fromkeys(ids))
    right = {id: int(row["right"]) for id, row in measured.items()}
    rates = {id: row["right"] / row["samples"] for id, row in measured.items()}
    choice = choose(unique, rates, settings.low, settings.high, least_kept(config))
    kept = [choice.keeps(id) for id in ids]
    # Untouched where nothing is set aside: GRPO then is the training that it would be without a selection.
    pq.write_table(train if all(kept) else train.filter(pa.array(kept)), ctx.out / "train.parquet")
    table = [
        {
            "id": id,
            "samples": measured[id]["samples"] if id in measured else 0,
            "right": right.get(id),
            "rate": rates.get(id),
            "kept": choice.keeps(id),
            "why": choice.why[id],
        }
        for id in unique
    ]
    pq.write_table(pa.Table.from_pylist(table), ctx.out / "selection.parquet")
    numbers = summary(choice, right, settings.samples, config.grpo.num_generations, (settings.low, settings.high))
    (ctx.out / "selection.json").write_text(json.dumps(numbers, indent=1), encoding="utf-8")
    ctx.log(f"{numbers['kept']} of {numbers['prompts']} training prompts are kept")
    return StageResult(metrics=numbers, effective_config={}, notes=notes(numbers))


def notes(numbers: dict[str, Any]) -> list[str]:
    """Remarks for the report."""
    if not numbers["widened"]:
        return []
    low, high = numbers["band_used"]
    return [
        f"Too few prompts were within the pass-rate band, so it was widened to {low:g} - {high:g}; "
        f"{numbers['kept']} are kept."
    ]
