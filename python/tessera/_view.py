"""A plan to look at: one HTML file, made by the program that is in the package (docs/view.md)."""

from __future__ import annotations

import html
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._plan import Plan

_PROGRAM = pathlib.Path(__file__).parent / "bin" / "tessera"


class View:
    """The file that `Plan.show` wrote. A notebook shows what is in it."""

    def __init__(self, path: pathlib.Path):
        self.path = path

    def __repr__(self) -> str:
        return f"<tessera.View {str(self.path)!r}>"

    def _repr_html_(self) -> str:
        page = html.escape(self.path.read_text(encoding="utf-8"), quote=True)
        return f'<iframe srcdoc="{page}" sandbox="allow-scripts" style="width:100%;height:44em;border:0"></iframe>'


def show(plan: "Plan", path: str | os.PathLike[str] | None, is_opened: bool | None) -> View:
    if path is None:
        path = pathlib.Path(tempfile.mkdtemp(prefix="tessera-")) / f"plan_{plan.fingerprint[:8]}.html"
    path = pathlib.Path(path)
    if is_opened is None:
        is_opened = "ipykernel" not in sys.modules  # a notebook shows what is returned
    with tempfile.TemporaryDirectory() as scratch:
        file = pathlib.Path(scratch) / f"{plan.fingerprint[:8]}.plan"
        plan.save(file)
        command = [str(_PROGRAM), "view", "--plan", str(file), f"--out={path}"]
        done = subprocess.run(command + ([] if is_opened else ["--no-open"]), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(done.stderr.strip())
    return View(path)
