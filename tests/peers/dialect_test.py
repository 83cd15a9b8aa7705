#!/usr/bin/env python3
"""Every TPU kernel that we emit through jaxlib's own dialect: parsed, upgraded to the version that jaxlib has, verified.

Kernels of the lane come out of the programs that its tests run, as a compiler would get them; those of Splash from the
program that writes them for the compiler's proof. What the dialect accepts is well-formed; it says nothing of numbers.

Needs jaxlib; exits 77 without.
"""

import argparse
import base64
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

SKIPPED = 77
CONFIG = re.compile(r'@tpu_custom_call\(.*?backend_config = "((?:[^"\\]|\\.)*)"', re.S)


def kernels_of(program):
    """The kernels of a StableHLO program, in order."""
    for config in CONFIG.findall(program):
        text = re.sub(r"\\([0-9A-Fa-f]{2})", lambda hex: chr(int(hex.group(1), 16)), config).replace('\\"', '"')
        yield base64.b64decode(json.loads(text)["custom_call_config"]["body"]).decode()


def emitted(args, folder):
    """(name, text) of every kernel."""
    environment = dict(os.environ, TESSERA_TPU_MODULES=str(folder))
    tests = "KernelModules.*:KernelKinds.BackwardApart*:KernelKinds.*GivesO:Cases/Interpreted.*:Cases/Splash.*"
    subprocess.run([args.lane, "--gtest_brief=1", f"--gtest_filter={tests}"], check=True, capture_output=True, env=environment)
    subprocess.run([args.splash, str(folder)], check=True)
    for path in sorted(folder.glob("*.mlir")):
        for at, text in enumerate(kernels_of(path.read_text())):
            yield f"{path.stem} {at}", text
    for path in sorted(folder.glob("*.kernel")):
        yield f"splash {path.stem}", path.read_text()


def refusal(text):
    """What jaxlib says against a kernel; empty for a good one."""
    from jax._src.interpreters import mlir
    from jax._src.lib import tpu
    from jax._src.lib.mlir import ir, passmanager

    context = mlir.make_ir_context()
    tpu.register_dialect(context)
    context.allow_unregistered_dialects = True
    with context:
        try:
            module = ir.Module.parse(text)
            passmanager.PassManager.parse("builtin.module(mosaic-serde{serialize=false})").run(module.operation)
            if not module.operation.verify():
                return "it does not verify"
            left = re.search(r'"stable_mosaic\.[a-z_.]+"', module.operation.get_asm(print_generic_op_form=True))
            return f"{left.group(0)} is no operation of this dialect" if left else ""
        except Exception as error:  # MLIRError and ValueError have no class in common
            return str(error).strip() or type(error).__name__


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lane", required=True, help="tpu_lane_test")
    parser.add_argument("--splash", required=True, help="tpu_kernels")
    args = parser.parse_args()
    if importlib.util.find_spec("jax") is None:
        print("skipped: jax is not installed here (script/setup --peers)")
        return SKIPPED
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jaxlib

    with tempfile.TemporaryDirectory() as temporary:
        kernels = list(emitted(args, pathlib.Path(temporary)))
    refused = [(name, why) for name, text in kernels if (why := refusal(text))]
    for name, why in refused:
        print(f"{name}: {why}")
    # A kernel that jaxlib would have to refuse, so that a check that passes everything is seen.
    damaged = kernels[0][1].replace("arith.constant", "arith.no_such", 1)
    if damaged == kernels[0][1] or not refusal(damaged):
        print("a damaged kernel was accepted: this test sees nothing")
        return 1
    ours = sum(not name.startswith("splash ") for name, _ in kernels)
    print(f"jaxlib {jaxlib.__version__} parses, upgrades and verifies {len(kernels) - len(refused)} of {len(kernels)} "
          f"kernels: {ours} of the lane, {len(kernels) - ours} of Splash")
    return 1 if refused or ours < 30 else 0


if __name__ == "__main__":
    sys.exit(main())
