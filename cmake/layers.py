#!/usr/bin/env python3
"""Keeps the include rules: which folder may include which, and which third-party header.

The table below is the architecture in one place. The same walk keeps three rules of size and shape: public headers
stay under 200 lines, source files at or under 600, and a function-like macro lives only around the .def file it reads.
And one of export: what a public header declares is visible outside the shared library, so it says so.
"""

import argparse
import pathlib
import re
import sys

EXPECTED, FMT, XXHASH = "tl/expected.hpp", "fmt/", "xxhash.h"
JSON, TOML, CLI = "nlohmann/", "toml++/", "CLI/"
HIGHWAY, TBB, NANOBIND, SIMDJSON = "hwy/", "tbb/", "nanobind/", "simdjson.h"
BASE_LIBRARIES = {EXPECTED, FMT}
THIRD_PARTY = BASE_LIBRARIES | {XXHASH, "tl/", JSON, TOML, CLI, HIGHWAY, TBB, SIMDJSON}

# folder -> folders it may include (itself is always allowed). Public headers belong to a folder too, see OWNER.
LAYERS = {
    "src/base": set(),
    "src/io": {"src/base"},
    "src/contract": {"src/base", "src/io"},
    "src/rows": {"src/base", "src/io", "src/contract"},
    "src/plan": {"src/base", "src/io", "src/contract"},
    # The check judges everybody else, so it knows the question, and a plan as everybody sees it: see PUBLIC_ONLY.
    "src/check": {"src/base", "src/contract", "src/plan"},
    "src/routing": {"src/base", "src/contract", "src/plan"},
    "src/planner": {"src/base", "src/contract", "src/plan"},
    "src/pipeline": {"src/base", "src/contract", "src/plan", "src/routing", "src/planner"},
    "src/export": {"src/base", "src/contract", "src/plan", "src/planner"},
    "src/view": {"src/base", "src/io", "src/contract", "src/plan"},
    "src/lanes": {"src/base", "src/io", "src/contract", "src/plan"},
    # A receipt records: it asks neither the lane table nor a ledger whether what it says is what they would say.
    "src/receipt": {"src/base", "src/io", "src/contract", "src/plan", "src/lanes"},
    "src/ledger": {"src/base", "src/io", "src/contract", "src/plan", "src/lanes", "src/receipt"},
    "src/classes": {"src/base", "src/io", "src/contract", "src/plan", "src/planner", "src/receipt"},
    "src/dispatch": {"src/base", "src/contract", "src/plan", "src/planner", "src/lanes", "src/receipt", "src/ledger",
                     "src/classes"},
    "src/engine": {"src/base", "src/io", "src/contract", "src/plan", "src/routing", "src/planner", "src/pipeline",
                   "src/lanes", "src/receipt", "src/ledger", "src/classes", "src/dispatch"},
    # A sharded program goes through the XLA lane's client and builder.
    "src/shard": {"src/base", "src/io", "src/contract", "src/plan", "src/check", "src/planner", "src/pipeline", "src/lanes", "src/receipt",
                  "src/classes", "src/dispatch", "src/engine"},
    "src/model": {"src/base", "src/io", "src/contract", "src/rows", "src/plan", "src/planner", "src/pipeline", "src/lanes",
                  "src/receipt", "src/ledger", "src/classes", "src/dispatch", "src/engine", "src/shard"},
    "src/train": {"src/base", "src/io", "src/contract", "src/rows", "src/plan", "src/check", "src/lanes", "src/receipt", "src/engine",
                  "src/shard", "src/model"},
    "src/capi": {"src/base", "src/io", "src/contract", "src/rows", "src/plan", "src/check", "src/routing", "src/planner",
                 "src/pipeline", "src/export", "src/view", "src/lanes", "src/receipt", "src/ledger", "src/classes", "src/dispatch",
                 "src/engine", "src/model", "src/train", "src/shard"},
}

# Of the folders they may include, these see the public headers only, and of src/base all.
PUBLIC_ONLY = {"src/check"}

# What lanes share: the interface, the checks before a run, scratch memory and threads.
SHARED_BY_LANES = {"lanes/lane.h", "lanes/check_args.h", "lanes/scratch.h", "lanes/weights.h", "lanes/workers.h"}

