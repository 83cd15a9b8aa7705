// State, controls and the order of drawing. The state is in the address, so a link reopens the same view.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const plans = data.plans.map((plan) => new Plan(plan));
const plan = plans[0];
const maps = [];
// Of the longer one where two plans are shown.
const qLen = Math.max(...plans.map((which) => which.q_len));
const kvLen = Math.max(...plans.map((which) => which.kv_len));
const fitScale = () => Math.min(...maps.map((map) => map.fitScale()));
const schedules = new Map();
const differences = new Map();
const state = {batchRow: 0, head: 0, direction: 0, colour: "kind", workers: 1, q: 0, k: 0, q0: 0, k0: 0, scale: 1};

function scheduled(which) {
  const key = `${plans.indexOf(which)} ${state.direction} ${state.workers}`;
  if (!schedules.has(key)) schedules.set(key, schedule(which, state.direction, state.workers));
  return schedules.get(key);
}
state.workerOf = (map, row, index) => workerOfSlot(map.plan, state.direction, scheduled(map.plan), row, index);

// Of the two plans, for what is shown.
function difference() {
  const key = `${state.direction} ${state.batchRow} ${state.head}`;
  if (!differences.has(key)) differences.set(key, differencesOf(plans[0], plans[1], state));
  return differences.get(key);
}

const between = (value, low, high) => Math.max(low, Math.min(high, Number.isFinite(value) ? value : low));

// Brings every member into its range.
function settle() {
  state.batchRow = between(Math.floor(state.batchRow), 0, Math.min(...plans.map((p) => p.batch)) - 1);
  state.head = between(Math.floor(state.head), 0, Math.min(...plans.map((p) => p.heads)) - 1);
  state.direction = between(Math.floor(state.direction), 0, plan.directions.length - 1);
  state.workers = between(Math.floor(state.workers), 1, 4096);
  state.q = between(Math.floor(state.q), 0, qLen - 1);
  state.k = between(Math.floor(state.k), 0, kvLen - 1);
  if (state.colour !== "worker") state.colour = "kind";
  const fit = fitScale();
  state.scale = between(state.scale, Math.min(fit, 1) / 2, 64 * (window.devicePixelRatio || 1));
  state.q0 = between(state.q0, -qLen / 4, qLen);
  state.k0 = between(state.k0, -kvLen / 4, kvLen);
}

const SAVED = {b: "batchRow", h: "head", d: "direction", c: "colour", w: "workers", q: "q", k: "k", y: "q0", x: "k0",
               z: "scale", t: "theme"};
function remember() {
  if (location.protocol === "about:") return;  // inside a notebook's frame, which has no address of its own
  const parts = Object.entries(SAVED).filter(([, name]) => state[name] !== undefined)
      .map(([letter, name]) => `${letter}=${encodeURIComponent(state[name])}`);
  history.replaceState(null, "", "#" + parts.join("&"));
}
function recall() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  for (const [letter, name] of Object.entries(SAVED)) {
    const value = parameters.get(letter);
    if (value === null) continue;
    state[name] = name === "colour" || name === "theme" ? value : Number(value);
  }
  return parameters.has("z");
}

function describe() {
  const lines = [];
  plans.forEach((which) => {
    const list = which.directions[state.direction];
    if (state.q >= which.q_len || state.k >= which.kv_len) return;
    const tile = [Math.floor(state.q / list.tile_q), Math.floor(state.k / list.tile_kv)];
    const cleanup = which.cleanupAt(state.direction, which.maskOf(state.batchRow, state.head), ...tile);
    const item = cleanup > 0 ? which.passingItem(state.direction, cleanup, state.batchRow, state.q, state.k) : -1;
    const sees = cleanup === 0 || item >= 0;
    const name = plans.length > 1 ? which.name + ": " : "";
    lines.push(`${name}query ${grouped(state.q)} ${sees ? "sees" : "does not see"} key ${grouped(state.k)}`);
    const token = (side, at) => {
      const document = which.documentOf(side, state.batchRow, at);
      const words = document === null ? [] : [document.doc < 0 ? "padding" : `document ${document.doc}`];
      if (at >= which.validOf(side, state.batchRow)) words.push("beyond the valid tokens");
      return words.join(", ");
    };
    const [query, key] = [token("q", state.q), token("kv", state.k)];
    if (query !== "" || key !== "") lines.push(`  query: ${query || "–"}; key: ${key || "–"}`);
    const where = `  ${list.name} tile (${tile[0]}, ${tile[1]}) of ${list.tile_q}x${list.tile_kv}`;
    if (cleanup < 0) lines.push(`${where} is skipped: it is in no worklist`);
    if (cleanup === 0) lines.push(`${where} is full: every pair in it is allowed`);
    if (cleanup > 0) {
      lines.push(`${where} is partial, cleanup ${cleanup}; a pair passes when one line does (row ` +
                 `${state.q % list.tile_q}, key ${state.k % list.tile_kv} of the tile)`);
      const [begin, end] = which.cleanup_offsets.subarray(cleanup, cleanup + 2);
      for (let i = begin; i < Math.min(end, begin + 8); ++i) {
        lines.push(`    ${which.itemPasses(state.direction, i, state.batchRow, state.q, state.k) ? "✓" : "✗"} ` +
                   which.itemInWords(i));
      }
      if (end > begin + 8) lines.push(`    … and ${end - begin - 8} more`);
    }
    const size = which.picks === null ? 1 : which.picks.block_tokens;
    const pick = which.picksOf(state.batchRow, state.head, state.q).find((p) => p.block === Math.floor(state.k / size));
    if (which.picks !== null) {
      lines.push(`  routing ${pick === undefined ? "did not pick" : "picked"} block ${Math.floor(state.k / size)} of keys` +
                 (pick === undefined ? "" : pick.score === null ? ", without a score"
                                                               : `, score ${pick.score.toPrecision(4)}`));
    }
    const terms = which.terms(state.batchRow, state.head, state.q, state.k);
    if (terms.length > 0) {
      lines.push("  terms: " + terms.map(
          (term) => `${term.holds === null ? "?" : term.holds ? "✓" : "✗"} ${term.text}`).join("   "));
    }
  });
  $("pointer").textContent = lines.join("\n");
}

