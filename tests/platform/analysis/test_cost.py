"""GPU-hours and the GPU whose price counts."""

import pytest

from lehr.analysis.cost import gpu_hours, priced_gpu


def test_gpu_hours_count_each_gpu_of_each_attempt_and_living_ones_until_now():
    attempts = [(8, 0.0, 1800.0), (2, 3600.0, None), (0, 0.0, 9000.0)]
    assert gpu_hours(attempts, now=7200.0) == pytest.approx(4.0 + 2.0)


def test_a_clock_that_went_back_costs_nothing():
    assert gpu_hours([(8, 100.0, 50.0)], now=0.0) == 0.0


@pytest.mark.parametrize(
    ("device", "gpu_type", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", "A100", "H100"),
        (None, "a100", "A100"),
        ("cpu (logical GPU)", "A100", None),
        (None, "TPU", None),
        (None, None, None),
    ],
)
def test_price_is_that_of_the_gpu_that_trained(device, gpu_type, kind):
    gpu = priced_gpu(device, gpu_type)
    assert (gpu.kind if gpu else None) == kind
