#!/usr/bin/env python3
"""JAX's own Splash kernels through our parser and interpreter, against JAX's interpreter on the same operands.

Each kernel is lowered for a TPU, which needs none, and its text taken out of the custom call; the same kernel runs in
Pallas' interpret mode on the CPU. Our side reads the text (and prints it as it was), runs it, and compares. So a
misreading of the language cannot pass on both sides. And one kernel of ours that has every operation goes through
jaxlib's own parser and verifier.

Needs jax; exits 77 without.
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
TOKENS, HEADS, DIM, TILE = 256, 2, 128, 128
FUSED = ("causal", "softcap", "stored", "subtiles")  # also with dQ, dK and dV in one kernel


def write_safetensors(np, path, tensors):
    names = {"float32": "F32", "bfloat16": "BF16", "int8": "I8", "int16": "I16", "int32": "I32"}
    header, chunks, at = {}, [], 0
    for name, array in tensors.items():
        array = np.ascontiguousarray(array)
        header[name] = {"dtype": names[str(array.dtype)], "shape": list(array.shape),
                        "data_offsets": [at, at + array.nbytes]}
        chunks.append(array.tobytes())
        at += array.nbytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(len(head).to_bytes(8, "little") + head + b"".join(chunks))


class Recorder:
    """Stands in for pallas_call: interprets, and keeps text, operands and results of every call."""

    def __init__(self, jax, np, pl, folder):
        self.jax, self.np, self.folder = jax, np, folder
        self.pallas_call = pl.pallas_call
        self.name, self.count = "", 0

    def __call__(self, kernel, *args, **kwargs):
        kwargs.pop("interpret", None)

        def call(*operands):
            results = self.pallas_call(kernel, *args, interpret=True, **kwargs)(*operands)
            lowered = self.jax.jit(self.pallas_call(kernel, *args, **kwargs)).trace(*operands).lower(
                lowering_platforms=("tpu",))
            self.save(kernel_text(lowered.as_text()), self.jax.tree.leaves(operands), self.jax.tree.leaves(results))
            return results

        return call

    def save(self, text, operands, results):
        stem = self.folder / f"{self.name}_{self.count}"
        self.count += 1
        stem.with_suffix(".mlir").write_text(text)
        tensors = {}
        for kind, arrays in (("operand", operands), ("result", results)):
            for at, array in enumerate(arrays):
                array = self.np.asarray(array)
                # Kernels take booleans as i32.
                tensors[f"{kind}{at:02}"] = array.astype("int32") if array.dtype == bool else array
        write_safetensors(self.np, stem.with_suffix(".safetensors"), tensors)


def kernel_text(module):
    """The one kernel of a lowered module, as MLIR's generic text."""
    from jax._src.interpreters import mlir
    from jax._src.lib import tpu
    from jax._src.lib.mlir import ir

    found = re.findall(r'@tpu_custom_call\(.*?backend_config = "((?:[^"\\]|\\.)*)"', module, re.S)
    assert len(found) == 1, f"{len(found)} kernels"
    config = json.loads(re.sub(r"\\([0-9A-F]{2})", lambda hex: chr(int(hex.group(1), 16)), found[0]))
    body = base64.b64decode(config["custom_call_config"]["body"])
    context = mlir.make_ir_context()
    tpu.register_dialect(context)
    context.allow_unregistered_dialects = True
    with context:
        return ir.Module.parse(body).operation.get_asm(print_generic_op_form=True)


