"""What a type checker says of programs that use the package: nothing of a right one, and each wrong line of a wrong one."""

import re
import subprocess
import sys

import pytest

pytest.importorskip("mypy", reason="mypy is not installed")

RIGHT = """
from typing import Any, assert_type

import numpy as np
import tessera
from tessera import mask as m

Array = np.ndarray[tuple[Any, ...], np.dtype[Any]]

engine = tessera.Engine()
contract = tessera.Contract(
    q_len=64, num_q_heads=2, dim_qk=8, mask=m.causal & m.documents & (m.window(7, 0) | m.sink(4, document=True)))
assert_type(contract, tessera.Contract)
assert_type(contract.key, str)
assert_type(contract.shape.q_len, int)
attention = engine.prepare(contract, target="auto")
plan = attention.plan(doc_ids=np.zeros((1, 64), np.int32))
assert_type(plan.to_numpy(), dict[str, Array])
bound = attention.bind(plan)
q = np.zeros((1, 2, 64, 8), np.float32)
forward = bound.forward(q, q, q, receipt=True)
assert_type(forward.o, Array)
assert_type(forward.receipt, tessera.Receipt | None)
backward = bound.backward(q, q, q, forward.o, forward.lse, q)
assert_type(backward.dq, Array)
try:
    tessera.Contract(q_len=64, dim_qk=8, mask="cuasal")
except tessera.TesseraError as error:
    assert_type(error.code, str)
    assert_type(error.violations, list[tuple[str, str]])
"""

WRONG = RIGHT + """
tessera.Contract(q_len="64", dim_qk=8, mask="causal")  # wrong
tessera.Contract(q_len=64, mask="causal")  # wrong
m.window("7", 0)  # wrong
contract.key.missing  # wrong
attention.plan(documents=[[64]])  # wrong
bound.forward(q, q)  # wrong
bound.forward("q", q, q)  # wrong
engine.prepare(plan)  # wrong
"""


@pytest.mark.parametrize("text", [RIGHT, WRONG], ids=["right", "wrong"])
def test_a_checker_sees_the_types(text, tmp_path):
    (tmp_path / "program.py").write_text(text)
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache", "program.py"], cwd=tmp_path,
                          capture_output=True, text=True)
    found = {int(line) for line in re.findall(r"^program\.py:(\d+): error:", done.stdout, re.M)}
    wanted = {number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# wrong")}
    assert found == wanted and done.returncode == (1 if wanted else 0), done.stdout + done.stderr
