// One picture of one plan: tiles while they are small, single pairs once they are large enough to see.
const EMPTY = 0, FULL = 1, PARTIAL = 2, PAIR = 3, DENIED = 4, OUTSIDE = 5, DIFFERS = 6;
const PIXEL_KINDS = ["empty", "full", "partial", "pair", "denied", "outside", "differs"];
const LEFT = 62, TOP = 44, BAND = 10;   // margins, in CSS pixels: numbers, then documents along the axis
const PAIR_PIXELS = 3;                  // a pair this large is drawn by itself

const cssColour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
// Neighbours differ, by the golden angle; the first is blue, as a plan is.
const workerColour = (worker) => {
  const hue = (210 + worker * 137.508) % 360;
  const f = (n) => {
    const k = (n + hue / 30) % 12;
    return Math.round(255 * (0.55 - 0.32 * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return [f(0), f(8), f(4)];
};

// The pixels of [0, count) that tokens [begin, end) take; in view, one at least: a tile smaller than a pixel still shows.
const pixelsOf = (begin, end, origin, scale, count) => {
  const at = (token) => Math.max(0, Math.min(count, Math.floor((token - origin) * scale)));
  return [at(begin), Math.max(at(end), Math.min(count, at(begin) + 1))];
};

class TileMap {
  constructor(plan, canvas) {
    this.plan = plan;
    this.canvas = canvas;
  }

  size() {
    const ratio = window.devicePixelRatio || 1;
    return {ratio, width: Math.max(1, Math.floor((this.canvas.clientWidth - LEFT) * ratio)),
            height: Math.max(1, Math.floor((this.canvas.clientHeight - TOP) * ratio))};
  }

  // Device pixels per token that show everything.
  fitScale() {
    const {width, height} = this.size();
    return Math.min(width / this.plan.kv_len, height / this.plan.q_len);
  }

  // What every pixel shows. `cells` holds a kind; `marks` the cleanup of a partial tile, or a worker + 1.
  raster(state) {
    const {width, height} = this.size();
    const cells = new Uint8Array(width * height).fill(OUTSIDE);
    const marks = new Int32Array(width * height);
    const plan = this.plan;
    const list = plan.directions[state.direction];
    const mask = plan.maskOf(state.batchRow, state.head);
    const paint = (q, qEnd, k, kEnd, kind, mark) => {
      // Partial over full, full over empty.
      const [left, right] = pixelsOf(k, kEnd, state.k0, state.scale, width);
      const [top, bottom] = pixelsOf(q, qEnd, state.q0, state.scale, height);
      for (let row = top; row < bottom; ++row) {
        for (let at = row * width + left, end = row * width + right; at < end; ++at) {
          if (kind === EMPTY ? cells[at] === OUTSIDE : cells[at] === OUTSIDE || kind >= cells[at]) {
            cells[at] = kind;
            marks[at] = mark;
          }
        }
      }
    };
    paint(0, plan.q_len, 0, plan.kv_len, EMPTY, 0);
    const transposed = plan.isTransposed(state.direction);
    const [rowTile, slotTile] = transposed ? [list.tile_kv, list.tile_q] : [list.tile_q, list.tile_kv];
    const [rowStart, rowPixels] = transposed ? [state.k0, width] : [state.q0, height];
    const [slotStart, slotPixels] = transposed ? [state.q0, height] : [state.k0, width];
    const firstRow = Math.max(0, Math.floor(rowStart / rowTile));
    const endRow = Math.min(list.rows, Math.ceil((rowStart + rowPixels / state.scale) / rowTile));
    const firstSlot = Math.floor(slotStart / slotTile);
    const endSlot = Math.ceil((slotStart + slotPixels / state.scale) / slotTile);
    for (let row = firstRow; row < endRow; ++row) {
      const at = mask * list.rows + row;
      const begin = list.run_offsets[at];
      const end = list.run_offsets[at + 1];
      let run = Math.max(begin, begin + lastAtMost(end - begin, (i) => list.runs[3 * (begin + i)], firstSlot));
      for (; run < end && list.runs[3 * run] < endSlot; ++run) {
        const from = Math.max(list.runs[3 * run], firstSlot);
        const to = Math.min(list.runs[3 * run] + list.runs[3 * run + 1], endSlot);
        const cleanup = list.runs[3 * run + 2];
        const singly = (state.colour === "worker" || cleanup > 0) && slotTile * state.scale >= 1;
        for (let slot = from; slot < to; slot = singly ? slot + 1 : to) {
          const slotEnd = singly ? slot + 1 : to;
          const [q, k] = transposed ? [slot * slotTile, row * rowTile] : [row * rowTile, slot * slotTile];
          const qEnd = Math.min(plan.q_len, transposed ? slotEnd * slotTile : q + rowTile);
          const kEnd = Math.min(plan.kv_len, transposed ? k + rowTile : slotEnd * slotTile);
          if (cleanup > 0 && state.scale >= PAIR_PIXELS) {
            this.paintPairs(state, cleanup, q, qEnd, k, kEnd, paint);
          } else {
            const mark = state.colour === "worker" ? state.workerOf(this, at, slot) + 1 : cleanup;
            paint(q, qEnd, k, kEnd, cleanup > 0 ? PARTIAL : FULL, mark);
          }
        }
      }
    }
    return {cells, marks, width, height};
  }

  paintPairs(state, cleanup, q, qEnd, k, kEnd, paint) {
    const {width, height} = this.size();
    const qTo = Math.min(qEnd, Math.ceil(state.q0 + height / state.scale));
    const kTo = Math.min(kEnd, Math.ceil(state.k0 + width / state.scale));
    for (let i = Math.max(q, Math.floor(state.q0)); i < qTo; ++i) {
      for (let j = Math.max(k, Math.floor(state.k0)); j < kTo; ++j) {
        const passes = this.plan.passingItem(state.direction, cleanup, state.batchRow, i, j) >= 0;
        paint(i, i + 1, j, j + 1, passes ? PAIR : DENIED, 0);
      }
    }
  }

  draw(state, raster) {
    const {ratio, width, height} = this.size();
    this.canvas.width = width + Math.ceil(LEFT * ratio);
    this.canvas.height = height + Math.ceil(TOP * ratio);
    const context = this.canvas.getContext("2d");
    const packed = ([red, green, blue]) => (255 << 24 | blue << 16 | green << 8 | red) >>> 0;
    const colours = PIXEL_KINDS.map((name) => packed(rgb(cssColour(name))));
    const workers = state.colour === "worker"
        ? Array.from({length: state.workers}, (_, worker) => packed(workerColour(worker))) : [];
    const image = context.createImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    for (let at = 0; at < raster.cells.length; ++at) {
      const kind = raster.cells[at];
      const byWorker = workers.length > 0 && (kind === FULL || kind === PARTIAL) && raster.marks[at] > 0;
      pixels[at] = byWorker ? workers[raster.marks[at] - 1] : colours[kind];
    }
    context.fillStyle = cssColour("ground");
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    context.putImageData(image, Math.ceil(LEFT * ratio), Math.ceil(TOP * ratio));
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.drawLines(context, state);
    this.drawAxes(context, state);
    this.drawCursor(context, state);
  }

  // CSS pixels of a token's first edge.
  screenX(state, k) { return LEFT + (k - state.k0) * state.scale / this.size().ratio; }
  screenY(state, q) { return TOP + (q - state.q0) * state.scale / this.size().ratio; }

  drawLines(context, state) {
    const list = this.plan.directions[state.direction];
    const ratio = this.size().ratio;
    context.strokeStyle = cssColour("line");
    context.lineWidth = 0.5;
    const lines = (tile, from, length, count, line) => {
      if (tile * state.scale / ratio < 9) return;
      const first = Math.max(0, Math.ceil(from / tile));
      const last = Math.min(Math.ceil(count / tile), Math.floor((from + length / state.scale) / tile));
      for (let i = first; i <= last; ++i) line(Math.min(i * tile, count));
    };
    const {width, height} = this.size();
    const left = Math.max(LEFT, this.screenX(state, 0));
    const top = Math.max(TOP, this.screenY(state, 0));
    const right = Math.min(LEFT + width / ratio, this.screenX(state, this.plan.kv_len));
    const bottom = Math.min(TOP + height / ratio, this.screenY(state, this.plan.q_len));
    context.beginPath();
    lines(list.tile_kv, state.k0, width, this.plan.kv_len, (k) => {
      context.moveTo(this.screenX(state, k), top);
      context.lineTo(this.screenX(state, k), bottom);
    });
    lines(list.tile_q, state.q0, height, this.plan.q_len, (q) => {
      context.moveTo(left, this.screenY(state, q));
      context.lineTo(right, this.screenY(state, q));
    });
    context.stroke();
  }

  // Documents and the valid length as bands, and numbers where there is room for them.
  drawAxes(context, state) {
    const {ratio, width, height} = this.size();
    const bands = (side, visible, rect) => {
      const offsets = this.plan[side + "_segment_offsets"];
      const segments = this.plan[side + "_segments"];
      const valid = this.plan.validOf(side, state.batchRow);
      for (let s = offsets[state.batchRow]; s < offsets[state.batchRow + 1]; ++s) {
        if (segments[4 * s + 1] < visible[0] || segments[4 * s] > visible[1]) continue;
        const doc = segments[4 * s + 2];
        context.fillStyle = cssColour(doc < 0 ? "padding" : doc % 2 === 0 ? "band-a" : "band-b");
        rect(segments[4 * s], segments[4 * s + 1]);
      }
      if (valid < this.plan[side + "_len"]) {
        context.fillStyle = cssColour("padding");
        rect(valid, this.plan[side + "_len"]);
      }
    };
    const clip = (value, low, high) => Math.max(low, Math.min(high, value));
    bands("kv", [state.k0, state.k0 + width / state.scale], (a, b) => {
      const from = clip(this.screenX(state, a), LEFT, LEFT + width / ratio);
      context.fillRect(from, TOP - BAND - 2, clip(this.screenX(state, b), LEFT, LEFT + width / ratio) - from, BAND);
    });
    bands("q", [state.q0, state.q0 + height / state.scale], (a, b) => {
      const from = clip(this.screenY(state, a), TOP, TOP + height / ratio);
      context.fillRect(LEFT - BAND - 2, from, BAND, clip(this.screenY(state, b), TOP, TOP + height / ratio) - from);
    });
    context.fillStyle = cssColour("faint");
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    const step = (pixels) => {
      const wanted = pixels * ratio / state.scale;
      const power = 2 ** Math.ceil(Math.log2(Math.max(1, wanted)));
      return power;
    };
    context.textAlign = "center";
    const kStep = step(80);
    for (let k = Math.max(0, Math.ceil(state.k0 / kStep) * kStep); k < this.plan.kv_len; k += kStep) {
      const at = this.screenX(state, k);
      if (at > LEFT + width / ratio - 10) break;
      context.fillText(k.toLocaleString("en"), Math.max(LEFT + 4, at), TOP - BAND - 12);
    }
    context.textAlign = "right";
    const qStep = step(50);
    for (let q = Math.max(0, Math.ceil(state.q0 / qStep) * qStep); q < this.plan.q_len; q += qStep) {
      const at = this.screenY(state, q);
      if (at > TOP + height / ratio - 6) break;
      context.fillText(q.toLocaleString("en"), LEFT - BAND - 6, Math.max(TOP + 6, at));
    }
    context.textAlign = "left";
    context.fillText("keys →   queries ↓", 4, 8);
  }

  drawCursor(context, state) {
    const {ratio, width, height} = this.size();
    const pixels = Math.max(6, state.scale / ratio);
    const x = this.screenX(state, state.k) + Math.min(0, (state.scale / ratio - pixels) / 2);
    const y = this.screenY(state, state.q) + Math.min(0, (state.scale / ratio - pixels) / 2);
    if (x < LEFT - 6 || y < TOP - 6 || x > LEFT + width / ratio || y > TOP + height / ratio) return;
    context.strokeStyle = cssColour("cursor");
    context.lineWidth = 2;
    context.strokeRect(x, y, pixels, pixels);
  }

  pairAt(state, event) {
    const box = this.canvas.getBoundingClientRect();
    const ratio = this.size().ratio;
    const k = Math.floor(state.k0 + (event.clientX - box.left - LEFT) * ratio / state.scale);
    const q = Math.floor(state.q0 + (event.clientY - box.top - TOP) * ratio / state.scale);
    const inside = q >= 0 && k >= 0 && q < this.plan.q_len && k < this.plan.kv_len &&
        event.clientX - box.left >= LEFT && event.clientY - box.top >= TOP;
    return inside ? {q, k} : null;
  }
}

// Marks, in both pictures, what one of them shows and the other does not: pairs where pairs are drawn, else tiles.
// `areas` is [q, qEnd, k, kEnd, ...].
function markDifferences(a, b, state, areas) {
  if (a.cells.length !== b.cells.length) return;
  const meaning = (kind) => kind === PAIR ? FULL : kind === DENIED ? EMPTY : kind;
  const singly = state.scale >= PAIR_PIXELS;
  for (let at = 0; at < a.cells.length; ++at) {
    const kinds = [meaning(a.cells[at]), meaning(b.cells[at])];
    if (kinds[0] === kinds[1] || !(singly || kinds.includes(OUTSIDE))) continue;
    a.cells[at] = b.cells[at] = DIFFERS;
  }
  if (singly) return;
  const {width, height} = a;
  for (let i = 0; i < areas.length; i += 4) {
    const [top, bottom] = pixelsOf(areas[i], areas[i + 1], state.q0, state.scale, height);
    const [left, right] = pixelsOf(areas[i + 2], areas[i + 3], state.k0, state.scale, width);
    for (let row = top; row < bottom; ++row) {
      a.cells.fill(DIFFERS, row * width + left, row * width + right);
      b.cells.fill(DIFFERS, row * width + left, row * width + right);
    }
  }
}
