#!/usr/bin/env python3
"""Stand-ins for the CUDA libraries that PyPI's PyTorch names as needed, so that it can be imported, and tested on a CPU, without the
gigabytes that they take: cuda_stand_ins.py SITE_PACKAGES

Each is a shared library of that name with the functions that PyTorch's own libraries look up in it, of the version they ask for. All of
them trap. For tests alone: what calls CUDA ends there and then. The real libcudart is needed beside them (nvidia-cuda-runtime); libcuda
is never stood in for, because who finds it believes in a GPU.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

REAL = re.compile(r"lib(cudart|cuda)\.so")
# By whose names CUDA's functions are known where they have no version.
OURS = re.compile(r"(cu[A-Z_a-z]|CU|nccl|nv[a-z]|NV)")


def tool(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def needed(path):
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", tool("readelf", "-dW", path)))


def versions(path):
    """{version: the library that it is looked up in}"""
    out, file = {}, ""
    for line in tool("readelf", "-VW", path).splitlines():
        if found := re.search(r"File: (\S+)", line):
            file = found[1]
        elif (found := re.search(r"Name: (\S+) .*Flags:", line)) and file:
            out[found[1]] = file
    return out


def symbols(path, which):
    """(name, version or "") of the dynamic symbols."""
    for line in tool("nm", "-D", which, path).splitlines():
        name, _, version = line.split()[-1].partition("@")
        yield name, version.lstrip("@")


def plan(torch_lib):
    """{library: {version: names}} of what has to stand in."""
    paths = [path for path in torch_lib.glob("*.so*") if path.read_bytes()[:4] == b"\x7fELF"]
    here = {path.name for path in paths}
    wanted = {}
    for path in paths:
        for name in needed(path) - here:
            if OURS.match(name.removeprefix("lib")) and not REAL.match(name):
                wanted.setdefault(name, {"": set()})
    defined = {name for path in paths for name, _ in symbols(path, "--defined-only")}
    loose = set()
    for path in paths:
        place = versions(path)
        for name, version in symbols(path, "--undefined-only"):
            library = place.get(version)
            if library in wanted:
                wanted[library].setdefault(version, set()).add(name)
            elif not version and OURS.match(name) and name not in defined:
                loose.add(name)
    if loose and wanted:  # these are found wherever they are
        min(wanted.items())[1][""] |= loose
    return wanted


def build(name, by_version, out):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        lines, script = [], []
        for version, names in sorted(by_version.items()):
            lines += [f"void {one}(void) {{ __builtin_trap(); }}" for one in sorted(names)]
            if version and names:
                script.append(f"{version} {{ global: {' '.join(one + ';' for one in sorted(names))} }};")
        (folder / "stand_in.c").write_text("\n".join(lines) + "\n")
        (folder / "stand_in.map").write_text("\n".join(script) + "\n")
        command = ["cc", "-shared", "-fPIC", "-nostdlib", "-w", "-fno-builtin", f"-Wl,-soname,{name}", "-o", out / name, folder / "stand_in.c"]
        subprocess.run([*command, *([f"-Wl,--version-script={folder / 'stand_in.map'}"] if script else [])], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", type=pathlib.Path)
    site = parser.parse_args().site
    wanted = plan(site / "torch" / "lib")
    folders = sorted(site.glob("nvidia/cu*/lib"))
    if not wanted or not folders:
        print(f"{site}: {'no PyTorch that needs CUDA' if not wanted else 'nvidia-cuda-runtime is not there'}", file=sys.stderr)
        return 1
    for name, by_version in sorted(wanted.items()):
        build(name, by_version, folders[0])
        print(f"{name}: {sum(map(len, by_version.values()))} functions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
