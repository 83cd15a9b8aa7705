"""tessera.jax: numbers and gradients, one trace for many plans, vmap, what is refused, and Splash's arrays."""

import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from conftest import causal_documents, dense, random_documents

import tessera
from tessera import mask as m

jax = pytest.importorskip("jax", reason="JAX is not installed in this environment")
import jax.numpy as jnp  # noqa: E402

import tessera.jax as tj  # noqa: E402

B, H, KV, T, D, DV = 2, 4, 2, 96, 16, 8


def prepare(**more):
    fields = dict(batch=B, q_len=T, num_q_heads=H, num_kv_heads=KV, dim_qk=D, dim_v=DV, mask=m.causal & m.documents,
                  tile=32, tile_reason="a small test")
    return tessera.Engine().prepare(tessera.Contract(**(fields | more)))


def inputs(rng, dtype=jnp.float32):
    return [jnp.asarray(rng.standard_normal(shape, np.float32), dtype)
            for shape in [(B, H, T, D), (B, KV, T, D), (B, KV, T, DV)]]  # fmt: skip


def close(got, want, eps=2e-5):
    np.testing.assert_allclose(np.asarray(got, np.float32), want, rtol=0, atol=eps * max(1, np.abs(want).max()))


@pytest.mark.parametrize("jit", [True, False])
@pytest.mark.parametrize("dtype,eps", [(jnp.float32, 2e-5), (jnp.bfloat16, 0.1), (jnp.float16, 2e-2)])
def test_numbers_and_gradients(rng, dtype, eps, jit):
    ids = random_documents(rng, B, T, 3)
    plan = tj.plan(prepare(dtype=dtype), doc_ids=jnp.asarray(ids))
    q, k, v = inputs(rng, dtype)
    dout = jnp.asarray(rng.standard_normal((B, H, T, DV), np.float32), dtype)

    def run(q, k, v, plan):
        (o, lse), back = jax.vjp(lambda *x: tj.attention(*x, plan, return_lse=True), q, k, v)
        return o, lse, *back((dout, jnp.zeros_like(lse)))

    got = (jax.jit(run) if jit else run)(q, k, v, plan)
    want = dense(*(np.asarray(x, np.float32) for x in (q, k, v)), causal_documents(ids, H),
                 dout=np.asarray(dout, np.float32))  # fmt: skip
    for one, expected in zip(got, want):
        close(one, expected, eps)
    assert got[0].dtype == dtype and got[2].dtype == dtype


def test_sink_logits(rng):
    plan = tj.plan(prepare(mask=m.causal, sink_logits=True, softcap=4.0))
    q, k, v = inputs(rng)
    sinks = jnp.asarray(rng.standard_normal(H, np.float32))
    weight = jnp.asarray(rng.standard_normal((B, H, T, DV), np.float32))
    loss = jax.jit(lambda s: (tj.attention(q, k, v, plan, sink_logits=s) * weight).sum())
    gradient = jax.grad(loss)(sinks)
    step = 1e-2
    for head in range(H):
        by = jnp.zeros(H).at[head].set(step)
        assert abs((loss(sinks + by) - loss(sinks - by)) / (2 * step) - gradient[head]) < 2e-2
    with pytest.raises(ValueError, match="sink_logits: needed"):
        tj.attention(q, k, v, plan)


def test_one_trace_and_one_compile_for_a_thousand_batches(rng):
    attn = prepare()
    q, k, v = inputs(rng)
    traces = []

    def step(q, k, v, plan):
        traces.append(1)
        return jax.grad(lambda q: (tj.attention(q, k, v, plan) ** 2).sum())(q)

    compiled = jax.jit(step)
    for i in range(1000):
        ids = random_documents(rng, B, T, 1 + i % 9)
        got = compiled(q, k, v, tj.plan(attn, doc_ids=ids))
        if i % 250 == 0:
            o, _, dq, _, _ = dense(q, k, v, causal_documents(ids, H),
                                   dout=2 * dense(q, k, v, causal_documents(ids, H))[0])  # fmt: skip
            close(got, dq)
    assert len(traces) == 1 and compiled._cache_size() == 1