let bands = [];
function legend() {
  const entries = [["full", "full tile"], ["partial", "partial tile"], ["empty", "skipped"]];
  if (state.scale >= PAIR_PIXELS) entries.push(["pair", "pair allowed"], ["denied", "pair not allowed"]);
  if (plans.length > 1) entries.push(["differs", "the two differ"]);
  if (bands.some((of) => of.documents)) entries.push(["band-a", "documents, in turn"]);
  if (bands.some((of) => of.padding)) entries.push(["padding", "padding"]);
  $("legend").replaceChildren(...entries.map(([colour, words]) => {
    const made = element("span");
    const box = element("i");
    box.style.background = `var(--${colour})`;
    made.append(box, words);
    return made;
  }));
}

let pending = false;
function refresh() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => { pending = false; draw(); });
}

function draw() {
  settle();
  const rasters = maps.map((map) => map.raster(state));
  if (maps.length > 1) {
    if (state.colour === "kind") markDifferences(rasters[0], rasters[1], state, difference().areas);
    const {count} = difference();
    $("difference").textContent = `${count === 0 ? "No tile differs" : count === 1 ? "1 tile differs"
        : `${grouped(count)} tiles differ`}: ${plan.directions[state.direction].name}, batch row ${state.batchRow}, ` +
        `head ${state.head}.`;
  }
  maps.forEach((map, i) => map.draw(state, rasters[i]));
  for (const [id, name] of [["batch-row", "batchRow"], ["head", "head"], ["direction", "direction"],
                            ["colour", "colour"], ["workers", "workers"], ["query", "q"], ["key", "k"]]) {
    if (document.activeElement !== $(id)) $(id).value = state[name];
  }
  $("workers-label").hidden = state.colour !== "worker";
  legend();
  describe();
  $("picks").replaceChildren(...plans.filter((which) => which.picks !== null)
      .map((which) => picksPanel(which, state)));
  remember();
}

let panelsOf = "";
function refreshPanels() {
  const key = `${state.direction} ${state.workers}`;
  if (key === panelsOf) return;
  panelsOf = key;
  const columns = plans.map((which) => planPanels(which, state, scheduled(which)));
  const made = [];
  for (let i = 0; i < Math.max(...columns.map((c) => c.length)); ++i) {
    for (const column of columns) if (i < column.length) made.push(column[i]);
  }
  $("panels").replaceChildren(...made);
}

function fit() {
  state.scale = fitScale();
  state.q0 = 0;
  state.k0 = 0;
  refresh();
}

// Keeps the token under `centre` (device pixels from the map's corner) where it is.
function zoom(factor, centre) {
  const {width, height} = maps[0].size();
  const [x, y] = centre || [width / 2, height / 2];
  const before = state.scale;
  const k = state.k0 + x / before;
  const q = state.q0 + y / before;
  state.scale = before * factor;
  settle();
  state.k0 = k - x / state.scale;
  state.q0 = q - y / state.scale;
  refresh();
}

// Moves the view so that the cursor is in it.
function follow() {
  const {width, height} = maps[0].size();
  const [across, down] = [width / state.scale, height / state.scale];
  if (state.k < state.k0 || state.k + 1 > state.k0 + across) state.k0 = state.k - across / 2;
  if (state.q < state.q0 || state.q + 1 > state.q0 + down) state.q0 = state.q - down / 2;
  refresh();
}

