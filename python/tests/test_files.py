"""Files that this package writes are whole, or what they were."""

import os
import stat
import threading

import pytest
from tessera._files import whole_file


def test_new_file_has_the_mode_of_any_other(tmp_path):
    with whole_file(tmp_path / "new") as file:
        file.write(b"all of it")
    (tmp_path / "other").write_bytes(b"")
    assert (tmp_path / "new").read_bytes() == b"all of it"
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_file_that_is_there_stays_whole_until_the_end(tmp_path):
    path = tmp_path / "plan"
    path.write_bytes(b"before")
    path.chmod(0o640)
    with whole_file(path) as file:
        file.write(b"after")
        file.flush()
        assert path.read_bytes() == b"before"
    assert path.read_bytes() == b"after" and stat.S_IMODE(path.stat().st_mode) == 0o640
    with pytest.raises(ZeroDivisionError), whole_file(path) as file:
        file.write(b"half")
        1 / 0
    assert path.read_bytes() == b"after" and os.listdir(tmp_path) == ["plan"]


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder: .*/nowhere'$"), whole_file(tmp_path / "nowhere" / "plan"):
        pass


def test_link_stays_a_link_and_a_pipe_a_pipe(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "named")
    with whole_file(tmp_path / "link") as file:
        file.write(b"through")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "named").read_bytes() == b"through"
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    with whole_file(tmp_path / "pipe") as file:
        file.write(b"streamed")
    reader.join()
    assert read == [b"streamed"] and stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_folder_is_an_error(tmp_path):
    with pytest.raises(IsADirectoryError), whole_file(tmp_path):
        pass
    with pytest.raises(FileNotFoundError), whole_file(tmp_path / "missing" / "file"):
        pass