def test_vmap_over_a_batch_of_plans(rng):
    attn = prepare(batch=1)
    plans = [tj.plan(attn, doc_lengths=[[i + 10, T - 10 - i]]) for i in range(3)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *plans)
    q, k, v = (jnp.asarray(rng.standard_normal((3, h, T, d), np.float32)) for h, d in ((H, D), (KV, D), (KV, DV)))
    want = jnp.stack([tj.attention(q[i], k[i], v[i], plans[i]) for i in range(3)])
    assert jnp.array_equal(jax.vmap(tj.attention)(q, k, v, stacked), want)
    assert jnp.array_equal(jax.jit(jax.vmap(tj.attention))(q, k, v, stacked), want)
    same = jax.vmap(tj.attention, in_axes=(0, 0, 0, None))(q, k, v, plans[0])
    assert jnp.array_equal(same[0], want[0])
    gradient = jax.grad(lambda q: jax.vmap(tj.attention)(q, k, v, stacked).sum())(q)
    alone = jax.grad(lambda q: tj.attention(q, k[1], v[1], plans[1]).sum())(q[1])
    assert jnp.array_equal(gradient[1], alone)


def test_layout_and_lse_have_no_hidden_gradient(rng):
    plan = tj.plan(prepare(mask=m.causal))
    q, k, v = inputs(rng)
    turned = [x.swapaxes(1, 2) for x in (q, k, v)]
    assert jnp.array_equal(tj.attention(*turned, plan, layout="bthd").swapaxes(1, 2), tj.attention(q, k, v, plan))
    gradient = jax.grad(lambda q: tj.attention(q, k, v, plan, return_lse=True)[1].sum())(q)
    assert (gradient == 0).all()


def test_forward_mode_and_second_order_are_refused(rng):
    plan = tj.plan(prepare(mask=m.causal))
    q, k, v = inputs(rng)
    with pytest.raises(TypeError):
        jax.jvp(lambda q: tj.attention(q, k, v, plan), (q,), (q,))
    first = jax.grad(lambda q: tj.attention(q, k, v, plan).sum())
    with pytest.raises(ValueError):
        jax.grad(lambda q: first(q).sum())(q)


def test_bad_arrays(rng):
    attn = prepare(mask=m.causal)
    plan = tj.plan(attn)
    q, k, v = inputs(rng)
    for given, error, text in [
        ((q[:1], k, v), ValueError, "q: shape"),
        ((q, k[:, :1], v), ValueError, "k: shape"),
        ((q, k, k), ValueError, "v: shape"),
        ((q[0], k, v), ValueError, "q: shape"),
        ((q.astype(jnp.bfloat16), k, v), TypeError, "q: f32 expected"),
        ((q.astype(jnp.int32), k, v), TypeError, "int32"),
        ((np.asarray(q, np.float64), k, v), TypeError, "float64"),
        ((q.tolist(), k, v), TypeError, "list"),
    ]:
        with pytest.raises(error, match=text):
            tj.attention(*given, plan)
        if isinstance(given[0], jax.Array):
            with pytest.raises(error, match=text):
                jax.jit(tj.attention)(*given, plan)
    with pytest.raises(TypeError, match="plan:"):
        tj.attention(q, k, v, "plan")
    with pytest.raises(ValueError, match="sink_logits"):
        tj.attention(q, k, v, plan, sink_logits=jnp.zeros(H))
    # What only the handler can see: the code is in the text, the type is JAX's.
    import dataclasses

    other = tj.plan(prepare(mask="full"))
    damaged = np.array(plan.operand)
    damaged[16] ^= 1
    damaged[400] ^= 255
    for wrong, code in [
        (dataclasses.replace(plan, operand=jnp.zeros_like(plan.operand)), "TSR-P005"),
        (dataclasses.replace(plan, operand=jnp.asarray(damaged)), "TSR-P005"),
        (dataclasses.replace(plan, operand=other.operand), "TSR-P007"),
        (dataclasses.replace(plan, number=10**9), "TSR-A001"),
    ]:
        with pytest.raises((ValueError, RuntimeError), match=code):
            jax.block_until_ready(jax.jit(tj.attention)(q, k, v, wrong))
    assert jnp.isfinite(tj.attention(q, k, v, plan)).all()


