"""The settings of a small, whole run on digits."""

from typing import Any

SMALL: dict[str, Any] = {
    "data": {
        "name": "digits",
        "source": "digits",
        "private": 1197,
        "public": 400,
        "test": 200,
        "public_benchmark": True,
    },
    "ledger": {"epsilon": 100},
    "teachers": {"count": 20, "model": "logistic", "epochs": 15, "batch_size": 16, "learning_rate": 0.02, "chunk": 8},
    "queries": {"strategy": "random", "count": 40},
    "aggregation": {
        "mechanism": "confident-gnmax",
        "sigma": 3.0,
        "threshold": 8.0,
        "threshold_sigma": 4.0,
        "max_answers": 25,
        "delta": 1.0e-4,
    },
    "student": {"method": "supervised", "model": "logistic", "epochs": 20},
    "baseline": {"model": "logistic", "sampling_rate": 0.1, "batch_size": 120, "steps": 20},
}
