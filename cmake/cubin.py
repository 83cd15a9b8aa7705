#!/usr/bin/env python3
"""Compiles one row of kernels.def to a cubin, and refuses what would be slow or would not launch.

ptxas prints what it did; a spill, a stack frame, serialised matrix products (its notes C7510 to C7520), an ignored
setmaxnreg (C7508) or more registers than the launch has are errors here. A kernel that goes through tiles (--tiled) has
all the registers of its launch, which its warpgroups share out anew, and no shared memory but the launch's. What ptxas
said stays beside the cubin as .log, and a digest of all that went into it as .key: with --like, a cubin of another build
tree whose digest would be the same is copied, because nothing of the host is in it.
"""

import argparse
import hashlib
import pathlib
import re
import shutil
import subprocess
import sys

REGISTERS = 65536  # of a multiprocessor
FLAGS = ["-std=c++20", "-O3", "-lineinfo", "-gencode=arch=compute_90a,code=sm_90a", "-cubin",
         "-Xptxas", "-v,-warn-spills,-warn-lmem-usage"]
NOTES = re.compile(r"C75(0[89]|1\d|20)|wgmma.*serialized|setmaxnreg.*ignored", re.I)
WRONG = re.compile(r"C7508|setmaxnreg.*ignored", re.I)
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


def problems(text: str, name: str, threads: int, tiled: bool = False, debug: bool = False) -> list[str]:
    """What is wrong with the compiler's report of a cubin that has one kernel."""
    notes = WRONG if debug else NOTES
    found = [f"a note of ptxas: {line.strip()}" for line in text.splitlines() if notes.search(line)]
    if f"entry function '{name}'" not in text:
        found.append(f"there is no kernel {name} in it")
    for frame, stores, loads in FRAME.findall(text):
        if not debug and (int(frame) or int(stores) or int(loads)):
            found.append(f"{frame} bytes of stack, {stores} bytes of spill stores, {loads} of spill loads: 0 expected")
    used = [int(count) for count in USED.findall(text)]
    # Registers are given out to warps by eights.
    if not used or max(-(-count // 8) * 8 * threads for count in used) > REGISTERS:
        found.append(f"{used or 'no'} registers for each of {threads} threads, more than {REGISTERS} in all")
    share = REGISTERS // threads // 8 * 8
    if tiled and used != [share]:
        found.append(f"{used or 'no'} registers for each thread, {share} expected, which the warpgroups share out anew")
    if tiled and SHARED.findall(text):
        found.append(f"{SHARED.findall(text)} bytes of shared memory of its own: a launch brings all of it (SharedBytes)")
    return found


def digest(args: argparse.Namespace, depend: pathlib.Path) -> str:
    """Of the compiler, the command, this file, and every file that the compiler read, as they are now."""
    nvcc = pathlib.Path(shutil.which(args.nvcc) or args.nvcc).resolve()
    read = depend.read_text(encoding="utf-8").replace("\\\n", " ").split(" : ", 1)[1].split()
    of = hashlib.sha256(repr((str(nvcc), nvcc.stat().st_size, FLAGS, args.name, args.threads, args.define)).encode())
    for path in [__file__, *read]:
        of.update(f"\n{path}\n".encode() + pathlib.Path(path).read_bytes())
    return of.hexdigest()


def copied(args: argparse.Namespace) -> bool:
    """Takes the other tree's cubin, where compiling would give the same."""
    other = args.like / args.cubin.name
    depend = args.like / pathlib.Path(args.depend).name
    try:
        key = other.with_suffix(".key").read_text(encoding="utf-8")
        if key != digest(args, depend):
            return False
        shutil.copyfile(other, args.cubin)
        shutil.copyfile(other.with_suffix(".log"), args.cubin.with_suffix(".log"))
        read = depend.read_text(encoding="utf-8").split(" : ", 1)[1]
        pathlib.Path(args.depend).write_text(f"{args.cubin} : {read}", encoding="utf-8")
    except OSError:  # it is not there, or only half
        return False
    args.cubin.with_suffix(".key").write_text(key, encoding="utf-8")
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nvcc", required=True)
    parser.add_argument("--name", required=True, help="of the kernel")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--tiled", action="store_true", help="it goes through tiles: forward, dq, dkv")
    parser.add_argument("--debug", action="store_true", help="it may be slow: spill, and have its products serialised")
    parser.add_argument("--define", action="append", default=[])
    parser.add_argument("--include", required=True)
    parser.add_argument("--depend", required=True, help="file of dependencies to write")
    parser.add_argument("--like", type=pathlib.Path, help="folder of another build tree's cubins")
    parser.add_argument("source")
    parser.add_argument("cubin", type=pathlib.Path)
    args = parser.parse_args()
    key = args.cubin.with_suffix(".key")
    key.unlink(missing_ok=True)  # it stands for what is whole
    if args.like and copied(args):
        return 0
    command = [args.nvcc, *FLAGS, f"-I{args.include}", f"-DTESSERA_CUDA_NAME={args.name}",
               *(f"-D{define}" for define in args.define), "-MD", "-MF", args.depend, "-MT", str(args.cubin)]
    done = subprocess.run([*command, "-o", str(args.cubin), args.source], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    args.cubin.with_suffix(".log").write_text(done.stdout, encoding="utf-8")
    found = [f"nvcc exits with {done.returncode}"] if done.returncode else problems(
        done.stdout, args.name, args.threads, args.tiled, args.debug)
    if not found:
        key.write_text(digest(args, pathlib.Path(args.depend)), encoding="utf-8")
        return 0
    args.cubin.unlink(missing_ok=True)
    print(done.stdout, *(f"{args.name}: {problem}" for problem in found), sep="\n", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