def test_jax_arrays_are_no_outputs_of_the_numpy_interface(rng):
    attn = prepare(mask=m.causal)
    bound = attn.bind(attn.plan())
    q, k, v = (np.asarray(x) for x in inputs(rng))
    with pytest.raises(TypeError, match="numpy.ndarray expected"):
        bound.forward(q, k, v, out=jnp.zeros((B, H, T, DV)))
    with pytest.raises(TypeError, match="numpy.ndarray expected"):
        bound.forward(jnp.asarray(q), k, v)


def test_arrays_that_were_deleted_or_given_away(rng):
    plan = tj.plan(prepare(mask=m.causal, num_kv_heads=H, dim_v=D))
    x = jnp.asarray(rng.standard_normal((B, H, T, D), np.float32))
    want = tj.attention(x, x, x, plan)
    gone = x + 0
    gone.delete()
    for call in (tj.attention, jax.jit(tj.attention)):
        with pytest.raises(RuntimeError, match="deleted"):
            jax.block_until_ready(call(x, gone, x, plan))
    # What a program may write over, it reads first.
    donating = jax.jit(lambda q, k, v, plan: tj.attention(q, k, v, plan), donate_argnums=0)
    given = x + 0
    assert jnp.array_equal(donating(given, x, x, plan), want)
    with pytest.raises((RuntimeError, ValueError), match="deleted"):
        jax.block_until_ready(donating(given, x, x, plan))


def test_x64_changes_nothing(rng):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent("""
        import jax; jax.config.update("jax_enable_x64", True)
        import jax.numpy as jnp, tessera, tessera.jax
        attn = tessera.Engine().prepare(tessera.Contract(q_len=64, dim_qk=8, mask="causal"))
        q = jnp.ones((1, 1, 64, 8), jnp.float32)
        g = jax.grad(lambda q: tessera.jax.attention(q, q, q, tessera.jax.plan(attn)).sum())(q)
        assert g.dtype == jnp.float32
    """)], capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr


def tpu_attention(**more):
    fields = dict(batch=2, q_len=300, num_q_heads=4, num_kv_heads=2, dim_qk=64, dtype="bf16", mask=m.causal & m.documents)
    return tessera.Engine().prepare(tessera.Contract(**(fields | more)), target="v6e")


def tpu_inputs(attn):
    s = attn.contract.shape
    return [jnp.zeros(shape, jnp.bfloat16) for shape in (s.q, s.k, s.v)]


def test_on_a_tpu_it_lowers_to_our_kernels():
    """One kernel for the forward and one for the gradients, as payloads; the plan's tables are arguments of the program."""
    attn = tpu_attention(softcap=20.0, sink_logits=True)
    plan = tj.plan(attn, doc_lengths=[[100, 200], [300]])
    sinks = jnp.zeros(4)

    def loss(q, k, v, plan, sinks):
        return tj.attention(q, k, v, plan, sink_logits=sinks).astype(jnp.float32).sum()

    forward = jax.jit(loss).trace(*tpu_inputs(attn), plan, sinks).lower(lowering_platforms=("tpu",)).as_text()
    assert forward.count("@tpu_custom_call") == 1 and "tessera_forward" not in forward.split("func.func public")[0]
    gradient = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 4)))
    lowered = gradient.trace(*tpu_inputs(attn), plan, sinks).lower(lowering_platforms=("tpu",))
    text = lowered.as_text()
    assert text.count("@tpu_custom_call") == 2 and "tensor<2x4x300x64xbf16>" in text
    assert [x.shape for x in lowered.out_info] == [x.shape for x in tpu_inputs(attn)] + [(4,)]
    if place := os.environ.get("TESSERA_JAX_TPU_MODULE"):  # for who has Google's compiler: docs/tpu.md
        pathlib.Path(place).write_text(text)


