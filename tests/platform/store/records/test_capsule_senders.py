"""Who has sent a capsule."""

from lehr.store import Store


def test_sender_is_known_until_the_capsule_is_removed(tmp_path):
    with Store.open(tmp_path) as store:
        senders = store.capsule_senders
        for _ in range(2):
            senders.add("d1", {"a", "b"})
        senders.add("d2", {"a"})
        asked = [("d1", {"a"}), ("d1", {"c", "b"}), ("d1", {"c"}), ("d1", ()), ("d3", {"a"})]
        assert [senders.sent(*one) for one in asked] == [True, True, False, False, False]
        senders.forget([])
        senders.forget(["d1"])
        assert [senders.sent(one, {"a"}) for one in ("d1", "d2")] == [False, True]
