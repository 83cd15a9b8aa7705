"""Every Python block of the documents runs, in order, as a reader would run it; of how to install, the commands are checked."""

import pathlib
import re
import shlex
import subprocess
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


@pytest.mark.parametrize("name", ["use_with_flex", "use_with_splash"])
def test_examples_run(name, root):
    path = root / "examples" / f"{name}.py"
    if not path.exists():
        pytest.skip(f"{path.name} is not beside the tests")
    done = subprocess.run([sys.executable, path], capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr


def commands(path):
    """(line number, words) of each command in its ```sh blocks, without comments."""
    text = path.read_text(encoding="utf-8")
    for match in re.finditer(r"^```sh\n(.*?)^```$", text, re.M | re.S):
        first = text[: match.start()].count("\n") + 2
        subprocess.run(["bash", "-n"], input=match[1], text=True, check=True)
        for number, line in enumerate(match[1].splitlines()):
            if words := shlex.split(line, comments=True):
                yield first + number, words


@pytest.mark.parametrize("name", ["docs/python.md", "docs/tutorial.md"])
def test_commands_of_installing(name, root):
    """As far as they can be checked without compiling the library once more: on the systems that they name there must be
    Python's headers, and an environment before pip, which the system's own Python refuses (PEP 668)."""
    path = root / name
    if not (root / "script").exists():
        pytest.skip(f"{name} is not beside the tests")
    packages, environment, is_active, tested = set(), None, False, False
    for line, words in commands(path):
        if words[0].startswith("script/"):
            said = subprocess.run([root / words[0], "--help"], capture_output=True, text=True, check=True).stdout
            for option in words[1:]:
                assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", said), f"{name}:{line}: {words[0]} has no {option}"
            packages |= packages_of(root, "core_packages")
            packages |= packages_of(root, "wheel_packages") if "--wheel" in words else set()
        elif words[:3] == ["python3", "-m", "venv"]:
            assert "python3-venv" in packages, f"{name}:{line}"
            environment = words[3]
        elif words[0] == ".":
            assert words[1] == f"{environment}/bin/activate", f"{name}:{line}"
            is_active = True
        elif words[0] == "pip":
            assert is_active and {"python3-dev", "g++", "cmake", "ninja-build"} <= packages, f"{name}:{line}"
            tested = tested or words == ["pip", "install", "."]
        else:
            pytest.fail(f"{name}:{line}: {words[0]} is no command that this test knows")
    assert tested


def packages_of(root, name):
    said = subprocess.run(["bash", "-c", f'source "$1" && printf "%s\\n" "${{{name}[@]}}"', "bash", root / "script/lib.sh"],
                          capture_output=True, text=True, check=True).stdout  # fmt: skip
    return set(said.split())
