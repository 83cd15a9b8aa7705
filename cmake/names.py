#!/usr/bin/env python3
"""Checks names with clang-tidy, several files at a time.

Most of a run of clang-tidy on one file is reading headers, so files are read in groups. A name that two files of a group
both have for themselves gets a number in the second, which leaves its style as it was. A group that does not compile all
the same is halved, down to single files, so every file is checked whatever the grouping makes of it.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

GROUP_SIZE = 24
NOISE = re.compile(r"warnings? generated|^Suppressed|^Use -header-filter|treated as error")
# A name that can be given a number without touching others': the library's own style, unlike that of the standard's.
RENAMABLE = re.compile(r"k?[A-Z][a-z]\w*$")
# What the file may see differently after another one: switches of its headers, and code that is read once per target.
ALONE = re.compile(r'#\s*include\s*[<"]hwy/|^#\s*define(?!.*TESSERA_\w+\()', re.MULTILINE)


def own_names(text):
    """Names at the margin of unnamed namespaces, and some more: too many only makes groups smaller."""
    names, inside = set(), False
    for line in text.splitlines():
        if line == "namespace {":
            inside = True
        elif line.startswith("}  // namespace"):
            inside = False
        elif inside and re.match(r"(?!using\b)\w", line):  # an alias may be said twice
            kind = re.search(r"\b(?:struct|class|enum|union)\s+(?:class\s+)?(\w+)", line)
            names.update([kind[1]] if kind else re.findall(r"\b(\w+)\s*(?=[({=;\[]|$)", line))
    return names - {"const", "constexpr", "override", "noexcept", "else", "inline", "static"}


def groups_of(entries):
    """Lists of (entry of the compile database, its names that an earlier one of the list has)."""
    groups = []
    for entry in sorted(entries, key=lambda entry: entry["file"]):
        text = pathlib.Path(entry["file"]).read_text(encoding="utf-8")
        names = own_names(text)
        key = tuple(word for word in flags_of(entry) if word.startswith(("-I", "-D", "-isystem", "-std", "/")))
        found = None
        if not ALONE.search(text):
            found = next((group for group in groups if group["key"] == key and len(group["members"]) < GROUP_SIZE
                          and all(map(RENAMABLE.match, group["names"] & names))), None)
        if found is None:
            found = {"key": key if not ALONE.search(text) else None, "names": set(), "members": []}
            groups.append(found)
        found["members"].append((entry, found["names"] & names))
        found["names"] |= names
    return [group["members"] for group in groups]


def flags_of(entry):
    words = shlex.split(entry["command"])
    if "-o" in words:
        at = words.index("-o")
        del words[at:at + 2]
    return [word for word in words if word not in ("-c", entry["file"])]


def tidy(tool, database, files, config):
    command = [tool, "--quiet", "-p", str(database), f"--config-file={config}", *map(str, files)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (result.stdout + result.stderr).splitlines()
    return result.returncode, [line for line in lines if not NOISE.search(line)]


def check_group(tool, build, members, config):
    entries = [entry for entry, _ in members]
    if len(entries) == 1:
        return tidy(tool, build, [entries[0]["file"]], config)
    with tempfile.TemporaryDirectory() as scratch:
        together = pathlib.Path(scratch, "together.cc")
        lines = []
        for number, (entry, taken) in enumerate(members):
            # In files of their own: the check looks at the macros of the main file.
            before, after = pathlib.Path(scratch, f"before{number}.h"), pathlib.Path(scratch, f"after{number}.h")
            before.write_text("".join(f"#define {name} {name}{number}\n" for name in sorted(taken)), encoding="utf-8")
            after.write_text("".join(f"#undef {name}\n" for name in sorted(taken)), encoding="utf-8")
            lines += [f'#include "{path}"\n' for path in (before, entry["file"], after)]
        together.write_text("".join(lines), encoding="utf-8")
        command = shlex.join([*flags_of(entries[0]), "-w", "-c", str(together)])
        database = [{"directory": entries[0]["directory"], "command": command, "file": str(together)}]
        pathlib.Path(scratch, "compile_commands.json").write_text(json.dumps(database), encoding="utf-8")
        status, lines = tidy(tool, scratch, [together], config)
    if not any("[clang-diagnostic-" in line for line in lines):
        return status, lines
    half = len(members) // 2
    (first, lines), (second, more) = (check_group(tool, build, part, config) for part in (members[:half], members[half:]))
    return first or second, lines + more


def main():
    parser = argparse.ArgumentParser(description="Checks names with clang-tidy, several files at a time.")
    parser.add_argument("--tool", default="clang-tidy", help="the clang-tidy to run")
    parser.add_argument("--build", required=True, type=pathlib.Path, help="a folder with compile_commands.json")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--groups", action="store_true", help="prints what is read together, and checks nothing")
    options = parser.parse_args()
    root = options.root.resolve()
    wanted = tuple(f"{root}/{folder}/" for folder in ("src", "tools"))
    database = json.loads((options.build / "compile_commands.json").read_text(encoding="utf-8"))
    entries = [entry for entry in database if entry["file"].startswith(wanted) and entry["file"].endswith(".cc")]
    if not entries:
        sys.exit(f"{options.build} compiles nothing of {root}")
    groups = sorted(groups_of(list({entry["file"]: entry for entry in entries}.values())), key=len, reverse=True)
    if options.groups:
        for group in groups:
            print(len(group), *(os.path.relpath(entry["file"], root) for entry, _ in group))
        return 0
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = list(pool.map(
            lambda group: check_group(options.tool, options.build, group, root / ".clang-tidy"), groups))
    lines = dict.fromkeys(line for _, group_lines in results for line in group_lines)
    if lines:
        print("\n".join(lines))
    if any(status for status, _ in results):
        return 1
    print(f"names: {len(entries)} files in {len(groups)} groups are named as they should be")
    return 0


if __name__ == "__main__":
    sys.exit(main())