function showPairs() {
  const {width, height, ratio} = maps[0].size();
  state.scale = 10 * ratio;
  state.k0 = state.k - width / state.scale / 2;
  state.q0 = state.q - height / state.scale / 2;
  refresh();
}

function onKey(event) {
  const list = plan.directions[state.direction];
  const [down, right] = state.scale >= PAIR_PIXELS ? [1, 1] : [list.tile_q, list.tile_kv];
  const moves = {ArrowUp: [-down, 0], ArrowDown: [down, 0], ArrowLeft: [0, -right], ArrowRight: [0, right]};
  if (moves[event.key]) {
    state.q = between(state.q + moves[event.key][0], 0, qLen - 1);
    state.k = between(state.k + moves[event.key][1], 0, kvLen - 1);
    follow();
  } else if (event.key === "+" || event.key === "=") {
    zoom(2);
  } else if (event.key === "-") {
    zoom(0.5);
  } else if (event.key === "0") {
    fit();
  } else if (event.key === "p") {
    showPairs();
  } else {
    return;
  }
  event.preventDefault();
}

function listen(map) {
  const canvas = map.canvas;
  let drag = null;
  canvas.addEventListener("keydown", onKey);
  canvas.addEventListener("wheel", (event) => {
    const box = canvas.getBoundingClientRect();
    const ratio = map.size().ratio;
    zoom(event.deltaY < 0 ? 1.25 : 0.8, [(event.clientX - box.left - LEFT) * ratio,
                                         (event.clientY - box.top - TOP) * ratio]);
    event.preventDefault();
  }, {passive: false});
  canvas.addEventListener("pointerdown", (event) => {
    drag = {x: event.clientX, y: event.clientY, q0: state.q0, k0: state.k0};
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const ratio = map.size().ratio;
    if (drag) {
      state.k0 = drag.k0 - (event.clientX - drag.x) * ratio / state.scale;
      state.q0 = drag.q0 - (event.clientY - drag.y) * ratio / state.scale;
    }
    const pair = map.pairAt(state, event);
    if (pair) Object.assign(state, pair);
    refresh();
  });
  canvas.addEventListener("pointerup", () => { drag = null; });
  canvas.addEventListener("pointercancel", () => { drag = null; });
}

function start() {
  $("title").textContent = data.title;
  for (const receipt of data.receipts) $("receipts").append(receiptPanel(receipt));
  if (plans.length === 0) return;
  $("main").hidden = false;
  bands = plans.map((which) => which.bands());
  state.several = plans.length > 1;
  for (const id of ["stage", "panels"]) $(id).classList.toggle("two", state.several);
  $("subtitle").textContent = plans.map((which) => `${grouped(which.q_len)} queries x ${grouped(which.kv_len)} keys, ` +
      `batch ${which.batch}, ${counted(which.heads, "head")}, ${counted(which.num_masks, "distinct mask")}`).join(" | ");
  for (const which of plans) {
    const figure = element("figure");
    const canvas = element("canvas", null, {class: "map", tabindex: "0", role: "application",
                                            "aria-label": `Tile map of ${which.name}; arrow keys move the pair`});
    figure.append(element("figcaption", which.name), canvas);
    for (const note of which.notes) figure.append(element("p", note, {class: "warning"}));
    $("maps").append(figure);
    maps.push(new TileMap(which, canvas));
  }
  maps.forEach(listen);
  plan.directions.forEach((d, i) => $("direction").append(element("option", d.name, {value: i})));
  for (const [id, most] of [["batch-row", plan.batch], ["head", plan.heads], ["query", qLen],
                            ["key", kvLen]]) {
    $(id).max = most - 1;
  }
  state.workers = plan.workers;
  state.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const saved = recall();
  document.documentElement.dataset.theme = state.theme = state.theme === "dark" ? "dark" : "light";
  const onInput = (id, name, then) => $(id).addEventListener("input", () => {
    state[name] = id === "colour" ? $(id).value : Number($(id).value);
    settle();
    then();
    refreshPanels();
  });
  onInput("batch-row", "batchRow", refresh);
  onInput("head", "head", refresh);
  onInput("direction", "direction", refresh);
  onInput("colour", "colour", refresh);
  onInput("workers", "workers", refresh);
  onInput("query", "q", follow);
  onInput("key", "k", follow);
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  $("zoom-in").addEventListener("click", () => zoom(2));
  $("zoom-out").addEventListener("click", () => zoom(0.5));
  $("fit").addEventListener("click", fit);
  $("pairs").addEventListener("click", showPairs);
  $("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = state.theme = state.theme === "dark" ? "light" : "dark";
    refresh();
  });
  window.addEventListener("resize", refresh);
  window.addEventListener("hashchange", () => { recall(); refresh(); });
  if (!saved) state.scale = fitScale();
  draw();
  refreshPanels();
  // For tests and the console: what is shown, and where.
  window.tessera = {state, plans, maps, refresh, draw};
}
start();
