"""A plan to look at: one HTML file that needs nothing but a browser (docs/view.md)."""

from __future__ import annotations

import html
import os
import pathlib
import sys
import tempfile
import webbrowser
from typing import TYPE_CHECKING, Any

from . import _native
from ._files import whole_file

if TYPE_CHECKING:
    from ._plan import Plan
    from ._receipt import Receipt


class View:
    """The file that `Plan.show` wrote. A notebook shows what is in it."""

    def __init__(self, path: pathlib.Path):
        self.path = path

    def __repr__(self) -> str:
        return f"<tessera.View {str(self.path)!r}>"

    def _repr_html_(self) -> str:
        page = html.escape(self.path.read_text(encoding="utf-8"), quote=True)
        return f'<iframe srcdoc="{page}" sandbox="allow-scripts" style="width:100%;height:44em;border:0"></iframe>'


def page_of(plan: "Plan", compare: "Plan | None", receipt: "Receipt | None", q: Any, k: Any) -> str:
    other = None if compare is None else (compare.attention._native, compare._native)
    return _native.view_html(
        plan.attention._native, plan._native, f"plan {plan.fingerprint[:8]}", other,
        "" if compare is None else f"plan {compare.fingerprint[:8]}", None if receipt is None else receipt._native, q, k,
    )  # fmt: skip


def write(page: str, name: str, path: str | os.PathLike[str] | None) -> View:
    path = pathlib.Path(tempfile.mkdtemp(prefix="tessera-")) / f"{name}.html" if path is None else pathlib.Path(path)
    with whole_file(path) as file:
        file.write(page.encode())
    return View(path)


def open_in_browser(view: View) -> None:
    """Where there is a screen to show it on: elsewhere `webbrowser` would start a browser of the terminal's."""
    has_screen = sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    if has_screen:
        webbrowser.open(view.path.resolve().as_uri())


def is_notebook() -> bool:
    return "ipykernel" in sys.modules
