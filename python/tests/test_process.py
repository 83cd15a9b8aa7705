"""What a process does to a library: threads, forks, and its end."""

import copy
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import warnings

import numpy as np
import pytest

import tessera

SETUP = """
import os, sys, threading, numpy as np, tessera
c = tessera.Contract(q_len=512, num_q_heads=4, dim_qk=32, mask="causal")
attn = tessera.Engine().prepare(c)
bound = attn.bind(attn.plan())
x = np.random.default_rng(0).standard_normal((1, 4, 512, 32), np.float32)
want = bound.forward(x, x, x).o
"""


def run(code, timeout=120):
    return subprocess.run([sys.executable, "-c", SETUP + textwrap.dedent(code)], capture_output=True, text=True,
                          timeout=timeout)  # fmt: skip


def test_eight_threads_share_an_engine_and_a_bound(rng):
    c = tessera.Contract(q_len=256, num_q_heads=2, dim_qk=16, mask="causal and documents")
    engine = tessera.Engine()
    attn = engine.prepare(c)
    shared = attn.bind(attn.plan(doc_lengths=[100, 156]))
    x = rng.standard_normal((1, 2, 256, 16), np.float32)
    want = shared.forward(x, x, x)
    grads = list(shared.backward(x, x, x, want.o, want.lse, x))
    wrong = []

    def work(number):
        for step in range(10):
            mine = engine.prepare(c)
            fresh = mine.bind(mine.plan(doc_lengths=[100 + number, 156 - number]))
            fresh.forward(x, x, x)
            got = shared.forward(x, x, x, receipt=step % 2 == 0)
            if not np.array_equal(got.o, want.o):
                wrong.append("o")
            if not all(map(np.array_equal, shared.backward(x, x, x, got.o, got.lse, x), grads)):
                wrong.append("gradients")
            try:
                fresh.forward(x, x, None)
                wrong.append("no error")
            except tessera.TesseraError:
                pass

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_fork_after_use_is_refused_and_a_new_engine_is_good():
    done = run(
        """
        pid = os.fork()
        if pid == 0:
            for call in (lambda: bound.forward(x, x, x), lambda: attn.plan(), lambda: attn._engine.prepare(c)):
                try:
                    call()
                    os._exit(3)
                except RuntimeError as error:
                    assert "fork" in str(error)
            mine = tessera.Engine().prepare(c, threads=1)
            same = np.array_equal(mine.bind(mine.plan()).forward(x, x, x).o, want)
            os._exit(0 if same else 4)
        status = os.waitpid(pid, 0)[1]
        assert np.array_equal(bound.forward(x, x, x).o, want)
        sys.exit(os.waitstatus_to_exitcode(status))
        """
    )
    assert done.returncode == 0, done.stderr


def test_multiprocessing_spawn_and_fork_servers_start_clean():
    done = run(
        """
        import multiprocessing
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(pow, (2, 5)) == 32
        """
    )
    assert done.returncode == 0, done.stderr


def test_the_end_of_the_interpreter():
    """Objects alive at exit, held in cycles and modules, with a thread still calling: no crash, nothing printed."""
    done = run(
        """
        class Holder: pass
        holder = Holder(); holder.self = holder; holder.kept = (bound, attn, attn.plan().to_numpy())
        sys.modules["kept"] = holder
        def loop():
            while True: bound.forward(x, x, x)
        threading.Thread(target=loop, daemon=True).start()
        import time; time.sleep(0.2)
        """
    )
    assert done.returncode == 0 and done.stderr == "", (done.returncode, done.stderr)


def test_handles_may_go_in_any_order(rng):
    x = rng.standard_normal((1, 1, 64, 8), np.float32)
    engine = tessera.Engine()
    attn = engine.prepare(tessera.Contract(q_len=64, dim_qk=8, mask="causal"))
    plan = attn.plan()
    native = attn.bind(plan)._native
    arrays = plan.to_numpy()
    del engine, attn, plan
    o, lse = np.empty_like(x), np.empty((1, 1, 64), np.float32)
    native.forward(x, x, x, None, o, lse, None, 0)
    assert np.isfinite(o).all() and len(arrays["forward.slots"]) == 1


def test_the_program_is_in_the_wheel():
    program = os.path.join(os.path.dirname(sys.executable), "tessera")
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.startswith(f"tessera {tessera.__version__}")


def test_a_plan_made_in_another_process_is_taken_in_this_one(rng):
    """As from a worker that plans ahead: by its own engine there, by the one of the same options here, whose number it shares."""
    contract = tessera.Contract(q_len=128, num_q_heads=2, dim_qk=16, mask="causal and documents")
    engine = tessera.Engine()
    attn = engine.prepare(contract)
    here = attn.plan(doc_lengths=[100, 28])
    code = """
        import pickle, sys, tessera
        contract, attn = pickle.loads(sys.stdin.buffer.read())
        plan = attn.plan(doc_lengths=[100, 28])
        assert plan.attention.contract == contract
        sys.stdout.buffer.write(pickle.dumps((plan, attn.bind(plan))))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], input=pickle.dumps((contract, attn)), capture_output=True,
                          timeout=120)  # fmt: skip
    assert done.returncode == 0, done.stderr
    plan, bound = pickle.loads(done.stdout)
    assert plan == here and plan.attention._engine is engine
    assert plan.attention._register().number == attn._register().number
    x = rng.standard_normal((1, 2, 128, 16), np.float32)
    assert np.array_equal(bound.forward(x, x, x).o, attn.bind(here).forward(x, x, x).o)


def test_contracts_are_copied_and_pickled(tmp_path):
    np.save(tmp_path / "bits.npy", np.tri(64, dtype=bool))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = tessera.Contract(q_len=64, dim_qk=8, mask=tessera.mask.bitmap(np.tri(64, dtype=bool)))
    named = tessera.Contract(q_len=64, dim_qk=8, mask='bitmap("bits.npy")', base_dir=tmp_path)
    for contract in (tessera.Contract(q_len=64, dim_qk=8, mask="causal", softcap=3.0), given, named):
        again = pickle.loads(pickle.dumps(contract))
        assert again == contract and again.key == contract.key and copy.deepcopy(contract) is contract is copy.copy(contract)
        assert pickle.loads(pickle.dumps(again)) == contract
        again.save(tmp_path / "contract.toml")
        assert tessera.Contract.load(tmp_path / "contract.toml") == contract
    os.remove(tmp_path / "bits.npy")
    with pytest.raises(tessera.TesseraError, match="TSR-C005"):  # of a file, it is the file's
        pickle.loads(pickle.dumps(named))