def test_on_a_tpu_new_documents_trace_nothing():
    attn = tpu_attention()
    traces = []

    def loss(q, k, v, plan):
        traces.append(1)
        return tj.attention(q, k, v, plan).astype(jnp.float32).sum()

    compiled = jax.jit(loss)
    plans = [tj.plan(attn, doc_lengths=[[100 + i, 200 - i], [300]]) for i in range(3)]
    for plan in plans:
        compiled.trace(*tpu_inputs(attn), plan)
    assert len(traces) == 1
    assert not all(jnp.array_equal(a, b) for a, b in zip(plans[0].operand.values(), plans[1].operand.values()))


def test_on_a_tpu_what_is_refused():
    attn = tpu_attention()
    plan = tj.plan(attn, doc_lengths=[[300], [300]])
    q, k, v = tpu_inputs(attn)
    with pytest.raises(NotImplementedError, match="(?i)tessera_tpu"):
        jax.jit(tj.attention).lower(q, k, v, plan)  # for this machine, which is none
    with pytest.raises(NotImplementedError, match="(?i)batching|vmap"):
        jax.vmap(tj.attention, in_axes=(0, None, None, None))(q[None], k, v, plan)
    with pytest.raises(ValueError, match="q: shape"):
        tj.attention(q[:1], k, v, plan)
    forward = tessera.Engine().prepare(attn.contract, target="v6e", passes="forward")
    alone = tj.plan(forward, doc_lengths=[[300], [300]])
    with pytest.raises(ValueError, match="forward alone"):
        jax.jit(jax.grad(lambda q: tj.attention(q, k, v, alone).astype(jnp.float32).sum())).trace(q)


def test_a_plan_for_the_cpu_is_refused_on_a_tpu(rng):
    plan = tj.plan(prepare(mask=m.causal))
    with pytest.raises(NotImplementedError, match='target="v6e"'):
        jax.jit(tj.attention).trace(*inputs(rng), plan).lower(lowering_platforms=("tpu",))


@pytest.mark.parametrize(
    "text,expected",
    [
        ("#define XLA_FFI_API_MAJOR 0\n#define XLA_FFI_API_MINOR 0\n", r"version \(0, 0\)"),  # older than ours
        ("#define XLA_FFI_API_MAJOR 1\n#define XLA_FFI_API_MINOR 0\n", r"version \(1, 0\)"),  # breaks with the past
        ("#define SOMETHING_ELSE 1\n", "does not say which version"),
        (None, "jaxlib 0.5 is the oldest"),
    ],
)
def test_a_runtime_of_another_version_is_refused(text, expected, tmp_path, monkeypatch):
    """Before it is given a handler, which would cost the process all of JAX."""
    if text is not None:
        header = tmp_path / "xla" / "ffi" / "api" / "c_api.h"
        header.parent.mkdir(parents=True)
        header.write_text(text)
    given = []
    monkeypatch.setattr(tj, "_is_registered", False)
    monkeypatch.setattr(jax.ffi, "include_dir", lambda: str(tmp_path))
    monkeypatch.setattr(jax.ffi, "register_ffi_target", lambda *one, **more: given.append(one))
    attn = prepare(mask=m.causal)
    with pytest.raises(ImportError, match=expected):
        tj.plan(attn)
    assert not given and not tj._is_registered
    assert jnp.ones(3).sum() == 3


