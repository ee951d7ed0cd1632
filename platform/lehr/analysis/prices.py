"""Default prices of a GPU-hour: US dollars, rented on demand.

Rounded figures for planning; ``lehr plan --price`` and ``lehr sweep --price`` take the real one.
"""

from __future__ import annotations

DOLLARS_PER_GPU_HOUR: dict[str, float] = {
    "B200": 5.00,
    "H200": 3.50,
    "GH200": 2.50,
    "H100": 3.00,
    "A100": 2.00,
    "A40": 0.80,
    "A10": 0.75,
    "A10G": 1.00,
    "L40S": 1.00,
    "L4": 0.60,
    "RTX 4090": 0.50,
    "RTX 3090": 0.30,
    "V100": 0.80,
    "T4": 0.35,
}
