"""The file of secrets: who may read it, what an error shows, values for the variables of a run."""

from __future__ import annotations

import stat
import threading

import pytest

from lehr.errors import InternalError, NotFound
from lehr.store.secret_store import FILE, SecretStore


def test_values_are_kept_for_their_owner_alone(tmp_path):
    store = SecretStore(tmp_path)
    assert store.all() == []
    store.set("hf", "hf_value", by="anna", at=5.0)
    store.set("bucket", "first", by="user", at=6.0)
    store.set("bucket", "second", by="ben", at=7.0)
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    again = SecretStore(tmp_path)
    assert [(one.name, one.changed_by, one.changed_at) for one in again.all()] == [
        ("bucket", "ben", 7.0),
        ("hf", "anna", 5.0),
    ]
    assert again.values({"A": "bucket", "B": "hf"}) == {"A": "second", "B": "hf_value"}
    again.remove("hf")
    with pytest.raises(NotFound, match="no secret 'hf'"):
        store.values({"B": "hf"})


def test_unknown_name_is_an_error_with_the_nearest(tmp_path):
    store = SecretStore(tmp_path)
    store.set("hf-read", "v", by="user", at=0.0)
    with pytest.raises(NotFound) as error:
        store.remove("hf-reed")
    assert error.value.hint == "Did you mean hf-read?"
    with pytest.raises(NotFound) as error:
        store.values({"A": "zebra"})
    assert error.value.hint == "Set it: lehr admin secret set zebra"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"secrets": {"a": "hidden-value"}}'])
def test_damaged_file_is_an_error_without_its_content(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(InternalError) as error:
        SecretStore(tmp_path).values({"A": "a"})
    assert FILE in str(error.value)
    assert "hidden-value" not in str(error.value)
    assert error.value.__cause__ is None


def test_changes_at_the_same_time_are_all_kept(tmp_path):
    store = SecretStore(tmp_path)

    def several(thread: int) -> None:
        for index in range(10):
            store.set(f"s{thread}-{index}", "v", by="user", at=0.0)

    threads = [threading.Thread(target=several, args=(n,)) for n in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(store.all()) == 40