def test_a_newer_minor_version_is_taken(tmp_path, monkeypatch):
    header = tmp_path / "xla" / "ffi" / "api" / "c_api.h"
    header.parent.mkdir(parents=True)
    major, minor = tessera._native.xla_ffi_version
    header.write_text(f"#define XLA_FFI_API_MAJOR {major}\n#define XLA_FFI_API_MINOR {minor + 7}\n")
    given = []
    monkeypatch.setattr(tj, "_is_registered", False)
    monkeypatch.setattr(tj, "_register_plan_for", lambda: None)
    monkeypatch.setattr(jax.ffi, "include_dir", lambda: str(tmp_path))
    monkeypatch.setattr(jax.ffi, "register_ffi_target", lambda name, handler, platform: given.append((platform, name)))
    tj._register()
    assert sorted(given) == sorted((p, f"tessera_{way}") for p in ("cpu", "CUDA") for way in ("forward", "backward"))


def test_our_declarations_are_the_headers(root, tmp_path):
    """The structs that python/src/xla_ffi.h declares, beside those of the jaxlib that is installed."""
    compiler = shutil.which("g++")
    if compiler is None or not (root / "python/src/xla_ffi.h").exists():
        pytest.skip("needs a C++ compiler and the source tree")
    pairs = {
        "ExtensionBase": ("Extension_Base", {"struct_size": "", "type": "", "next": ""}),
        "ApiVersion": ("Api_Version", {"major_version": "", "minor_version": ""}),
        "Metadata": ("Metadata", {"api_version": "", "traits": ""}),
        "MetadataExtension": ("Metadata_Extension", {"extension_base": "", "metadata": ""}),
        "ErrorCreateArgs": ("Error_Create_Args", {"message": "", "code": "errc"}),
        "StreamGetArgs": ("Stream_Get_Args", {"ctx": "", "stream": ""}),
        "Api": ("Api", {"api_version": "", "internal_api": "", "error_create": "XLA_FFI_Error_Create",
                        "stream_get": "XLA_FFI_Stream_Get"}),
        "Buffer": ("Buffer", {"dtype": "", "data": "", "rank": "", "dims": ""}),
        "Args": ("Args", {"size": "", "types": "", "args": ""}),
        "Rets": ("Rets", {"size": "", "types": "", "args": "rets"}),
        "ByteSpan": ("ByteSpan", {"data": "ptr", "size": "len"}),
        "Scalar": ("Scalar", {"dtype": "", "value": ""}),
        "Attrs": ("Attrs", {"size": "", "types": "", "names": "", "attrs": ""}),
        "CallFrame": ("CallFrame", {"api": "", "ctx": "", "stage": "", "args": "", "rets": "", "attrs": ""}),
    }
    lines = ['#include <cstddef>', f'#include "{root}/python/src/xla_ffi.h"', '#include "xla/ffi/api/c_api.h"',
             "namespace o = tessera_python::xla_ffi;"]  # fmt: skip
    for ours, (theirs, members) in pairs.items():
        for name, other in members.items():
            lines.append(f"static_assert(offsetof(o::{ours}, {name}) == offsetof(XLA_FFI_{theirs}, {other or name}));")
            lines.append(f"static_assert(sizeof(o::{ours}::{name}) == sizeof(XLA_FFI_{theirs}::{other or name}));")
    for ours, theirs in {"kExtensionMetadata": "Extension_Metadata", "kInvalidArgument": "Error_Code_INVALID_ARGUMENT",
                         "kScalar": "AttrType_SCALAR", "kExecute": "ExecutionStage_EXECUTE", "kS64": "DataType_S64",
                         "kU8": "DataType_U8", "kF16": "DataType_F16", "kF32": "DataType_F32",
                         "kBf16": "DataType_BF16"}.items():  # fmt: skip
        lines.append(f"static_assert(static_cast<int>(o::{ours}) == static_cast<int>(XLA_FFI_{theirs}));")
    source = tmp_path / "check.cc"
    source.write_text("\n".join(lines) + "\n")
    done = subprocess.run([compiler, "-std=c++20", "-fsyntax-only", "-Wno-invalid-offsetof", f"-I{jax.ffi.include_dir()}",
                           str(source)], capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert pathlib.Path(jax.ffi.include_dir()).exists()


@pytest.mark.skipif(jax.__version_info__ >= (0, 6), reason="this JAX has Splash's arrays as they are now")
def test_splash_of_before_is_refused():
    plan = tessera.Engine().prepare(tessera.Contract(q_len=512, dim_qk=128, mask=m.causal)).plan()
    with pytest.raises(ImportError, match="Splash of JAX 0.6 and later"):
        tj.splash_mask_info(plan)


@pytest.mark.skipif(jax.__version_info__ < (0, 6), reason="its Splash has other arrays, which splash_mask_info() does not make")
def test_splash_mask_info_equals_what_splash_builds():
    splash = pytest.importorskip("jax.experimental.pallas.ops.tpu.splash_attention")
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask_info as info

    contract = tessera.Contract(q_len=512, num_q_heads=2, dim_qk=128, mask=m.window(127, 0))
    plan = tessera.Engine().prepare(contract).plan()
    mask = splash.splash_attention_mask.MultiHeadMask(
        [splash.splash_attention_mask.LocalMask((512, 512), (127, 0), 0)] * 2
    )
    for direction, make in (("forward", info.process_mask), ("dkv", info.process_mask_dkv)):
        want, _ = make(mask, (128, 128))
        got = tj.splash_mask_info(plan, block=(128, 128), direction=direction)
        for name in info.MaskInfo._fields:
            ours, theirs = getattr(got, name), getattr(want, name)
            assert (ours is None) == (theirs is None), name
            if theirs is not None and name != "is_dynamic_mask":
                assert np.array_equal(ours, theirs), (direction, name)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("direction", ["forward", "dkv"])
def test_splash_mask_info_of_tokamax_equals_what_it_builds(direction, dynamic):
    pytest.importorskip("tokamax", reason="Tokamax is not installed in this environment")
    from tokamax._src.ops.experimental.tpu.splash_attention import splash_attention_mask as masks
    from tokamax._src.ops.experimental.tpu.splash_attention import splash_attention_mask_info as info

    plan = tessera.Engine().prepare(tessera.Contract(q_len=512, dim_qk=128, mask=m.window(127, 0))).plan()
    make = info.process_mask_dkv if direction == "dkv" else info.process_mask
    want, _ = make(masks.LocalMask((512, 512), (127, 0), 0), (128, 128), return_dynamic_grid=dynamic)
    got = tj.splash_mask_info(plan, block=(128, 128), direction=direction, library="tokamax", dynamic_grid=dynamic)
    assert type(got) is info.MaskInfo
    for name in info.MaskInfo._fields:
        ours, theirs = getattr(got, name), getattr(want, name)
        assert (ours is None) == (theirs is None), name
        if theirs is not None:
            assert np.array_equal(ours, theirs), name
    with pytest.raises(ValueError, match="library"):
        tj.splash_mask_info(plan, library="flash")


def test_bridge(rng):
    """The engine calls JAX in the interpreter that it was called from, and says so."""
    attention = tessera.Engine().prepare(
        tessera.Contract(batch=B, q_len=T, num_q_heads=H, num_kv_heads=KV, dim_qk=D, dim_v=DV, mask=m.causal & m.documents,
                         softcap=5.0), lane="call_jax")  # fmt: skip
    ids = random_documents(rng, B, T, 4)
    bound = attention.bind(attention.plan(doc_ids=ids))
    q, k, v = (np.asarray(x) for x in inputs(rng))
    dout = rng.standard_normal((B, H, T, DV), np.float32)
    want = dense(q, k, v, causal_documents(ids, H), softcap=5.0, dout=dout)
    got = bound.forward(q, k, v, receipt=True)
    said = got.receipt.to_dict()
    assert (said["runtime_mode"], said["owner"], said["crossing"]["interpreter"]) == ("bridge", "call_jax", "host")
    close(got.o, want[0])
    close(got.lse, want[1])
    grads = bound.backward(q, k, v, o=got.o, lse=got.lse, dout=dout)
    for one, expected in zip((grads.dq, grads.dk, grads.dv), want[2:5]):
        close(one, expected)
