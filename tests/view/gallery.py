#!/usr/bin/env python3
"""Six masks as pictures, for docs/view.md: `tessera view` in a headless browser, and its map alone as a .png.

    gallery.py TESSERA FOLDER
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import chromium

DOCUMENTS = {"doc_lengths": [[130, 61, 190, 99, 32]]}
PICTURES = {
    "causal": ("causal", None),
    "window": ("causal and window(95, 0)", None),
    "documents": ("causal and documents", DOCUMENTS),
    "document_sinks": ("causal and documents and (window(47, 0) or sink(8, document))", DOCUMENTS),
    "prefix": ("prefix(160) or causal", None),
    "chunks": ("causal and chunk(128) or sink(16) and causal", None),
}
TEXT = """version = 1
[shape]
q_len = 512
dim_qk = 64
[tiles]
q = 16
kv = 16
reason = "a picture"
[mask]
expr = "{}"
"""
SIDE = 420


def main():
    tessera, folder = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2])
    binary = chromium.find()
    if binary is None:
        print("there is no Chromium here (script/setup --browser installs it)", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    page = chromium.Page(binary, width=1000, height=900)
    with tempfile.TemporaryDirectory() as scratch:
        for name, (mask, batch) in PICTURES.items():
            contract, html = pathlib.Path(scratch, name + ".toml"), pathlib.Path(scratch, name + ".html")
            contract.write_text(TEXT.format(mask))
            arguments = [tessera, "view", contract, "--no-open", "--out", html]
            if batch:
                path = pathlib.Path(scratch, "batch.json")
                path.write_text(json.dumps(batch))
                arguments += ["--batch", path]
            subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)
            page.open(html, "#t=light")
            page.evaluate(f"""(() => {{ const canvas = tessera.maps[0].canvas;
                canvas.style.width = "{SIDE}px"; canvas.style.height = "{SIDE - 18}px";
                Object.assign(tessera.state, {{q0: 0, k0: 0, scale: tessera.maps[0].fitScale(), q: 0, k: 0}});
                tessera.draw(); }})()""")
            box = page.evaluate("(({x, y, width, height}) => ({x, y, width, height}))("
                                "tessera.maps[0].canvas.getBoundingClientRect())")
            page.screenshot(folder / (name + ".png"), box)
            print(f"{name}.png: {mask}")
    page.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
