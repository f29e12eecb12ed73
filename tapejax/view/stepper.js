// The stepper: draws a film (see film.py) and turns its pages. One file serves the live widget, where
// `model` is anywidget's, and the static page, where it is a few lines (see html.py). It draws no
// graph and computes no number: the SVG and every value come from Python.

const ICONS = {
  rewind: "M4 4h2v12H4zM16 4v12L7 10z",
  back: "M14 4v12L5 10z",
  play: "M6 3.5v13l10-6.5z",
  pause: "M5 4h4v12H5zM11 4h4v12h-4z",
  step: "M6 4v12l9-6z",
  finish: "M4 4v12l9-6zM14 4h2v12h-2z",
  forward: "M3 9h9V5l6 5-6 5v-4H3z",
  theme: "M10 3a7 7 0 1 0 0 14zM10 3v14a7 7 0 0 0 0-14z",
};
const icon = (name) => `<svg viewBox="0 0 20 20" aria-hidden="true"><path d="${ICONS[name]}"/></svg>`;
const escape = (text) =>
  String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
const LISTED = 200; // earlier terms of a sum that are listed
const clamp = (x, low, high) => Math.min(Math.max(x, low), high);
const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

function brief(value) {
  if (typeof value === "string") return value;
  const size = Math.abs(value);
  if (value === 0 || (size >= 1e-3 && size < 1e5)) return String(Number(value.toPrecision(4))).replace("-", "−");
  return value.toExponential(2).replace(/-/g, "−");
}

const isBad = (value) => value.bad > 0 || (value.data ?? []).some((x) => x === "nan" || x === "inf" || x === "-inf");

