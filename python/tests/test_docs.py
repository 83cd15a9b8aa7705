"""Every Python block of the documents runs, in order, as a reader would run it."""

import pathlib
import re

import pytest

DOCUMENTS = ["docs/python.md"]


def blocks(path):
    """(line number, code) of each ```python block."""
    text = path.read_text(encoding="utf-8")
    for match in re.finditer(r"^```python\n(.*?)^```$", text, re.M | re.S):
        yield text[: match.start()].count("\n") + 2, match[1]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_blocks_run(name, root, tmp_path, monkeypatch):
    path = root / name
    if not path.exists():
        pytest.skip(f"{name} is not beside the tests")
    monkeypatch.chdir(tmp_path)
    found = list(blocks(path))
    assert found
    names = {"__name__": "__main__"}
    for line, code in found:
        for library in ("torch", "jax"):
            if re.search(rf"^\s*(import|from) (tessera\.)?{library}\b", code, re.M):
                pytest.importorskip(library)
        # Blank lines before the code, so that a traceback names the document's own line.
        exec(compile("\n" * (line - 1) + code, str(pathlib.Path(name)), "exec"), names)
