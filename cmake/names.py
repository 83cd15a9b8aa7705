#!/usr/bin/env python3
"""Checks names with clang-tidy, several files at a time.

Most of a run of clang-tidy on one file is reading headers, so files are read in groups (cmake/grouping.py), where a
name with a number keeps its style. Files in which the compiler finds an error because of that are taken out and read
without the others, at last each alone, so every file is checked whatever the grouping makes of it.
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

import grouping

GROUP_SIZE = 48
NOISE = re.compile(r"warnings? generated|^Suppressed|^Use -header-filter|treated as error")
def settings_of(entry):
    """What a file is compiled with, apart: what must be the same in a group, and what a group may take together."""
    words = [word for word in flags_of(entry) if word.startswith(("-I", "-D", "-isystem", "-std", "/"))]
    return (tuple(word for word in words if not word.startswith(("-I", "-D"))),
            {word.partition("=")[0]: word for word in words if word.startswith(("-I", "-D"))})


def groups_of(entries):
    """Lists of entries of the compile database that are read together."""
    groups = []
    for entry in sorted(entries, key=lambda entry: entry["file"]):
        source = grouping.Source(entry["file"])
        same, shared = settings_of(entry)
        found = None
        if not source.alone:
            found = next((group for group in groups if group["same"] == same and len(group["members"]) < GROUP_SIZE
                          and not group["fixed"] & source.fixed
                          and all(group["shared"].get(key, word) == word for key, word in shared.items())), None)
        if found is None:
            found = {"same": None if source.alone else same, "shared": {}, "fixed": set(), "members": []}
            groups.append(found)
        found["members"].append(entry)
        found["fixed"] |= source.fixed
        found["shared"] |= shared
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


def command_of_group(entries, scratch):
    """Writes the group as one file; that file, and how it is compiled."""
    together = grouping.write_group([grouping.Source(entry["file"]) for entry in entries], scratch, "together")
    flags = flags_of(entries[0])
    more = dict.fromkeys(word for entry in entries for word in settings_of(entry)[1].values() if word not in flags)
    return together, [*flags, *more, "-w", "-c", str(together)]


def check_group(tool, build, entries, config):
    if len(entries) <= 2:
        results = [tidy(tool, build, [entry["file"]], config) for entry in entries]
        return max(status for status, _ in results), [line for _, lines in results for line in lines]
    with tempfile.TemporaryDirectory() as scratch:
        together, command = command_of_group(entries, scratch)
        compiled = subprocess.run([*command, "-fsyntax-only", "-ferror-limit=0"], cwd=entries[0]["directory"],
                                  capture_output=True, text=True, check=False)
        if compiled.returncode == 0:
            database = [{"directory": entries[0]["directory"], "command": shlex.join(command), "file": str(together)}]
            pathlib.Path(scratch, "compile_commands.json").write_text(json.dumps(database), encoding="utf-8")
            return tidy(tool, scratch, [together], config)
    wrong = set(re.findall(r"^(/[^:]+):\d+:\d+: (?:fatal )?error:", compiled.stderr, re.MULTILINE))
    apart = [entry for entry in entries if entry["file"] in wrong]
    rest = [entry for entry in entries if entry["file"] not in wrong]
    if not apart or not rest:
        apart, rest = entries[:len(entries) // 2], entries[len(entries) // 2:]
    (first, lines), (second, more) = (check_group(tool, build, part, config) for part in (rest, apart))
    return max(first, second), lines + more


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
            print(len(group), *(os.path.relpath(entry["file"], root) for entry in group))
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
