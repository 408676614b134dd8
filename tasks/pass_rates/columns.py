"""Columns of rates.parquet, one row a prompt: counts over its samples."""

from __future__ import annotations

import pyarrow as pa

COLUMNS = {
    "id": pa.string(),
    "samples": pa.int32(),
    "right": pa.int32(),
    "well_formed": pa.int32(),
    "truncated": pa.int32(),
    "tokens": pa.int64(),
}
