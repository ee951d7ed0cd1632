"""A prepared corpus, shared by the tests of a file."""

import pytest

from lehr_testing.corpora import documents, prepare_texts
from lehr_trainer.data import prepare
from lehr_trainer.data.token_dataset import read_manifest


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A corpus of several shards, so that batches are gathered from more than one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "SHARD_TOKENS", 3000)
        patch.setattr(prepare, "_BATCH_BYTES", 700)
        made = prepare_texts(tmp_path_factory.mktemp("corpus"), documents(300))
    assert len(read_manifest(made.directory).train) > 3
    return made
