"""A file with a secret appears whole, with one content for all who make it."""

import stat

import pytest

from reknit.pipeline.secret_files import secret_bytes_in


def names_in(directory):
    return [each.name for each in directory.iterdir()]


def test_a_missing_file_is_made_for_its_owner_only(tmp_path):
    file = tmp_path / "key"
    assert secret_bytes_in(file, lambda: b"one") == b"one"
    assert secret_bytes_in(file, lambda: b"two") == b"one"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert names_in(tmp_path) == ["key"]


def test_the_first_of_two_processes_decides(tmp_path):
    file = tmp_path / "key"

    def make():
        # Another process makes the file in the meantime.
        assert secret_bytes_in(file, lambda: b"other") == b"other"
        return b"own"

    assert secret_bytes_in(file, make) == b"other"
    assert names_in(tmp_path) == ["key"]


def test_the_file_is_not_there_before_its_content(tmp_path):
    file = tmp_path / "key"

    def make():
        assert not file.exists()
        raise OSError("no content")

    with pytest.raises(OSError, match="no content"):
        secret_bytes_in(file, make)
    assert names_in(tmp_path) == []
