"""The orthogonalisation: its polynomials as published, what it does to singular values, its exchange."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist

from lehr_trainer.optim.orthogonal import Iteration, Shares, orthogonalise

CUSHION = 0.02407327424182761
"""Of algorithm 1 of arXiv:2505.16932, for the least singular value 0.001."""


def best_quintic(low: float, high: float) -> np.ndarray:
    """Return a, b, c of the odd polynomial nearest to 1 on [low, high], by Remez' exchange."""
    inner = np.array([(3 * low + high) / 4, (low + 3 * high) / 4])
    error, before = 1.0, 2.0
    while abs(before - error) > 1e-14:
        before = error
        points = np.array([low, *inner, high])
        signs = np.array([1, -1, 1, -1])
        equations = np.stack([points, points**3, points**5, signs], axis=1)
        a, b, c, error = np.linalg.solve(equations, np.ones(4))
        root = np.sqrt(9 * b**2 - 20 * a * c)
        inner = np.sqrt((-3 * b + np.array([-1, 1]) * root) / (10 * c))
    return np.array([a, b, c])


def test_coefficients_of_polar_express_are_the_greedy_best_of_its_paper() -> None:
    """Section 3 of arXiv:2505.16932: each polynomial is the best on what the ones before leave."""
    low, high = 1e-3, 1.0
    for got in Iteration.of("polar_express", 7).polynomials:
        want = best_quintic(max(low, CUSHION * high), high)
        ends = [want @ [x, x**3, x**5] for x in (low, high)]
        want *= 2 / sum(ends)  # Centred around 1, also where the cushion has moved the lower end.
        low = 2 * ends[0] / sum(ends)
        high = 2 - low
        assert got * 1.01 ** np.array([1, 3, 5]) == pytest.approx(want, rel=1e-6)
    assert Iteration.of("polar_express", 9).polynomials[7:] == ((1.875, -1.25, 0.375),) * 2


@pytest.mark.parametrize(
    ("coefficients", "least", "most"), [("jordan", 0.3, 1.4), ("polar_express", 0.85, 1.15)]
)
def test_singular_values_become_about_one_and_vectors_stay(
    coefficients: str, least: float, most: float
) -> None:
    for shape in ((3, 48, 32), (3, 32, 48)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        out = orthogonalise(x, Iteration.of(coefficients, 5)).float()
        values = torch.linalg.svdvals(out)
        assert values.min() > least
        assert values.max() < most
        u, _, v = torch.linalg.svd(x, full_matrices=False)
        core = u.mT @ out @ v.mT
        off = core - torch.diag_embed(core.diagonal(dim1=1, dim2=2))
        assert off.norm() < 0.1 * core.norm()


@pytest.mark.filterwarnings("error")
def test_exchange_uses_no_deprecated_name() -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    # It sends nothing, and so needs no other rank.
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        directions = [torch.randn(4, 6) for _ in range(3)]
        exchange = Shares.of_all_ranks().orthogonalise(directions, Iteration.of("jordan", 2))
        assert exchange.wait().shape == (3, 4, 6)
    finally:
        dist.destroy_process_group()
