#!/usr/bin/env python3
"""Six masks as pictures, for docs/view.md: `tessera view` in a headless browser, and its map alone as a .png.

    gallery.py TESSERA FOLDER             draws them
    gallery.py --check TESSERA FOLDER     holds those that are there against what the page draws now: every tile, and
                                          the documents along both axes; 1 and the first difference where one differs
Numbers and lines are not compared: letters and blending are those of a machine. Exit status 77 of --check where there is
no Chromium.
"""

import argparse
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import zlib

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
LENGTH, TILE = 512, 16
LEFT, TOP, BAND = 62, 44, 10  # margins of the map, as map.js has them
TOLERANCE = 12  # of 255: what two browsers may make of one colour
SKIP = 77


def draw(tessera, binary, folder):
    """The six pictures, into this folder."""
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
    page.close()


def read_png(path):
    """(width, height, rows of bytes, bytes of a pixel) of an 8-bit picture in colour that is not interlaced."""
    data = pathlib.Path(path).read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n", f"{path} is no .png"
    packed, at = b"", 8
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + size]
        at += 12 + size
        if kind == b"IHDR":
            width, height, depth, colours, *_, interlaced = struct.unpack(">IIBBBBB", body)
            assert depth == 8 and colours in (2, 6) and interlaced == 0, f"{path}: another kind of .png"
        packed += body if kind == b"IDAT" else b""
    step = 3 if colours == 2 else 4
    raw, rows, above = zlib.decompress(packed), [], bytes(width * step)
    for y in range(height):
        begin = y * (1 + width * step)
        row, way = bytearray(raw[begin + 1:begin + 1 + width * step]), raw[begin]
        for i in range(len(row) if way else 0):
            left, over, corner = (row[i - step], above[i], above[i - step]) if i >= step else (0, above[i], 0)
            if way == 4:
                guess = left + over - corner
                near = min((left, over, corner), key=lambda value: abs(guess - value))
            else:
                near = {1: left, 2: over, 3: (left + over) // 2}[way]
            row[i] = (row[i] + near) & 255
        rows.append(bytes(row))
        above = row
    return width, height, rows, step


def places():
    """(what, x, y): the middle of every tile, and of every tile's tokens on both bands."""
    scale = min((SIDE - LEFT) / LENGTH, (SIDE - 18 - TOP) / LENGTH)
    middles = [int((tile + TILE / 2) * scale) for tile in range(0, LENGTH, TILE)]
    for i, at in enumerate(middles):
        yield f"the band of keys at {i * TILE}", LEFT + at, TOP - 2 - BAND // 2
        yield f"the band of queries at {i * TILE}", LEFT - 2 - BAND // 2, TOP + at
        for j, across in enumerate(middles):
            if i + j > 0:  # the first is under the cursor
                yield f"tile ({i}, {j})", LEFT + across, TOP + at


def compare(name, kept, drawn):
    """The first difference in words; None where the two pictures show the same."""
    (*size, rows, step), (*new_size, new_rows, new_step) = read_png(kept), read_png(drawn)
    if size != new_size:
        return f"{name} is {size[0]}x{size[1]} and would be {new_size[0]}x{new_size[1]}"
    for what, x, y in places():
        old, new = tuple(rows[y][x * step:x * step + 3]), tuple(new_rows[y][x * new_step:x * new_step + 3])
        if max(abs(a - b) for a, b in zip(old, new)) > TOLERANCE:
            return f"{name}: {what} is {old} and would be {new}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("tessera")
    parser.add_argument("folder", type=pathlib.Path)
    given = parser.parse_args()
    tessera, binary = os.path.abspath(given.tessera), chromium.find()
    if binary is None:
        print("there is no Chromium here (script/setup --browser installs it)", file=sys.stderr)
        return SKIP if given.check else 1
    if not given.check:
        given.folder.mkdir(parents=True, exist_ok=True)
        draw(tessera, binary, given.folder)
        print(*(f"{name}.png: {mask}" for name, (mask, _) in PICTURES.items()), sep="\n")
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        draw(tessera, binary, pathlib.Path(scratch))
        names = sorted(path.name for path in given.folder.glob("*.png"))
        wrong = [] if names == sorted(name + ".png" for name in PICTURES) else [f"the folder has {', '.join(names)}"]
        for name in PICTURES:
            kept = given.folder / (name + ".png")
            wrong += filter(None, [compare(name, kept, pathlib.Path(scratch, name + ".png"))] if kept.exists() else [])
    for line in wrong:
        print(f"{line}; script/gallery draws them anew", file=sys.stderr)
    if not wrong:
        print(f"{len(PICTURES)} pictures are what the page draws")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