function render({ model, el }) {
  const film = model.get("film");
  const steps = film.steps;
  const last = steps.length;
  const host = document.createElement("div");
  host.dataset.lmSuppressShortcuts = "true"; // JupyterLab's own keys; older releases see them before we do
  el.replaceChildren(host);
  const shadow = host.attachShadow({ mode: "open" });
  shadow.innerHTML = `<style>${model.get("css_text")}</style>${skeleton(film)}`;
  const $ = (selector) => shadow.querySelector(selector);
  const $$ = (selector) => [...shadow.querySelectorAll(selector)];
  const view = $(".view");

  // --- the film by tensor: every term as it comes ------------------------------------------------

  const events = new Map(); // tensor -> [{at, value, after, accumulates, action} or {at, removed}]
  const note = (tensor, event) => (events.get(tensor) ?? events.set(tensor, []).get(tensor)).push(event);
  const term = (at, action) => ([tensor, value, after, accumulates]) =>
    note(tensor, { at, value, after, accumulates, action });
  film.seeds.forEach(term(0, null));
  steps.forEach((step, i) => {
    const removed = new Set(step.removed);
    removed.forEach((tensor) => note(tensor, { at: i + 1, removed: true }));
    step.out.forEach(term(i + 1, step.action));
  });
  const sumAt = (tensor, position) => {
    let terms = [];
    for (const event of events.get(tensor) ?? []) {
      if (event.at > position) break;
      if (event.removed) terms = [];
      else terms.push(event);
    }
    return terms;
  };
  const latestAt = (tensor, position) => { // by halves: a shared input may have thousands of terms
    const all = events.get(tensor) ?? [];
    let [low, high] = [0, all.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (all[middle].at <= position) low = middle + 1;
      else high = middle;
    }
    return low ? all[low - 1] : null;
  };
  const unfinished = new Set(film.unfinished); // what actions that are not shown add to
  const normAt = (tensor, position) => {
    const latest = latestAt(tensor, position);
    if (!latest || latest.removed) return "";
    return brief(film.values[latest.after].norm) + (unfinished.has(tensor) ? " + …" : "");
  };
  const badValue = film.values.map(isBad);
  const badAction = new Set(); // NaN or Inf in what arrives, is kept or is sent on
  for (const step of steps)
    if ([...step.in, ...step.out].some((item) => badValue[item[1]] || badValue[item[2]])) badAction.add(step.action);
  film.actions.forEach((about, i) => about.kept.some(([, index]) => badValue[index]) && badAction.add(film.first + i));
  const sums = steps.map((step) => step.out.some((item) => item[3]));
  const label = (tensor) => film.tensors[tensor]?.[0] ?? `%${tensor}`;
  const kind = (tensor) => film.tensors[tensor]?.[1] ?? "";
  const actionAt = (position) => (position ? steps[position - 1].action : null);
  const page = (action) => film.actions[action - film.first];
  const positionOf = (action) => film.first + film.count - action;
  const show = (action) => (ahead === null ? go(positionOf(action)) : goAhead(action - film.first + 1));

  // --- moving -------------------------------------------------------------------------------------

  let timer = null;
  const position = () => clamp(model.get("position") ?? 0, 0, last);
  const go = (to) => {
    model.set("position", clamp(to, 0, last));
    model.save_changes();
  };
  let ahead = null; // while the forward is played: how many actions have run
  const goAhead = (to) => {
    ahead = clamp(to, 0, film.count);
    update();
  };
  const forwardMoves = {
    rewind: () => goAhead(0),
    back: () => goAhead(ahead - 1),
    step: () => goAhead(ahead + 1),
    finish: () => goAhead(film.count),
  };
  const moves = {
    rewind: () => go(0),
    back: () => go(position() - 1),
    step: () => go(position() + 1),
    finish: () => go(last),
    forward: () => {
      ahead = ahead === null ? 0 : null;
      update();
    },
    sum: () => {
      const next = sums.findIndex((found, i) => found && i >= position());
      go(next < 0 ? last : next + 1);
    },
    play: () => (timer ? pause() : play()),
  };
  const move = (name) => (ahead !== null && forwardMoves[name] ? forwardMoves : moves)[name]();
  const play = () => {
    if (ahead === film.count) goAhead(0);
    else if (ahead === null && position() === last) go(0);
    const tick = () => {
      if (ahead !== null && ahead < film.count) return goAhead(ahead + 1);
      if (ahead !== null) { // the forward has ended: now back
        ahead = null;
        return go(0);
      }
      position() < last ? moves.step() : pause();
    };
    timer = setInterval(tick, Number($(".speed").value));
    shown();
  };
  const pause = () => {
    clearInterval(timer);
    timer = null;
    shown();
  };
  const shown = () => {
    const button = $('[data-do="play"]');
    button.innerHTML = icon(timer ? "pause" : "play");
    button.setAttribute("aria-label", timer ? "Pause (space)" : "Play (space)");
    button.title = timer ? "Pause (space)" : "Play (space)";
    button.setAttribute("aria-pressed", timer !== null);
  };

  // --- numbers and heat maps ------------------------------------------------------------------------

  const tint = (share) => {
    const amount = Math.min(Math.abs(share), 1);
    const tone = share < 0 ? "--negative" : "--positive";
    return `color-mix(in oklab, var(${tone}) ${(amount * 38).toFixed(0)}%, transparent)`;
  };
  const shape = (value) => (value.shape.length ? value.shape.join("×") : "scalar");
  const drawValue = (index, name = "") => {
    const value = film.values[index];
    const drawn = value.data ? numbers(value, name) : heat(value, index, name);
    return value.part ? `${drawn}<small>${escape(value.part)}</small>` : drawn; // the rest is in other processes
  };
  const numbers = (value, name) => {
    const largest = Math.max(...value.data.filter((x) => typeof x === "number").map(Math.abs), 1e-300);
    const cell = (x) => {
      const bad = typeof x === "string" && !x.endsWith("i");
      const back = typeof x === "number" && value.data.length > 1 ? ` style="background:${tint(x / largest)}"` : "";
      return `<span class="cell${bad ? " bad" : ""}" data-value="${x}" title="${x}"${back}>${brief(x)}</span>`;
    };
    const spoken = escape(`${name} ${value.dtype}[${value.shape}]: ${value.data.map(brief).join(", ")}`.trim());
    if (!value.shape.length)
      return `<span class="scalar" role="img" aria-label="${spoken}">${cell(value.data[0])}</span>`;
    const columns = clamp(value.shape.at(-1), 1, value.shape.length === 1 ? 8 : 36); // a vector goes on in a new row
    return `<span class="matrix" role="img" aria-label="${spoken}" style="grid-template-columns:repeat(${columns},auto)">${value.data
      .map(cell)
      .join("")}</span>`;
  };
  const heat = (value, index, name) => {
    const { rows, cols, block, scale } = value.heat;
    const size = rows === 1 ? [Math.min(cols * 6, 220), 18] : [clamp(cols * 5, 48, 120), clamp(rows * 5, 24, 110)];
    const coarse = block[0] * block[1] > 1;
    const each = coarse ? `, each cell the largest of ${block[0]}×${block[1]}` : "";
    const bad = value.bad ? `, ${value.bad} not finite` : "";
    const spoken = `${name} heat map of ${value.dtype}[${value.shape}], norm ${value.norm}, from ${value.min} to ${value.max}${each}${bad}`;
    return `<span class="heat"><canvas data-heat="${index}" data-norm="${value.norm}" width="${cols}" height="${rows}" role="img"
      aria-label="${escape(spoken.trim())}" title="${escape(spoken.trim())}" style="width:${size[0]}px;height:${size[1]}px"></canvas>
      <small>${shape(value)} · ‖·‖ ${brief(value.norm)}<br>±${brief(scale)}${coarse ? ` · cell ${block[0]}×${block[1]}` : ""}${value.bad ? ` · <b class="bad">${value.bad} not finite</b>` : ""}</small></span>`;
  };
  const paint = () => {
    const style = getComputedStyle(view);
    const tone = (name) => style.getPropertyValue(name).trim().split(" ").map(Number);
    const [zero, plus, minus, wrong] = ["--heat-zero", "--heat-plus", "--heat-minus", "--heat-bad"].map(tone);
    for (const canvas of $$("canvas[data-heat]")) {
      const { rows, cols, cells } = film.values[canvas.dataset.heat].heat;
      const bytes = Int8Array.from(atob(cells), (c) => c.charCodeAt(0));
      const context = canvas.getContext("2d");
      const image = context.createImageData(cols, rows);
      bytes.forEach((level, i) => {
        const end = level < 0 ? minus : plus;
        const share = Math.sqrt(Math.abs(level) / 127); // small ones stay visible
        const color = level === -128 ? wrong : zero.map((z, c) => z + (end[c] - z) * share);
        image.data.set([...color, 255], 4 * i);
      });
      context.putImageData(image, 0, 0);
    }
  };

  // --- the card of the current step -------------------------------------------------------------------

  const chip = (tensor, more = "") =>
    `<button type="button" class="chip" data-tensor="${tensor}" title="%${tensor} ${escape(kind(tensor))}: follow its sum">${escape(label(tensor))}${more}</button>`;
  const barred = (tensor) => `<span class="bar">${escape(label(tensor))}</span>`;
  const origin = (event) => (event.action === null ? "seed" : `${event.action} ${page(event.action)?.op ?? ""}`);
  const unfolded = new Set(); // long sums whose earlier terms are listed
  const sumRow = (tensor, at) => {
    const terms = sumAt(tensor, at);
    const head = `<div class="head">${chip(tensor)}<small>${escape(kind(tensor))}</small></div>`;
    if (!terms.length) return `<li data-sum="${tensor}" data-terms="0">${head}<p class="none">no gradient yet</p></li>`;
    const many = terms.length > 6 ? terms.length - 4 : 0;
    const plus = '<span class="sign">+</span>';
    const parts = terms.slice(many).map(
      (event, i) =>
        `<span class="part">${i || many ? plus : ""}<span class="term${event.at === at && at ? " new" : ""}">${drawValue(event.value, `term of ${label(tensor)}`)}<small>${escape(origin(event))}</small></span></span>`,
    );
    if (many) parts.unshift(`<span class="term">${drawValue(terms[many - 1].after)}<small><button type="button" class="unfold" data-unfold="${tensor}" aria-expanded="${unfolded.has(tensor)}">${many} earlier terms</button></small></span>`);
    const listed = terms.slice(0, Math.min(many, LISTED));
    const earlier = many && unfolded.has(tensor)
      ? `<ol class="earlier">${listed.map((event) => `<li>${escape(origin(event))} <b>‖·‖ ${brief(film.values[event.value].norm)}</b></li>`).join("")}${many > LISTED ? `<li>and ${(many - LISTED).toLocaleString("en")} more</li>` : ""}</ol>`
      : "";
    const open = unfinished.has(tensor);
    const rest = open ? `<span class="part rest"><span class="sign">+</span><span>… <small>${unseen}</small></span></span>` : "";
    const total = terms.length > 1
      ? `<span class="part"><span class="sign">=</span><span class="term total">${drawValue(terms.at(-1).after, `sum of ${label(tensor)}`)}<small>sum of ${terms.length}${open ? " so far" : ""}</small></span></span>`
      : "";
    const fresh = terms.some((event) => event.at === at && event.accumulates);
    return `<li class="sum${fresh ? " accumulates" : ""}" data-sum="${tensor}" data-terms="${terms.length}">${head}
      <div class="terms"><span class="part"><span class="bar name">${escape(label(tensor))}</span><span class="sign">=</span></span>
      ${parts.join("")}${total}${rest}</div>${earlier}</li>`;
  };
  const unfold = (tensor) => {
    unfolded.has(tensor) ? unfolded.delete(tensor) : unfolded.add(tensor);
    update();
    $(`[data-unfold="${tensor}"]`)?.focus(); // it was drawn anew
  };
  const left = film.all - last;
  const unseen = `${left.toLocaleString("en")} action${left === 1 ? "" : "s"} not shown`;
  const ruleOf = (action) => {
    const { forward, backward, parts, notes, source } = film.rules[page(action).rule];
    const ids = [...page(action).inputs, ...page(action).outputs];
    const long = new Set();
    const name = (slot) => {
      const tensor = ids[slot];
      if (label(tensor).length <= 10) return escape(label(tensor));
      long.add(tensor);
      return `%${tensor}`;
    };
    const fill = (math) => math.replace(/<mi data-slot="(\d+)">[^<]*<\/mi>/g, (_, slot) => `<mi class="slot">${name(slot)}</mi>`);
    const math = [forward, ...backward].filter(Boolean).map(fill); // x * x has two terms, although they look the same
    const legend = [...long].map((tensor) => `<span><i>%${tensor}</i> is ${escape(label(tensor))}</span>`).join("");
    return `<div class="rule">${math.length ? `<div class="formulas">${math.map((m, i) => `<div class="${i ? "backward" : "forward"}">${m}</div>`).join("")}</div>` : ""}
      ${legend ? `<div class="legend">${legend}</div>` : ""}
      ${notes.map((line) => `<p class="note">${escape(line)}</p>`).join("")}
      ${parts.length ? `<div class="parts">${parts.map(([name, ...halves]) => `<code>${escape(name)}</code>${halves.map((half) => `<span>${half}</span>`).join("")}`).join("")}</div>` : ""}
      ${source ? `<pre>${escape(source)}</pre>` : ""}</div>`;
  };
  const named = (tensor, index, bar) =>
    `<div class="named">${bar ? barred(tensor) : `<span>${escape(label(tensor))}</span>`}<span class="sign">=</span>${drawValue(index, label(tensor))}</div>`;
  const keptValue = new Map(); // by tensor: the forward's numbers, as far as they are kept for the backward
  film.actions.forEach((about) => about.kept.forEach(([tensor, index]) => keptValue.set(tensor, index)));
  const valueOf = (tensor) =>
    keptValue.has(tensor) ? named(tensor, keptValue.get(tensor), false)
      : `<div class="named"><span>${escape(label(tensor))}</span><small>${escape(kind(tensor))}, not kept: its number is not needed on the way back</small></div>`;
  const forwardCard = () => {
    if (!ahead) return `<h3><span class="badge">forward</span> Nothing has run yet</h3><p class="lead">The program is about to run, action by action. Then backward reads the same list from its end.</p>`;
    const action = film.first + ahead - 1;
    const about = page(action);
    const { forward } = film.rules[about.rule];
    const ids = [...about.inputs, ...about.outputs];
    const math = forward.replace(/<mi data-slot="(\d+)">[^<]*<\/mi>/g, (_, slot) => `<mi class="slot">${escape(label(ids[slot]))}</mi>`);
    return `<h3><span class="badge">forward ${action}</span> <span class="line">${escape(about.text)}</span></h3>
      <p class="where"><span>${escape(about.place)}</span>${about.source ? `<code>${escape(about.source)}</code>` : ""}</p>
      ${math ? `<section><h4>Computes</h4><div class="rule"><div class="formulas"><div>${math}</div></div></div></section>` : ""}
      <section><h4>From</h4>${[...new Set(about.inputs)].map(valueOf).join("") || '<p class="none">nothing it told of</p>'}</section>
      <section><h4>Makes</h4>${about.outputs.map(valueOf).join("") || '<p class="none">nothing it told of</p>'}</section>`;
  };
  const card = (at) => {
    if (!at && !film.seeds.length) return `<h3><span class="badge">start</span> Nothing to step through</h3>`;
    if (!at)
      return `<h3><span class="badge">start</span> Only the seed is there</h3>
        <p class="lead">Backward reads the tape from its last action to its first. It starts with the gradient of
        ${film.roots.map((root) => chip(root)).join(" ")} with respect to itself.</p>
        <ul class="sums">${[...new Set(film.seeds.map((seed) => seed[0]))].map((tensor) => sumRow(tensor, 0)).join("")}</ul>`;
    const step = steps[at - 1];
    const about = page(step.action);
    const code = about.source ? `<code>${escape(about.source)}</code>` : "";
    const where = about.place || about.loop
      ? `<p class="where">${about.place ? `<span>${escape(about.place)}</span>` : ""}${about.loop ? `<span class="loop">${escape(about.loop)}</span>` : ""}${code}</p>` : "";
    const head = `<h3><span class="badge">action ${step.action}</span> <span class="line">${escape(about.text)}</span></h3>${where}`;
    if (step.skipped) return `${head}<p class="lead">Skipped: no gradient has reached its result, so it sends nothing on.</p>`;
    const touched = [...new Set(step.out.map((item) => item[0]))];
    const removed = step.removed.map((tensor) => `<li>took the gradient of ${chip(tensor)} out</li>`).join("");
    const kept = about.kept.map(([tensor, index]) => named(tensor, index, false)).join("");
    return `${head}
      <section><h4>Rule</h4>${ruleOf(step.action)}</section>
      <div class="pair"><section class="arrives"><h4>Arrives</h4>${step.in.map(([tensor, index]) => named(tensor, index, true)).join("") || '<p class="none">nothing it told of</p>'}</section>
      ${kept ? `<section class="reads"><h4>Kept from the forward</h4>${kept}</section>` : ""}</div>
      <section class="leaves"><h4>Sends on</h4><ul class="sums">${touched.map((tensor) => sumRow(tensor, at)).join("")}${removed}</ul></section>`;
  };
  const spoken = (at) => {
    if (!at && !film.seeds.length) return "Nothing to step through.";
    if (!at) return `Start. The seed of ${film.roots.map(label).join(", ")}.`;
    const step = steps[at - 1];
    const sums = [...new Set(step.out.map((item) => item[0]))].map((tensor) => {
      const terms = sumAt(tensor, at);
      return terms.length > 1
        ? `${label(tensor)} is now a sum of ${terms.length} terms, norm ${normAt(tensor, at)}`
        : `${label(tensor)} gets its first term, norm ${normAt(tensor, at)}`;
    });
    if (at === last && unfinished.size) sums.push(`The film ends here: ${unseen}, so that some gradients are not complete`);
    return `Step ${at} of ${last}. Action ${step.action}: ${page(step.action).text}. ${step.skipped ? "Skipped." : sums.join(". ")}`;
  };

  // --- following tensors that were clicked ------------------------------------------------------------

  const followed = new Set();
  const follow = (tensor) => {
    followed.has(tensor) ? followed.delete(tensor) : followed.add(tensor);
    drawFollowed(position());
    paint();
  };
  const drawFollowed = (at) => {
    $(".followed").hidden = !followed.size;
    $(".followed ul").innerHTML = [...followed].map((tensor) => sumRow(tensor, at)).join("");
  };

  // --- the graph: pan, zoom, recolour -------------------------------------------------------------------

  const cameras = new Map();
  const camera = (figure) => {
    const svg = figure.querySelector("svg.graph");
    const width = Number(svg.dataset.width);
    const height = Number(svg.dataset.height);
    let known = null; // asking for a size makes the browser lay out the page: once is enough
    const box = () => (known ??= { w: figure.clientWidth || 800, h: figure.querySelector(".canvas").clientHeight || 200 });
    const resized = () => {
      known = null;
      apply();
    };
    const state = { x: width / 2, y: height / 2, scale: 1 };
    const apply = () => {
      const { w, h } = box();
      svg.setAttribute("viewBox", `${state.x - w / 2 / state.scale} ${state.y - h / 2 / state.scale} ${w / state.scale} ${h / state.scale}`);
    };
    const whole = () => Math.min(box().w / width, box().h / height);
    const size = () => {
      const scale = clamp(box().w / width, 0.75, 1.15);
      figure.querySelector(".canvas").style.height = `${clamp(height * scale, 130, 400)}px`;
      known = null;
    };
    let moving = 0;
    const halt = () => cancelAnimationFrame(moving); // who moves the picture by hand is not moved back
    const fit = () => {
      halt();
      Object.assign(state, { x: width / 2, y: height / 2, scale: Math.min(whole(), 1.25) });
      apply();
    };
    const readable = () => {
      fit();
      if (state.scale >= 0.62) return;
      state.scale = 0.85;
      state.x = width - box().w / 2 / state.scale; // the loss is right, and backward begins there
      apply();
    };
    const zoom = (factor, cx, cy) => {
      halt();
      const before = state.scale;
      state.scale = clamp(before * factor, Math.min(whole(), 0.2), 4);
      const { w, h } = box();
      const dx = (cx ?? w / 2) - w / 2;
      const dy = (cy ?? h / 2) - h / 2;
      state.x += dx / before - dx / state.scale;
      state.y += dy / before - dy / state.scale;
      apply();
    };
    const pan = (dx, dy) => {
      halt();
      state.x = clamp(state.x - dx / state.scale, 0, width);
      state.y = clamp(state.y - dy / state.scale, 0, height);
      apply();
    };
    const reveal = (node) => {
      const [, x, y] = /translate\(([\d.-]+) ([\d.-]+)\)/.exec(node.getAttribute("transform")).map(Number);
      const rect = node.querySelector("rect");
      const center = { x: x + Number(rect.getAttribute("width")) / 2, y: y + Number(rect.getAttribute("height")) / 2 };
      const { w, h } = box();
      const inside = (value, middle, half) => clamp(value, middle - half, middle + half);
      const target = {
        x: w / state.scale >= width ? state.x : inside(state.x, center.x, Math.max(w / 2 / state.scale - 150, 0)),
        y: h / state.scale >= height ? state.y : inside(state.y, center.y, Math.max(h / 2 / state.scale - 45, 0)),
      };
      halt();
      const from = { ...state };
      const begin = performance.now();
      const frame = (now) => {
        const t = still() ? 1 : clamp((now - begin) / 260, 0, 1);
        const eased = 1 - (1 - t) ** 3;
        state.x = from.x + (target.x - from.x) * eased;
        state.y = from.y + (target.y - from.y) * eased;
        apply();
        if (t < 1) moving = requestAnimationFrame(frame);
      };
      frame(begin);
    };
    figure.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // plain scrolling stays the page's
      event.preventDefault();
      const bounds = svg.getBoundingClientRect();
      zoom(Math.exp(-event.deltaY / 240), event.clientX - bounds.left, event.clientY - bounds.top);
    }, { passive: false });
    let grabbed = null;
    svg.addEventListener("pointerdown", (event) => (grabbed = { x: event.clientX, y: event.clientY, far: false, id: event.pointerId }));
    svg.addEventListener("pointermove", (event) => {
      if (!grabbed) return;
      if (!grabbed.far && Math.hypot(event.clientX - grabbed.x, event.clientY - grabbed.y) < 4) return;
      if (!grabbed.far) svg.setPointerCapture(grabbed.id);
      pan(event.clientX - grabbed.x, event.clientY - grabbed.y);
      Object.assign(grabbed, { x: event.clientX, y: event.clientY, far: true });
    });
    const release = () => setTimeout(() => (grabbed = null));
    svg.addEventListener("pointerup", release);
    svg.addEventListener("pointercancel", release);
    svg.addEventListener("click", (event) => {
      const node = grabbed?.far ? null : event.target.closest(".node");
      if (!node) return;
      if (node.dataset.bundle !== undefined) openBundle(Number(node.dataset.bundle));
      else if (node.dataset.tensors !== undefined) node.dataset.tensors.split(" ").forEach((tensor) => follow(Number(tensor)));
      else if (node.dataset.region !== undefined) open(Number(node.dataset.region), true);
      else if (node.dataset.action !== undefined) show(Number(node.dataset.action));
      else follow(Number(node.dataset.tensor));
    });
    const made = { size, fit, readable, zoom, pan, reveal, resized };
    figure.querySelector(".zoom").addEventListener("click", (event) => {
      const wanted = event.target.closest("button")?.dataset.zoom;
      if (wanted === "fit") fit();
      else if (wanted) zoom(wanted === "in" ? 1.3 : 1 / 1.3);
    });
    cameras.set(figure, made);
    return made;
  };

  const fetchInside = (region) => { // of a long tape: from the page, when it is first asked for
    if (!film.later || film.rows[region]) return;
    [film.regions[region][3], film.rows[region]] = JSON.parse(document.getElementById(`${film.later}-${region}`).textContent);
  };
  let opened = null; // the region whose inside is shown
  let kept = false; // whether the user opened it, rather than the stepper
  const open = (region, byHand = false) => {
    const figure = $(".inside");
    if (byHand && opened === region) {
      figure.hidden = true;
      opened = null;
      kept = true;
    } else if (region !== opened) {
      fetchInside(region);
      const [name, first, final, svg] = film.regions[region];
      figure.querySelector("figcaption b").textContent = name;
      figure.querySelector("figcaption span").textContent = `actions ${first}–${final}`;
      const loop = film.bundles[bundleOf(region)];
      figure.querySelector(".turns").hidden = !loop;
      if (loop) {
        figure.querySelector(".turns output").textContent = `part ${region - loop[1] + 1} of ${loop[2] - loop[1] + 1}`;
        figure.querySelector('[data-turn="-1"]').disabled = region === loop[1];
        figure.querySelector('[data-turn="1"]').disabled = region === loop[2];
      }
      figure.querySelector(".canvas").innerHTML = svg;
      figure.hidden = false;
      camera(figure).readable();
      opened = region;
      kept = false;
    }
    $$(".overview .node.region").forEach((node) => {
      const { region: own, bundle } = node.dataset;
      const here = opened !== null && (bundle === undefined ? Number(own) === opened : Number(bundle) === bundleOf(opened));
      node.classList.toggle("open", here);
      node.setAttribute("aria-expanded", here);
    });
    recolour(position());
  };
  const bundleOf = (region) => film.bundles.findIndex(([, first, final]) => region >= first && region <= final);
  const openBundle = (bundle) => { // at the step where the stepper is, or at the last, which backward meets first
    const [, first, final] = film.bundles[bundle];
    const at = actionAt(position());
    const here = at === null ? final : clamp(regionOf(at), first, final);
    open(opened !== null && bundleOf(opened) === bundle ? opened : here, true);
  };
  const regionOf = (action) => film.regions.findIndex(([, first, final]) => action >= first && action <= final);

  const write = (node, text) => node.textContent !== text && (node.textContent = text);
  const recolour = (at) => {
    const current = ahead === null ? actionAt(at) : ahead ? film.first + ahead - 1 : null;
    const step = at && ahead === null ? steps[at - 1] : null;
    const touched = new Set(ahead !== null ? (current === null ? [] : page(current).outputs) : step ? step.out.map((item) => item[0]) : film.seeds.map((seed) => seed[0]));
    const visited = (action) => positionOf(action) <= at;
    for (const node of $$("svg.graph .node")) {
      const { action, tensor, tensors } = node.dataset;
      if (node.dataset.first !== undefined) { // a region, or a loop of them
        const [first, final] = [Number(node.dataset.first), Number(node.dataset.last)];
        const done = clamp(at - positionOf(final) + 1, 0, final - first + 1);
        const fill = node.querySelector(".fill");
        fill.setAttribute("width", (Number(fill.dataset.full) * done) / (final - first + 1));
        fill.setAttribute("x", 10 + Number(fill.dataset.full) * (1 - done / (final - first + 1)));
        write(node.querySelector(".norm"), page(final).outputs.map((id) => normAt(id, at)).filter(Boolean).map((n) => `‖∇‖ ${n}`)[0] ?? "");
        let unsound = first;
        while (unsound <= final && !badAction.has(unsound)) unsound++;
        node.classList.toggle("bad", unsound <= final);
        node.classList.toggle("marked", film.marked !== null && film.marked >= first && film.marked <= final);
        node.classList.toggle("done", done === final - first + 1);
        node.classList.toggle("current", current !== null && current >= first && current <= final);
      } else if (tensors !== undefined) { // the parameters of a region
        const ids = tensors.split(" ").map(Number);
        const found = ids.map((id) => latestAt(id, at)).filter((latest) => latest && !latest.removed).map((latest) => film.values[latest.after].norm);
        const total = found.length === 1 || found.every((norm) => typeof norm === "number") ? (found.length > 1 ? Math.hypot(...found) : found[0]) : "nan";
        const part = ids.some((id) => unfinished.has(id)) ? " + …" : "";
        node.classList.toggle("has", found.length > 0);
        node.classList.toggle("hit", ids.some((id) => touched.has(id)));
        write(node.querySelector(".norm"), found.length ? `‖∇‖ ${brief(total)}${part}` : "");
      } else if (action !== undefined) {
        const here = Number(action);
        const about = page(here);
        node.classList.toggle("current", here === current);
        node.classList.toggle("bad", badAction.has(here));
        node.classList.toggle("marked", here === film.marked);
        node.classList.toggle("ran", ahead !== null && here < film.first + ahead);
        node.classList.toggle("done", visited(here) && !steps[positionOf(here) - 1].skipped);
        node.classList.toggle("skipped", visited(here) && steps[positionOf(here) - 1].skipped);
        node.classList.toggle("next", about.outputs.some((id) => touched.has(id)) && !visited(here));
        write(node.querySelector(".norm"), about.outputs.map((id) => normAt(id, at)).filter(Boolean).map((n) => `‖∇‖ ${n}`)[0] ?? "");
        if (here === current) node.setAttribute("aria-current", "step");
        else node.removeAttribute("aria-current");
      } else {
        const norm = normAt(Number(tensor), at);
        node.classList.toggle("has", norm !== "");
        node.classList.toggle("hit", touched.has(Number(tensor)));
        const count = sumAt(Number(tensor), at).length;
        write(node.querySelector(".norm"), norm ? `‖∇‖ ${norm}${count > 1 ? ` Σ${count}` : ""}` : "");
      }
    }
    for (const edge of $$("svg.graph .edge")) {
      const { tensor, reader, tensors, first, last: final } = edge.dataset;
      if (reader !== undefined) {
        edge.classList.toggle("flow", Number(reader) === current && touched.has(Number(tensor)));
        edge.classList.toggle("done", visited(Number(reader)) && events.has(Number(tensor)));
      } else {
        const within = current !== null && current >= Number(first) && current <= Number(final);
        edge.classList.toggle("done", visited(Number(first)));
        edge.classList.toggle("flow", within && tensors.split(" ").some((id) => touched.has(Number(id))));
      }
    }
    for (const row of $$(".log tr[data-action]")) {
      const here = Number(row.dataset.action);
      row.classList.toggle("current", here === current);
      row.classList.toggle("bad", badAction.has(here));
      row.classList.toggle("marked", here === film.marked);
      row.classList.toggle("done", visited(here));
      const text = page(here).outputs.map((id) => normAt(id, at)).filter(Boolean).join(", ");
      write(row.querySelector(".norm"), text);
      if (here === current) row.setAttribute("aria-current", "step");
      else row.removeAttribute("aria-current");
    }
    for (const tensor of $$(".log .tensor")) tensor.classList.toggle("hit", at > 0 && touched.has(Number(tensor.dataset.tensor)));
  };

  const reveal = (current) => {
    if (current === null) return $(".log-panel").scrollTo({ top: $(".log-panel").scrollHeight });
    const region = regionOf(current);
    if (region >= 0) {
      if (region !== opened && !kept) open(region);
      const bundle = bundleOf(region);
      const node = $(bundle < 0 ? `.overview [data-region="${region}"]` : `.overview [data-bundle="${bundle}"]`);
      if (node) cameras.get($(".overview")).reveal(node);
      if (bundle >= 0) toggleBundle(bundle, true);
      const rows = $(`.log tbody.body[data-region="${region}"]`);
      if (rows?.hidden) {
        toggleRows(region, true);
        recolour(position());
      }
    }
    const figure = region >= 0 ? $(".inside") : $(".overview");
    const node = figure.hidden ? null : figure.querySelector(`[data-action="${current}"]`);
    if (node) cameras.get(figure).reveal(node);
    const row = $(`.log tr[data-action="${current}"]`);
    const log = $(".log-panel");
    if (row && log.scrollHeight > log.clientHeight) {
      const top = row.offsetTop - log.clientHeight / 2 + row.clientHeight / 2;
      log.scrollTo({ top, behavior: still() || timer ? "auto" : "smooth" });
    }
  };
  const toggleBundle = (bundle, show) => {
    const button = $(`.log tr[data-bundle="${bundle}"] button`);
    const opening = show ?? button.getAttribute("aria-expanded") !== "true";
    if (String(opening) === button.getAttribute("aria-expanded")) return;
    button.setAttribute("aria-expanded", opening);
    for (const turn of $$(`.log tbody[data-of="${bundle}"]`)) {
      turn.hidden = !opening;
      const rows = turn.nextElementSibling;
      if (!opening && !rows.hidden) toggleRows(Number(rows.dataset.region), false);
    }
  };
  const toggleRows = (region, show) => {
    const body = $(`.log tbody.body[data-region="${region}"]`);
    fetchInside(region);
    if (!body.firstChild) body.innerHTML = film.rows[region];
    body.hidden = show === undefined ? !body.hidden : !show;
    $(`.log tr[data-region="${region}"] button`).setAttribute("aria-expanded", !body.hidden);
  };

  const update = () => {
    const at = position();
    $(".step").innerHTML = ahead === null ? card(at) : forwardCard();
    $(".step").scrollTop = 0;
    $(".step").dataset.position = at;
    $(".count").innerHTML = `<b>${at}</b> / ${last}${film.all > last ? ` <small>of ${film.all.toLocaleString("en")}</small>` : ""}`;
    $(".slider").max = ahead === null ? last : film.count;
    $(".slider").value = ahead ?? at;
    $(".slider").setAttribute("aria-valuetext", `step ${at} of ${last}${film.all > last ? `, of ${film.all} in all` : ""}`);
    view.classList.toggle("forwards", ahead !== null);
    $('[data-do="forward"]').setAttribute("aria-pressed", ahead !== null);
    if (ahead !== null) {
      $(".count").innerHTML = `<b>${ahead}</b> / ${film.count}`;
      $(".slider").setAttribute("aria-valuetext", `forward, action ${ahead} of ${film.count}`);
    }
    const [here, end] = ahead === null ? [at, last] : [ahead, film.count];
    for (const name of ["rewind", "back"]) $(`[data-do="${name}"]`).disabled = here === 0;
    for (const name of ["step", "finish"]) $(`[data-do="${name}"]`).disabled = here === end;
    $('[data-do="sum"]').disabled = ahead !== null || at === last;
    remember(at);
    drawFollowed(at);
    recolour(at);
    reveal(ahead === null ? actionAt(at) : ahead ? film.first + ahead - 1 : null);
    paint();
    $(".spoken").textContent = ahead === null ? spoken(at) : ahead ? `Forward. Action ${film.first + ahead - 1}: ${page(film.first + ahead - 1).text}` : "Forward. Nothing has run yet.";
  };

  // --- memory: what is kept for the backward, by step ---------------------------------------------------

  const bytes = (n) => {
    for (const [size, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [1024, "KiB"]]) if (n >= size) return `${Number((n / size).toPrecision(3))} ${unit}`;
    return `${n} B`;
  };
  const remember = (at) => {
    const memory = $(".memory");
    if (!memory) return;
    memory.querySelector("span").textContent = `kept for the backward: ${bytes(film.held[at])} of ${bytes(film.held[0])}`;
    const mark = memory.querySelector("line");
    mark.setAttribute("x1", at);
    mark.setAttribute("x2", at);
  };

  // --- search ----------------------------------------------------------------------------------------------

  let index = null; // made at the first search
  const wordsOf = () => film.actions.map((about, i) => ({
    op: about.op.toLowerCase(),
    line: about.place.toLowerCase(),
    name: [...about.inputs, ...about.outputs].map(label).join(" ").toLowerCase(),
    all: `${film.first + i} ${about.text} ${about.op} ${about.place} ${about.loop} ${about.source}`.toLowerCase(),
  }));
  const fits = (i, word) => {
    if (["nan", "inf", "nonfinite"].includes(word)) return badAction.has(film.first + i);
    const [, field, rest] = /^(op|line|name):(.+)$/.exec(word) ?? [null, "all", word];
    return (index ??= wordsOf())[i][field].includes(rest);
  };
  let matches = [];
  const search = (text) => {
    const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
    matches = wanted.length ? film.actions.map((_, i) => i).filter((i) => wanted.every((word) => fits(i, word))) : [];
    $(".found").hidden = !wanted.length;
    $(".log").hidden = wanted.length > 0;
    const row = (i) => `<li><button type="button" data-action="${film.first + i}"><small>${film.first + i}</small> ${escape(film.actions[i].text)} <small>${escape(film.actions[i].place)}</small>${badAction.has(film.first + i) ? ' <b class="bad">not finite</b>' : ""}</button></li>`;
    const few = matches.slice(0, 200);
    $(".found").innerHTML = `<p>${matches.length.toLocaleString("en")} of ${film.count.toLocaleString("en")} actions${matches.length > few.length ? `; the first ${few.length} are listed` : ""}</p><ol>${few.map(row).join("")}</ol>`;
  };

  // --- pictures to take away --------------------------------------------------------------------------------

  const picture = (figure) => {
    const svg = figure.querySelector("svg.graph").cloneNode(true);
    const { width, height } = svg.dataset;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("width", width);
    svg.setAttribute("height", height);
    svg.dataset.theme = view.dataset.theme;
    const style = document.createElementNS("http://www.w3.org/2000/svg", "style");
    style.textContent = `${model.get("css_text").replace(/\.view(?=[\s[{:])/g, "svg")} svg.graph { width: auto; height: auto; border: 0; border-radius: 0; box-shadow: none; }`;
    svg.prepend(style);
    return new XMLSerializer().serializeToString(svg);
  };
  const hand = (address, name) => {
    const link = document.createElement("a");
    link.href = address;
    link.download = name;
    link.click();
  };
  const exported = (figure, kind) => {
    const text = picture(figure);
    const address = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
    if (kind === "svg") return hand(address, "tape.svg");
    const image = new Image();
    image.onload = () => {
      const canvas = document.createElement("canvas");
      const scale = Math.min(2, 8000 / Math.max(image.width, image.height));
      [canvas.width, canvas.height] = [image.width * scale, image.height * scale];
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      hand(canvas.toDataURL("image/png"), "tape.png");
    };
    image.src = address;
  };

  // --- light and dark -----------------------------------------------------------------------------------

  let chosen = null;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const ofTheHost = () => {
    const { body, documentElement: page } = document;
    const jupyter = body?.dataset.jpThemeLight;
    if (jupyter) return jupyter === "true" ? "light" : "dark";
    const code = body?.dataset.vscodeThemeKind;
    if (code) return code.includes("light") ? "light" : "dark";
    if (["light", "dark"].includes(page.dataset.theme)) return page.dataset.theme;
    return system.matches ? "dark" : "light";
  };
  const dress = () => {
    view.dataset.theme = chosen ?? ofTheHost();
    paint();
  };
  const watcher = new MutationObserver(dress);
  for (const node of [document.documentElement, document.body])
    if (node) watcher.observe(node, { attributes: true, attributeFilter: ["data-theme", "data-jp-theme-light", "data-vscode-theme-kind"] });
  system.addEventListener("change", dress);

  // --- what the user does -------------------------------------------------------------------------------

  view.addEventListener("click", (event) => {
    const button = event.target.closest("[data-do]");
    if (button) {
      if (button.dataset.do === "theme") {
        chosen = view.dataset.theme === "dark" ? "light" : "dark";
        dress();
      } else {
        if (button.dataset.do !== "play" && timer) pause();
        move(button.dataset.do);
      }
      return;
    }
    const exporting = event.target.closest("[data-export]");
    if (exporting) return exported(exporting.closest("figure"), exporting.dataset.export);
    const hit = event.target.closest(".found button");
    if (hit) return show(Number(hit.dataset.action));
    const chip = event.target.closest(".chip, .log .tensor");
    if (chip) return follow(Number(chip.dataset.tensor));
    const turn = event.target.closest("[data-turn]");
    if (turn && opened !== null) return open(opened + Number(turn.dataset.turn));
    const unfolding = event.target.closest("[data-unfold]");
    if (unfolding) return unfold(Number(unfolding.dataset.unfold));
    const loop = event.target.closest(".log tr[data-bundle]");
    if (loop) {
      toggleBundle(Number(loop.dataset.bundle));
      return recolour(position());
    }
    const head = event.target.closest(".log tr[data-region]");
    if (head) {
      toggleRows(Number(head.dataset.region));
      return recolour(position());
    }
    const row = event.target.closest(".log tr[data-action]");
    if (row) return show(Number(row.dataset.action));
    if (event.target.closest(".collapse")) open(opened, true);
  });
  const keys = { ArrowRight: "step", ArrowLeft: "back", Home: "rewind", End: "finish", " ": "play", a: "sum", f: "forward" };
  view.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.composedPath()[0];
    if (target.tagName === "SELECT") return;
    if (target.type === "search") {
      if (event.key === "Enter" && matches.length) show(film.first + matches[0]);
      else if (event.key === "Escape") search((target.value = ""));
      else if (event.key !== "Tab") event.stopPropagation();
      return;
    }
    if (event.key === " " && target.tagName === "BUTTON") return event.stopPropagation(); // the button's own
    const figure = target.closest?.("figure");
    if (figure && "+-=0".includes(event.key)) {
      const made = cameras.get(figure);
      event.key === "0" ? made.fit() : made.zoom(event.key === "-" ? 1 / 1.3 : 1.3);
    } else if (event.key === "/") $(".search").focus();
    else if (keys[event.key]) move(keys[event.key]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  $(".slider")?.addEventListener("input", (event) => (ahead === null ? go : goAhead)(Number(event.target.value)));
  $(".search")?.addEventListener("input", (event) => search(event.target.value));
  $(".speed")?.addEventListener("change", () => timer && (pause(), play()));

  const first = () => {
    for (const figure of $$("figure")) if (!figure.hidden && figure.querySelector("svg.graph")) camera(figure);
    for (const made of cameras.values()) {
      made.size();
      made.readable();
    }
    if (film.regions.length) open(film.regions.length - 1); // there from the start, so that nothing below moves later
    dress();
    update();
  };
  const resized = new ResizeObserver(() => cameras.forEach((made) => made.resized()));
  resized.observe(view);
  model.on("change:position", () => {
    ahead = null; // who moves in the backward is there
    update();
    if (model.get("linked")) history.replaceState(null, "", `#step=${position()}`);
  });
  const asLinked = () => {
    const step = /^#step=(\d+)$/.exec(location.hash);
    if (step && Number(step[1]) !== position()) go(Number(step[1]));
  };
  if (model.get("linked")) addEventListener("hashchange", asLinked);
  shown();
  if (film.count) first();
  else dress();
  if (model.get("linked")) asLinked();
  return () => {
    clearInterval(timer);
    watcher.disconnect();
    resized.disconnect();
    system.removeEventListener("change", dress);
  };
}

