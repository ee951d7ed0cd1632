"""The expected loss of an untrained model. Pure: planning needs no torch."""

from __future__ import annotations

import math

from lehr_trainer.configs.parametrization import head_std, output_multiplier
from lehr_trainer.configs.train import ModelConfig

EMBEDDING_STD = 0.02
"""Standard deviation of the initial embeddings."""


def predicted_first_loss(model: ModelConfig) -> float:
    """Estimate the mean cross entropy in nats of freshly initialised weights, on any text.

    The last norm leaves a vector of root mean square 1, so logits are normal with variance
    ``hidden_size * std^2`` of the head's weights (under muP times (base / width)^2, and a tied
    head has the first weights of an untied one); for such
    logits the expected cross entropy is ln(vocabulary) + variance / 2. The 1.2B Llama run of
    docs/reference-runs.md started at 12.26; this gives 12.19, and ln(V) alone 11.78. A tied
    ``stable_embedding`` over a few hundred tokens starts up to 0.4 higher: the current token has a
    large logit of its own, which matters only in a small vocabulary.
    """
    std: float
    if not model.tie_embeddings or model.parametrization == "mup":
        std = head_std(model)
    elif model.stable_embedding:  # Xavier's
        std = math.sqrt(2 / (model.vocab_size + model.hidden_size))
    else:
        std = EMBEDDING_STD
    std *= output_multiplier(model)
    return math.log(model.vocab_size) + model.hidden_size * std**2 / 2
