"""The `tessera` program out of the wheel."""

import os
import pathlib
import sys


def main() -> None:
    program = pathlib.Path(__file__).parent / "bin" / "tessera"
    os.execv(program, ["tessera", *sys.argv[1:]])