function skeleton(film) {
  const button = (name, label, inside = icon(name)) =>
    `<button type="button" data-do="${name}" aria-label="${label}" title="${label}">${inside}</button>`;
  const last = film.steps.length;
  const marks = film.steps.map((step, i) => (step.out.some((item) => item[3]) ? `M${i + 1} 0v1` : "")).join("");
  const bad = film.steps.map((step, i) => (step.out.some((item) => isBad(film.values[item[2]]) || isBad(film.values[item[1]])) ? `M${i + 1} 0v1` : "")).join("");
  const most = film.held?.[0] ?? 0;
  const outline = most ? `M0 1${film.held.map((n, i) => `L${i} ${(1 - n / most).toFixed(3)}`).join("")}L${last} 1Z` : "";
  const memory = most ? `<div class="memory"><svg viewBox="0 0 ${last || 1} 1" preserveAspectRatio="none" aria-hidden="true"><path d="${outline}"/><line y1="0" y2="1"/></svg><span></span></div>` : "";
  const ticks = `<svg viewBox="0 0 ${last || 1} 1" preserveAspectRatio="none"><path d="${marks}"/><path class="bad" d="${bad}"/></svg>`;
  const figure = (name, svg, caption, hidden) => `<figure class="${name}" ${hidden ? "hidden" : ""} tabindex="0"
      aria-label="${name === "inside" ? "inside of a region" : "graph"}; plus, minus and zero zoom">
      ${caption}<div class="canvas">${svg}</div><div class="zoom"><button type="button" data-zoom="in" aria-label="zoom in">+</button>
      <button type="button" data-zoom="out" aria-label="zoom out">−</button><button type="button" data-zoom="fit" aria-label="show all">⤢</button>
      <button type="button" data-export="svg" aria-label="save this drawing as SVG" title="save this drawing as SVG">svg</button><button type="button" data-export="png" aria-label="save this drawing as PNG" title="save this drawing as PNG">png</button></div></figure>`;
  const roots = film.roots.map((root) => escape(film.tensors[root]?.[0] ?? `%${root}`)).join(", ");
  return `<section class="view" tabindex="0" aria-label="Backward pass of ${escape(film.title)}">
    <header><h2>${escape(film.title)}</h2><p>${film.count < film.all ? `the last ${film.count.toLocaleString("en")} of ${film.all.toLocaleString("en")}` : film.count.toLocaleString("en")} action${film.all === 1 ? "" : "s"}${roots ? ` · backward from <b>${roots}</b>` : ""}</p>
      ${button("theme", "light or dark")}</header>
    ${film.notes.map((line) => `<p class="message" role="note">${escape(line)}</p>`).join("")}
    <div class="controls" role="toolbar" aria-label="Backward pass" ${last ? "" : "hidden"}>
      <div class="buttons">${button("rewind", "Rewind (home)")}${button("back", "Step back (left arrow)")}${button("play", "Play (space)")}
      ${button("step", "Step (right arrow)")}${button("finish", "To the end (end)")}</div>
      <div class="track"><input class="slider" type="range" min="0" max="${last}" value="0" aria-label="Step of the backward pass"><div class="ticks" aria-hidden="true">${ticks}</div></div>
      <output class="count"></output>
      ${button("sum", "To the next accumulation (a)", "next Σ")}
      <button type="button" data-do="forward" aria-pressed="false" title="Play the forward, before the backward (f)">forward</button>
      <select class="speed" aria-label="Speed"><option value="2400">slow</option><option value="1200" selected>normal</option><option value="450">fast</option></select>
      <input class="search" type="search" placeholder="search (/)" aria-label="Search actions: words, op:tanh, name:w, line:12, nan" title="words, op:tanh, name:w, line:12, nan"></div>
    ${last ? memory : ""}
    ${film.count ? `<div class="graphs">${figure("overview", film.graph, "", false)}
      ${film.regions.length ? figure("inside", "", '<figcaption><b></b> <span></span> <div class="turns" hidden><button type="button" data-turn="-1" aria-label="the part before, of this loop">‹</button> <output></output> <button type="button" data-turn="1" aria-label="the part after, of this loop">›</button></div> <button type="button" class="collapse">collapse</button></figcaption>', true) : ""}</div>
    <div class="columns"><article class="step" aria-label="The current step"></article>
      <div class="log-panel" tabindex="0" aria-label="The log"><div class="found" hidden></div>${film.table}</div></div>
    <aside class="followed" hidden><h4>Followed</h4><ul class="sums"></ul></aside>` : '<p class="message">The tape is empty: nothing was recorded, or a backward has read it already. <code>backward(loss, retain_tape=True)</code> keeps it.</p>'}
    <div class="spoken" aria-live="polite" role="status"></div></section>`;
}

export default { render };
