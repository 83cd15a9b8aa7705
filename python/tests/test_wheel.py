"""What the wheel says it runs on: one per version before Python 3.12, abi3 from there on, and glibc 2.36 at most."""

import importlib.metadata
import pathlib
import re
import sys

import pytest

import tessera


def tags():
    said = importlib.metadata.distribution("tessera-attention").read_text("WHEEL")
    return re.findall(r"^Tag: (\S+?)-(\S+?)-(\S+)$", said, re.M)


def test_python_tag():
    """Without the headers that a stable ABI needs, a build silently becomes one for a single version."""
    old = f"cp3{sys.version_info.minor}"
    want = (old, old) if sys.version_info < (3, 12) else ("cp312", "abi3")
    assert tags() and {tag[:2] for tag in tags()} == {want}
    names = [file.name for file in pathlib.Path(tessera.__file__).parent.glob("_native*.so")]
    assert len(names) == 1 and (f"cpython-3{sys.version_info.minor}" in names[0]) == (want[1] != "abi3"), names


def test_platform_tag():
    platforms = [platform for _, _, platform in tags()]
    if all(platform.startswith("linux_") for platform in platforms):
        pytest.skip("this wheel was not repaired by auditwheel")
    for platform in platforms:
        major, minor = re.match(r"manylinux_(\d+)_(\d+)_", platform).groups()
        assert (int(major), int(minor)) <= (2, 36), platform
