"""Files that other programs find whole or, as long as they are being written, as they were."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import secrets
from collections.abc import Iterator
from typing import BinaryIO


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` when all is written. Pipes and devices are written as they are."""
    path = pathlib.Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(path.parent))
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with beside.open("xb") as file:
            yield file
        if path.exists():
            beside.chmod(path.stat().st_mode & 0o7777)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
