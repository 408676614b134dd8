"""The table that Prefect shows of the gate."""

from __future__ import annotations

from gate_support import CUT, DRIFT, R, W, measured

from pipeline_config.gate import GateSettings
from tasks.format_gate.measure import without_examples
from tasks.format_gate.table import COLUMNS, rows


def test_every_number_has_its_row() -> None:
    found = rows(without_examples(measured(*[[R, W, W, R], [R, DRIFT, CUT, W]] * 8)), GateSettings())
    assert all(tuple(row) == COLUMNS for row in found)
    shown = {row["what"]: row for row in found}
    assert shown["completions"]["value"] == "16 prompts x 4"
    assert shown["whole format"] == {
        "what": "whole format",
        "value": "75.0%",
        "95 % interval": "63.2% to 84.0%",
        "needed": "low end >= 80%",
    }
    assert shown["pass@4"]["value"] == "100.0%"
    # Two right of four: 2 of 6 pairs are alike; one of four: 3 of 6.
    assert shown["forecast of dead groups, G = 2"]["value"] == "41.7%"
    assert shown["forecast of dead groups, G = 64"]["needed"] == "beta-binomial"
    assert shown["<solution> for <SOLUTION>"]["value"] == "8 x case"
    assert shown["reward sound"]["needed"].startswith("within groups +-0.")
