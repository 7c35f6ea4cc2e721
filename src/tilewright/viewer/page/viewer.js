// The page around Neuroglancer: it draws, this sets its layers, colours, contrast and position.
"use strict";

const SHADER = `#uicontrol invlerp contrast
#uicontrol vec3 colour color
void main() { emitRGB(colour * contrast()); }`;
// Image pixels that a place is shown with, in the shorter direction of the window.
const PLACE_PX = 300;

// Neuroglancer's own controls over the image, which its configuration cannot hide.
const HIDDEN = ".neuroglancer-display-dimensions-widget, .neuroglancer-data-panel-layout-controls";

const base = new URL(".", location.href).href;
const byId = (id) => document.getElementById(id);
const frame = byId("image");
let scene = null;
let viewer = null;
let rows = [];

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function say(text) {
  byId("message").textContent = text;
  byId("message").hidden = !text;
}

// ---- Neuroglancer ----

const layerName = (k) => `${k + 1} ${scene.channels[k].name}`;
const layerOf = (k) => viewer.layerManager.getLayerByName(layerName(k));

function controls(channel) {
  const { low, high } = channel;
  return { contrast: { range: [low, Math.max(high, low + 1)] }, colour: channel.colour };
}

// Neuroglancer counts a window's pixels in the shorter side of an image pixel.
function wholeScale() {
  const unit = Math.min(...scene.pixel_um);
  const [height, width] = scene.shape_px.map((n, axis) => (n * scene.pixel_um[axis]) / unit);
  return 1.04 * Math.max(width / frame.clientWidth, height / frame.clientHeight);
}

function initialState() {
  const [height, width] = scene.shape_px;
  const [y_um, x_um] = scene.pixel_um;
  const source = `${base}image/${encodeURIComponent(scene.sample)}/|zarr${scene.zarr_format}:`;
  return {
    title: `${scene.sample} - tilewright`,
    dimensions: { x: [x_um * 1e-6, "m"], y: [y_um * 1e-6, "m"] },
    displayDimensions: ["x", "y"],
    position: [(width - 1) / 2, (height - 1) / 2],
    crossSectionScale: wholeScale(),
    crossSectionBackgroundColor: "#000000",
    showAxisLines: false,
    showDefaultAnnotations: false,
    layout: "xy",
    layers: scene.channels.map((channel, k) => ({
      type: "image",
      name: layerName(k),
      source,
      localDimensions: { "c'": [1, ""] },
      localPosition: [k],
      shader: SHADER,
      shaderControls: controls(channel),
      blend: "additive",
      opacity: 1,
      visible: channel.visible,
    })),
  };
}

function look(y, x, scale) {
  viewer.position.value = Float32Array.of(x, y);
  viewer.crossSectionScale.value = scale;
}

function lookAtWhole() {
  const [height, width] = scene.shape_px;
  look((height - 1) / 2, (width - 1) / 2, wholeScale());
}

const NO_WEBGL = "This browser has no WebGL 2, with which the image is drawn; try another one.";
const canDraw = () => Boolean(document.createElement("canvas").getContext("webgl2"));

function neuroglancer() {
  const began = Date.now();
  return new Promise((resolve, reject) => {
    const wait = () => {
      viewer = frame.contentWindow.viewer ?? null;
      if (viewer && layerOf(0)?.layer) resolve();
      else if (Date.now() - began > 5000 && !canDraw()) reject(new Error(NO_WEBGL));
      else setTimeout(wait, 20);
    };
    wait();
  });
}

// ---- Markers ----

// Counts grow with the square of a slider's place: most markers are dim.
const toSlider = (counts, top) => Math.round(1000 * Math.sqrt(Math.max(counts, 0) / top));
const toCounts = (place, top) => Math.round(top * (place / 1000) ** 2);

function markerRow(channel, k) {
  const shown = make("input", { type: "checkbox" });
  const colour = make("input", { type: "color", title: "Colour" });
  const low = make("input", { type: "range", max: 1000, title: "Shown black" });
  const high = make("input", { type: "range", max: 1000, title: "Shown in full colour" });
  const counts = make("output");
  const only = make("button", { type: "button", textContent: "only", title: "Show this alone" });
  const name = make("label", { className: "name", title: channel.name }, channel.name);
  name.htmlFor = shown.id = `marker${k}`;
  colour.setAttribute("aria-label", `Colour of ${channel.name}`);
  low.setAttribute("aria-label", `${channel.name}: counts shown black`);
  high.setAttribute("aria-label", `${channel.name}: counts in full colour`);
  const verdict = make("span", { className: `verdict ${channel.verdict}` });
  if (channel.verdict !== "pass") verdict.textContent = channel.verdict;
  verdict.title = channel.reasons.replaceAll(";", ", ").replaceAll("_", " ");
  const contrast = make("div", { className: "contrast" }, low, high, counts);
  const element = make("div", { className: "marker" }, shown, colour, name, verdict, only, contrast);

  const draw = () => layerOf(k).layer.shaderControlState.restoreState(controls(channel));
  const show = () => {
    shown.checked = channel.visible;
    contrast.hidden = !channel.visible;
    colour.value = channel.colour;
    low.value = toSlider(channel.low, channel.top);
    high.value = toSlider(channel.high, channel.top);
    counts.value = `${Math.round(channel.low)} to ${Math.round(channel.high)}`;
  };
  const set = (change) => {
    Object.assign(channel, change);
    layerOf(k).setVisible(channel.visible);
    draw();
    show();
    showCycles();
  };
  shown.onchange = () => set({ visible: shown.checked });
  colour.oninput = () => set({ colour: colour.value });
  low.oninput = () => {
    const counts = toCounts(low.value, channel.top);
    set({ low: counts, high: Math.max(channel.high, counts + 1) });
  };
  high.oninput = () => {
    const counts = Math.max(toCounts(high.value, channel.top), 1);
    set({ high: counts, low: Math.min(channel.low, counts - 1) });
  };
  only.onclick = () => rows.forEach((row, i) => row.set({ visible: i === k }));
  show();
  return { element, set, show, channel };
}

