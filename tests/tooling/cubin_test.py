"""What the build refuses of a kernel, by what ptxas says of it."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "cmake"))
import cubin  # noqa: E402

GOOD = """ptxas info    : Compiling entry function 'tessera_forward' for 'sm_90a'
ptxas info    : Function properties for tessera_forward
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 16 barriers
"""


class Problems(unittest.TestCase):
    def expect(self, text, *words):
        found = " ".join(cubin.problems(text, "tessera_forward", 384))
        for word in words:
            self.assertIn(word, found)

    def test_good_kernel_has_none(self):
        self.assertEqual(cubin.problems(GOOD, "tessera_forward", 384), [])

    def test_spills_and_stack(self):
        self.expect(GOOD.replace("0 bytes spill stores", "16 bytes spill stores"), "16 bytes of spill stores")
        self.expect(GOOD.replace("0 bytes stack", "8 bytes stack"), "8 bytes of stack")

    def test_too_many_registers(self):
        self.expect(GOOD.replace("168", "176"), "more than 65536")
        self.expect(GOOD.replace("ptxas info    : Used 168 registers, used 16 barriers", ""), "no registers")

    def test_notes_on_matrix_products(self):
        for note in ("(C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized",
                     "(C7508) setmaxnreg ignored to maintain minimum register requirement", "(C7520) something"):
            self.expect(GOOD + f"ptxas info    : {note}\n", "a note of ptxas")

    def test_another_kernel(self):
        self.assertTrue(cubin.problems(GOOD, "tessera_dq", 384))


if __name__ == "__main__":
    unittest.main()