def record(jax, np, folder, seed):
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
    from jax._src.pallas.mosaic import tpu_info

    # What lowering asks of a machine it does not have.
    tpu_info.get_device_kind = lambda: "TPU v6 lite"
    tpu_info.get_num_device_cores = lambda: 1
    recorder = pl.pallas_call = Recorder(jax, np, pl, folder)
    rng = np.random.default_rng(seed)
    shape = (TOKENS, TOKENS)

    def tensor(dtype, *dims):
        return jnp.asarray(rng.standard_normal(dims, np.float32) * 0.5, dtype)

    stored = masks.NumpyMask(np.tril(np.ones(shape, bool)) & (rng.random(shape) < 0.7) | np.eye(TOKENS, dtype=bool))
    cases = {
        "causal": (masks.CausalMask(shape), {}),
        "full": (masks.FullMask(shape), {}),
        "local": (masks.LocalMask(shape, (100, 0), 0), {}),
        "softcap": (masks.CausalMask(shape), {"softcap": 30.0}),
        "segments": (masks.CausalMask(shape), {"segments": True}),
        "stored": (stored, {}),
        "grouped": (masks.CausalMask(shape), {"kv_heads": 1}),
        "mqa": (masks.CausalMask(shape), {"mqa": True}),
        "f32": (masks.CausalMask(shape), {"dtype": jnp.float32}),
        "subtiles": (masks.CausalMask(shape), {"tile": 256, "compute": 128}),
        "dim64": (masks.CausalMask(shape), {"dim": 64}),
    }
    for name, (mask, how) in cases.items():
        for fused in (False, True):
            if fused and name not in FUSED:
                continue
            tile, compute = how.get("tile", TILE), how.get("compute", TILE)
            sizes = splash.BlockSizes(
                block_q=tile, block_kv=tile, block_kv_compute=compute, block_q_dkv=tile, block_kv_dkv=tile,
                block_kv_dkv_compute=compute, block_q_dq=None if fused else tile, block_kv_dq=None if fused else tile,
                use_fused_bwd_kernel=fused)
            mqa = how.get("mqa", False)
            make = splash.make_splash_mqa_single_device if mqa else splash.make_splash_mha_single_device
            kernel = make(mask=masks.MultiHeadMask([mask] * HEADS), block_sizes=sizes,
                          attn_logits_soft_cap=how.get("softcap"))
            dtype, dim = how.get("dtype", jnp.bfloat16), how.get("dim", DIM)
            kv = (TOKENS, dim) if mqa else (how.get("kv_heads", HEADS), TOKENS, dim)
            q, k, v = tensor(dtype, HEADS, TOKENS, dim), tensor(dtype, *kv), tensor(dtype, *kv)
            do = tensor(dtype, HEADS, TOKENS, dim)
            segments = None
            if how.get("segments"):
                ids = jnp.asarray(np.repeat([0, 1, 2], [90, 70, TOKENS - 160]), jnp.int32)
                segments = splash.SegmentIds(ids, ids)
            given = dict(kernel.kwargs)
            recorder.name = f"{name}_{'fused' if fused else 'split'}"
            out, (lse,) = splash._splash_attention_forward(
                kernel.fwd_mask_info, q, k, v, segments, None, mask_value=given["mask_value"], is_mqa=mqa,
                block_sizes=sizes, residual_checkpoint_name=None, save_residuals=True,
                mask_function=given["mask_function"], attn_logits_soft_cap=how.get("softcap"))
            residuals = (q, k, v, segments, None, out, lse, kernel.dq_mask_info, kernel.dkv_mask_info)
            splash._splash_attention_bwd(False, given["mask_value"], mqa, sizes, None, given["mask_function"],
                                         how.get("softcap"), False, residuals, do)
    return recorder.count


def check_dialect(program, folder):
    """Our own kernel with every operation in it, through jaxlib's parser, its upgrade and its verifier."""
    from jax._src.interpreters import mlir
    from jax._src.lib import tpu
    from jax._src.lib.mlir import ir, passmanager

    path = folder / "sample.txt"
    subprocess.run([program, "--gtest_filter=Verify_Sample.*"], check=True, capture_output=True,
                   env=dict(os.environ, TESSERA_WRITE_SAMPLE=str(path)))
    context = mlir.make_ir_context()
    tpu.register_dialect(context)
    context.allow_unregistered_dialects = True
    with context:
        module = ir.Module.parse(path.read_text())
        passmanager.PassManager.parse("builtin.module(mosaic-serde{serialize=false})").run(module.operation)
        return module.operation.verify()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True, help="mosaic_test")
    parser.add_argument("--keep", help="a folder to write to, and to leave")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("TESSERA_SEED", int.from_bytes(os.urandom(3)))))
    args = parser.parse_args()
    if importlib.util.find_spec("jax") is None:
        print("skipped: jax is not installed here (script/setup --peers)")
        return SKIPPED
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import numpy as np
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(args.keep or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not check_dialect(args.program, folder):
            print("jaxlib's dialect refuses our kernel with every operation")
            return 1
        count = record(jax, np, folder, args.seed)
        environment = dict(os.environ, TESSERA_MOSAIC_KERNELS=str(folder))
        done = subprocess.run([args.program, "--gtest_filter=Interpret_GivenKernels.*"], env=environment,
                              capture_output=True, text=True)
    report = done.stdout + done.stderr
    for line in report.splitlines():
        if line.startswith("kernel ") or "Failure" in line or "Error" in line or "TSR-" in line:
            print(line)
    if done.returncode != 0 or f"{count} kernels agree" not in report:
        print(report[-4000:])
        print(f"repeat with --seed {args.seed}")
        return 1
    print(f"{count} of JAX {jax.__version__}'s kernels parse, print as they were, and give JAX's numbers; "
          "its dialect accepts every operation the builder makes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
