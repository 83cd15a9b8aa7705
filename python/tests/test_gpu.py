"""What needs a GPU, where there is one (gpu_check.py); and without one what XLA's CUDA handlers ask of a driver, and how JAX
lowers programs for a GPU."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import gpu_check
import numpy as np
import pytest

import tessera
from tessera import mask as m

CHECKS = [(group, check) for group, checks in gpu_check.CHECKS.items() for check in checks]


@pytest.mark.parametrize("group,check", CHECKS, ids=[check.__name__ for _, check in CHECKS])
def test_on_a_gpu(group, check):
    problem = gpu_check.no_gpu()
    if problem:
        pytest.skip(problem.splitlines()[0])
    pytest.importorskip("torch" if group == "torch" else "jax")
    check(np.random.default_rng(gpu_check.SEED))


FAKE_LIBRARY = """
#include "cuda/fake_driver.h"
#include "lanes/cuda/abi.h"
using namespace tessera::lanes::cuda;
static FakeDriver* const fake = new FakeDriver;
static std::string* const log = new std::string;
static void Write(const Launched& launch) {
  const PlanHeader* plan = nullptr;
  if (launch.kernel.find("_forward_") != std::string::npos) plan = static_cast<const ForwardParams*>(launch.params)->plan;
  if (launch.kernel.find("_dq_") != std::string::npos || launch.kernel.find("_dkv_") != std::string::npos) {
    plan = static_cast<const BackwardParams*>(launch.params)->plan;
  }
  *log += launch.kernel + " " + std::to_string(reinterpret_cast<uintptr_t>(launch.stream)) + " " +
          std::to_string(reinterpret_cast<uintptr_t>(plan)) + "\\n";
}
extern "C" {
void* fake_allocate(size_t bytes) { return fake->on_launch = Write, fake->Allocate(bytes, 0); }
void* fake_stream() { return fake->MakeStream(0); }
void* fake_other_stream() { return fake->MakeStream(1); }
int fake_calls(const char* name) { return fake->calls[name]; }
const char* fake_launches() {
  static std::string out;
  return out = *log, log->clear(), out.c_str();
}
"""


@pytest.fixture
def fake_driver(root, tmp_path):
    """tests/cuda's driver that writes down, as a libcuda.so.1."""
    compiler = shutil.which("g++")
    if compiler is None or not (root / "tests/cuda/fake_driver.cc").exists():
        pytest.skip("needs a C++ compiler and the source tree")
    table = (root / "src/lanes/cuda/driver_functions.def").read_text()
    text = FAKE_LIBRARY
    for member, symbol, types in re.findall(r'^TESSERA_CUDA_FUNCTION\((\w+), "(\w+)", (.*)\)$', table, re.M):
        count = len(types.split(","))
        parameters = ", ".join(f"{one.strip()} a{i}" for i, one in enumerate(types.split(",")))
        text += f"DriverResult {symbol}({parameters}) {{ return fake->driver().{member}({', '.join(f'a{i}' for i in range(count))}); }}\n"
    source = tmp_path / "fake_library.cc"
    source.write_text(text + "}\n")
    out = tmp_path / "libcuda.so.1"
    done = subprocess.run([compiler, "-std=c++20", "-O0", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", *(f"-I{root / one}" for one in
                           ("src", "tests", "include")), source, root / "tests/cuda/fake_driver.cc", "-o", out],
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out


def test_cuda_handlers_launch_and_never_wait(fake_driver):
    attn = tessera.Engine().prepare(tessera.Contract(mask="causal", **gpu_check.SIZES, dtype="bf16"), target="h200", memory="gpu")
    if any(one["reason"] == "cuda.not_built" for one in attn.decisions):
        pytest.skip("this build has no CUDA kernels: it was made without nvcc")
    path = f"{fake_driver.parent}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    done = subprocess.run([sys.executable, pathlib.Path(__file__).with_name("handler_check.py"), fake_driver],
                          env=os.environ | {"LD_LIBRARY_PATH": path}, capture_output=True, text=True)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "good\n"), done.stderr


@pytest.fixture
def jax():
    return pytest.importorskip("jax", reason="JAX is not installed in this environment")


def on_gpu(**fields):
    attn = gpu_check.attention_on_gpu(**(dict(mask=m.causal & m.documents) | fields))
    if any(one["reason"] == "cuda.not_built" for one in attn.decisions):
        pytest.skip("this build has no CUDA kernels: it was made without nvcc")
    return attn


def lowered(jax, function, *arguments):
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",))


