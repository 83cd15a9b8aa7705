"""Every Python block of the documents runs, in order, as a reader would run it."""

import pathlib
import re
import sys
import types

import pytest

DOCUMENTS = ["docs/python.md", "docs/migrate_from_flex.md", "docs/use_with_splash.md", "docs/tutorial.md", "README.md"]


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
    # A module of its own: torch.compile looks globals up there.
    module = types.ModuleType("document")
    monkeypatch.setitem(sys.modules, "document", module)
    for line, code in found:
        for library in ("torch", "jax"):  # what stands before has run by then
            if re.search(rf"^\s*(import|from) (tessera\.)?{library}\b", code, re.M):
                pytest.importorskip(library, reason=f"{library} is not installed; blocks from line {line} on need it")
        # Blank lines before the code, so that a traceback names the document's own line.
        exec(compile("\n" * (line - 1) + code, str(pathlib.Path(name)), "exec"), module.__dict__)
