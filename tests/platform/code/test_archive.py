"""The archive of a capsule: the same bytes for the same files, and nothing hostile inside."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from lehr.code import archive
from lehr.code.archive import BadArchive, SourceFile


def tree(folder: Path, **files: str) -> list[SourceFile]:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return [SourceFile(f"project/{name}", str(folder / name), False) for name in files]


def packed(path: Path, sources: list[SourceFile]) -> str:
    with path.open("wb") as output:
        digest, size = archive.write(sources, output)
    assert size == path.stat().st_size
    assert archive.digest_of(path) == digest
    return digest


def header(kind: bytes, content: bytes, size: int | None = None) -> bytes:
    found = tarfile.TarInfo("project/a")
    found.type, found.size = kind, len(content) if size is None else size
    return found.tobuf(tarfile.GNU_FORMAT) + content + b"\0" * (-len(content) % 512)


PLAIN = header(tarfile.REGTYPE, b"")


ODD_HEADERS = {
    "endless_names": header(tarfile.GNUTYPE_LONGNAME, b"project/a\0") * 3000 + PLAIN,
    "endless_pax": header(tarfile.XHDTYPE, b"13 comment=x\n") * 3000 + PLAIN,
    "large_header": header(tarfile.XHDTYPE, b"5004 comment=" + b"x" * 4990 + b"\n") + PLAIN,
    "for_all": header(tarfile.XGLTYPE, b"13 comment=x\n") + PLAIN,
    "negative_size": header(tarfile.REGTYPE, b"", size=-1),
    "before_the_file": header(tarfile.REGTYPE, b"", size=-4096),
    "name_is_not_utf8": header(tarfile.GNUTYPE_LONGNAME, b"project/\xff\0") + PLAIN,
    "negative_pax_size": header(tarfile.XHDTYPE, b"11 size=-1\n") + PLAIN,
}


def test_same_files_give_the_same_digest_whatever_their_times_and_order(tmp_path):
    one = packed(tmp_path / "1.tar", tree(tmp_path / "a", x="1", y="2"))
    two = packed(tmp_path / "2.tar", list(reversed(tree(tmp_path / "b", x="1", y="2"))))
    other = packed(tmp_path / "3.tar", tree(tmp_path / "c", x="1", y="3"))
    assert one == two != other


def test_unpacked_files_are_those_that_were_packed(tmp_path):
    name = "project/" + "ä" * 60 + "/" + "b" * 150 + ".py"
    source = tmp_path / "x"
    source.write_bytes(b"\0\n1")
    packed(tmp_path / "1.tar", [SourceFile(name, str(source), True)])
    out = tmp_path / "out"
    out.mkdir()
    assert archive.unpack(tmp_path / "1.tar", str(out), read_only=True) == 1
    assert (out / name).read_bytes() == b"\0\n1"
    assert (out / name).stat().st_mode & 0o777 == 0o555
    [member] = archive.members(tmp_path / "1.tar")
    assert (member.name, member.size, member.executable) == (name, 3, True)


def made(path: Path, *entries: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as output:
        for entry in entries:
            output.addfile(entry, io.BytesIO(b"x" * entry.size))
    return path


def entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname = kind, target
    found.size = 1 if kind == tarfile.REGTYPE else 0
    return found


HOSTILE = {
    "link": [entry("project/a", tarfile.SYMTYPE, "/etc/passwd")],
    "hard link": [entry("project/b"), entry("project/a", tarfile.LNKTYPE, "project/b")],
    "absolute path": [entry("/project/a")],
    "parent path": [entry("project/../../a")],
    "dot": [entry("project/./a")],
    "other top folder": [entry("etc/passwd")],
    "top folder itself": [entry("project")],
    "backslash": [entry("project/..\\a")],
    "device": [entry("project/a", tarfile.CHRTYPE)],
    "pipe": [entry("project/a", tarfile.FIFOTYPE)],
    "folder": [entry("project/a", tarfile.DIRTYPE)],
    "twice": [entry("project/a"), entry("project/a")],
    "below a file": [entry("project/a"), entry("project/a/b")],
    "file over a folder": [entry("project/a/b"), entry("project/a")],
    "long name": [entry("project/" + "a" * 2000)],
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_archive_is_refused_and_writes_nothing_outside(tmp_path, case):
    path = made(tmp_path / "bad.tar", *HOSTILE[case])
    with pytest.raises(BadArchive):
        archive.members(path)
    out = tmp_path / "deep" / "out"
    out.mkdir(parents=True)
    with pytest.raises(BadArchive):
        archive.unpack(path, str(out))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.tar", "deep"]
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["out"]


def test_bomb_of_many_files_or_bytes_is_refused(tmp_path, monkeypatch):
    path = made(tmp_path / "1.tar", *(entry(f"project/{n}") for n in range(5)))
    monkeypatch.setattr(archive, "MOST_FILES", 4)
    with pytest.raises(BadArchive, match="more than 4 files"):
        archive.members(path)
    monkeypatch.setattr(archive, "MOST_FILES", 100)
    monkeypatch.setattr(archive, "LARGEST", 4)
    with pytest.raises(BadArchive, match="4 bytes"):
        archive.members(path)


def test_sparse_file_that_would_grow_is_refused(tmp_path):
    sparse = entry("project/a")
    sparse.pax_headers = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.size": "1000000000",
        "GNU.sparse.map": "0,1",
    }
    with pytest.raises(BadArchive):
        archive.members(made(tmp_path / "1.tar", sparse))


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b" + b"a" * 600, b"a" * 10240])
def test_file_that_is_no_archive_is_refused(tmp_path, content):
    path = tmp_path / "1.tar"
    path.write_bytes(content)
    with pytest.raises(BadArchive, match="not a capsule"):
        archive.members(path)


@pytest.mark.parametrize("case", ODD_HEADERS)
def test_header_that_would_take_memory_or_lead_astray_is_refused(tmp_path, case):
    path = tmp_path / "1.tar"
    path.write_bytes(ODD_HEADERS[case] + b"\0" * 1024)
    with pytest.raises(BadArchive):
        archive.members(path)