def test_jax_lowers_for_a_gpu_with_the_plan_as_an_operand(jax):
    import jax.numpy as jnp

    import tessera.jax as tj

    attn = on_gpu(sink_logits=True)
    plan = tj.plan(attn, doc_lengths=[[100, 900], [1000]])
    q, k, v = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in (attn.contract.shape.q, attn.contract.shape.k, attn.contract.shape.v))
    sinks = jax.ShapeDtypeStruct((4,), jnp.float32)

    def loss(q, k, v, plan, sinks):
        return tj.attention(q, k, v, plan, sink_logits=sinks).astype(jnp.float32).sum()

    program = lowered(jax, jax.grad(loss, argnums=(0, 1, 2, 4)), q, k, v, plan, sinks)
    text = program.as_text()
    assert text.count("@tessera_forward") == 1 and text.count("@tessera_backward") == 1
    assert f"tensor<{len(plan.operand)}xui8>" in text, "the plan is an argument"
    assert [x.shape for x in program.out_info] == [q.shape, k.shape, v.shape, (4,)]
    exported = jax.export.export(jax.jit(loss), platforms=["cuda"], disabled_checks=[
        jax.export.DisabledSafetyCheck.custom_call("tessera_forward")])(q, k, v, plan, sinks)  # fmt: skip
    assert exported.platforms == ("cuda",)


def test_jax_traces_once_for_every_plan_on_a_gpu(jax):
    import jax.numpy as jnp

    import tessera.jax as tj

    attn = on_gpu()
    rng = np.random.default_rng(gpu_check.SEED)
    q, k, v = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in (attn.contract.shape.q, attn.contract.shape.k, attn.contract.shape.v))
    traces = []

    def step(q, k, v, plan):
        traces.append(1)
        return jax.grad(lambda q: tj.attention(q, k, v, plan).astype(jnp.float32).sum())(q)

    compiled = jax.jit(step)
    for _ in range(1000):
        compiled.trace(q, k, v, tj.plan(attn, doc_ids=gpu_check.documents(rng, 2, 1000)))
    assert len(traces) == 1
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *(tj.plan(attn, doc_lengths=[[i, 1000 - i], [1000]]) for i in (10, 20)))
    batch = [jax.ShapeDtypeStruct((2, *x.shape), x.dtype) for x in (q, k, v)]
    assert "@tessera_forward" in lowered(jax, jax.vmap(tj.attention), *batch, stacked).as_text()


def test_jax_plans_are_refused_on_another_platform(jax):
    import jax.numpy as jnp

    import tessera.jax as tj

    attn = on_gpu(mask=m.causal)
    arrays = [jnp.zeros(s, jnp.bfloat16) for s in (attn.contract.shape.q, attn.contract.shape.k, attn.contract.shape.v)]
    for_host = tj.plan(tessera.Engine().prepare(attn.contract))
    with pytest.raises(NotImplementedError, match='target="h200"'):
        lowered(jax, tj.attention, *arrays, for_host)
    for platform in ("cpu", "tpu"):
        with pytest.raises(NotImplementedError, match="this plan is for a GPU"):
            jax.jit(tj.attention).trace(*arrays, tj.plan(attn)).lower(lowering_platforms=(platform,))
    with pytest.raises(TypeError, match="bf16 expected"):
        tj.attention(arrays[0].astype(jnp.float32), *arrays[1:], tj.plan(attn))


def test_the_length_of_a_plans_image_is_the_attentions():
    attn = on_gpu()
    registered = attn._register()
    lengths = {len(registered.image(attn.plan(doc_lengths=[[i, 1000 - i], [1000]]))) for i in range(1, 1000, 37)}
    assert len(lengths) == 1
    attn.reserve(1 << 20)
    assert len(registered.image(attn.plan(doc_lengths=[[1000], [1000]]))) == 1 << 20
    cut = np.full(100, 7, np.uint8)
    needed = tessera._native.plan_image(attn._native, attn.plan(doc_lengths=[[1000], [1000]])._native, cut)
    assert needed > 100 and (cut == 7).all(), "not written where there is no room"
    host = tessera.Engine().prepare(tessera.Contract(q_len=64, dim_qk=8, mask="causal"))
    with pytest.raises(tessera.TesseraError, match="reads plans as they are") as caught:
        host._register().image(host.plan())
    assert caught.value.code == "TSR-L002"
    other = on_gpu(mask=m.causal)
    with pytest.raises(tessera.TesseraError) as caught:
        other._register().image(attn.plan(doc_lengths=[[1000], [1000]]))
    assert caught.value.code == "TSR-P007"
