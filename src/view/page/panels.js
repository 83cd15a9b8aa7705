// The tables under the map. Text is always set as text, never as markup: names come from files.
function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  if (text !== undefined && text !== null) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

const grouped = (number) => Number(number).toLocaleString("en");
const counted = (number, word) => `${grouped(number)} ${word}${number === 1 ? "" : "s"}`;

// columns: [heading, "number" or ""]; rows of texts and numbers.
function table(columns, rows) {
  const made = element("table");
  const head = made.createTHead().insertRow();
  for (const [heading, kind] of columns) head.append(element("th", heading, {class: kind, scope: "col"}));
  const body = made.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    row.forEach((cell, i) => line.append(
        element("td", typeof cell === "number" ? grouped(cell) : cell, {class: columns[i][1]})));
  }
  return made;
}

function panel(heading, ...content) {
  const made = element("section");
  made.append(element("h2", heading), ...content);
  return made;
}

// Parts are listed in the order workers take them: each goes to whoever is free first. A worker's time is its slots.
function schedule(plan, direction, workers) {
  const list = plan.directions[direction];
  const load = new Float64Array(workers);
  const workerOfPart = new Int32Array(list.parts.length / 4);
  const rows = new Map();  // row -> [slot_end, worker], in order of slots
  for (let p = 0; p < workerOfPart.length; ++p) {
    let worker = 0;
    if (p < workers) worker = p;
    else for (let w = 1; w < workers; ++w) if (load[w] < load[worker]) worker = w;
    const [row, begin, end] = list.parts.subarray(4 * p, 4 * p + 3);
    load[worker] += end - begin;
    workerOfPart[p] = worker;
    if (!rows.has(row)) rows.set(row, []);
    rows.get(row).push([begin, end, worker]);
  }
  for (const parts of rows.values()) parts.sort((a, b) => a[0] - b[0]);
  return {load, rows};
}

// Where the slots of a row begin, which parts count from.
function slotsBefore(list) {
  if (!list.slot_begin) {
    list.slot_begin = new Float64Array(list.run_offsets.length);
    for (let row = 0; row + 1 < list.run_offsets.length; ++row) {
      let slots = 0;
      for (let run = list.run_offsets[row]; run < list.run_offsets[row + 1]; ++run) slots += list.runs[3 * run + 1];
      list.slot_begin[row + 1] = list.slot_begin[row] + slots;
    }
  }
  return list.slot_begin;
}

function workerOfSlot(plan, direction, scheduled, row, index) {
  const list = plan.directions[direction];
  let slot = slotsBefore(list)[row];
  for (let run = list.run_offsets[row]; run < list.run_offsets[row + 1]; ++run) {
    if (index < list.runs[3 * run] + list.runs[3 * run + 1]) {
      slot += index - list.runs[3 * run];
      break;
    }
    slot += list.runs[3 * run + 1];
  }
  for (const [begin, end, worker] of scheduled.rows.get(row) || []) {
    if (slot >= begin && slot < end) return worker;
  }
  return 0;
}

function balancePanel(plan, state, scheduled) {
  const canvas = element("canvas", null, {class: "bars", role: "img"});
  const most = Math.max(1, ...scheduled.load);
  const mean = scheduled.load.reduce((sum, load) => sum + load, 0) / scheduled.load.length;
  const words = `${counted(scheduled.load.length, "worker")}; the busiest has ${counted(most, "tile")}, the mean is ` +
      `${mean.toFixed(1)}. Parts are taken in the plan's order by whoever is free first.`;
  canvas.setAttribute("aria-label", words);
  requestAnimationFrame(() => {
    const ratio = window.devicePixelRatio || 1;
    canvas.width = canvas.clientWidth * ratio;
    canvas.height = canvas.clientHeight * ratio;
    const context = canvas.getContext("2d");
    const width = canvas.width / scheduled.load.length;
    scheduled.load.forEach((load, worker) => {
      context.fillStyle = `rgb(${workerColour(worker).join(",")})`;
      const height = load / most * canvas.height;
      context.fillRect(worker * width, canvas.height - height, Math.max(1, width - 1), height);
    });
  });
  return panel(`Balance, ${plan.directions[state.direction].name}`, canvas, element("p", words, {class: "help"}));
}

function capacityPanel(plan) {
  const rows = plan.directions.map((d) =>
      [`slots in a row, ${d.name} (tile ${d.tile_q}x${d.tile_kv})`, d.widest, d.width_capacity]);
  rows.push(["masks", plan.num_masks, plan.mask_capacity], ["cleanups", plan.num_cleanups - 1, plan.cleanup_capacity]);
  rows.push(["parts", Math.max(...plan.directions.map((d) => d.parts.length / 4)), plan.part_capacity]);
  rows.push(["bytes of scalar memory", plan.metadata_bytes, plan.scalar_bytes || "no limit"]);
  return panel("The class, and what this batch uses of it",
               table([["", ""], ["used", "number"], ["capacity", "number"]], rows));
}

// What routing picked for the query at the pointer, the best first; kept blocks have no score of their own.
function picksPanel(plan, state) {
  const picks = plan.picksOf(state.batchRow, state.head, state.q);
  picks.sort((a, b) => (b.score ?? Infinity) - (a.score ?? Infinity) || a.block - b.block);
  const rows = picks.map((pick) => [pick.block, `${grouped(pick.begin)} to ${grouped(pick.end - 1)}`,
                                    pick.score === null ? "kept without one" : pick.score.toPrecision(4)]);
  return panel(`Picks of query ${grouped(state.q)}, head ${state.head}`,
               table([["block", "number"], ["keys", ""], ["score", "number"]], rows));
}

function planPanels(plan, state, scheduled) {
  const made = [balancePanel(plan, state, scheduled), capacityPanel(plan)];
  const tiles = plan.directions.map((d) => [d.name, d.full, d.partial, d.empty]);
  made.push(panel("Tiles, over all batch rows and heads",
                  table([["", ""], ["full", "number"], ["partial", "number"], ["skipped", "number"]], tiles)));
  if (plan.lanes.length > 0) {
    made.push(panel("Lanes", table([["lane", ""], ["", ""], ["why not", ""]], plan.lanes.map(
        (lane) => [lane.lane, lane.selected ? "selected" : lane.accepted ? "can run it" : "cannot", lane.why]))));
  }
  if (plan.stages.length > 0) {
    made.push(panel("Stages", table([["stage", ""], ["ms", "number"], ["what it did", ""]], plan.stages.map(
        (stage) => [stage.name, (stage.ns / 1e6).toFixed(3), stage.disabled ? "disabled by request" : stage.summary]))));
  }
  if (plan.contract !== "") made.push(panel("Contract", element("pre", plan.contract)));
  made.push(panel("Keys", table([["", ""], ["", ""]], [["contract", plan.contract_key], ["class", plan.class_key],
                                                        ["plan", plan.fingerprint]])));
  if (state.several) for (const one of made) one.querySelector("h2").append(`: ${plan.name}`);
  return made;
}

// A receipt as a table of its plain members, the rest as text.
function receiptPanel(receipt) {
  const plain = Object.entries(receipt).filter(([, value]) => value === null || typeof value !== "object");
  const made = panel("Receipt", table([["", ""], ["", ""]], plain.map(([name, value]) => [name, String(value)])));
  const details = element("details");
  details.append(element("summary", "All of it"), element("pre", JSON.stringify(receipt, null, 2)));
  made.append(details);
  return made;
}
