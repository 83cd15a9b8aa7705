"""`plan.show()`: what a notebook shows, in a real browser where there is one, and what is in the page."""

import json
import re
import sys

import numpy as np
import pytest

import tessera
from tessera import mask as m


def attention(**more):
    c = tessera.Contract(**(dict(q_len=256, num_q_heads=2, dim_qk=16, mask=m.causal & m.documents, tile=16,
                                 tile_reason="a test") | more))  # fmt: skip
    return tessera.Engine().prepare(c)


def data_of(view):
    text = view.path.read_text(encoding="utf-8")
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])


def test_the_page_has_terms_lanes_and_a_receipt(rng, tmp_path):
    attn = attention()
    plan = attn.plan(doc_lengths=[100, 156])
    x = rng.standard_normal((1, 2, 256, 16), np.float32)
    receipt = attn.bind(plan).forward(x, x, x, receipt=True).receipt
    view = plan.show(tmp_path / "one.html", receipt=receipt, open=False)
    assert view.path == tmp_path / "one.html"
    shown = data_of(view)
    assert shown["plans"][0]["fingerprint"] == plan.fingerprint
    assert "causal and documents" in shown["plans"][0]["contract"]
    assert [lane["lane"] for lane in shown["plans"][0]["lanes"] if lane["selected"]] == [attn.lane]
    assert shown["receipts"][0]["executed"] == attn.lane
    other = attn.plan(doc_lengths=[[56, 200]])
    assert [p["fingerprint"] for p in data_of(plan.show(compare=other, open=False))["plans"]] == [
        plan.fingerprint, other.fingerprint]  # fmt: skip


def test_routed_picks_come_with_their_scores(rng):
    attn = attention(mask=m.causal & m.blocks, routing=dict(top_n=3, compression_block=16, block_stride=16, selected_block=16))
    q, k = (rng.standard_normal((1, heads, 256, 16), np.float32) for heads in (2, 2))
    plan = attn.plan(q=q, k=k)
    assert data_of(plan.show(open=False))["plans"][0]["picks"] is None, "nothing to score them with"
    picks = data_of(plan.show(q=q, k=k, open=False))["plans"][0]["picks"]
    assert picks["top_n"] == 3 and picks["block_tokens"] == 16 and picks["blocks"] and picks["scores"]


def test_open_is_asked_of_the_desktop_and_of_nothing_else(monkeypatch, tmp_path):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    plan = attention(mask="causal").plan()
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    plan.show(tmp_path / "a.html")
    assert not opened, "there is no screen"
    monkeypatch.setenv("DISPLAY", ":0")
    plan.show(tmp_path / "a.html", open=False)
    assert not opened
    plan.show(tmp_path / "a.html")
    assert opened == [(tmp_path / "a.html").as_uri()]
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    plan.show(tmp_path / "a.html")
    assert len(opened) == 1, "a notebook shows what is returned"


def test_bad_input(tmp_path):
    plan = attention(mask="causal").plan()
    with pytest.raises(TypeError, match="compare"):
        plan.show(compare="plan", open=False)
    with pytest.raises(OSError):
        plan.show(tmp_path / "none" / "a.html", open=False)
    with pytest.raises(ValueError, match="q: shape"):
        plan.show(q=np.zeros((1, 1), np.float32), open=False)


def test_a_notebook_shows_the_map(root, tmp_path):
    """The frame that a notebook puts on its page: it draws, it answers to the pointer, and nothing is an error."""
    sys.path.insert(0, str(root / "tests" / "view"))
    try:
        import chromium
    finally:
        sys.path.pop(0)
    if chromium.find() is None:
        pytest.skip("there is no Chromium here (script/setup --browser installs it)")
    view = attention().plan(doc_lengths=[100, 156]).show(tmp_path / "plan.html", open=False)
    page = tmp_path / "notebook.html"
    page.write_text(f"<!doctype html><title>notebook</title><base href='https://example.org/'>{view._repr_html_()}")
    browser = chromium.Page(chromium.find())
    try:
        browser.open(page)
        inside = [c for c in browser.contexts if browser.evaluate("typeof tessera", c) == "object"]
        assert len(inside) == 1, (browser.contexts, browser.errors)
        said = browser.evaluate("Object.assign(tessera.state, {q: 120, k: 40}); tessera.draw(); "
                                "document.getElementById('pointer').textContent", inside[0])  # fmt: skip
        assert "query 120 does not see key 40" in said and "document 1" in said and "✗ documents" in said
        assert browser.evaluate("tessera.maps[0].canvas.width", inside[0]) > 300
        assert browser.errors == []
    finally:
        browser.close()