# A folder that a build has in place of a lane's, under the lane's own header.
STANDS_IN_FOR = {"no_xla": "xla"}

# Third-party headers by folder or file: anywhere in it, and in its .cc files only.
LIBRARIES = {
    "src/base": (BASE_LIBRARIES, set()),
    "src/base/hash.cc": (BASE_LIBRARIES, {XXHASH}),
    "src/io": (BASE_LIBRARIES, set()),
    "src/io/document_toml.cc": (BASE_LIBRARIES, {TOML}),
    "src/io/json_events.cc": (BASE_LIBRARIES, {JSON}),
    "src/contract": (BASE_LIBRARIES, set()),
    "src/rows": (BASE_LIBRARIES, set()),
    "src/rows/line_walker.cc": (BASE_LIBRARIES, {SIMDJSON}),
    "src/plan": (BASE_LIBRARIES, set()),
    "src/check": (BASE_LIBRARIES, set()),
    "src/routing": (BASE_LIBRARIES, set()),
    "src/planner": (BASE_LIBRARIES, set()),
    "src/pipeline": (BASE_LIBRARIES, set()),
    "src/export": (BASE_LIBRARIES, set()),
    "src/view": (BASE_LIBRARIES, set()),
    "src/lanes": (BASE_LIBRARIES, set()),
    "src/lanes/workers.cc": (BASE_LIBRARIES, {TBB}),
    "src/lanes/cpu": (BASE_LIBRARIES | {HIGHWAY}, set()),
    "src/receipt": (BASE_LIBRARIES, set()),
    "src/ledger": (BASE_LIBRARIES, set()),
    "src/classes": (BASE_LIBRARIES, set()),
    "src/dispatch": (BASE_LIBRARIES, set()),
    "src/engine": (BASE_LIBRARIES, set()),
    "src/model": (BASE_LIBRARIES, set()),
    "src/shard": (BASE_LIBRARIES, set()),
    "src/train": (BASE_LIBRARIES, set()),
    "src/capi": (BASE_LIBRARIES, set()),
    "include": ({EXPECTED}, set()),
    "tools": ({EXPECTED, FMT}, set()),
    "tools/tessera/arguments.cc": ({EXPECTED, FMT}, {CLI}),
    "bench": ({EXPECTED, FMT, CLI}, {JSON}),
    "tests/support/oracle": ({EXPECTED, FMT}, set()),
    "python": ({NANOBIND}, set()),
}

# Whose each public header is: a folder may include it when it may include its owner.
OWNER = {
    "error.h": "src/base", "error_codes.def": "src/base", "version.h": "src/base", "dtype.h": "src/base",
    "tensor.h": "src/base", "meter.h": "src/base", "spelling.h": "src/base",
    "io.h": "src/io", "bitmap.h": "src/io",
    "contract.h": "src/contract", "make_contract.h": "src/contract", "mask_term.h": "src/contract",
    "mask_leak.h": "src/contract", "named_files.h": "src/contract", "batch.h": "src/contract", "target.h": "src/contract",
    "chip_figures.h": "src/contract",
    "documents.h": "src/rows", "columns.def": "src/rows", "rows.h": "src/rows", "row_batch.h": "src/rows",
    "plan.h": "src/plan", "stages.h": "src/plan", "check.h": "src/check",
    "planner.h": "src/planner", "route.h": "src/routing", "export.h": "src/export",
    "view.h": "src/view",
    "lane.h": "src/lanes", "xla.h": "src/lanes", "reasons.def": "src/lanes", "cpu_guard.h": "src/lanes",
    "receipt.h": "src/receipt", "ledger.h": "src/ledger", "records.h": "src/ledger",
    "normalise.h": "src/classes", "prepare.h": "src/dispatch",
    "engine.h": "src/engine", "bridge.h": "src/engine", "run_tensors.h": "src/engine", "run.h": "src/engine", "compile.h": "src/engine",
    "model.h": "src/model", "model_spec.h": "src/model",
    "shard.h": "src/shard", "context.h": "src/shard", "metric.h": "src/shard", "shard_run.h": "src/shard",
    "train.h": "src/train",
    "c_api.h": "src/capi", "c_error.h": "src/capi", "c_data.h": "src/capi", "c_plan.h": "src/capi",
    "c_engine.h": "src/capi", "c_compile.h": "src/capi", "c_export.h": "src/capi", "c_view.h": "src/capi", "tessera.h": "src/capi",
}

