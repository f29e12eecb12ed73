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
  theme: "M10 3a7 7 0 1 0 0 14zM10 3v14a7 7 0 0 0 0-14z",
};
const icon = (name) => `<svg viewBox="0 0 20 20" aria-hidden="true"><path d="${ICONS[name]}"/></svg>`;
const escape = (text) =>
  String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
const clamp = (x, low, high) => Math.min(Math.max(x, low), high);
const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

function brief(value) {
  if (typeof value === "string") return value;
  const size = Math.abs(value);
  if (value === 0 || (size >= 1e-3 && size < 1e5)) return String(Number(value.toPrecision(4))).replace("-", "−");
  return value.toExponential(2).replace(/-/g, "−");
}

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
  const normAt = (tensor, position) => {
    const terms = sumAt(tensor, position);
    return terms.length ? brief(film.values[terms.at(-1).after].norm) : "";
  };
  const sums = steps.map((step) => step.out.some((item) => item[3]));
  const label = (tensor) => film.tensors[tensor]?.[0] ?? `%${tensor}`;
  const kind = (tensor) => film.tensors[tensor]?.[1] ?? "";
  const actionAt = (position) => (position ? steps[position - 1].action : null);
  const page = (action) => film.actions[action - film.first];
  const positionOf = (action) => film.first + film.count - action;

  // --- moving -------------------------------------------------------------------------------------

  let timer = null;
  const position = () => clamp(model.get("position") ?? 0, 0, last);
  const go = (to) => {
    model.set("position", clamp(to, 0, last));
    model.save_changes();
  };
  const moves = {
    rewind: () => go(0),
    back: () => go(position() - 1),
    step: () => go(position() + 1),
    finish: () => go(last),
    sum: () => {
      const next = sums.findIndex((found, i) => found && i >= position());
      go(next < 0 ? last : next + 1);
    },
    play: () => (timer ? pause() : play()),
  };
  const play = () => {
    if (position() === last) go(0);
    timer = setInterval(() => (position() < last ? moves.step() : pause()), Number($(".speed").value));
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
    return `color-mix(in oklab, var(${tone}) ${(amount * 62).toFixed(0)}%, transparent)`;
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
    if (many) parts.unshift(`<span class="term">${drawValue(terms[many - 1].after)}<small>${many} earlier terms</small></span>`);
    const total = terms.length > 1
      ? `<span class="part"><span class="sign">=</span><span class="term total">${drawValue(terms.at(-1).after, `sum of ${label(tensor)}`)}<small>sum of ${terms.length}</small></span></span>`
      : "";
    const fresh = terms.some((event) => event.at === at && event.accumulates);
    return `<li class="sum${fresh ? " accumulates" : ""}" data-sum="${tensor}" data-terms="${terms.length}">${head}
      <div class="terms"><span class="part"><span class="bar name">${escape(label(tensor))}</span><span class="sign">=</span></span>
      ${parts.join("")}${total}</div></li>`;
  };
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
    const box = () => ({ w: figure.clientWidth || 800, h: figure.querySelector(".canvas").clientHeight || 200 });
    const state = { x: width / 2, y: height / 2, scale: 1 };
    const apply = () => {
      const { w, h } = box();
      svg.setAttribute("viewBox", `${state.x - w / 2 / state.scale} ${state.y - h / 2 / state.scale} ${w / state.scale} ${h / state.scale}`);
    };
    const whole = () => Math.min(box().w / width, box().h / height);
    const size = () => {
      const scale = clamp(box().w / width, 0.75, 1.15);
      figure.querySelector(".canvas").style.height = `${clamp(height * scale, 130, 400)}px`;
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
      if (node.dataset.region !== undefined) open(Number(node.dataset.region), true);
      else if (node.dataset.action !== undefined) go(positionOf(Number(node.dataset.action)));
      else follow(Number(node.dataset.tensor));
    });
    const made = { size, fit, readable, zoom, pan, reveal, apply, width };
    figure.querySelector(".zoom").addEventListener("click", (event) => {
      const wanted = event.target.closest("button")?.dataset.zoom;
      if (wanted === "fit") fit();
      else if (wanted) zoom(wanted === "in" ? 1.3 : 1 / 1.3);
    });
    cameras.set(figure, made);
    return made;
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
      const [name, first, final, svg] = film.regions[region];
      figure.querySelector("figcaption b").textContent = name;
      figure.querySelector("figcaption span").textContent = `actions ${first}–${final}`;
      figure.querySelector(".canvas").innerHTML = svg;
      figure.hidden = false;
      const made = camera(figure);
      made.size();
      made.readable();
      opened = region;
      kept = false;
    }
    $$(".overview .node.region").forEach((node) => {
      node.classList.toggle("open", Number(node.dataset.region) === opened);
      node.setAttribute("aria-expanded", Number(node.dataset.region) === opened);
    });
    recolour(position());
  };
  const regionOf = (action) => film.regions.findIndex(([, first, final]) => action >= first && action <= final);

  const recolour = (at) => {
    const current = actionAt(at);
    const step = at ? steps[at - 1] : null;
    const touched = new Set(step ? step.out.map((item) => item[0]) : film.seeds.map((seed) => seed[0]));
    const visited = (action) => positionOf(action) <= at;
    for (const node of $$("svg.graph .node")) {
      const { action, tensor, region } = node.dataset;
      if (region !== undefined) {
        const [, first, final] = film.regions[region];
        const done = clamp(at - positionOf(final) + 1, 0, final - first + 1);
        const fill = node.querySelector(".fill");
        fill.setAttribute("width", (Number(fill.dataset.full) * done) / (final - first + 1));
        fill.setAttribute("x", 10 + Number(fill.dataset.full) * (1 - done / (final - first + 1)));
        node.classList.toggle("done", done === final - first + 1);
        node.classList.toggle("current", current !== null && current >= first && current <= final);
      } else if (action !== undefined) {
        const here = Number(action);
        const about = page(here);
        node.classList.toggle("current", here === current);
        node.classList.toggle("done", visited(here) && !steps[positionOf(here) - 1].skipped);
        node.classList.toggle("skipped", visited(here) && steps[positionOf(here) - 1].skipped);
        node.classList.toggle("next", about.outputs.some((id) => touched.has(id)) && !visited(here));
        node.querySelector(".norm").textContent = about.outputs.map((id) => normAt(id, at)).filter(Boolean).map((n) => `‖∇‖ ${n}`)[0] ?? "";
        if (here === current) node.setAttribute("aria-current", "step");
        else node.removeAttribute("aria-current");
      } else {
        const norm = normAt(Number(tensor), at);
        node.classList.toggle("has", norm !== "");
        node.classList.toggle("hit", touched.has(Number(tensor)));
        const count = sumAt(Number(tensor), at).length;
        node.querySelector(".norm").textContent = norm ? `‖∇‖ ${norm}${count > 1 ? ` Σ${count}` : ""}` : "";
      }
    }
    for (const edge of $$("svg.graph .edge")) {
      const { tensor, reader, from, to } = edge.dataset;
      if (reader !== undefined) {
        edge.classList.toggle("flow", Number(reader) === current && touched.has(Number(tensor)));
        edge.classList.toggle("done", visited(Number(reader)) && events.has(Number(tensor)));
      } else {
        edge.classList.toggle("done", visited(film.regions[to][1]));
        edge.classList.toggle("flow", current !== null && regionOf(current) === Number(to) && touched.has(Number(tensor)) && from !== to);
      }
    }
    for (const row of $$(".log tr[data-action]")) {
      const here = Number(row.dataset.action);
      row.classList.toggle("current", here === current);
      row.classList.toggle("done", visited(here));
      const text = page(here).outputs.map((id) => normAt(id, at)).filter(Boolean).join(", ");
      const cell = row.querySelector(".norm");
      if (cell.textContent !== text) cell.textContent = text;
      if (here === current) row.setAttribute("aria-current", "step");
      else row.removeAttribute("aria-current");
    }
    for (const tensor of $$(".log .tensor")) tensor.classList.toggle("hit", at > 0 && touched.has(Number(tensor.dataset.tensor)));
  };

  const reveal = (current) => {
    if (current === null) return;
    const region = regionOf(current);
    if (region >= 0) {
      if (region !== opened && !kept) open(region);
      const node = $(`.overview [data-region="${region}"]`);
      if (node) cameras.get($(".overview")).reveal(node);
      const rows = $(`.log tbody.body[data-region="${region}"]`);
      if (rows?.hidden) toggleRows(region, true);
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
  const toggleRows = (region, show) => {
    const body = $(`.log tbody.body[data-region="${region}"]`);
    body.hidden = show === undefined ? !body.hidden : !show;
    $(`.log tr[data-region="${region}"] button`).setAttribute("aria-expanded", !body.hidden);
  };

  const update = () => {
    const at = position();
    $(".step").innerHTML = card(at);
    $(".step").dataset.position = at;
    $(".count").innerHTML = `<b>${at}</b> / ${last}`;
    $(".slider").value = at;
    $(".slider").style.setProperty("--share", last ? at / last : 0);
    $(".slider").setAttribute("aria-valuetext", `step ${at} of ${last}`);
    for (const name of ["rewind", "back"]) $(`[data-do="${name}"]`).disabled = at === 0;
    for (const name of ["step", "finish", "sum"]) $(`[data-do="${name}"]`).disabled = at === last;
    drawFollowed(at);
    recolour(at);
    reveal(actionAt(at));
    paint();
    $(".spoken").textContent = spoken(at);
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
        moves[button.dataset.do]();
      }
      return;
    }
    const chip = event.target.closest(".chip, .log .tensor");
    if (chip) return follow(Number(chip.dataset.tensor));
    const head = event.target.closest(".log tr[data-region]");
    if (head) return toggleRows(Number(head.dataset.region));
    const row = event.target.closest(".log tr[data-action]");
    if (row) return go(positionOf(Number(row.dataset.action)));
    if (event.target.closest(".collapse")) open(opened, true);
  });
  const keys = { ArrowRight: "step", ArrowLeft: "back", Home: "rewind", End: "finish", " ": "play", a: "sum" };
  view.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.composedPath()[0];
    if (target.tagName === "SELECT") return;
    if (event.key === " " && target.tagName === "BUTTON") return event.stopPropagation(); // the button's own
    const figure = target.closest?.("figure");
    if (figure && "+-=0".includes(event.key)) {
      const made = cameras.get(figure);
      event.key === "0" ? made.fit() : made.zoom(event.key === "-" ? 1 / 1.3 : 1.3);
    } else if (keys[event.key]) moves[keys[event.key]]();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  $(".slider")?.addEventListener("input", (event) => go(Number(event.target.value)));
  $(".speed")?.addEventListener("change", () => timer && (pause(), play()));

  const first = () => {
    for (const figure of $$("figure")) if (!figure.hidden && figure.querySelector("svg.graph")) camera(figure);
    for (const made of cameras.values()) {
      made.size();
      made.readable();
    }
    dress();
    update();
  };
  const resized = new ResizeObserver(() => cameras.forEach((made) => made.apply()));
  resized.observe(view);
  model.on("change:position", update);
  shown();
  if (film.count) first();
  else dress();
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
  const ticks = film.steps
    .map((step, i) => (step.out.some((item) => item[3]) ? `<i style="left:${((i + 1) / last) * 100}%"></i>` : ""))
    .join("");
  const figure = (name, svg, caption, hidden) => `<figure class="${name}" ${hidden ? "hidden" : ""} tabindex="0"
      aria-label="${name === "inside" ? "inside of a region" : "graph"}; plus, minus and zero zoom">
      ${caption}<div class="canvas">${svg}</div><div class="zoom"><button type="button" data-zoom="in" aria-label="zoom in">+</button>
      <button type="button" data-zoom="out" aria-label="zoom out">−</button><button type="button" data-zoom="fit" aria-label="show all">⤢</button></div></figure>`;
  const roots = film.roots.map((root) => escape(film.tensors[root]?.[0] ?? `%${root}`)).join(", ");
  return `<section class="view" tabindex="0" aria-label="Backward pass of ${escape(film.title)}">
    <header><h2>${escape(film.title)}</h2><p>${film.count} action${film.count === 1 ? "" : "s"}${roots ? ` · backward from <b>${roots}</b>` : ""}</p>
      ${button("theme", "light or dark")}</header>
    ${film.notes.map((line) => `<p class="message" role="note">${escape(line)}</p>`).join("")}
    <div class="controls" role="toolbar" aria-label="Backward pass" ${last ? "" : "hidden"}>
      <div class="buttons">${button("rewind", "Rewind (home)")}${button("back", "Step back (left arrow)")}${button("play", "Play (space)")}
      ${button("step", "Step (right arrow)")}${button("finish", "To the end (end)")}</div>
      <div class="track"><input class="slider" type="range" min="0" max="${last}" value="0" aria-label="Step of the backward pass"><div class="ticks" aria-hidden="true">${ticks}</div></div>
      <output class="count"></output>
      ${button("sum", "To the next accumulation (a)", "next Σ")}
      <select class="speed" aria-label="Speed"><option value="2400">slow</option><option value="1200" selected>normal</option><option value="450">fast</option></select></div>
    ${film.count ? `<div class="graphs">${figure("overview", film.graph, "", false)}
      ${film.regions.length ? figure("inside", "", '<figcaption><b></b> <span></span> <button type="button" class="collapse">collapse</button></figcaption>', true) : ""}</div>
    <div class="columns"><article class="step" aria-label="The current step"></article>
      <div class="log-panel" tabindex="0" aria-label="The log">${film.table}</div></div>
    <aside class="followed" hidden><h4>Followed</h4><ul class="sums"></ul></aside>` : '<p class="message">The tape is empty.</p>'}
    <div class="spoken" aria-live="polite" role="status"></div></section>`;
}

export default { render };
