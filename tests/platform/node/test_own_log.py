"""``own_log``: lines that the disk of the log may refuse."""

from lehr.node import own_log
from lehr_testing.full_log import full_log


def test_line_is_written_at_once(capfd):
    own_log.write("beta: no answer")
    assert capfd.readouterr().err == "beta: no answer\n"


def test_full_disk_is_no_error():
    with full_log():
        own_log.write("beta: no answer")
        own_log.write("beta: no answer")