# The oracle judges everybody else, so it may know the question only.
ORACLE = "tests/support/oracle"
ORACLE_PUBLIC = {"contract.h", "mask_term.h", "batch.h", "bitmap.h", "dtype.h", "error.h", "tensor.h"}

PUBLIC_HEADER_LINES = 200
HEADER_EXCEPTIONS = {"include/tessera/plan.h": 220}
SOURCE_LINES = 600

# What a benchmark program may look at behind the public headers, and of other programs. bench_cpu calls the lane that a
# Bound holds, to see what the public call adds. bench_xla times programs that are no part of the lane (dense attention)
# on the engine's own client, and shares its problems with bench_cpu. bench_shard reads what compiled collectives carry.
BENCH_EXCEPTIONS = {
    "cpu": ("engine/state.h",),
    "shard": ("shard/context_program.h", "shard/pod_model.h", "lanes/xla/pjrt/"),
    "xla": ("engine/state.h", "lanes/lane.h", "lanes/xla/", "cpu/problem.h"),
}

# Folders compile with hidden visibility; a public header lifts it around all that it declares.
EXPORT_BEGIN, EXPORT_END = "#pragma GCC visibility push(default)", "#pragma GCC visibility pop"

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
MACRO = re.compile(r"^\s*#\s*define\s+(\w+)\(")
# Hooks that a library asks its users to define before including it.
LIBRARY_HOOKS = {"TOML_ASSERT"}
# The one macro that stays: nothing else can leave the caller with an error and give a value.
LASTING_MACROS = {"TESSERA_TRY"}
UNDEF = re.compile(r"^\s*#\s*undef\s+(\w+)")


def is_standard(name):
    return re.fullmatch(r"[a-z0-9_]+(\.h)?|sys/[a-z]+\.h", name) is not None and name not in (XXHASH, SIMDJSON)


def folder_of(path):
    """The row of the tables that a file answers to, or None where no include rule applies (tests)."""
    parts = path.parts
    if parts[0] == "src" and len(parts) > 2:
        return f"src/{parts[1]}"
    if path.as_posix().startswith(ORACLE + "/"):
        return ORACLE
    return parts[0] if parts[0] in ("include", "tools", "bench", "python") else None


def may_use(folder, owner):
    return owner == folder or owner in LAYERS[folder]


def is_of(name, libraries):
    return any(name == entry or (entry.endswith("/") and name.startswith(entry)) for entry in libraries)


def check_library(folder, path, name):
    # A lane may have libraries of its own, and so may a file.
    folder = next((own for own in (path.as_posix(), path.parent.as_posix()) if own in LIBRARIES), folder)
    anywhere, in_cc = LIBRARIES[folder]
    if is_standard(name) or is_of(name, anywhere | (in_cc if path.suffix == ".cc" else set())):
        return None
    if any(name.startswith(entry) for entry in in_cc):
        return f"{name} may be included in .cc files only"
    return f"{folder} may not use {name}"


def check_public(folder, path, header):
    owner = OWNER.get(header)
    if owner is None:
        return f"tessera/{header} has no owner in cmake/layers.py"
    if folder in ("tools", "bench"):
        return None
    if folder == "python":  # one interface for every language but C++
        return None if header.startswith("c_") else f"python may include the C interface only, not tessera/{header}"
    if folder == ORACLE:
        return None if header in ORACLE_PUBLIC else f"the oracle may not include tessera/{header}"
    own = folder
    if folder == "include":
        own = OWNER.get(path.name)
        if own is None:
            return f"public header {path.name} has no owner in cmake/layers.py"
    return None if may_use(own, owner) else f"{own} may not include tessera/{header}, which belongs to {owner}"


