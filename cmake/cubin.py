#!/usr/bin/env python3
"""Compiles one row of kernels.def to a cubin, and refuses what would be slow or would not launch.

ptxas prints what it did; a spill, a stack frame, serialised matrix products (its notes C7510 to C7520), an ignored
setmaxnreg (C7508) or more registers than the launch has are errors here. What it said stays beside the cubin as .log.
"""

import argparse
import pathlib
import re
import subprocess
import sys

REGISTERS = 65536  # of a multiprocessor
FLAGS = ["-std=c++20", "-O3", "-lineinfo", "-gencode=arch=compute_90a,code=sm_90a", "-cubin",
         "-Xptxas", "-v,-warn-spills,-warn-lmem-usage"]
NOTES = re.compile(r"C75(0[89]|1\d|20)|wgmma.*serialized|setmaxnreg.*ignored", re.I)
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")


def problems(text: str, name: str, threads: int) -> list[str]:
    """What is wrong with the compiler's report of a cubin that has one kernel."""
    found = [f"a note of ptxas: {line.strip()}" for line in text.splitlines() if NOTES.search(line)]
    if f"entry function '{name}'" not in text:
        found.append(f"there is no kernel {name} in it")
    for frame, stores, loads in FRAME.findall(text):
        if int(frame) or int(stores) or int(loads):
            found.append(f"{frame} bytes of stack, {stores} bytes of spill stores, {loads} of spill loads: 0 expected")
    used = [int(count) for count in USED.findall(text)]
    # Registers are given out to warps by eights.
    if not used or max(-(-count // 8) * 8 * threads for count in used) > REGISTERS:
        found.append(f"{used or 'no'} registers for each of {threads} threads, more than {REGISTERS} in all")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nvcc", required=True)
    parser.add_argument("--name", required=True, help="of the kernel")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--define", action="append", default=[])
    parser.add_argument("--include", required=True)
    parser.add_argument("--depend", required=True, help="file of dependencies to write")
    parser.add_argument("source")
    parser.add_argument("cubin", type=pathlib.Path)
    args = parser.parse_args()
    command = [args.nvcc, *FLAGS, f"-I{args.include}", f"-DTESSERA_CUDA_NAME={args.name}",
               *(f"-D{define}" for define in args.define), "-MD", "-MF", args.depend, "-MT", str(args.cubin)]
    done = subprocess.run([*command, "-o", str(args.cubin), args.source], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    args.cubin.with_suffix(".log").write_text(done.stdout, encoding="utf-8")
    found = [f"nvcc exits with {done.returncode}"] if done.returncode else problems(done.stdout, args.name, args.threads)
    if not found:
        return 0
    args.cubin.unlink(missing_ok=True)
    print(done.stdout, *(f"{args.name}: {problem}" for problem in found), sep="\n", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
