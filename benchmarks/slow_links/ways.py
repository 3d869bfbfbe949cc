"""What is compared: the options of each way to add up 40 MB of gradients."""

from __future__ import annotations

from typing import Any

TOTAL_MB = 40.0

WAYS: dict[str, dict[str, Any]] = {
    "float32, one piece": {"bucket_mb": 0},
    "float32, 4 buckets": {"bucket_mb": TOTAL_MB / 4},
    "float32, 8 buckets": {"bucket_mb": TOTAL_MB / 8},
    "float32, default": {},
    "bfloat16, one piece": {"bucket_mb": 0, "reduce_dtype": "bfloat16"},
    "bfloat16, 4 buckets": {"bucket_mb": TOTAL_MB / 8, "reduce_dtype": "bfloat16"},
    "bfloat16, 8 buckets": {"bucket_mb": TOTAL_MB / 16, "reduce_dtype": "bfloat16"},
}
"""By name; sizes are of the gradients as they travel."""