def check_internal(folder, path, name):
    if folder == ORACLE:
        return None if name.startswith("oracle/") else f"the oracle may not include {name}"
    if folder == "include":
        return f"a public header may not include {name}"
    if folder == "python":
        return None if "/" not in name else f"python may include the C interface only, not {name}"
    if folder in ("tools", "bench"):
        # The named cases are shared by tests, benchmarks and `verify`.
        if name.startswith("cases/"):
            return None
        # A program of several files: bench/NAME.cc and the folder bench/NAME.
        program = path.parts[1].removesuffix(".cc")
        is_own = "/" not in name or name.startswith(program + "/")
        is_own |= folder == "bench" and name.startswith(BENCH_EXCEPTIONS.get(program, ()))
        return None if is_own else f"{folder} may include tessera/* only, not {name}"
    target = "src/" + name.split("/")[0]
    if "/" not in name or target not in LAYERS:
        return f'{name} is not a known folder; write "folder/file.h"'
    if not may_use(folder, target) or (folder in PUBLIC_ONLY and target not in (folder, "src/base")):
        return f"{folder} may not include {name}"
    if folder == "src/lanes" and name.startswith("lanes/") and name not in SHARED_BY_LANES:
        own = {path.parts[2], STANDS_IN_FOR.get(path.parts[2])}
        if name.split("/")[1] not in own:
            return f"a lane may include {', '.join(sorted(SHARED_BY_LANES))} and itself, not {name}"
    return None


def check_include(folder, path, bracket, name):
    if name.startswith("tessera/"):
        return check_public(folder, path, name.removeprefix("tessera/"))
    if bracket == "<" or is_of(name, THIRD_PARTY):
        return check_library(folder, path, name)
    return check_internal(folder, path, name)


def check_size(path, lines):
    if path.parts[0] == "include" and path.suffix == ".h":
        limit = HEADER_EXCEPTIONS.get(path.as_posix(), PUBLIC_HEADER_LINES - 1)
        kind = "public header"
    else:
        limit, kind = SOURCE_LINES, "file"
    return f"{kind} of {len(lines)} lines; the limit is {limit}" if len(lines) > limit else None


def check_export(path, lines):
    if path.parts[0] != "include" or path.suffix != ".h" or "namespace tessera {" not in lines:
        return None
    begin = lines.index("namespace tessera {")
    if EXPORT_BEGIN in lines[:begin] and EXPORT_END in lines[begin:]:
        return None
    return f"a public header without {EXPORT_BEGIN} before its namespace and {EXPORT_END} after it exports nothing"


def check_file(root, path):
    lines = (root / path).read_text(encoding="utf-8").splitlines()
    problems = []
    if size_problem := check_size(path, lines):
        problems.append((len(lines), size_problem))
    if export_problem := check_export(path, lines):
        problems.append((1, export_problem))
    if path.suffix == ".py":
        return problems
    folder = folder_of(path)
    macros = {}
    for number, line in enumerate(lines, 1):
        if match := MACRO.match(line):
            if match[1] not in LIBRARY_HOOKS | LASTING_MACROS:
                macros[match[1]] = number
        elif match := UNDEF.match(line):
            macros.pop(match[1], None)
        elif folder and (match := INCLUDE.match(line)):
            if problem := check_include(folder, path, match[1], match[2]):
                problems.append((number, problem))
    for name, number in macros.items():
        problems.append((number, f"function-like macro {name} stays defined; use a function, or #undef it after its .def"))
    return problems


def check_tree(root):
    root = pathlib.Path(root)
    problems = []
    for top in ("include", "src", "tools", "bench", "python", "tests", "cmake"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in (".h", ".cc", ".def", ".py"):
                relative = path.relative_to(root)
                problems += [f"{relative}:{number}: {text}" for number, text in check_file(root, relative)]
    return problems


def main():
    parser = argparse.ArgumentParser(description="Checks include rules, file sizes and macros.")
    parser.add_argument("root", nargs="?", default=pathlib.Path(__file__).resolve().parent.parent)
    problems = check_tree(parser.parse_args().root)
    print("\n".join(problems) if problems else "layers: every include, size and macro rule holds")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
