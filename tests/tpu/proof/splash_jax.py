"""splash_jax.py FOLDER CASE...: has JAX lower its own Splash kernels for these cases of FOLDER/cases.json, on this machine and
for a TPU that is not here. NAME.jax.mlir is JAX's module as it is; NAME.ours.mlir the same module with the kernel of
NAME.kernel in the place of JAX's. One case at a time, so that each module has one kernel."""

import base64
import functools
import json
import os
import pathlib
import re
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
import jax
import jax.numpy as jnp
from jax._src.pallas.mosaic import tpu_info
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

# What JAX would ask the TPU.
tpu_info.get_device_kind = lambda: "TPU v6 lite"
tpu_info.get_num_device_cores = lambda: 1

CONFIG = re.compile(r'backend_config = "((?:[^"\\]|\\.)*)"')


def mask_of(case):
    shape = (case["q_len"], case["kv_len"])
    local = functools.partial(masks.LocalMask, shape)
    if case["mask"] == "causal":
        return masks.CausalMask(shape, case["offset"])
    if case["mask"] == "local":
        return local((case["left"], case["right"]), case["offset"])
    if case["mask"] == "stored":
        return masks.LogicalAnd(masks.CausalMask(shape), local((100, 0), 0))
    return masks.FullMask(shape)


def lower(case):
    dtype = jnp.float32 if case["f32"] else jnp.bfloat16
    heads, q_len, kv_len = case["q_heads"], case["q_len"], case["kv_len"]
    spec = lambda *shape, of=dtype: jax.ShapeDtypeStruct(shape, of)
    kv = (kv_len,) if case["mqa"] else (case["kv_heads"], kv_len)
    q, k, v = spec(heads, q_len, case["dim_qk"]), spec(*kv, case["dim_qk"]), spec(*kv, case["dim_v"])
    segments = [spec(q_len, of=jnp.int32), spec(kv_len, of=jnp.int32)] if case["segments"] else []
    bq, bkv, bc = case["block_q"], case["block_kv"], case["block_kv_compute"]
    sizes = splash.BlockSizes(block_q=bq, block_kv=bkv, block_kv_compute=bc, block_q_dkv=bq, block_kv_dkv=bkv,
                              block_kv_dkv_compute=bc, block_q_dq=bq, block_kv_dq=bkv)
    make = splash.make_splash_mqa_single_device if case["mqa"] else splash.make_splash_mha_single_device
    kernel = make(mask=masks.MultiHeadMask([mask_of(case)] * heads), block_sizes=sizes,
                  attn_logits_soft_cap=case["softcap"] or None, save_residuals=case["kernel"] == "forward_lse")
    ids = lambda s: splash.SegmentIds(*s) if s else None
    if case["kernel"].startswith("forward"):
        call = lambda q, k, v, *s: kernel(q, k, v, segment_ids=ids(s))
        args = [q, k, v]
    else:
        options = dict(kernel.kwargs)
        wanted = {"dq": slice(3, 4), "dkv": slice(4, 6)}[case["kernel"]]

        def call(q, k, v, o, lse, do, *s):
            saved = (q, k, v, ids(s), None, o, lse, kernel.dq_mask_info, kernel.dkv_mask_info)
            return splash._splash_attention_bwd(
                False, options.get("mask_value", splash.DEFAULT_MASK_VALUE), options.get("is_mqa", False), sizes, None,
                options.get("mask_function"), options.get("attn_logits_soft_cap"), False, saved, do)[wanted]

        o = spec(heads, q_len, case["dim_v"])
        args = [q, k, v, o, spec(heads, q_len, of=jnp.float32), o]
    return jax.jit(call).trace(*args, *segments).lower(lowering_platforms=("tpu",)).as_text()


def config_of(text, name):
    """Where the configuration of that kernel's call is: the backward pass of the library has two kernels."""
    begin = 0
    for line in text.splitlines(keepends=True):
        if "@tpu_custom_call" in line and f"_{name}_" in line[line.index("kernel_name"):]:
            return CONFIG.search(text, begin)
        begin += len(line)
    sys.exit(f"JAX's module has no kernel {name}")


def main():
    folder = pathlib.Path(sys.argv[1])
    for case in json.loads((folder / "cases.json").read_text()):
        if case["name"] not in sys.argv[2:]:
            continue
        text = lower(case)
        at = config_of(text, {"forward": "fwd", "forward_lse": "fwd"}.get(case["kernel"], case["kernel"]))
        config = json.loads(at.group(1).replace("\\22", '"'))
        kernel = (folder / f"{case['name']}.kernel").read_bytes()
        config["custom_call_config"]["body"] = base64.b64encode(kernel).decode()
        ours = text[:at.start(1)] + json.dumps(config).replace('"', "\\22") + text[at.end(1):]
        (folder / f"{case['name']}.jax.mlir").write_text(text)
        (folder / f"{case['name']}.ours.mlir").write_text(ours)


main()