function showMarkers() {
  rows = scene.channels.map(markerRow);
  const find = byId("find");
  find.hidden = rows.length < 13;
  find.value = "";
  find.oninput = () => {
    const wanted = find.value.trim().toLowerCase();
    for (const { element, channel } of rows) {
      element.hidden = !channel.name.toLowerCase().includes(wanted);
    }
  };
  const cycles = [...new Set(scene.channels.map((channel) => channel.cycle))];
  byId("cycles").replaceChildren(...cycles.map((cycle) => {
    const own = rows.filter((row) => row.channel.cycle === cycle);
    const box = make("input", { type: "checkbox", id: `cycle${cycle}` });
    box.onchange = () => {
      const visible = box.checked; // the first row that changes sets the box again
      own.forEach((row) => row.set({ visible }));
    };
    const label = make("label", { htmlFor: box.id }, ` Cycle ${cycle}`);
    const elements = own.map((row) => row.element);
    return make("fieldset", {}, make("legend", {}, box, label), ...elements);
  }));
  showCycles();
}

function showCycles() {
  for (const box of byId("cycles").querySelectorAll("legend input")) {
    const own = rows.filter((row) => `cycle${row.channel.cycle}` === box.id);
    const count = own.filter((row) => row.channel.visible).length;
    box.checked = count === own.length;
    box.indeterminate = count > 0 && count < own.length;
  }
}

// The keys 1 to 9 switch markers, as they do in Neuroglancer while the image has the focus.
document.onkeydown = ({ key, target, ctrlKey, altKey, metaKey }) => {
  const row = /^[1-9]$/.test(key) ? rows[key - 1] : null;
  if (!row || !viewer || ctrlKey || altKey || metaKey || target.type === "search") return;
  row.set({ visible: !row.channel.visible });
};

function followLayers() {
  rows.forEach((row, k) => {
    const visible = layerOf(k)?.visible ?? row.channel.visible;
    if (visible !== row.channel.visible) {
      row.channel.visible = visible;
      row.show();
    }
  });
  showCycles();
}

// ---- Places ----

function showPlaces() {
  const bad = scene.places.filter((place) => place.verdict !== "pass").length;
  const pairs = scene.places.some((place) => Object.keys(place.colours).length > 1);
  const said = bad ? "Failed and doubtful ones first." : "All passed; these are the weakest.";
  byId("about").textContent = !scene.judged
    ? "No quality checks yet: snakemake qc"
    : said + (pairs ? " Two cycles are white where they agree." : "");
  byId("places").replaceChildren(...scene.places.map((place) => {
    const key = make("span", { className: "key" });
    for (const [k, colour] of Object.entries(place.colours)) {
      const swatch = make("span", { className: "swatch" });
      swatch.style.background = colour;
      key.append(swatch, `${scene.channels[k].name} `);
    }
    const button = make("button", { type: "button", className: place.verdict }, place.title, key);
    button.onclick = () => showPlace(place, button);
    return make("li", {}, button);
  }));
}

function showPlace(place, button) {
  rows.forEach((row, k) => {
    const colour = place.colours[k];
    row.set(colour ? { visible: true, colour } : { visible: false });
  });
  look(place.y_px, place.x_px, PLACE_PX / Math.min(frame.clientWidth, frame.clientHeight));
  markPlace(button);
}

function markPlace(button) {
  for (const other of byId("places").querySelectorAll("button")) other.ariaCurrent = null;
  const ring = byId("ring");
  ring.hidden = true;
  if (!button) return;
  button.ariaCurrent = "true";
  void ring.offsetWidth; // starts the animation again
  ring.hidden = false;
}

// ---- Start ----

const fail = (error) => say(error.message);

async function json(path) {
  const answer = await fetch(base + path);
  if (!answer.ok) throw new Error(`the viewer's server answers ${answer.status}`);
  return answer.json();
}

async function show(found) {
  scene = found;
  say(scene.error ?? "");
  if (scene.error) return;
  document.title = `${scene.sample} - tilewright`;
  const started = scene.channels.map((channel) => ({ ...channel }));
  viewer = null;
  frame.replaceWith(frame); // ends the page of the sample before
  frame.src = `${base}v/image/#!${encodeURIComponent(JSON.stringify(initialState()))}`;
  showMarkers();
  showPlaces();
  await neuroglancer();
  frame.contentDocument.head.append(make("style", {}, `${HIDDEN} { display: none !important; }`));
  viewer.layerManager.layersChanged.add(followLayers);
  byId("whole").onclick = lookAtWhole;
  byId("start").onclick = () => {
    rows.forEach((row, k) => row.set({ ...started[k] }));
    markPlace(null);
    lookAtWhole();
  };
  document.body.dataset.shown = scene.sample;
}

async function start() {
  const { samples, report, first } = await json("start.json");
  byId("report").hidden = !report;
  const choice = byId("sample");
  choice.replaceChildren(...samples.map((name) => make("option", { value: name }, name)));
  choice.disabled = samples.length < 2;
  choice.onchange = () => json(`scenes/${encodeURIComponent(choice.value)}`).then(show).catch(fail);
  await show(first);
}

start().catch(fail);
