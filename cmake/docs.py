#!/usr/bin/env python3
"""Keeps the documents true: links and paths they name exist, and the README's commands work.

Without options it checks links and paths. --commands runs every command of the README's ```sh blocks in a scratch
folder that links to the tree. A command it has no way to run is a failure, so that no example goes untested.
"""

import argparse
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time

TOP_FOLDERS = r"(?:script|cmake|include|src|tools|tests|bench|python|docs|examples|\.ci)"
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(rf"(?<![\w/.-])({TOP_FOLDERS}/[\w./*{{}},<>-]*|[A-Z]+\.md|CMakeLists\.txt|CMakePresets\.json)")
# What cannot be run inside a checkout: getting it, and stepping into it.
OUTSIDE = ("git", "cd")
# What needs a plugin of XLA's, which nobody has to install: without one, the commands' options are checked and no more.
NEEDS_XLA = ("--xla", "xla_chunked")
# These run the tests, or change the tree: from inside a test, only their options are checked.
NOT_FROM_A_TEST = ("script/test", "script/requirements", "script/format", ".ci/run")
TIMEOUT_S = 600


def documents(root):
    names = [root / name for name in ("README.md", "HACKING.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return [path for path in names if path.exists()] + sorted((root / "docs").rglob("*.md"))


def without_blocks(text):
    """The text with fenced blocks blanked, line numbers kept."""
    lines, inside = [], False
    for line in text.splitlines():
        fence = line.lstrip().startswith("```")
        lines.append("" if inside or fence else line)
        inside = inside != fence
    return lines


def anchors(path):
    """GitHub's anchors of a document's headings."""
    found = set()
    for line in without_blocks(path.read_text(encoding="utf-8")):
        if match := re.match(r"#+\s+(.*)", line):
            found.add(re.sub(r"[^\w\- ]", "", match[1].lower()).strip().replace(" ", "-"))
        found.update(re.findall(r'<a (?:id|name)="([^"]+)"', line))
    return found


def check_link(path, target):
    if re.match(r"[a-z]+:", target):
        return None
    file_part, _, anchor = target.partition("#")
    linked = (path.parent / file_part).resolve() if file_part else path
    if not linked.exists():
        return f"link to {target}, which does not exist"
    if anchor and linked.suffix == ".md" and anchor not in anchors(linked):
        return f"link to {target}: no such heading"
    return None


def expand(text):
    """Shell-style braces: a/{b,c} -> a/b a/c."""
    if match := re.search(r"\{([^{}]*)\}", text):
        return [path for option in match[1].split(",")
                for path in expand(text[:match.start()] + option.strip() + text[match.end():])]
    return [text]


def check_path(root, text):
    for path in expand(text.rstrip(".,")):
        if "<" in path or "NAME" in path or "NNNN" in path:
            continue
        exists = any(root.glob(path)) if "*" in path else (root / path).exists()
        if not exists:
            return f"names {path}, which does not exist"
    return None


def unreachable(root):
    """Pages of docs/ that no chain of links from the README leads to; design notes are for who looks for them."""
    seen, ahead = set(), [root / "README.md"]
    while ahead:
        path = ahead.pop()
        if path in seen or path.suffix != ".md" or not path.exists():
            continue
        seen.add(path)
        for line in without_blocks(path.read_text(encoding="utf-8")):
            targets = (first or second for first, second in LINK.findall(line))
            ahead += [(path.parent / target.partition("#")[0]).resolve() for target in targets if ":" not in target]
    return [page for page in sorted((root / "docs").glob("*.md")) if page.resolve() not in seen]


def check_documents(root):
    problems = [f"{page.relative_to(root)}: no link leads here from README.md" for page in unreachable(root)]
    for path in documents(root):
        place = path.relative_to(root)
        # A design note speaks of what will be, too: only its links are held to the tree.
        is_note = place.parts[:2] == ("docs", "design")
        for number, line in enumerate(without_blocks(path.read_text(encoding="utf-8")), 1):
            found = [check_link(path, first or second) for first, second in LINK.findall(line)]
            if not is_note:
                found += [check_path(root, name) for code in CODE.findall(line) for name in PATH.findall(code)]
            problems += [f"{place}:{number}: {problem}" for problem in found if problem]
    return problems


def readme_commands(text):
    """(line number, command) of every command in ```sh blocks; a trailing backslash continues a command."""
    commands, inside, pending, start = [], False, "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            inside = not inside and line.strip() == "```sh"
            continue
        if not inside or (not pending and (not line.strip() or line.lstrip().startswith("#"))):
            continue
        start = start if pending else number
        pending += line.rstrip("\\")
        if not line.endswith("\\"):
            commands.append((start, pending.strip()))
            pending = ""
    return commands


def check_options(words, folder):
    help_text = subprocess.run([words[0], "--help"], cwd=folder, capture_output=True, text=True, check=True).stdout
    unknown = [word for word in words[1:] if not re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", help_text)]
    return f"{words[0]} --help does not mention {unknown[0]}" if unknown else None


def has_xla():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = pathlib.Path(os.environ.get("TESSERA_XLA") or f"{cache}/tessera/xla")
    return bool(os.environ.get("TESSERA_PJRT_PLUGIN")) or any(folder.glob("plugins/xla-cpu-pjrt-*/*.so"))


def run_command(command, folder):
    """None when the command works, else what went wrong."""
    words = shlex.split(command, comments=True)
    if words[0] in OUTSIDE:
        return None
    if words[0] in NOT_FROM_A_TEST:
        return check_options(words, folder)
    if any(word in NEEDS_XLA for word in words) and not has_xla():
        print("skipped: no plugin of XLA's; script/setup --xla installs one")
        return check_options(words, folder) if words[0].startswith("script/") else None
    is_made_here = (pathlib.Path(folder) / words[0]).is_file()  # by a command before
    if not is_made_here and not re.match(r"(\./)?(script|build/release)/|cmake$", words[0]):
        return "is neither a script, a built program nor cmake, so no test can run it"
    result = subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=folder, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S, check=False)
    return None if result.returncode == 0 else f"exit {result.returncode}\n{result.stdout[-2000:]}"


def check_commands(root):
    problems = []
    readme = root / "README.md"
    commands = readme_commands(readme.read_text(encoding="utf-8"))
    if not commands:
        return ["README.md: no ```sh block; the two commands a reader needs are missing"]
    with tempfile.TemporaryDirectory() as scratch:
        for entry in root.iterdir():
            (pathlib.Path(scratch) / entry.name).symlink_to(entry)
        for number, command in commands:
            start = time.monotonic()
            problem = run_command(command, scratch)
            print(f"{'failed' if problem else 'works '} {time.monotonic() - start:6.1f} s  {command}", flush=True)
            if problem:
                problems.append(f"README.md:{number}: {command}: {problem}")
    return problems


def main():
    parser = argparse.ArgumentParser(description="Checks the documents' links, paths and commands.")
    parser.add_argument("root", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--commands", action="store_true", help="run the README's commands instead")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    problems = check_commands(root) if arguments.commands else check_documents(root)
    print("\n".join(problems) if problems else "docs: everything they name exists and works")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
