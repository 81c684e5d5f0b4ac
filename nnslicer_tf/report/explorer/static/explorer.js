// The explorer: everything that is drawn, from a packed document alone.
//
// `explore(root, bytes, selected)` is all that is used from outside. In this order, the file
// reads the document, computes connections and receptive fields, and draws: the answer (inputs,
// what the model says, certificates), the graph, the chosen operation, the chosen neuron. All
// text goes into the page as text, never as HTML.

const FORMAT = "nnslicer_tf explorer 5";
const LEVELS = 63; // of a value that is stored as a level
const MOST_FEEDS = 200; // readers of a neuron that are worked out, the strongest first
const MOST_ROWS = 60; // rows of a table of connections
const MOST_CLASSES = 3; // classes of an answer
const MOST_BESIDE = 4; // buttons of slices to put beside the first
const LEAST_LABELLED = 9; // pixels of a cell beside which a word can stand
const LABEL_WIDTH = 64; // pixels of a word beside a matrix
const WIDEST_STEP = 24; // pixels of a time step in a matrix
const GATE_WIDTH = 130; // pixels of a gate among the others of its layer
const INNER = /:(pre|held|out|kept|added|open|reset|input|recurrent)$/; // neither gates nor states
const TILES = 64; // tiles or bars on one page of an operation
const BAR_HEIGHT = 90;
const BELOW_BARS = 16; // pixels for their numbers
const FIELD_LIMIT = 4_000_000; // connections that are followed for a receptive field
const SEARCHED = 1_000_000; // connections that are searched for the readers of a neuron

// ---- reading -----------------------------------------------------------------------------

async function readDocument(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  if (header.format !== FORMAT) {
    throw new Error(`This page shows data of "${FORMAT}", it has "${header.format}".`);
  }
  return new Doc(header, buffer, 4 + length);
}

const TYPES = { i1: Int8Array, u1: Uint8Array, i2: Int16Array, i4: Int32Array, f4: Float32Array,
  f8: Float64Array, q8: Int8Array };

class Doc {
  constructor(header, buffer, start) {
    Object.assign(this, header);
    this.buffer = buffer;
    this.start = start;
    this.decoded = new Map();
    this.readers = this.operations.map(() => []);
    this.operations.forEach((operation, place) => {
      operation.size = product(operation.shape);
      operation.place = place;
      for (const source of new Set(operation.inputs)) this.readers[source].push(place);
    });
  }

  // A typed array, decoded once; null for no reference.
  array(reference) {
    if (reference === undefined || reference === null) return null;
    if (!this.decoded.has(reference)) this.decoded.set(reference, this.decode(reference));
    return this.decoded.get(reference);
  }

  decode(reference) {
    const { type, shape, start, largest } = this.arrays[reference];
    const first = this.start + start;
    const last = first + product(shape) * TYPES[type].BYTES_PER_ELEMENT;
    const values = new TYPES[type](this.buffer.slice(first, last));
    if (type !== "q8") return values;
    return Float32Array.from(values, (q) => sign(q) * (q / LEVELS) ** 2 * largest);
  }

  // What units of level "head" are: a network without heads has channels alone.
  unitsOfHeads(count) {
    const s = count === 1 ? "" : "s";
    const has = this.operations.some((operation) => operation.heads !== null);
    return !has ? `channel${s}` : count === 1 ? "head or channel" : "heads and channels";
  }
}

// The kernels of an operation, those of its gates included.
function kernelsOf(doc, o) {
  const { kernel, reads } = doc.operations[o];
  return kernel !== undefined ? [kernel]
    : (reads ?? []).map((read) => read.kernel).filter((k) => k !== undefined);
}

const product = (shape) => shape.reduce((a, b) => a * b, 1);
const shapeText = (shape) => shape.join("×");
const sign = Math.sign;

// ---- a part: the slice of one sample, or of several together -----------------------------

class PartView {
  constructor(doc, exhibit, index) {
    this.doc = doc;
    this.exhibit = doc.exhibits[exhibit];
    this.part = this.exhibit.parts[index];
    this.row = this.part.row === undefined ? null : doc.rows[this.part.row];
    this.model = doc.models[this.exhibit.model];
    this.granularity = this.exhibit.granularity;
    this.cache = new Map();
  }

  shape(o) {
    const shape = this.doc.operations[o].shape;
    const stored = this.part.neurons[o];
    if (stored !== undefined) return this.doc.arrays[stored].shape;
    return this.granularity === "channel" ? shape.slice(-1) : shape;
  }

  contributions(o) { return this.doc.array(this.part.neurons[o]); }

  values(o) {
    if (!this.row) return null;
    const stored = this.row.values[this.granularity];
    return stored ? this.doc.array(stored[o]) : null;
  }

  means(o) {
    const stored = this.model.means[this.granularity];
    return stored ? this.doc.array(stored[o]) : null;
  }

  // At padding there are no neurons, and nothing changes.
  change(o, n) {
    const values = this.values(o);
    const means = this.means(o);
    if (!values || !means) return null;
    const { rule, reads, shape } = this.doc.operations[o];
    if (rule === "held") { // a state's change is that of what computed it
      const time = settled(this, o, Math.floor(n / shape[1]));
      return time < 0 ? 0 : this.change(reads[1].from, time * shape[1] + (n % shape[1]));
    }
    return this.present(o, n) ? Math.fround(values[n] - means[n]) : 0;
  }

  // Whether a neuron is no padding, as far as the document tells.
  present(o, n) {
    const { mask, shape } = this.doc.operations[o];
    if (mask === null || this.granularity === "channel") return true;
    const given = this.values(mask);
    if (!given) return true;
    const axes = this.doc.operations[mask].shape;
    const place = Math.floor(n / product(shape.slice(axes.length)));
    return given[broadcast(place, shape.slice(0, axes.length), axes)] > 0;
  }

  // Number of members and number of all neurons of an operation; null where there are none.
  kept(o) {
    if (!this.cache.has(o)) {
      const values = this.contributions(o);
      let count = 0;
      if (values) for (const value of values) count += value !== 0;
      this.cache.set(o, values ? [count, values.length] : this.part.members?.[o] ?? null);
    }
    return this.cache.get(o);
  }

  keptSynapses(k) {
    const kept = this.part.kept[k];
    return kept === undefined ? null : [kept, this.doc.kernels[k].size];
  }

  // What the slice is a set of: synapses, or what the neurons of the document are.
  get unit() {
    if (this.exhibit.level === "synapse") return "synapses";
    if (this.exhibit.level === "head") return this.doc.unitsOfHeads(2);
    return this.granularity === "channel" ? "channels" : "neurons";
  }

  // Number of members and of all units of an operation, in the unit of the slice.
  count(o) {
    if (this.exhibit.level !== "synapse") return this.heads(o) ?? this.kept(o);
    const counts = kernelsOf(this.doc, o).map((k) => this.keptSynapses(k)).filter(Boolean);
    return counts.length ? [d3.sum(counts, (c) => c[0]), d3.sum(counts, (c) => c[1])] : null;
  }

  // The same for the heads of an operation, where heads are the members; else null.
  heads(o) {
    const members = this.headsOf(o);
    const { heads, shape } = this.doc.operations[o];
    return members && [members.size, shape[heads]];
  }

  // The heads of an operation that are members, where heads are; else null.
  headsOf(o) {
    const { heads, shape } = this.doc.operations[o];
    const values = this.contributions(o);
    if (this.exhibit.level !== "head" || heads === null || !values) return null;
    const inner = product(shape.slice(heads + 1));
    const members = new Set();
    values.forEach((value, n) => { if (value) members.add(Math.floor(n / inner) % shape[heads]); });
    return members;
  }

  // The operation of the same attention whose heads are members: itself, or another one; or -1.
  counted(o) {
    const attention = (operation) => operation.name.slice(0, operation.name.lastIndexOf("/"));
    const { operations } = this.doc;
    if (operations[o].heads === null) return -1;
    return operations.findIndex((other, i) => attention(other) === attention(operations[o]) && this.headsOf(i));
  }

  // Whether local values can be told: they are those of one sample, against a profile.
  get local() {
    return this.row !== null && this.row.samples === 1 && this.exhibit.theta !== null
      && this.model.means[this.granularity] !== undefined;
  }
}

// ---- connections -------------------------------------------------------------------------

// What feeds a neuron: a list of {operation, index, change, weight, value, kept, gives}, and how
// the exclusion was decided. `null` where the document does not hold what that takes.
function expand(view, o, n) {
  const operation = view.doc.operations[o];
  const rows = connections(view, operation, n);
  if (!rows) return null;
  const contributions = view.contributions(o);
  const values = view.values(o);
  const sum = rows.reduce((total, row) => total + (row.value ?? 0), 0);
  const y = values ? values[n] : summed(view, operation, n, rows);
  const dy = view.change(o, n) ?? (operation.rule === "sum" ? sum : null);
  const direction = contributions ? sign(contributions[n]) * sign(dy ?? 0) : 0;
  const result = { rows, y, dy, threshold: null, excludedSum: 0, excluded: 0, partial: rows.partial };
  if (view.local && direction !== 0) {
    if (SUMS.has(operation.rule) && excludes(view, operation)) {
      const reference = view.exhibit.relativeTo === "sum" ? (dy ?? sum) : y;
      exclude(rows, view.exhibit.theta, reference, rows.partial ? dy : null, result);
    } else {
      for (const row of rows) row.kept = passes(view, operation, row, y);
    }
    for (const row of rows) row.gives = gives(view, operation, row, direction, contributions[n]);
  }
  result.expanded = view.local && direction !== 0;
  return result;
}

const SUMS = new Set(["sum", "average", "add", "subtract", "multiply", "products", "softmax",
  "gate"]);

// At channel granularity an average is one value for each channel: nothing can be excluded.
const excludes = (view, operation) =>
  !(view.granularity === "channel" && operation.rule === "average");

// The rule of the exclusion (NNSlicer, section 4.3): of the local values in the order of their
// magnitude, the longest beginning whose sum is below θ·|y| is left out.
function exclude(rows, theta, reference, total, result) {
  const threshold = theta * Math.abs(reference);
  const order = rows.map((_, i) => i).sort(
    (a, b) => Math.abs(rows[a].exact) - Math.abs(rows[b].exact) || a - b);
  const scale = rows.scale ?? 1;
  let last = -1;
  let sum = 0;
  if (total === null) {
    order.forEach((i, place) => {
      sum += rows[i].exact;
      if (Math.abs(sum) < threshold * scale) { last = place; result.excludedSum = sum / scale; }
    });
  } else { // Only the strongest are stored: what is left below them is the total less them.
    sum = total;
    last = order.length - 1;
    while (last >= 0 && !(Math.abs(sum) < threshold)) sum -= rows[order[last--]].exact;
    result.excludedSum = sum;
  }
  order.forEach((i, place) => { rows[i].kept = place > last; });
  result.threshold = threshold;
  result.excluded = last + 1;
}

function passes(view, operation, row, y) {
  const x = view.values(row.operation);
  if (operation.rule === "maximum" || operation.rule === "extreme") {
    return view.granularity === "channel" || (x !== null && x[row.index] === y);
  }
  if (operation.kind === "rectify" && view.exhibit.rectify === "sign") {
    if (view.granularity === "channel") return y > 0;
    return x === null ? null : x[row.index] > 0;
  }
  return true;
}

function gives(view, operation, row, direction, contribution) {
  if (operation.rule === "move" || operation.rule === "held") return contribution;
  if (operation.rule === "pass" && view.exhibit.rectify === "pass") return contribution;
  if (row.kept === null || row.value === null) return null;
  return row.kept ? direction * sign(row.value) : 0;
}

function summed(view, operation, n, rows) {
  if (operation.rule !== "sum" || rows.partial) return null;
  const weights = view.model.weights[operation.kernel];
  const bias = view.doc.array(weights.bias);
  const outputs = view.doc.kernels[operation.kernel].outputs;
  const values = rows.map((row) => view.values(row.operation)?.[row.index]);
  if (values.includes(undefined)) return null;
  return rows.reduce((sum, row, i) => sum + row.weight * values[i], bias ? bias[n % outputs] : 0);
}

// The inputs that an output reads, with their local values.
function connections(view, operation, n) {
  if (operation.rule === "sum") {
    return view.granularity === "channel" ? filterRows(view, operation, n)
      : sumRows(view, operation, n);
  }
  if (operation.rule === "average" || operation.rule === "maximum") {
    return poolRows(view, operation, n);
  }
  if (operation.rule === "move") return movedRows(view, operation, n);
  if (operation.rule === "other" || operation.rule === "mask" || !operation.inputs.length) return null;
  if (operation.rule === "products") return productRows(view, operation, n);
  if (operation.rule === "softmax") return softmaxRows(view, operation, n);
  if (operation.rule === "lookup") return lookupRows(view, operation, n);
  if (operation.rule === "gate") return gateRows(view, operation, n);
  if (operation.rule === "held") return heldRows(view, operation, n);
  return elementRows(view, operation, n);
}

const connection = (operation, index, change, weight, exact) =>
  ({ operation, index, change, weight, exact, value: exact, kept: null, gives: null });

// Visits (tap, input, weight) of an output channel of a kernel.
function eachWeight(view, kernel, output, visit) {
  const { groups, taps, inputs, outputs } = view.doc.kernels[kernel];
  const stored = view.model.weights[kernel];
  const values = view.doc.array(stored.values);
  const first = Math.floor(output / (outputs / groups)) * inputs;
  if (stored.chosen === undefined) {
    for (let t = 0; t < taps; t++) {
      for (let i = 0; i < inputs; i++) {
        visit(t, first + i, values[(t * inputs + i) * outputs + output]);
      }
    }
    return false;
  }
  const chosen = view.doc.array(stored.chosen);
  const width = chosen.length / outputs;
  for (let j = output * width; j < (output + 1) * width; j++) {
    visit(Math.floor(chosen[j] / inputs), first + (chosen[j] % inputs), values[j]);
  }
  return width < taps * inputs;
}

function sumRows(view, operation, n) {
  const source = operation.inputs[0];
  const outputs = view.doc.kernels[operation.kernel].outputs;
  const taps = view.doc.array(operation.taps);
  if (!taps) return null;
  const channels = view.doc.operations[source].shape.at(-1);
  const positions = operation.size / outputs;
  const position = Math.floor(n / outputs);
  const rows = [];
  rows.partial = eachWeight(view, operation.kernel, n % outputs, (t, i, weight) => {
    const from = taps[t * positions + position];
    if (from < 0) return;
    const index = from * channels + i;
    const change = view.change(source, index);
    const row = connection(source, index, change, weight,
      change === null ? null : Math.fround(weight * change));
    rows.push(Object.assign(row, { tap: t, input: i, kernel: operation.kernel, output: n % outputs }));
  });
  return rows;
}

function filterRows(view, operation, n) {
  const source = operation.inputs[0];
  const changes = view.row ? view.doc.array(view.row.changes[operation.place]) : null;
  const channels = view.doc.operations[source].shape.at(-1);
  const rows = [];
  rows.partial = eachWeight(view, operation.kernel, n, (t, i, weight) => {
    const change = changes ? changes[t * channels + i] : null;
    const row = connection(source, i, change, weight,
      change === null ? null : Math.fround(weight * change));
    rows.push(Object.assign(row, { tap: t, input: i, kernel: operation.kernel, output: n }));
  });
  return rows;
}

function poolRows(view, operation, n) {
  const source = operation.inputs[0];
  const channels = operation.shape.at(-1);
  const rows = [];
  if (view.granularity === "channel") {
    const change = view.change(source, n);
    return [connection(source, n, change, null, change)];
  }
  const taps = view.doc.array(operation.taps);
  if (!taps) return null;
  const positions = operation.size / channels;
  for (let t = 0; t < taps.length / positions; t++) {
    const from = taps[t * positions + Math.floor(n / channels)];
    if (from < 0) continue;
    const index = from * channels + (n % channels);
    if (!view.present(source, index)) continue;
    const change = view.change(source, index);
    rows.push(connection(source, index, change, null, change));
  }
  if (operation.rule === "average") { // Δx / k; the exclusion multiplies the threshold by k.
    rows.scale = rows.length;
    for (const row of rows) row.value = row.change === null ? null : row.change / rows.length;
  }
  return rows;
}

function movedRows(view, operation, n) {
  const sources = operation.inputs;
  if (view.granularity === "channel") return movedChannels(view, operation, n);
  if (operation.map === undefined) return null;
  const map = view.doc.array(operation.map);
  let index = map ? map[n] : n;
  if (index < 0) return [];
  let place = 0;
  while (index >= view.doc.operations[sources[place]].size) {
    index -= view.doc.operations[sources[place++]].size;
  }
  const { rule, shape } = view.doc.operations[sources[place]];
  if (rule === "held") {
    index = settled(view, sources[place], Math.floor(index / shape[1])) * shape[1] + index % shape[1];
    if (index < 0) return [];
  }
  const change = view.change(sources[place], index);
  return [connection(sources[place], index, change, null, change)];
}

function movedChannels(view, operation, n) {
  if (operation.map === undefined) return null;
  const map = view.doc.array(operation.map);
  const channels = operation.shape.at(-1);
  const found = new Map();
  for (let target = n; target < operation.size; target += channels) {
    let index = map ? map[target] : target;
    if (index < 0) continue;
    let place = 0;
    while (index >= view.doc.operations[operation.inputs[place]].size) {
      index -= view.doc.operations[operation.inputs[place++]].size;
    }
    const source = operation.inputs[place];
    const from = index % view.doc.operations[source].shape.at(-1);
    const change = view.change(source, from);
    found.set(`${source} ${from}`, connection(source, from, change, null, change));
  }
  return [...found.values()];
}

// Both factors of every product y = Σ a·b: first Δa·b of all, then a·Δb of all.
function productRows(view, operation, n) {
  const { table, left, right } = productIndices(view.doc, operation);
  const [a, b] = operation.inputs;
  const [of_a, of_b] = [view.values(a), view.values(b)];
  const pairs = table(n);
  const rows = (own, indices, others, values) => indices.map((index, s) => {
    const change = view.change(own, index);
    const exact = change === null || !values ? null : Math.fround(change * values[others[s]]);
    return connection(own, index, change, values ? values[others[s]] : null, exact);
  });
  const [first, second] = [pairs.map(left), pairs.map(right)];
  return [...rows(a, first, second, of_b), ...rows(b, second, first, of_a)];
}

// For a product-sum: from an output to the letters' places of its products, and from these to the
// factors. Decoded once.
function productIndices(doc, operation) {
  if (operation.products) return operation.products;
  const [inputs, y] = operation.equation.split("->");
  const letters = inputs.split(",").map((axes) => [...axes.slice(1)]);
  const of_y = [...y.slice(1)];
  const extents = {};
  letters.forEach((axes, k) => axes.forEach((axis, i) => {
    extents[axis] = doc.operations[operation.inputs[k]].shape[i];
  }));
  const summed = letters[0].filter((axis) => !of_y.includes(axis));
  const index = (axes) => (at) => axes.reduce((sum, axis) => sum * extents[axis] + at[axis], 0);
  const table = (n) => {
    let found = [{}];
    for (const axis of [...of_y].reverse()) {
      found[0][axis] = n % extents[axis];
      n = Math.floor(n / extents[axis]);
    }
    for (const axis of summed) {
      found = found.flatMap((at) => d3.range(extents[axis]).map((i) => ({ ...at, [axis]: i })));
    }
    return found;
  };
  operation.products = { table, left: index(letters[0]), right: index(letters[1]) };
  return operation.products;
}

// The local values y_i·(δ_ij − y_j)·Δx_j of a row of a softmax inside the network.
function softmaxRows(view, operation, n) {
  const source = operation.inputs[0];
  const y = view.values(operation.place);
  return rowOf(operation, n).map((j) => {
    const change = view.change(source, j);
    const slope = y ? Math.fround(y[n] * (Number(j === n) - y[j])) : null;
    return connection(source, j, change, slope, change === null || slope === null ? null
      : Math.fround(slope * change));
  });
}

// The neurons that differ from one only along the axes of a softmax's row.
function rowOf(operation, n) {
  let found = [n];
  let stride = 1;
  for (let axis = operation.shape.length - 1; axis >= 0; axis--) {
    const extent = operation.shape[axis];
    if (operation.axes.includes(axis)) {
      const step = stride;
      found = found.flatMap((m) => d3.range(extent).map((i) =>
        m + (i - Math.floor(m / step) % extent) * step));
    }
    stride *= extent;
  }
  return found.sort((a, b) => a - b);
}

// An element of a looked up word is a weight itself.
function lookupRows(view, operation, n) {
  const [source] = operation.inputs;
  const change = view.change(operation.place, n);
  const index = Math.floor(n / operation.shape.at(-1));
  const weight = view.values(operation.place)?.[n] ?? null;
  return [connection(source, index, change, weight, change)];
}

// ---- recurrent layers: what is read at the same time, and at the time before ---------------

// Where a read of a neuron goes: the operation, and the index of its first unit at that time; null
// for a constant state before the first step.
function readAt(view, operation, read, n) {
  const time = Math.floor(n / operation.shape[1]);
  const width = view.doc.operations[read.from].shape[1];
  if (read.entry) {
    const entry = operation.backwards ? operation.shape[0] - 1 - time : time;
    return { from: read.from, first: entry * width };
  }
  const at = settled(view, read.from, read.before ? time - 1 : time);
  if (at >= 0) return { from: read.from, first: at * width };
  return read.initial === undefined ? null : { from: read.initial, first: 0 };
}

// The latest time at which a held state was computed: at padding it is what it was before.
function settled(view, o, time) {
  const { rule, present } = view.doc.operations[o];
  const given = rule === "held" ? view.values(present) : null;
  let at = time;
  while (given && at >= 0 && !(given[at] > 0)) at -= 1;
  return at;
}

function gateRows(view, operation, n) {
  const unit = n % operation.shape[1];
  return operation.reads.flatMap((read) => {
    const { inputs, outputs } = view.doc.kernels[read.kernel];
    const { values: stored, chosen } = view.model.weights[read.kernel];
    const values = view.doc.array(stored);
    const at = readAt(view, operation, read, n);
    if (at === null || chosen !== undefined) return [];
    return d3.range(inputs).map((i) => {
      const weight = values[i * outputs + read.first + unit];
      const change = view.change(at.from, at.first + i);
      const row = connection(at.from, at.first + i, change, weight, change === null ? null
        : Math.fround(weight * change));
      return { ...row, tap: 0, input: i, kernel: read.kernel, output: read.first + unit };
    });
  });
}

// A state as the next step reads it; the first of its reads is the state before.
function heldRows(view, operation, n) {
  const [before, now] = operation.reads;
  const time = Math.floor(n / operation.shape[1]);
  const given = view.values(operation.present);
  const at = readAt(view, operation, given && !(given[time] > 0) ? before : now, n);
  if (at === null) return [];
  const index = at.first + (n % operation.shape[1]);
  const change = view.change(at.from, index);
  return [connection(at.from, index, change, null, change)];
}

// What a product or a sum inside a recurrent layer reads.
function cellRows(view, operation, n) {
  const unit = n % operation.shape[1];
  const found = operation.reads.map((read) => readAt(view, operation, read, n));
  const factors = found.map((at) => (at === null ? 0 : view.values(at.from)?.[at.first + unit]));
  return found.flatMap((at, k) => {
    if (at === null) return [];
    const change = view.change(at.from, at.first + unit);
    const others = operation.rule === "multiply" ? factors.filter((_, j) => j !== k) : [];
    const value = change === null || others.includes(undefined) ? null
      : others.reduce((result, factor) => result * factor, change);
    return [connection(at.from, at.first + unit, change, null, value)];
  });
}

function elementRows(view, operation, n) {
  if (operation.reads) return cellRows(view, operation, n);
  const shape = view.granularity === "channel" ? operation.shape.slice(-1) : operation.shape;
  const indices = operation.inputs.map((source) => broadcast(n, shape, view.shape(source)));
  return operation.inputs.map((source, k) => {
    const change = view.change(source, indices[k]);
    let value = change;
    if (value !== null && operation.rule === "subtract" && k > 0) value = -value;
    if (value !== null && operation.rule === "multiply") {
      operation.inputs.forEach((other, j) => {
        if (j !== k) value *= view.values(other)[indices[j]];
      });
    }
    return connection(source, indices[k], change, null, value);
  });
}

// The place in an input that was broadcast to the shape of the output.
function broadcast(n, shape, input) {
  if (product(input) === product(shape)) return n;
  let index = 0;
  let stride = 1;
  let rest = n;
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    const place = rest % shape[axis];
    rest = Math.floor(rest / shape[axis]);
    const own = input[axis - shape.length + input.length] ?? 1;
    if (own > 1) index += place * stride;
    stride *= own;
  }
  return index;
}

// The neurons of a reading operation that read a neuron, with the weight where there is one.
function readersOf(view, reader, o, n) {
  const operation = view.doc.operations[reader];
  const channels = view.doc.operations[o].shape.at(-1);
  const found = [];
  if (operation.rule === "sum" && (view.granularity === "channel" || operation.taps !== undefined)) {
    const { taps, outputs } = view.doc.kernels[operation.kernel];
    const table = view.granularity === "channel" ? null : view.doc.array(operation.taps);
    const positions = table ? operation.size / outputs : 1;
    const byTap = Array.from({ length: taps }, () => []);
    const own = Math.floor(n / channels);
    for (let t = 0; t < taps; t++) {
      for (let p = 0; p < positions; p++) {
        if (!table || table[t * positions + p] === own) byTap[t].push(p);
      }
    }
    for (let output = 0; output < outputs; output++) {
      eachWeight(view, operation.kernel, output, (t, i, weight) => {
        if (i !== n % channels) return;
        for (const p of byTap[t]) found.push({ index: p * outputs + output, tap: t, weight });
      });
    }
    return found;
  }
  if (["pass", "add", "subtract", "multiply", "extreme"].includes(operation.rule)) {
    const shape = view.shape(reader);
    if (product(shape) === product(view.shape(o))) return [{ index: n, weight: null }];
  }
  const contributions = view.contributions(reader);
  let searched = 0;
  for (let m = 0; m < product(view.shape(reader)) && searched < SEARCHED; m++) {
    if (contributions && contributions[m] === 0) continue;
    const rows = connections(view, operation, m) ?? [];
    searched += rows.length;
    const row = rows.find((one) => one.operation === o && one.index === n);
    if (row) found.push({ index: m, tap: row.tap, weight: row.weight });
  }
  found.partial = searched >= SEARCHED;
  return found;
}

// What a neuron feeds: rows of {operation, index, row}, the strongest first, and how many there
// are in all that are in the slice.
function feeds(view, o, n) {
  const found = [];
  let partial = false;
  for (const reader of view.doc.readers[o]) {
    const contributions = view.contributions(reader);
    const readers = readersOf(view, reader, o, n);
    partial ||= Boolean(readers.partial);
    for (const one of readers) {
      if (contributions && contributions[one.index] !== 0) found.push({ operation: reader, ...one });
    }
  }
  found.sort((a, b) => Math.abs(b.weight ?? 0) - Math.abs(a.weight ?? 0));
  const shown = found.slice(0, MOST_FEEDS).map((one) => {
    const result = expand(view, one.operation, one.index);
    const row = result?.rows.find((candidate) => candidate.operation === o
      && candidate.index === n && (one.tap === undefined || candidate.tap === one.tap));
    return { ...one, row: row ?? null };
  });
  return { all: found.length, shown, partial };
}

// ---- receptive fields --------------------------------------------------------------------

// The positions of the input that a neuron depends on, as bytes, or null if all or unknown.
function receptiveField(view, o, n) {
  const { doc } = view;
  if (view.granularity === "channel") return null;
  const reached = new Map([[o, { neurons: true, of: new Set([n]) }]]);
  let followed = 0;
  for (let place = o; place > doc.input; place--) {
    const at = reached.get(place);
    const operation = doc.operations[place];
    if (!at || operation.kind === "mask") continue;
    const channels = operation.shape.at(-1);
    const table = doc.array(operation.taps);
    if (operation.reads) {
      merge(reached, operation.entry, { neurons: false, of: timesUpTo(operation, at, channels) }, doc);
      continue;
    }
    if (["products", "softmax", "lookup"].includes(operation.rule)) {
      const found = new Map();
      for (const neuron of asNeurons(at, channels)) {
        const rows = connections(view, operation, neuron);
        followed += rows.length;
        if (followed > FIELD_LIMIT / 10) return null;
        for (const row of rows) {
          if (!found.has(row.operation)) found.set(row.operation, new Set());
          found.get(row.operation).add(row.index);
        }
      }
      found.forEach((of, source) => merge(reached, source, { neurons: true, of }, doc));
      continue;
    }
    if (table) {
      const positions = operation.size / channels;
      const field = new Set();
      for (const p of asPositions(at, channels)) {
        for (let t = 0; t * positions < table.length; t++) {
          const from = table[t * positions + p];
          if (from >= 0) field.add(from);
          if (++followed > FIELD_LIMIT) return null;
        }
      }
      merge(reached, operation.inputs[0], { neurons: false, of: field }, doc);
    } else if (operation.rule === "move") {
      if (operation.map === undefined) return null;
      moveBack(doc, operation, at, reached);
    } else if (operation.rule === "other" || view.part.members?.[place]) {
      return null;
    } else {
      for (const source of operation.inputs) {
        if (doc.operations[source].size === operation.size) merge(reached, source, at, doc);
        else if (doc.operations[source].shape.length) merge(reached, source, everything(doc, source), doc);
      }
    }
  }
  const input = reached.get(doc.input);
  if (!input) return null;
  const { shape, size } = doc.operations[doc.input];
  const channels = shape.length > 1 ? shape.at(-1) : 1;
  const bytes = new Uint8Array(size / channels);
  const places = shape.length > 1 ? asPositions(input, channels) : asNeurons(input, 1);
  for (const place of places) bytes[place] = 1;
  return bytes;
}

// The entries of a sequence that a recurrent layer has read up to the latest of some steps.
function timesUpTo(operation, at, units) {
  const latest = Math.max(...asPositions(at, units));
  const steps = operation.shape[0];
  return new Set(d3.range(latest + 1).map((t) => (operation.backwards ? steps - 1 - t : t)));
}

const everything = (doc, o) => ({ neurons: true,
  of: new Set(Array.from({ length: doc.operations[o].size }, (_, i) => i)) });

function asPositions(at, channels) {
  if (!at.neurons) return at.of;
  return new Set([...at.of].map((n) => Math.floor(n / channels)));
}

function asNeurons(at, channels) {
  if (at.neurons) return at.of;
  const all = new Set();
  for (const p of at.of) for (let c = 0; c < channels; c++) all.add(p * channels + c);
  return all;
}

function merge(reached, source, at, doc) {
  const known = reached.get(source);
  if (!known) { reached.set(source, at); return; }
  const channels = doc.operations[source].shape.at(-1);
  const both = new Set([...asNeurons(known, channels), ...asNeurons(at, channels)]);
  reached.set(source, { neurons: true, of: both });
}

function moveBack(doc, operation, at, reached) {
  const map = doc.array(operation.map);
  const found = operation.inputs.map(() => new Set());
  for (const n of asNeurons(at, operation.shape.at(-1))) {
    let index = map ? map[n] : n;
    if (index < 0) continue;
    let place = 0;
    while (index >= doc.operations[operation.inputs[place]].size) {
      index -= doc.operations[operation.inputs[place++]].size;
    }
    found[place].add(index);
  }
  operation.inputs.forEach((source, k) => merge(reached, source, { neurons: true, of: found[k] }, doc));
}

// ---- small parts of drawing --------------------------------------------------------------

// An element; strings among the children become text.
function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true && !name.startsWith("data-")) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && (value !== false || name.startsWith("data-"))) {
      element.setAttribute(name, value);
    }
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined)
    .map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en-US").replace("-", "−");
  const text = Math.abs(value) >= 1e5 || Math.abs(value) < 1e-4
    ? value.toExponential(2) : value.toPrecision(4);
  return text.replaceAll("-", "−");
}

const percent = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "–");
const signed = (value) => (value > 0 ? `+${number(value)}` : number(value));

function select(label, name, options, chosen, change) {
  const list = h("select", { name, onchange: (event) => change(Number(event.target.value)) },
    options.map((text, i) => h("option", { value: i, selected: i === chosen }, text)));
  return h("label", { class: "field" }, label, list);
}

function choice(name, label, options, chosen, change) {
  return h("div", { class: "row", role: "group", "aria-label": label },
    h("span", { class: "note" }, label),
    options.map(([value, text]) => h("button", { type: "button", "data-choice": `${name}:${value}`,
      "aria-pressed": String(value === chosen), onclick: () => change(value) }, text)));
}

// A colour scale with the numbers at its ends, and words for what they mean.
function scale(colours, low, high, text = "") {
  return h("span", { class: "scale" }, text ? h("span", {}, `${text}: `) : null, h("span", {}, low,
    h("span", { class: "ramp", style: `background:linear-gradient(to right,${colours.join(",")})` }), high));
}

const cividis = () => d3.range(0, 1.01, 0.1).map((t) => d3.interpolateCividis(t));
const diverging = ["var(--negative)", "var(--back)", "var(--positive)"];
const swatch = (name, text) => h("span", {}, h("span", { class: "swatch",
  style: `background:var(--${name})` }), text);

function rgb(root, name) {
  return d3.rgb(getComputedStyle(root).getPropertyValue(name).trim());
}

// ---- the view ----------------------------------------------------------------------------

async function explore(root, bytes, selected) {
  const place = h("div", { class: "nnx" });
  root.append(place);
  try {
    const view = new Explorer(place, await readDocument(bytes), selected);
    view.draw();
    place.explorer = view; // for scripts
    return view;
  } catch (error) {
    place.append(h("p", { role: "alert" }, `The view cannot be shown: ${error.message}`));
    throw error;
  }
}

class Explorer {
  constructor(root, doc, selected) {
    this.root = root;
    this.doc = doc;
    this.selected = selected;
    // The answer comes first: a slice with a certificate, and of two models the other one beside it.
    const certified = doc.exhibits.findIndex((one) => one.parts.some((part) => part.certificate));
    this.left = { exhibit: Math.max(certified, 0), part: 0 };
    const { model, parts } = doc.exhibits[this.left.exhibit];
    const other = doc.exhibits.findIndex((one) => one.model !== model
      && one.parts.length === parts.length);
    this.right = other < 0 ? null : { exhibit: other, part: 0 };
    this.operation = null;
    this.neuron = null;
    this.what = "contributions";
    this.members = "all";
    this.order = "number";
    this.page = 0;
    this.overlay = true;
    this.views = new Map();
    this.opened = new Set(doc.groups.length > 1 && doc.operations.length <= 12
      ? doc.groups.keys() : []);
    this.groupOf = [];
    doc.groups.forEach((group, place) => group.members.forEach((m) => { this.groupOf[m] = place; }));
    const scheme = window.matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", () => this.draw());
  }

  view({ exhibit, part }) {
    const key = `${exhibit} ${part}`;
    if (!this.views.has(key)) this.views.set(key, new PartView(this.doc, exhibit, part));
    return this.views.get(key);
  }

  // A colour of the style, for a canvas.
  colour(name) { return rgb(this.root, name); }

  // What feeds a neuron of the left slice, as the table of the page has it.
  expand(o, n) { return expand(this.one, o, n); }

  // What members are called: of slices, or of other sets, which have a name.
  get memberText() {
    const { theta, level, name } = this.one.exhibit;
    return theta === null && !level ? `in “${name}”` : "in the slice";
  }

  // The names of two sides: what they differ in, models, slices or samples.
  get names() {
    const places = [this.left, this.right];
    const exhibits = places.map((place) => this.doc.exhibits[place.exhibit]);
    return places.map((place, i) => {
      const sample = this.partName(exhibits[i], exhibits[i].parts[place.part], place.part);
      if (exhibits[0] === exhibits[1]) return `sample ${sample}`;
      return places[0].part === places[1].part ? exhibits[i].name
        : `${exhibits[i].name}, sample ${sample}`;
    });
  }

  onlyIn(side) { return `only in “${this.names[side]}”`; }

  get one() { return this.view(this.left); }
  get other() { return this.right ? this.view(this.right) : null; }

  draw() {
    this.answerPart = h("section", { class: "answer", "aria-label": "Input and answers" });
    this.graphPart = h("section", { class: "network", "aria-label": "Network" });
    this.operationPart = h("section", { class: "operation", "aria-label": "Operation" });
    this.tip = h("div", { class: "tip", hidden: true });
    this.said = h("div", { class: "hidden", "aria-live": "polite" });
    this.toolbar = h("div", { class: "bar", role: "toolbar", "aria-label": "What is shown" });
    this.heading = h("header");
    this.origin = h("footer");
    this.panels = h("div", { class: "panels" }, this.answerPart, this.graphPart, this.operationPart);
    this.root.replaceChildren(this.heading, this.toolbar, this.panels, this.origin, this.tip, this.said);
    this.drawHeading();
    this.drawToolbar();
    this.drawGraph();
    this.drawOperation();
    this.drawAnswer();
  }

  // Draws everything that depends on the chosen slices; the graph keeps its place.
  changed() {
    this.drawHeading();
    this.drawToolbar();
    this.colourGraph();
    this.drawOperation();
    this.drawAnswer();
    this.tell();
  }

  tell() {
    const { exhibit, part } = this.left;
    const operation = this.operation === null ? null : this.doc.operations[this.operation].name;
    this.selected({ exhibit: this.doc.exhibits[exhibit].name, part, operation, neuron: this.neuron });
  }

  drawHeading() {
    const { model, exhibit } = this.one;
    const versions = Object.entries(this.doc.versions).map(([name, v]) => `${name} ${v}`).join(", ");
    const facts = [
      `Model ${model.name}`,
      exhibit.theta === null ? null : `slice by counts, θ = ${exhibit.theta}`,
      exhibit.level ? `decisive slice of ${this.one.unit}` : `granularity: ${exhibit.granularity}`,
      exhibit.outputs && !exhibit.outputs.startsWith("{") ? `outputs: ${exhibit.outputs}` : null,
      exhibit.relativeTo === "output" ? null : `relative to: ${exhibit.relativeTo}`,
      exhibit.rectify === "sign" ? null : `rectify: ${exhibit.rectify}`,
    ];
    this.heading.replaceChildren(h("h1", {}, this.doc.title),
      h("p", { class: "facts" }, facts.filter(Boolean).join(" · ")));
    this.origin.replaceChildren(h("p", { class: "note" },
      `Model ${model.name}, fingerprint ${model.fingerprint.slice(0, 12)} · ${versions}`));
  }

  // --- choices ---------------------------------------------------------------------------

  drawToolbar() {
    const focused = this.root.ownerDocument.activeElement?.getAttribute?.("name");
    const parts = [...this.choices("left", this.left)];
    const { exhibits } = this.doc;
    const options = ["nothing", ...exhibits.map((exhibit) => exhibit.name)];
    if (exhibits.length > 1 || exhibits[0].parts.length > 1) {
      parts.push(select("Compare with", "compare", options, this.right ? this.right.exhibit + 1 : 0,
        (i) => this.compare(i - 1)));
    }
    if (this.right) parts.push(this.partChoice("right", this.right, "Its sample"));
    this.toolbar.replaceChildren(...parts.filter(Boolean));
    this.toolbar.hidden = !this.toolbar.children.length;
    if (focused) this.toolbar.querySelector(`[name="${CSS.escape(focused)}"]`)?.focus();
  }

  choices(side, place) {
    const { exhibits } = this.doc;
    const found = exhibits.length < 2 ? [] : [select("Slice", `${side}-exhibit`,
      exhibits.map((e) => e.name), place.exhibit, (i) => this.choose(place, i))];
    const facets = [["θ", "theta"], ["Granularity", "granularity"], ["Outputs", "outputs"]];
    for (const [label, key] of facets) { // of slices by counts
      const alike = exhibits.filter((exhibit) => exhibit.theta !== null);
      const values = [...new Set(alike.map((exhibit) => exhibit[key]))];
      if (values.length < 2 || exhibits[place.exhibit].theta === null) continue;
      found.push(select(label, `${side}-${key}`, values,
        values.indexOf(exhibits[place.exhibit][key]),
        (i) => this.choose(place, this.nearest(place.exhibit, key, values[i]))));
    }
    found.push(this.partChoice(side, place, "Sample"));
    return found;
  }

  partChoice(side, place, label) {
    const exhibit = this.doc.exhibits[place.exhibit];
    if (exhibit.parts.length < 2) return null;
    const names = exhibit.parts.map((part, i) => this.partName(exhibit, part, i));
    return select(label, `${side}-part`, names, place.part, (i) => { place.part = i; this.changed(); });
  }

  partName(exhibit, part, i) {
    if (!exhibit.each) return part.samples ? `all ${part.samples}` : "–";
    const predicted = part.predicted ?? part.says?.whole[0][0];
    return predicted === undefined ? `${i}` : `${i} (answer ${this.className(predicted)})`;
  }

  className(index) { return this.doc.classes[index] ?? String(index); }

  // The exhibit with a value of a facet that otherwise is most like another.
  nearest(from, key, value) {
    const { exhibits } = this.doc;
    const alike = (exhibit) => ["theta", "granularity", "outputs", "model", "each"].reduce(
      (sum, other) => sum + (exhibit[other] === exhibits[from][other]), 0);
    const possible = exhibits.map((_, i) => i).filter((i) => exhibits[i][key] === value);
    return possible.sort((a, b) => alike(exhibits[b]) - alike(exhibits[a]))[0];
  }

  choose(place, exhibit) {
    place.exhibit = exhibit;
    place.part = Math.min(place.part, this.doc.exhibits[exhibit].parts.length - 1);
    this.changed();
  }

  compare(exhibit) {
    this.members = "all";
    if (exhibit < 0) {
      this.right = null;
    } else {
      const parts = this.doc.exhibits[exhibit].parts.length;
      const same = exhibit === this.left.exhibit;
      const part = same ? (this.left.part + 1) % parts : Math.min(this.left.part, parts - 1);
      this.right = { exhibit, part };
    }
    this.what = "contributions";
    this.changed();
  }

  // Whether two slices are beside each other that count the same neurons of the open operation.
  get isComparison() { return Boolean(this.right && this.common(this.operation)); }

  // Neurons of an operation in both slices, only in the left, only in the right, in either.
  common(o) {
    const [a, b] = [this.one, this.other].map((view) => view.contributions(o));
    if (!a || !b || a.length !== b.length) return null;
    return countCommon(a, b);
  }

  commonSynapses(k) {
    const [a, b] = [this.one, this.other].map((v) => this.doc.array(v.part.synapses[k]));
    return a && b && a.length === b.length ? countCommon(a, b) : null;
  }

  // --- the graph ---------------------------------------------------------------------------

  // What two slices have in common of some operations, in the units of the slices.
  commons(members) {
    return members.flatMap((o) => {
      if (this.one.unit === "synapses") return kernelsOf(this.doc, o).map((k) => this.commonSynapses(k));
      const [a, b] = [this.one, this.other].map((view) => view.headsOf(o));
      if (!a || !b) return [this.common(o)];
      const common = [...a].filter((head) => b.has(head)).length;
      return [{ common, left: a.size - common, right: b.size - common }];
    }).filter(Boolean);
  }

  share(members) {
    if (this.right) {
      const counts = this.commons(members);
      const both = d3.sum(counts, (c) => c.common);
      const either = d3.sum(counts, (c) => c.common + c.left + c.right);
      return either ? both / either : null;
    }
    const counts = members.map((o) => this.one.count(o)).filter(Boolean);
    const all = d3.sum(counts, (c) => c[1]);
    return all ? d3.sum(counts, (c) => c[0]) / all : null;
  }

  nodes() {
    const nodes = [];
    this.doc.groups.forEach((group, place) => {
      if (group.members.length > 1 && !this.opened.has(place)) {
        nodes.push({ id: `g${place}`, group: place, members: group.members, label: group.label });
      } else {
        for (const o of group.members) {
          nodes.push({ id: `o${o}`, operation: o, group: place, members: [o],
            label: this.doc.operations[o].name });
        }
      }
    });
    return nodes;
  }

  drawGraph() {
    const search = h("input", { type: "search", name: "search", placeholder: "Search operations ( / )",
      "aria-label": "Search operations", onkeydown: (event) => {
        if (event.key === "Enter") this.search(event.target.value);
      } });
    const buttons = [
      ["Fit", () => this.fit(0)], ["+", () => this.zoomBy(1.4)], ["−", () => this.zoomBy(1 / 1.4)],
      ["Unfold all", () => this.foldAll(false)], ["Fold all", () => this.foldAll(true)],
    ].map(([text, act]) => h("button", { type: "button", onclick: act,
      "aria-label": { "+": "Zoom in", "−": "Zoom out" }[text] ?? text }, text));
    const svg = d3.create("svg").attr("class", "graph").attr("role", "group")
      .attr("aria-label", "Graph of operations. Arrow keys move, Enter opens, Escape folds.");
    this.found = h("p", { class: "note", role: "status" });
    this.legend = h("div", { class: "legend" });
    this.graphPart.replaceChildren(h("h2", {}, "Network"), h("div", { class: "row" }, search, buttons),
      this.found, this.legend, svg.node());
    this.svg = svg;
    this.canvas = svg.append("g");
    this.zoom = d3.zoom().scaleExtent([0.05, 4]).on("zoom", (event) => {
      this.canvas.attr("transform", event.transform);
    });
    svg.call(this.zoom).on("dblclick.zoom", null);
    // On a page of its own "/" works everywhere, in a notebook only inside the view.
    const listens = this.root.closest("body > main#explorer") ? document : this.root;
    listens.onkeydown = (event) => {
      if (event.key === "/" && !/INPUT|SELECT/.test(event.target.tagName)) {
        event.preventDefault();
        search.focus();
      }
    };
    this.layOut();
    this.fit(1);
  }

  layOut() {
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({ rankdir: "TB", ranksep: 26, nodesep: 18 });
    graph.setDefaultEdgeLabel(() => ({}));
    const nodes = this.nodes();
    const nodeOf = new Map();
    for (const node of nodes) {
      const shape = this.doc.operations[node.operation]?.shape.join("×") ?? "";
      const least = node.operation === undefined || this.one.unit === "synapses" ? 152 : 120;
      node.width = Math.max(least, 5.9 * (shape.length + 10) + 12,
        7 * Math.min(node.label.length, 34) + 18);
      node.height = 40;
      graph.setNode(node.id, node);
      for (const o of node.members) nodeOf.set(o, node.id);
    }
    this.doc.operations.forEach((operation, o) => {
      for (const source of operation.inputs) {
        // Not drawn: states of the time before, and masks that travel to other blocks.
        const travels = this.doc.operations[source].kind === "mask"
          && this.groupOf[source] !== this.groupOf[o];
        if (source > o || travels) continue;
        if (nodeOf.get(source) !== nodeOf.get(o)) graph.setEdge(nodeOf.get(source), nodeOf.get(o));
      }
    });
    dagre.layout(graph);
    this.shown = nodes;
    this.size = graph.graph();
    const line = d3.line((p) => p.x, (p) => p.y).curve(d3.curveBasis);
    this.canvas.selectAll("*").remove();
    this.drawFrames(nodes);
    this.canvas.append("g").attr("aria-hidden", "true").selectAll("path").data(graph.edges())
      .join("path").attr("class", "edge").attr("d", (edge) => line(graph.edge(edge).points));
    const boxes = this.canvas.append("g").selectAll("g").data(nodes).join("g")
      .attr("class", "node").attr("role", "button").attr("data-node", (node) => node.label)
      .attr("transform", (node) => `translate(${node.x - node.width / 2},${node.y - node.height / 2})`)
      .on("click", (event, node) => this.activate(node))
      .on("keydown", (event, node) => this.keyOnNode(event, node));
    boxes.append("title");
    boxes.filter((node) => node.operation === undefined).append("rect").attr("class", "behind")
      .attr("x", 4).attr("y", 4).attr("rx", 5)
      .attr("width", (node) => node.width).attr("height", (node) => node.height);
    boxes.append("rect").attr("class", "body").attr("rx", 5)
      .attr("width", (node) => node.width).attr("height", (node) => node.height);
    boxes.append("text").attr("class", "name").attr("x", (node) => node.width / 2).attr("y", 15)
      .text((node) => shorten(node.label, 34));
    boxes.append("text").attr("class", "share").attr("x", (node) => node.width / 2).attr("y", 30);
    boxes.classed("folded", (node) => node.operation === undefined);
    this.boxes = boxes;
    this.colourGraph();
  }

  drawFrames(nodes) {
    const groups = d3.groups(nodes.filter((node) => node.operation !== undefined),
      (node) => node.group).filter(([, members]) => members.length > 1);
    const frames = this.canvas.append("g").selectAll("g").data(groups).join("g");
    const bounds = ([, members]) => ({
      x: d3.min(members, (m) => m.x - m.width / 2) - 8,
      y: d3.min(members, (m) => m.y - m.height / 2) - 8,
      right: d3.max(members, (m) => m.x + m.width / 2) + 8,
      bottom: d3.max(members, (m) => m.y + m.height / 2) + 8,
    });
    frames.append("rect").attr("class", "frame").attr("rx", 8).each(function place(group) {
      const { x, y, right, bottom } = bounds(group);
      d3.select(this).attr("x", x).attr("y", y).attr("width", right - x).attr("height", bottom - y);
    });
  }

  colourGraph() {
    this.boxes.each((node) => { node.share = this.share(node.members); });
    const top = d3.max(this.shown, (node) => node.share) || 1;
    const colour = (share) => (share === null ? null : d3.interpolateCividis(share / top));
    this.boxes.select("rect.body").style("fill", (node) => colour(node.share) ?? "var(--soft)");
    this.boxes.selectAll("text").style("fill", (node) => (node.share === null ? "var(--text)"
      : d3.lab(colour(node.share)).l > 48 ? "#000" : "#fff"));
    this.boxes.select("text.share").text((node) => this.nodeLine(node));
    this.boxes.select("title").text((node) => this.nodeTitle(node));
    this.boxes.attr("aria-label", (node) => this.nodeTitle(node).replaceAll("\n", ", "))
      .classed("chosen", (node) => node.operation !== undefined && node.operation === this.operation)
      .attr("aria-expanded", (node) => (node.operation === undefined ? "false" : null));
    const current = this.shown.find((node) => node.operation === this.operation) ?? this.shown[0];
    this.boxes.attr("tabindex", (node) => (node === current ? 0 : -1));
    this.legend.replaceChildren(scale(cividis(), "0 %", `${+(100 * top).toPrecision(2)} %, the most`,
      this.right ? `in both slices, of the ${this.one.unit} in either`
        : `share of the ${this.one.unit} ${this.memberText}`));
  }

  nodeLine(node) {
    const o = node.members.at(-1);
    if (this.right && node.share !== null) return `${(100 * node.share).toFixed(1)} % in both`;
    const own = this.one.shape(o);
    const noun = this.doc.operations[o].shape.length === 1 ? "unit" : "channel";
    const shape = own.length === 1 ? `${number(own[0])} ${noun}${own[0] === 1 ? "" : "s"}` : shapeText(own);
    const share = node.share === null ? "" : ` · ${(100 * node.share).toFixed(1)} %`;
    const [kept] = this.one.unit === "synapses" && !this.right ? this.one.count(o) ?? [] : [];
    const count = node.operation === undefined ? `${node.members.length} operations`
      : kept === undefined ? shape : `${number(kept)} ${kept === 1 ? "synapse" : "synapses"}`;
    return `${count}${share}`;
  }

  nodeTitle(node) {
    const lines = node.members.slice(0, 12).map((o) => {
      const { name, kind, shape } = this.doc.operations[o];
      return `${name}: ${kind}, ${shapeText(shape)}`;
    });
    if (node.members.length > 12) lines.push(`… ${node.members.length - 12} more`);
    const said = this.right ? "in common" : this.memberText;
    const share = node.share === null ? "no neurons" : `${(100 * node.share).toFixed(1)} % ${said}`;
    return [node.operation === undefined ? `${node.label} (folded)` : null, ...lines, share]
      .filter(Boolean).join("\n");
  }

  activate(node) {
    if (node.operation === undefined) this.fold(node.group, false, node.members[0]);
    else this.open(node.operation);
  }

  keyOnNode(event, node) {
    const place = this.shown.indexOf(node);
    const steps = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 };
    if (event.key in steps) {
      event.preventDefault();
      this.focusNode(this.shown[place + steps[event.key]]);
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.activate(node);
    } else if (event.key === "Escape" && node.operation !== undefined) {
      this.fold(node.group, true, node.operation);
    }
  }

  focusNode(node) {
    if (!node) return;
    this.boxes.attr("tabindex", (other) => (other === node ? 0 : -1));
    this.boxes.filter((other) => other === node).node().focus();
    this.reveal(node);
  }

  fold(group, folded, then) {
    if (this.doc.groups[group].members.length < 2) return;
    if (folded) this.opened.delete(group); else this.opened.add(group);
    this.layOut();
    this.focusNode(this.shown.find((node) => node.members.includes(then)));
  }

  foldAll(folded) {
    this.opened = new Set(folded ? [] : this.doc.groups.keys());
    this.layOut();
    this.fit(1);
  }

  search(text) {
    const wanted = text.trim().toLowerCase();
    const found = this.doc.operations.map((_, o) => o)
      .filter((o) => this.doc.operations[o].name.toLowerCase().includes(wanted));
    this.found.textContent = wanted ? `${found.length} ${found.length === 1 ? "operation" : "operations"} found` : "";
    if (!wanted || !found.length) return;
    this.open(found.find((o) => this.operation !== null && o > this.operation) ?? found[0]);
  }

  frame() {
    const box = this.svg.node().getBoundingClientRect();
    return { width: box.width || 360, height: box.height || 540 };
  }

  // Shows all of the graph, or at this scale its beginning: below 1, text has less than 12 pixels.
  // A little less is better than a graph that is cut.
  fit(least) {
    const { width, height } = this.frame();
    const [across, down] = [width / (this.size.width + 30), height / (this.size.height + 30)];
    const scale = Math.min(across, down, 1.2);
    const readable = scale > 0.8 * least ? scale
      : Math.max(scale, Math.min(least, Math.max(across, 0.7 * least)));
    const x = (width - this.size.width * readable) / 2;
    this.svg.call(this.zoom.transform, d3.zoomIdentity.translate(x, 14).scale(readable));
  }

  zoomBy(factor) { this.svg.call(this.zoom.scaleBy, factor); }

  reveal(node) {
    if (!node) return;
    const { k, x, y } = d3.zoomTransform(this.svg.node());
    const { width, height } = this.frame();
    const [left, top] = [x + k * node.x, y + k * node.y];
    const [across, down] = [k * node.width / 2, k * node.height / 2];
    if (left > across && left < width - across && top > down && top < height - down) return;
    const moved = d3.zoomIdentity.translate(width / 2 - k * node.x, height / 2 - k * node.y).scale(k);
    this.svg.call(this.zoom.transform, moved);
  }

  // --- the chosen operation ------------------------------------------------------------------

  open(o) {
    if (this.operation !== o) { this.neuron = null; this.page = 0; }
    this.operation = o;
    const isHidden = !this.shown.some((node) => node.operation === o);
    if (o !== null && isHidden) { this.opened.add(this.groupOf[o]); this.layOut(); this.fit(1); }
    this.colourGraph();
    this.drawOperation();
    this.showField(null);
    this.tell();
    if (o === null) return;
    this.reveal(this.shown.find((node) => node.operation === o));
    // On a narrow page the operation stands below the graph.
    const { top } = this.operationPart.getBoundingClientRect();
    if (top > 0.8 * window.innerHeight) this.operationPart.scrollIntoView({ block: "start" });
  }

  drawOperation() {
    this.panels.classList.toggle("start", this.operation === null);
    if (this.operation === null) {
      this.operationPart.replaceChildren(h("h2", {}, `Where the ${this.one.unit} are`), this.summary(),
        h("p", { class: "note" }, "Choose an operation, here or in the graph, to see its neurons."
          + (this.doc.groups.some((group) => group.members.length > 1)
            ? " A box with a shadow is a block, which opens into its operations." : "")));
      return;
    }
    const operation = this.doc.operations[this.operation];
    const available = this.available();
    if (!available.some(([what]) => what === this.what)) this.what = available[0]?.[0] ?? "contributions";
    this.tiles = new Tiles(this);
    this.neuronPart = h("div", { class: "neuron" });
    const pages = Math.ceil(this.tiles.channels / TILES);
    const turn = (by) => () => { this.page = (this.page + by + pages) % pages; this.drawOperation(); };
    const first = this.page * TILES;
    const shownTo = Math.min(first + TILES, this.tiles.channels);
    this.operationPart.replaceChildren(...[
      h("button", { type: "button", class: "close", onclick: () => this.open(null) }, "Close"),
      h("h2", {}, operation.name),
      h("p", { class: "facts" }, `${operation.kind} · layer ${operation.layer} · shape `
        + `${shapeText(operation.shape)}`),
      this.counts(),
      choice("what", "Show", available, this.what, (what) => { this.what = what; this.drawOperation(); }),
      this.isComparison ? choice("members", "Which", [["all", "all"], ["common", "in both"],
        ["left", this.onlyIn(0)], ["right", this.onlyIn(1)]], this.members,
        (members) => { this.members = members; this.drawOperation(); }) : null,
      this.tiles.channels > 1 ? choice("order", "Order", [["number", "by number"],
        ["size", `most ${this.memberText} first`]], this.order,
        (order) => { this.order = order; this.page = 0; this.drawOperation(); }) : null,
      this.tiles.legend(),
      h("div", { class: "scroll tiles" }, this.tiles.axis(), this.tiles.canvas),
      pages > 1 ? h("div", { class: "row" }, h("button", { type: "button", onclick: turn(-1) },
        "Previous"), h("button", { type: "button", onclick: turn(1) }, "Next"),
        h("span", { class: "note" }, `${this.tiles.unit} ${first + 1}–${shownTo} of ${this.tiles.channels}`)) : null,
      this.tiles.caption(),
      this.drawGates(),
      this.neuronField(),
      this.neuronPart,
    ].filter(Boolean));
    this.tiles.draw();
    this.drawNeuron();
  }

  summary() {
    const views = [this.one, this.other].filter(Boolean);
    const rows = this.doc.operations.map((operation, o) => {
      const counts = views.map((view) => view.count(o));
      if (counts.every((count) => count === null)) return null;
      const [[, all]] = counts.filter(Boolean);
      return h("tr", {}, h("td", {}, h("button", { type: "button", onclick: () => this.open(o) },
        operation.name.split(/(?<=[_/])/).flatMap((part) => [part, h("wbr")]))), counts.map((count) => h("td", {}, count ? number(count[0]) : "–")),
      views.length > 1 ? h("td", {}, number(d3.sum(this.commons([o]), (c) => c.common))) : null,
      h("td", {}, number(all)), views.length > 1 ? null : h("td", {}, percent(...counts[0])));
    });
    const columns = views.length > 1 ? ["operation", ...this.names.map((name) => `“${name}”`), "in both", "all"]
      : ["operation", this.memberText, "all", "share"];
    return h("div", { class: "scroll" }, h("table", { class: "summary" }, h("thead", {}, h("tr", {},
      columns.map((text) => h("th", {}, text)))), h("tbody", {}, rows)));
  }

  available() {
    const o = this.operation;
    const found = [["contributions", this.isComparison ? "comparison"
      : this.one.exhibit.theta !== null ? "contributions"
        : this.one.exhibit.level ? "slice" : this.one.exhibit.name]];
    if (this.isComparison) return found;
    if (!this.one.contributions(o)) found.pop();
    if (this.one.values(o)) found.push(["activation", "activation"]);
    if (this.one.means(o)) found.push(["mean", "mean"]);
    if (this.one.values(o) && this.one.means(o)) found.push(["change", "change Δ"]);
    return found;
  }

  counts() {
    const heads = this.right ? null : this.one.heads(this.operation);
    const lines = [heads ? this.countLine("heads", heads) : this.countLine("neurons",
      this.one.kept(this.operation), this.right && this.common(this.operation))];
    for (const kernel of kernelsOf(this.doc, this.operation)) {
      const [own, of] = this.doc.operations[this.operation].reads
        ? [`synapses of ${this.doc.kernels[kernel].name}`, "all gates"] : ["synapses", ""];
      lines.push(this.countLine(own, this.one.keptSynapses(kernel),
        this.right && this.commonSynapses(kernel), of));
    }
    if (this.one.part.members?.[this.operation]) {
      lines.push(h("p", { class: "note" }, "The single neurons of this large operation were left out "
        + "to keep the file small."));
    } else if (!this.right && this.one.row && !this.one.values(this.operation)) {
      lines.push(h("p", { class: "note" }, "Activations of this operation were left out to keep the "
        + "file small."));
    }
    return h("div", {}, lines);
  }

  countLine(kind, kept, common, of = "") {
    const what = kind === "neurons" && this.one.unit === "synapses"
      && this.one.shape(this.operation).length < this.doc.operations[this.operation].shape.length
      ? "channels" : kind;
    if (this.right) {
      const text = common ? `${number(common.all)} ${what}: ${number(common.common)} in both, `
        + `${this.onlyIn(0)}: ${number(common.left)}, ${this.onlyIn(1)}: ${number(common.right)}`
        : `The ${what} of both are not in the file, or counted differently.`;
      return h("p", { class: "count", "data-count": kind, "data-common": common?.common,
        "data-left": common?.left, "data-right": common?.right }, text);
    }
    const counted = this.one.counted(this.operation);
    if (!kept && counted >= 0) {
      const [has, all] = this.one.heads(counted);
      return h("p", { class: "count" }, `The slice has ${has} of the ${all} heads, as members of ${
        this.doc.operations[counted].name}.`);
    }
    if (!kept) {
      return h("p", { class: "count" }, this.one.exhibit.level
        ? `The slice is a set of ${this.one.unit} of other operations; this one has none of them.`
        : `No ${what} of it are known.`);
    }
    return h("p", { class: "count", "data-count": kind, "data-kept": kept[0], "data-all": kept[1] },
      `${number(kept[0])} of ${number(kept[1])} ${what} ${this.memberText} (${percent(...kept)}`
      + `${of ? `; ${of} together` : ""})`);
  }

  neuronField() {
    const whole = this.doc.operations[this.operation].shape;
    const shape = this.one.shape(this.operation);
    const names = shape.length === whole.length
      ? axisNames(this.doc.operations[this.operation]) : ["channel"];
    const input = h("input", { type: "text", name: "neuron", size: 12,
      value: this.neuron === null ? "" : this.place(this.operation, this.neuron),
      onkeydown: (event) => {
        if (event.key === "Enter") this.chooseByText(event.target.value);
      } });
    return h("div", { class: "row" }, h("label", {}, `Neuron (${names.join(", ")}) `, input));
  }

  chooseByText(text) {
    const shape = this.one.shape(this.operation);
    const parts = text.split(/[ ,;×]+/).filter(Boolean).map(Number);
    const valid = parts.length === shape.length
      && parts.every((p, axis) => Number.isInteger(p) && p >= 0 && p < shape[axis]);
    if (!valid) {
      this.said.textContent = `There is no neuron ${text}; the shape is ${shapeText(shape)}.`;
      return;
    }
    this.chooseNeuron(parts.reduce((n, p, axis) => n * shape[axis] + p, 0));
  }

  place(o, n) {
    const shape = this.one.shape(o);
    const places = [];
    let rest = n;
    for (let axis = shape.length - 1; axis >= 0; axis--) {
      places.unshift(rest % shape[axis]);
      rest = Math.floor(rest / shape[axis]);
    }
    return places.join(", ");
  }

  chooseNeuron(n) {
    this.neuron = n;
    const field = this.operationPart.querySelector('[name="neuron"]');
    if (field) field.value = this.place(this.operation, n);
    this.tiles.reveal(n);
    this.drawNeuron();
    this.showField(n);
    this.said.textContent = this.describe(n);
    this.tell();
  }

  goTo(o, n) {
    this.open(o);
    if (n !== null) this.chooseNeuron(n);
  }

  describe(n) {
    const o = this.operation;
    const of = (view) => `contribution ${number(view.contributions(o)?.[n])}`;
    const lines = [`neuron (${this.place(o, n)})`];
    if (this.right) lines.push(...this.names.map((name, i) => `${name}: ${of([this.one, this.other][i])}`));
    else lines.push(of(this.one));
    lines.push(...this.wordsAt(o, n));
    const [value, mean] = [this.one.values(o), this.one.means(o)];
    if (value && !this.right) lines.push(`activation ${number(value[n])}`);
    if (mean && !this.right) lines.push(`mean ${number(mean[n])}`);
    return lines.join("\n");
  }

  // The words of the positions of a neuron, for models of text.
  wordsAt(o, n) {
    const operation = this.doc.operations[o];
    const length = this.doc.operations[this.doc.input].shape[0];
    const shape = this.one.shape(o);
    if (!this.one.row?.words || shape.length !== operation.shape.length) return [];
    const at = this.place(o, n).split(", ").map(Number);
    const word = (t) => `“${this.wordAt(o, t)}”`;
    if (operation.heads === 0 && shape[2] === length) {
      return [`${shape[1] === length ? `${word(at[1])} ` : ""}attends to ${word(at[2])}`];
    }
    return shape.length > 1 && shape[0] === length || o === this.doc.input ? [`at ${word(at[0])}`] : [];
  }

  wordAt(o, time) {
    const { words } = this.one.row;
    const length = this.doc.operations[this.doc.input].shape[0];
    return words[this.doc.operations[o].backwards ? length - 1 - time : time] ?? "padding";
  }

  // All operations of a recurrent layer, each a small matrix over time; a click opens one.
  drawGates() {
    const own = this.doc.operations[this.operation];
    if (!own.reads || this.right) return null;
    const gates = this.doc.operations.filter((other) => other.reads && other.layer === own.layer
      && other.entry === own.entry && other.backwards === own.backwards && !INNER.test(other.name));
    if (gates.length < 2) return null;
    const columns = gates.map((gate) => {
      const view = new Tiles(this, gate.place, GATE_WIDTH);
      view.draw();
      view.canvas.tabIndex = -1;
      return h("button", { type: "button", class: "gate", "data-gate": gate.name,
        "aria-pressed": String(gate === own), onclick: () => this.goTo(gate.place, null) },
      h("span", {}, gate.name.slice(gate.name.indexOf(":"))), view.canvas);
    });
    return h("div", {}, h("h3", {}, "Gates and states over time"),
      h("div", { class: "row gates" }, columns));
  }

  // --- the chosen neuron -----------------------------------------------------------------------

  drawNeuron() {
    if (this.neuron === null) { this.neuronPart.replaceChildren(); return; }
    const o = this.operation;
    const result = expand(this.one, o, this.neuron);
    const after = feeds(this.one, o, this.neuron);
    const side = this.right ? `, in ${this.names[0]}` : "";
    this.neuronPart.replaceChildren(h("h3", {}, this.describe(this.neuron).replaceAll("\n", " · ")),
      h("h3", {}, `What feeds it${side}`), ...this.feeders(result),
      h("h3", {}, `What it feeds${side}`), ...this.fed(after));
  }

  feeders(result) {
    if (!result) {
      return [h("p", { class: "note" }, this.doc.operations[this.operation].inputs.length
        ? "The connections of this operation are not in the file." : "This is the input.")];
    }
    const { rows } = result;
    const shown = rows.map((row) => row).sort((a, b) => Number(b.kept ?? 0) - Number(a.kept ?? 0)
      || Math.abs(b.value ?? b.weight ?? 0) - Math.abs(a.value ?? a.weight ?? 0)).slice(0, MOST_ROWS);
    const notes = [h("p", { class: "why" }, this.why(result))];
    if (this.doc.rounded) notes.push(h("p", { class: "note" }, "So that the file is small, values and "
      + "weights are rounded to 2 % of the largest of their operation: near the threshold it may err."));
    if (result.partial) notes.push(h("p", { class: "note" }, `Only the ${rows.length} strongest `
      + "weights of each neuron are in the file."));
    if (rows.length > shown.length) {
      notes.push(h("p", { class: "note" }, `The first ${shown.length} of ${rows.length} are listed.`));
    }
    return [...notes, this.connectionTable(shown)];
  }

  why(result) {
    if (!this.one.local) {
      return this.one.row && this.one.row.samples > 1
        ? "Local values are those of single samples; this is a slice of several."
        : "Local values need the sample and the profile.";
    }
    if (!result.expanded) return "Nothing goes on from here: the neuron is not in the slice, or at its mean.";
    if (result.rows.some((row) => row.value === null)) {
      return "The values that decide it were left out to keep the file small.";
    }
    const kept = result.rows.filter((row) => row.kept && sign(row.value ?? 0) !== 0).length;
    if (result.threshold === null) return `${kept} of ${result.rows.length} inputs receive something.`;
    const { theta, relativeTo } = this.one.exhibit;
    const of = relativeTo === "sum" ? "|Δy|" : "|y|";
    const signs = ` The neuron is ${number(Math.abs(result.dy))} ${result.dy < 0 ? "below" : "above"} its mean: `
      + `inputs that push it ${result.dy < 0 ? "down" : "up"} have its sign, others the opposite.`;
    const rule = `θ·${of} = ${theta} × ${number(Math.abs(relativeTo === "sum" ? result.dy : result.y))} `
      + `= ${number(result.threshold)}`;
    if (result.partial) {
      return `${rule}: at least the ${kept} strongest are kept; all others together add up to `
        + `${number(result.excludedSum)}.`;
    }
    return result.excluded
      ? `${rule}: the ${result.excluded} smallest of ${result.rows.length} local values add up to `
        + `${number(result.excludedSum)}, which is less in size: they are left out; ${kept} are kept.${signs}`
      : `${rule}: no local value is smaller, so none is left out; ${kept} are kept.${signs}`;
  }

  connectionTable(rows) {
    const synapses = this.synapseLookup();
    const { rule } = this.doc.operations[this.operation];
    const factor = { products: "other factor", softmax: "slope" }[rule] ?? "weight";
    const columns = ["from neuron", factor, "Δ", "local value", "with θ", "gives"];
    if (synapses) columns.push("count");
    const body = rows.map((row) => h("tr", { class: row.kept === false ? "excluded" : "",
      "data-index": row.index, "data-operation": this.doc.operations[row.operation].name,
      "data-value": row.value, "data-kept": row.kept, "data-gives": row.gives },
      h("td", {}, this.link(row.operation, row.index)), h("td", {}, number(row.weight)),
      h("td", {}, number(row.change)), h("td", {}, number(row.value)), h("td", {}, verdict(row)),
      h("td", { class: row.gives > 0 ? "plus" : row.gives < 0 ? "minus" : "" },
        row.gives === null ? "–" : signed(row.gives)),
      synapses ? h("td", {}, synapses(row)) : null));
    return h("div", { class: "scroll" }, h("table", { class: "feeders" }, h("thead", {}, h("tr", {},
      columns.map((text) => h("th", {}, text)))), h("tbody", {}, body)));
  }

  // A function from a connection to the contribution of its synapse, summed over all positions.
  synapseLookup() {
    const kernels = kernelsOf(this.doc, this.operation);
    const stored = new Map(kernels.map((k) => [k, this.doc.array(this.one.part.synapses[k])]));
    if (![...stored.values()].some(Boolean)) return null;
    return (row) => {
      if (row.kernel === undefined) return "–";
      const { inputs, outputs } = this.doc.kernels[row.kernel];
      const at = (row.tap * inputs + (row.input % inputs)) * outputs + row.output;
      const value = stored.get(row.kernel)[at];
      return this.doc.rounded ? (value ? "member" : "–") : number(value);
    };
  }

  fed({ all, shown, partial }) {
    if (!all) {
      return [h("p", { class: "note" }, partial ? "Too many neurons could read it to find them all."
        : "No neuron of the slice reads it.")];
    }
    const list = shown.slice(0, MOST_ROWS);
    const body = list.map((one) => h("tr", { class: one.row?.kept === false ? "excluded" : "",
      "data-index": one.index, "data-operation": this.doc.operations[one.operation].name,
      "data-kept": one.row?.kept, "data-gives": one.row?.gives },
      h("td", {}, this.link(one.operation, one.index)), h("td", {}, number(one.weight)),
      h("td", {}, number(one.row?.value)), h("td", {}, one.row ? verdict(one.row) : "–"),
      h("td", {}, one.row && one.row.gives !== null ? signed(one.row.gives) : "–")));
    const columns = ["to neuron", "weight", "local value", "with θ", "receives"];
    return [h("p", { class: "note" }, `${number(all)} neurons of the slice read it`
      + (all > list.length ? `; the ${list.length} with the largest weights are listed.` : ".")),
    h("div", { class: "scroll" }, h("table", { class: "feeds" }, h("thead", {}, h("tr", {},
      columns.map((text) => h("th", {}, text)))), h("tbody", {}, body)))];
  }

  link(o, n) {
    return h("button", { type: "button", onclick: () => this.goTo(o, n) },
      `${this.doc.operations[o].name} (${this.place(o, n)})`);
  }

  // --- the answer: inputs, what the model says, certificates --------------------------------------

  drawAnswer() {
    const places = [this.left, this.right].filter(Boolean);
    this.pictures = [];
    const questions = places.map((place) => this.question(place));
    const answers = places.map(({ exhibit, part }) => this.doc.exhibits[exhibit].parts[part].says?.whole[0][0]);
    const isOfTwo = this.right && this.one.model !== this.other.model && !answers.includes(undefined);
    const title = isOfTwo ? this.names.map((name, i) => `${name} answers ${this.className(answers[i])}`).join(", ")
      : questions[0] === questions.at(-1) || !questions.every(Boolean)
        ? questions[0] ?? "Answer" : `${questions[0]} And why ${questions[1].slice(4)}`;
    // Two slices of one sample have one picture.
    const views = places.map((place) => this.view(place));
    const isShared = views.length > 1 && views[0].row && views[0].row === views[1].row
      && new Picture(this, views[0]).source()?.[0] === new Picture(this, views[1]).source()?.[0];
    this.answerPart.replaceChildren(h("h2", {}, title), this.inCommon(), this.beside(),
      isShared ? this.input(views[0]) : "", h("div", { class: places.length > 1 ? "sides two" : "sides" },
        places.map((place, i) => this.side(place, i, !isShared))));
    this.drawPictures();
  }

  // How far two slices have the same members, and where most and least, by operation.
  inCommon() {
    if (!this.right) return "";
    const of = (members) => d3.rollup(this.commons(members), (counts) => [d3.sum(counts, (c) => c.common),
      d3.sum(counts, (c) => c.common + c.left + c.right)], () => "").get("") ?? [0, 0];
    const every = this.doc.operations.map((operation, o) => [operation.name, ...of([o])])
      .filter(([, , either]) => either);
    const both = d3.sum(every, ([, common]) => common);
    const either = d3.sum(every, ([, , all]) => all);
    if (!either) return "";
    const share = ([name, common, all]) => `${name} (${percent(common, all)})`;
    const [least, ...more] = d3.sort(every, ([, common, all]) => common / all);
    const where = more.length ? `; the largest share in ${share(more.at(-1))}, the smallest in ${share(least)}` : "";
    return h("p", { class: "in-common" }, "The two have ", h("strong", {}, `${number(both)} of the `
      + `${number(either)} ${this.one.unit}`), ` in either in common, ${percent(both, either)}${where}.`);
  }

  // What a slice answers: "Why 4?", "Why 4 rather than 9?"; null for other sets and for classes.
  question({ exhibit, part }) {
    const { theta, outputs, parts } = this.doc.exhibits[exhibit];
    const { measured, says, predicted } = parts[part];
    if (measured) return `Why ${this.answerName(measured, measured.answer)}?`;
    if (theta !== null && this.doc.asked) return `Slice by counts for ${this.doc.asked.split(" rather than ")[0]}`;
    const label = predicted ?? says?.whole[0][0];
    return theta === null || outputs !== "predicted" || label === undefined ? null
      : `Why ${this.className(label)}?`;
  }

  answerName({ kind, names }, answer) {
    if (kind === "class") return this.className(answer);
    if (kind !== "binary") return number(answer);
    const called = names.map((label) => this.className(label));
    if (called.length === 1) return answer ? called[0] : `not ${called[0]}`;
    return (answer ? called : called.reverse()).join(" rather than ");
  }

  // Buttons that put another slice of the sample, another model or another sample beside this one.
  beside() {
    const { exhibits } = this.doc;
    const { exhibit, part } = this.left;
    const own = exhibits[exhibit];
    const others = exhibits.map((other, i) => ({ exhibit: i, part, other })).filter((one) =>
      one.exhibit !== exhibit && one.other.parts.length === own.parts.length
      && (one.other.model !== own.model || one.other.parts[part].row === own.parts[part].row));
    const asked = new Set([this.question(this.left), null]); // a question stands for one slice
    const options = others.map(({ other, ...place }) => {
      const question = this.question(place);
      const isNew = !asked.has(question);
      asked.add(question);
      return [isNew ? question : other.name, place];
    });
    if (own.each && own.parts.length > 1) {
      const next = (part + 1) % own.parts.length;
      options.push([`sample ${this.partName(own, own.parts[next], next)}`, { exhibit, part: next }]);
    }
    if (!options.length) return "";
    const same = (place) => this.right?.exhibit === place.exhibit && this.right.part === place.part;
    return h("div", { class: "row beside", role: "group", "aria-label": "Put beside it" },
      h("span", { class: "note" }, "Compare with:"), options.slice(0, MOST_BESIDE).map(([text, place]) =>
        h("button", { type: "button", "aria-pressed": String(same(place)), onclick: () => {
          this.right = same(place) ? null : place;
          [this.members, this.what] = ["all", "contributions"];
          this.changed();
        } }, text)));
  }

  side(place, i, hasInput) {
    const view = this.view(place);
    return h("div", { class: "side" },
      this.right ? h("h3", { class: i ? "second" : "first" }, this.names[i]) : null,
      hasInput ? this.input(view) : null, this.answers(view));
  }

  input(view) {
    if (!view.row) return h("p", { class: "note" }, "The samples are not in the file.");
    const picture = new Picture(this, view);
    this.pictures.push(picture);
    return h("div", {}, picture.element, picture.note());
  }

  // The legends come last: they have one scale.
  drawPictures() {
    const largest = d3.max(this.pictures, (picture) => d3.max(picture.overlay() ?? [], Math.abs)) || 1;
    for (const picture of this.pictures) picture.draw(this.overlay, this.field ?? null, largest);
  }

  showField(n) {
    this.field = n === null ? null : receptiveField(this.one, this.operation, n);
    this.drawPictures();
  }

  answers(view) {
    const { says, measured, certificate, inactive } = view.part;
    if (measured) return this.certificate(measured, certificate);
    const { theta } = view.exhibit;
    const counts = theta === null ? "" : h("p", { class: "size" }, "Slice by counts (NNSlicer): each neuron "
      + `keeps its largest inputs; the smallest, which sum to less than ${theta} of its value, are left out.`);
    if (!says) return [counts];
    const said = [["whole model", says.whole], ["the slice alone", says.kept],
      ["without the slice", says.removed]].filter(([, answer]) => answer);
    // The same classes in each: those that any of them answers, then the next of the whole model.
    const first = said.map(([, answer]) => answer[0][0]);
    const shown = [...new Set([...first, ...says.whole.map(([index]) => index)])].slice(0, MOST_CLASSES);
    return [counts, ...said.map(([title, answer]) => this.answer(title, shown.map((index) => [
      this.className(index), answer.find(([other]) => other === index)?.[1], index]))),
    says.kept ? h("p", { class: "note" }, `Inactive synapses contribute ${inactive}.`) : null];
  }

  // What was measured of a decisive slice: its size, the answers with and without it, its scope.
  certificate(m, text) {
    const unit = m.level === "head" ? this.doc.unitsOfHeads(m.size)
      : m.size === 1 ? m.level : `${m.level}s`;
    const [is, these, without] = m.size === 1 ? ["is", "only this one", "without it"]
      : ["are", "only these", "without them"];
    const none = { "their mean values": "all averaged", zero: "all zero" }[m.inactive] ?? "none";
    const asked = this.answerName(m, m.answer);
    const row = (title, how, answer, share) => h("tr", { "data-how": how, "data-answer": answer,
      "data-share": share }, h("th", {}, title),
    h("td", {}, this.answerName(m, answer).split(" rather than ")[0]),
    share === undefined ? null : h("td", { class: "share" }, this.gauge(share)));
    const isNumber = m.probability === undefined;
    const rest = { "their mean values": "have their average values", zero: "are zero" }[m.inactive]
      ?? "have other samples' values";
    const verdict = [[0.9, "Enough for other values, too"], [0.5, "For other values often enough"],
      [0, "Not enough for other values"]].find(([least]) => m["scope kept"] >= least)?.[1];
    const scope = !m["scope donors"] ? null : h("p", { "data-scope": m["scope kept"] },
      h("strong", {}, `${verdict}:`), " if all others take those of another sample, the answer stays for "
      + `${Math.round(100 * m["scope kept"])} % of ${m["scope donors"]} samples (95 % confidence: for at `
      + `least ${Math.floor(100 * m["scope bound"])} %).`);
    const size = m.size === Math.round(m.size / m.share) ? `All ${number(m.size)} ${unit}`
      : `${number(m.size)} of ${number(Math.round(m.size / m.share))} ${unit}`;
    return [h("p", { class: "size" }, h("strong", {}, size), ` (${+(100 * m.share).toPrecision(3)} %) `
      + `${is} ${m.kept ? "" : "not "}enough for ${asked}, if all others ${rest}.`),
    h("table", { class: "says measured" }, h("thead", {}, h("tr", {}, ["", "answer",
      isNumber ? null : `probability of ${asked}`].map((text) => text === null ? null : h("th", {}, text)))),
    h("tbody", {}, row("whole model", "whole", m.answer, m.probability),
      row(these, "alone", m["answer with slice alone"], m["probability with slice alone"]),
      row(without, "removed", m["answer with slice removed"], m["probability with slice removed"]),
      row(none, "empty", m["empty answer"], m["probability with nothing active"]))), scope,
    h("details", {}, h("summary", {}, "All that was measured, in words"),
      h("p", { class: "certificate" }, text))];
  }

  // A table of answers, each with its probability as a bar on a scale from 0 to 100 %.
  answer(title, rows) {
    return h("table", { class: "says", "data-says": title }, h("caption", { class: "note" }, title),
      h("tbody", {}, rows.map(([name, share, index]) => h("tr", { "data-class": index, "data-share": share },
        h("td", {}, name), h("td", { class: "share" }, this.gauge(share))))));
  }

  gauge(share) {
    if (share === undefined) return "less"; // than the classes that are in the file
    return [h("span", { class: "gauge" }, h("span", { class: "meter",
      style: `width:${(100 * share).toFixed(1)}%` })), ` ${(100 * share).toFixed(1)} %`];
  }

  hover(event, text) {
    this.tip.hidden = text === null;
    if (text === null) return;
    this.tip.textContent = text;
    const right = event.clientX > window.innerWidth - 240;
    this.tip.style.left = right ? "" : `${event.clientX + 14}px`;
    this.tip.style.right = right ? `${window.innerWidth - event.clientX + 14}px` : "";
    this.tip.style.top = `${event.clientY + 14}px`;
  }
}

const verdict = (row) => (row.kept === null ? "–" : row.kept ? "kept" : "excluded");
const shorten = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function countCommon(a, b) {
  const counts = { common: 0, left: 0, right: 0, all: a.length };
  for (let i = 0; i < a.length; i++) {
    if (a[i] !== 0 && b[i] !== 0) counts.common++;
    else if (a[i] !== 0) counts.left++;
    else if (b[i] !== 0) counts.right++;
  }
  return counts;
}

function axisNames({ shape, heads, reads }) {
  if (heads === 0) return ["head", "to", "from"];
  if (heads === 1) return ["time", "head", "channel"];
  if (shape.length === 1) return ["unit"];
  if (shape.length === 2) return ["time", reads ? "unit" : "channel"];
  return [...["depth", "row", "column"].slice(-(shape.length - 1)), "channel"];
}

// ---- the neurons of an operation ---------------------------------------------------------

// Channels as tiles, units as bars, sequences as a matrix with time to the right, heads of
// attention as matrices.
class Tiles {
  // Without a width, as wide as there is room; of another operation than the chosen one.
  constructor(explorer, o = explorer.operation, width = null) {
    this.explorer = explorer;
    this.operation = o;
    this.given = width;
    this.shape = explorer.one.shape(o);
    const { shape, heads } = explorer.doc.operations[o];
    this.heads = this.shape.length === shape.length ? heads : null;
    this.layOutAxes();
    this.rank = this.ranking();
    this.words = this.labels();
    const small = width !== null;
    this.canvas = h("canvas", small ? { "aria-hidden": "true" } : { tabindex: 0, role: "img",
      "aria-label": "Neurons of the operation. Arrow keys move between neurons.",
      onpointermove: (event) => this.pointed(event),
      onpointerleave: (event) => { explorer.hover(event, null); explorer.showField(explorer.neuron); },
      onclick: (event) => {
        const n = this.at(event);
        if (n !== null) explorer.chooseNeuron(n);
      },
      onkeydown: (event) => this.key(event) });
    this.layOut();
  }

  // Which axis makes the tiles, which goes to the right and which down: their extents and strides.
  layOutAxes() {
    const { shape } = this;
    const rank = shape.length;
    const strides = shape.map((_, axis) => product(shape.slice(axis + 1)));
    const axis = (k) => [shape[k], strides[k]];
    const one = [1, 0];
    this.bars = rank === 1;
    this.matrix = rank === 2;
    let [tiles, across, down] = [axis(rank - 1), one, one];
    this.unit = this.bars && this.explorer.doc.operations[this.operation].shape.length === 1
      ? "units" : "channels";
    if (this.matrix) [tiles, across, down] = [one, axis(0), axis(1)];
    if (rank > 2) { // all leading axes but the last one go down
      [across, down] = [axis(rank - 2), [product(shape.slice(0, -2)), strides.at(-3)]];
    }
    if (this.heads === 0) [tiles, across, down] = [axis(0), axis(2), axis(1)];
    if (this.heads === 1) [tiles, across, down] = [axis(1), axis(0), axis(2)];
    if (this.heads !== null) this.unit = "heads";
    this.strides = { tile: tiles[1], x: across[1], y: down[1] };
    this.axes = [tiles, across, down];
    this.channels = tiles[0];
    // Places that are padding throughout are left out.
    [this.left, this.width] = this.used(across);
    [this.top, this.height] = this.used(down);
  }

  // The first place along an axis that is not only padding, and the number of places from there.
  used([extent, stride]) {
    const views = [this.explorer.one, this.explorer.other].filter(Boolean);
    if (views.every((view) => view.doc.operations[this.operation].mask === null)) return [0, extent];
    const found = new Set();
    for (let n = 0; n < product(this.shape) && found.size < extent; n++) {
      if (views.some((view) => view.present(this.operation, n))) {
        found.add(stride ? Math.floor(n / stride) % extent : 0);
      }
    }
    const [first, last] = found.size ? d3.extent(found) : [0, extent - 1];
    return [first, last - first + 1];
  }

  // The words, or numbers, that stand above the columns and beside the rows of a sequence's matrix.
  labels() {
    const { explorer, operation: o, shape, heads } = this;
    const { doc, one } = explorer;
    const length = doc.operations[doc.input].shape[0];
    if (this.given !== null || shape.length !== doc.operations[o].shape.length) return [];
    const axis = (extent, first, count) => d3.range(first, first + count)
      .map((t) => (extent === length && one.row?.words ? explorer.wordAt(o, t) : `${t}`));
    const across = this.matrix || heads === 1 ? axis(shape[0], this.left, this.width)
      : heads === 0 ? axis(shape[2], this.left, this.width) : null;
    return [across, heads === 0 ? axis(shape[1], this.top, this.height) : null];
  }

  // The channels in the order in which they are shown.
  ranking() {
    const order = d3.range(this.channels);
    if (this.explorer.order !== "size" || this.channels < 2) return order;
    const values = this.explorer.one.contributions(this.operation) ?? [];
    const members = new Float64Array(this.channels);
    values.forEach((value, n) => {
      members[this.whereIs(n)[0]] += this.bars ? Math.abs(value) : value !== 0;
    });
    return order.sort((a, b) => members[b] - members[a] || a - b);
  }

  layOut() {
    const first = this.given === null ? this.explorer.page * TILES : 0;
    this.shown = this.rank.slice(first, first + TILES);
    const room = this.given ?? Math.max(240, (this.explorer.operationPart.clientWidth || 520) - 4);
    if (this.bars) {
      this.cell = Math.max(6, Math.min(22, Math.floor(room / this.shown.length)));
      this.columns = this.shown.length;
      this.canvas.width = this.cell * this.shown.length;
      this.canvas.height = BAR_HEIGHT + (this.given === null ? BELOW_BARS : 0);
      return;
    }
    const most = this.matrix ? Math.min(room, 420) : this.heads !== null ? 200 : 72;
    const size = (extent) => Math.max(1, Math.floor((this.given ?? most) / extent));
    [this.scale, this.tall] = [size(this.width), size(this.height)];
    if (!this.matrix) this.scale = this.tall = Math.min(this.scale, this.tall);
    if (this.matrix) this.scale = Math.min(this.scale, WIDEST_STEP);
    if (this.scale < LEAST_LABELLED) this.words = [];
    // Words take room above and to the left of each tile, and above heads stand their numbers.
    const [above, beside] = this.words ?? [];
    const roomFor = (words) => words ? Math.min(LABEL_WIDTH, 8 + 7 * d3.max(words, (w) => w.length)) : 0;
    this.margin = [roomFor(beside), roomFor(above) + (above && this.heads !== null ? 14 : 0)];
    this.step = [this.margin[0] + this.width * this.scale + 3, this.margin[1] + this.height * this.tall + 3];
    this.columns = Math.max(1, Math.min(this.shown.length, Math.floor(room / this.step[0])));
    const rows = Math.ceil(this.shown.length / this.columns);
    this.canvas.width = this.columns * this.step[0];
    this.canvas.height = rows * this.step[1];
  }

  // The neuron at a place of a tile.
  neuron(channel, x, y) {
    const { tile, x: right, y: down } = this.strides;
    return channel * tile + (this.left + x) * right + (this.top + y) * down;
  }

  // The tile of a neuron, and its place there.
  whereIs(n) {
    const [tile, x, y] = this.axes.map(([extent, stride]) =>
      (stride ? Math.floor(n / stride) % extent : 0));
    return [tile, x - this.left, y - this.top];
  }

  draw() {
    const { explorer, canvas } = this;
    const context = canvas.getContext("2d");
    this.colours = this.palette();
    context.clearRect(0, 0, canvas.width, canvas.height);
    if (this.bars) this.drawBars(context); else this.drawTiles(context);
    const marked = this.given === null ? explorer.neuron : null;
    if (marked !== null) this.mark(context, marked);
    canvas.dataset.shown = this.shown.length;
  }

  drawTiles(context) {
    const image = context.createImageData(this.width * this.scale, this.height * this.tall);
    const line = getComputedStyle(this.explorer.root).getPropertyValue("--line");
    this.shown.forEach((channel, place) => {
      const [left, top] = this.corner(place);
      context.fillStyle = line;
      context.fillRect(left, top, image.width + 3, image.height + 3);
      for (let y = 0; y < this.height; y++) {
        for (let x = 0; x < this.width; x++) {
          const { r, g, b } = this.colours(this.neuron(channel, x, y));
          for (let dy = 0; dy < this.tall; dy++) {
            let at = 4 * ((y * this.tall + dy) * image.width + x * this.scale);
            for (let dx = 0; dx < this.scale; dx++) {
              image.data[at++] = r; image.data[at++] = g; image.data[at++] = b; image.data[at++] = 255;
            }
          }
        }
      }
      context.putImageData(image, left, top);
      this.drawWords(context, channel, left, top);
    });
  }

  drawWords(context, channel, left, top) {
    const [above, beside] = this.words ?? [];
    if (!above) return;
    const style = getComputedStyle(this.explorer.root);
    context.fillStyle = style.getPropertyValue("--text");
    context.font = `12px ${style.fontFamily}`;
    context.textBaseline = "middle";
    const write = (word, x, y, turn, align) => {
      context.save();
      context.translate(x, y);
      context.rotate(turn);
      context.textAlign = align;
      context.fillText(word, 0, 0, /^head /.test(word) ? undefined : LABEL_WIDTH - 6);
      context.restore();
    };
    above.forEach((word, x) => write(word, left + (x + 0.5) * this.scale, top - 4, -Math.PI / 2, "left"));
    beside?.forEach((word, y) => write(word, left - 4, top + (y + 0.5) * this.tall, 0, "right"));
    const counted = this.explorer.one.counted(this.operation);
    const inSlice = counted < 0 ? "" : this.explorer.one.headsOf(counted).has(channel)
      ? ": in the slice" : ": not in it";
    if (this.heads !== null) write(`head ${channel + 1}${inSlice}`, left, top - this.margin[1] + 8, 0, "left");
  }

  corner(place) {
    return [(place % this.columns) * this.step[0] + this.margin[0],
      Math.floor(place / this.columns) * this.step[1] + this.margin[1]];
  }

  // Values up and down from 0, or two slices: the left one's sizes up, the right one's down, the
  // synapses that both have next to the middle.
  drawBars(context) {
    const { top, bottom, sides, shared } = this.heights();
    const style = getComputedStyle(this.explorer.root);
    const [long, zero] = [(BAR_HEIGHT - 2) / (top + bottom), 1 + (BAR_HEIGHT - 2) * top / (top + bottom)];
    const fill = (colour, ...place) => {
      context.fillStyle = String(colour);
      context.fillRect(...place);
    };
    fill(style.getPropertyValue("--soft"), 0, 0, this.canvas.width, BAR_HEIGHT);
    this.shown.forEach((unit, place) => {
      const [x, width] = [place * this.cell + 1, this.cell - 2];
      const bar = (colour, from, to) => fill(colour, x, zero - Math.max(from, to), width, Math.abs(to - from));
      sides.forEach((values, side) => {
        const value = values[unit];
        const end = Math.sign(value) * Math.max(3, Math.abs(value) * long);
        const common = shared ? Math.sign(value) * shared[unit] * long : 0;
        if (value) bar(shared ? this.explorer.colour(side ? "--right" : "--left") : this.colours(unit), common, end);
        if (common) bar(this.explorer.colour("--common"), 0, common);
      });
      if (this.given === null && place % Math.ceil(24 / this.cell) === 0) {
        Object.assign(context, { fillStyle: style.getPropertyValue("--quiet"), textAlign: "center",
          font: `11px ${style.fontFamily}` });
        context.fillText(`${unit}`, x + width / 2, BAR_HEIGHT + 12);
      }
    });
    fill(style.getPropertyValue("--quiet"), 0, Math.min(zero, BAR_HEIGHT - 1), this.canvas.width, 1);
  }

  // Of each bar of a comparison, how many synapses both slices have; null for other quantities.
  shared() {
    const { explorer, operation: o, channels } = this;
    const views = [explorer.one, explorer.other];
    if (!explorer.isComparison || views.some((view) => view.exhibit.level !== "synapse")) return null;
    const counts = new Float64Array(channels);
    for (const k of kernelsOf(explorer.doc, o)) {
      const [a, b] = views.map((view) => explorer.doc.array(view.part.synapses[k]));
      if (!a || !b || explorer.doc.kernels[k].outputs !== channels) return null;
      a.forEach((value, i) => { counts[i % channels] += value !== 0 && b[i] !== 0; });
    }
    return counts;
  }

  // The values of bars, and how far their scale reaches up and down.
  heights() {
    const { isComparison, one, other } = this.explorer;
    const sides = isComparison ? [one, other].map((view, side) => Array.from(
      view.contributions(this.operation), (value) => (side ? -1 : 1) * Math.abs(value))) : [this.values()];
    const [low, high] = d3.extent(sides.flatMap((values) => Array.from(values)));
    const most = Math.max(high, -low) || 1;
    const bottom = isComparison || low < 0 ? most : 0;
    return { sides, top: most, bottom, shared: this.shared() };
  }

  mark(context, n) {
    const [channel, x, y] = this.whereIs(n);
    const place = this.shown.indexOf(channel);
    if (place < 0 || x < 0 || x >= this.width || y < 0 || y >= this.height) return;
    context.strokeStyle = getComputedStyle(this.explorer.root).getPropertyValue("--text");
    context.lineWidth = 2;
    if (this.bars) {
      context.strokeRect(place * this.cell + 1, 1, this.cell - 2, BAR_HEIGHT - 2);
      return;
    }
    const [left, top] = this.corner(place);
    context.strokeRect(left + x * this.scale - 1, top + y * this.tall - 1, this.scale + 2, this.tall + 2);
  }

  values() {
    const { explorer, operation: o } = this;
    const empty = new Float32Array(product(this.shape));
    if (explorer.what === "activation") return explorer.one.values(o) ?? empty;
    if (explorer.what === "mean") return explorer.one.means(o) ?? empty;
    if (explorer.what === "change") {
      return Float32Array.from(empty, (_, n) => explorer.one.change(o, n));
    }
    return explorer.one.contributions(o) ?? empty;
  }

  // A function from a neuron to its colour.
  palette() {
    const { explorer } = this;
    const colour = (name) => rgb(explorer.root, name);
    const back = colour("--back");
    if (explorer.isComparison) return this.comparison(colour, back);
    const values = this.values();
    if (explorer.what === "activation" || explorer.what === "mean") {
      const [low, high] = d3.extent(values);
      const ramp = d3.range(256).map((i) => d3.rgb(d3.interpolateCividis(i / 255)));
      return (n) => ramp[high > low ? Math.round(255 * (values[n] - low) / (high - low)) : 0];
    }
    const largest = d3.max(values, Math.abs) || 1;
    const towards = [colour("--negative"), colour("--positive")].map((end) => d3.range(256)
      .map((i) => d3.rgb(d3.interpolateRgb(back, end)(i ? 0.35 + 0.65 * Math.sqrt(i / 255) : 0))));
    return (n) => {
      const value = values[n];
      const strength = value ? Math.max(1, Math.round(255 * Math.abs(value) / largest)) : 0;
      return towards[Number(value > 0)][strength];
    };
  }

  comparison(colour, back) {
    const { explorer } = this;
    const [a, b] = [explorer.one, explorer.other].map((v) => v.contributions(this.operation) ?? []);
    const colours = { common: colour("--common"), left: colour("--left"), right: colour("--right") };
    return (n) => {
      const which = a[n] && b[n] ? "common" : a[n] ? "left" : b[n] ? "right" : null;
      const shown = which && (explorer.members === "all" || explorer.members === which);
      return shown ? colours[which] : back;
    };
  }

  // What the axes are, where that is not plain.
  caption() {
    const text = this.heads === 0
      ? "A matrix for each head: rows attend to columns."
      : this.heads === 1 ? "A matrix for each head: time to the right, its channels below each other."
        : this.matrix ? "Time to the right, units or channels below each other."
          : this.bars ? this.barText() : null;
    return text && h("p", { class: "note" }, text);
  }

  barText() {
    const { explorer } = this;
    const [up, down] = explorer.isComparison ? explorer.names : [];
    return `A bar for each ${this.unit.slice(0, -1)}. Height: ${this.quantity()}`
      + `${up ? `; up: of “${up}”, down: of “${down}”` : ""}.`;
  }

  // What the values are.
  quantity() {
    const { what, one } = this.explorer;
    const { theta, level, name } = one.exhibit;
    if (what !== "contributions") return what === "change" ? "change Δ" : what;
    return theta !== null ? "contribution" : level === "synapse" ? "number of the slice's synapses that end in it"
      : level ? "in the slice" : name;
  }

  // The numbers beside bars: the ends of their scale, and 0. Sizes of two slices have no sign.
  axis() {
    if (!this.bars) return null;
    const { top, bottom } = this.heights();
    return h("span", { class: "axis note" }, [top, 0, this.explorer.isComparison ? bottom : -bottom]
      .slice(0, bottom ? 3 : 2).map((value) => h("span", {}, number(value))));
  }

  legend() {
    const { explorer } = this;
    if (explorer.isComparison) {
      return h("div", { class: "legend" }, swatch("common", "in both"),
        swatch("left", explorer.onlyIn(0)), swatch("right", explorer.onlyIn(1)),
        swatch("back", "in neither"));
    }
    const values = this.values();
    if (explorer.what === "activation" || explorer.what === "mean") {
      const [low, high] = d3.extent(values);
      return h("div", { class: "legend" }, scale(cividis(), number(low), number(high), explorer.what));
    }
    const largest = d3.max(values, Math.abs) || 0;
    const lowest = d3.min(values) ?? 0;
    const text = this.quantity();
    const isSet = values.every((value) => value === 0 || value === 1);
    if (isSet && explorer.what !== "change") {
      return h("div", { class: "legend" }, swatch("positive", explorer.memberText),
        swatch("back", `not ${explorer.memberText}`));
    }
    return h("div", { class: "legend" }, lowest < 0
      ? scale(diverging, number(-largest), number(largest), text)
      : scale(diverging.slice(1), "0", number(largest), text),
    explorer.what === "change" ? null : swatch("back", `0: not ${explorer.memberText}`));
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const px = (event.clientX - box.left) * (this.canvas.width / box.width);
    const py = (event.clientY - box.top) * (this.canvas.height / box.height);
    if (this.bars) return this.shown[Math.floor(px / this.cell)] ?? null;
    const [across, down] = this.step;
    const column = Math.floor(px / across);
    const channel = this.shown[Math.floor(py / down) * this.columns + column];
    const x = Math.floor((px - column * across - this.margin[0]) / this.scale);
    const y = Math.floor(((py % down) - this.margin[1]) / this.tall);
    if (channel === undefined || column >= this.columns || x < 0 || y < 0 || x >= this.width
      || y >= this.height) return null;
    return this.neuron(channel, x, y);
  }

  pointed(event) {
    const n = this.at(event);
    this.explorer.hover(event, n === null ? null : this.explorer.describe(n));
    this.explorer.showField(n ?? this.explorer.neuron);
  }

  key(event) {
    const { explorer } = this;
    const size = product(this.shape);
    const { tile, x, y } = this.strides;
    const [right, down] = [x || tile, y || tile];
    const steps = { ArrowRight: right, ArrowLeft: -right, ArrowDown: down, ArrowUp: -down,
      PageDown: tile || 1, PageUp: -tile || -1 };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const from = explorer.neuron ?? -steps[event.key];
    explorer.chooseNeuron(Math.min(size - 1, Math.max(0, from + steps[event.key])));
  }

  // Shows the page with a neuron, and draws it anew.
  reveal(n) {
    const [channel] = this.whereIs(n);
    const page = Math.floor(this.rank.indexOf(channel) / TILES);
    if (page !== this.explorer.page) {
      this.explorer.page = page;
      const focused = this.explorer.root.ownerDocument.activeElement === this.canvas;
      this.explorer.drawOperation();
      if (focused) this.explorer.tiles.canvas.focus();
    } else {
      this.draw();
    }
  }
}

// ---- the input ---------------------------------------------------------------------------

const OVER_IMAGE = ["#c82828", "#ececec", "#1f5ab4"]; // lowers, nothing, raises; in dark pages, too

class Picture {
  constructor(explorer, view) {
    this.explorer = explorer;
    this.view = view;
    const { shape } = explorer.doc.operations[explorer.doc.input];
    this.shape = shape;
    this.isImage = shape.length === 3 || shape.length === 2;
    this.pixels = explorer.doc.array(view.row.picture);
    if (view.row.words) {
      this.words = h("p", { class: "words" }, view.row.words.map((word) => [h("span", {}, word), " "]));
    } else {
      this.canvas = this.sheet("picture");
      // An image stands beside its contributions, which show only its outline.
      this.plain = this.isImage && shape.length === 3 && this.overlay() ? this.sheet("plain") : null;
      this.layOut();
    }
    this.under = h("div");
    const sheets = [this.plain, this.canvas].filter(Boolean);
    this.element = h("div", {}, this.words ?? h("div", { class: "pictures" }, sheets), this.under);
  }

  sheet(name) {
    return h("canvas", { class: name, role: "img", onpointermove: (event) => this.pointed(event),
      "aria-label": name === "plain" ? "The input" : "The input with its contributions",
      onpointerleave: (event) => this.explorer.hover(event, null) });
  }

  layOut() {
    const [height, width] = this.isImage ? this.shape : [1, this.shape[0]];
    this.turned = this.shape.length === 2; // a sequence: time to the right
    [this.width, this.height] = this.turned ? [height, width] : [width, height];
    const longest = this.isImage ? Math.max(this.width, this.height) : this.width;
    this.scale = Math.max(1, Math.floor(260 / longest));
    this.tall = this.isImage ? this.scale : 40;
    for (const canvas of [this.canvas, this.plain].filter(Boolean)) {
      canvas.width = this.width * this.scale;
      canvas.height = this.height * this.tall;
    }
  }

  // Row-major position in the input of a place in the picture.
  position(x, y) {
    return this.turned ? x * this.shape[1] + y : y * this.width + x;
  }

  note() {
    const { samples } = this.view.row;
    return samples > 1 ? h("p", { class: "note" }, `The mean of ${samples} samples.`) : null;
  }

  // The scale of the contributions over the input, and whether they are shown.
  legend(largest) {
    if (!this.overlay()) return "";
    const { explorer } = this;
    const toggle = h("input", { type: "checkbox", name: "overlay", checked: explorer.overlay,
      onchange: (event) => { explorer.overlay = event.target.checked; explorer.drawAnswer(); } });
    return h("div", { class: "legend" }, h("label", {}, toggle, " contributions"),
      scale(this.words ? diverging : OVER_IMAGE, number(-largest), number(largest),
        `red lowers, blue raises the score of ${this.source()[1]}`), this.isImage && !this.words
        ? "lines: outline of the light parts" : "");
  }

  places() { return this.pixels.length / (this.shape.length === 3 ? this.shape[2] : 1); }

  // Contributions of the input's values, and what they are: those of an explanation, of the slice,
  // or of another one of the same sample; null without.
  source() {
    const { doc } = this.explorer;
    const isWhole = (values) => values && values.length === product(this.shape);
    if (doc.features !== null) return [doc.array(doc.features), doc.asked];
    const own = this.view.contributions(doc.input);
    if (isWhole(own)) return [own, "the answer"];
    for (const [i, { name, parts, theta }] of doc.exhibits.entries()) {
      const part = theta === null ? -1 : parts.findIndex((one) => one.row === this.view.part.row);
      const values = part < 0 ? null : this.explorer.view({ exhibit: i, part }).contributions(doc.input);
      if (isWhole(values)) return [values, `the answer (${name})`];
    }
    return null;
  }

  // The same of the input's places, summed over the channels of an image.
  overlay() {
    const [given] = this.source() ?? [];
    if (!given) return null;
    const places = this.places();
    const channels = given.length / places;
    return Float64Array.from({ length: places }, (_, p) => {
      let sum = 0;
      for (let c = 0; c < channels; c++) sum += given[p * channels + c];
      return sum;
    });
  }

  draw(overlaid, field, largest) {
    const contributions = overlaid ? this.overlay() : null;
    this.under.replaceChildren(this.legend(largest));
    if (this.words) { this.drawWords(contributions, field, largest); return; }
    this.drawSheet(this.canvas, contributions, field, largest);
    if (this.plain) this.drawSheet(this.plain, null, field, largest);
  }

  drawSheet(canvas, contributions, field, largest) {
    const context = canvas.getContext("2d");
    const channels = this.shape.length === 3 ? this.shape[2] : 1;
    for (let y = 0; y < this.height; y++) {
      for (let x = 0; x < this.width; x++) {
        const p = this.position(x, y);
        let colour = this.colour(p, channels);
        if (contributions) { // in the colours of the scale
          const value = contributions[p];
          const ends = [OVER_IMAGE[1], OVER_IMAGE[1 + Math.sign(value)]];
          colour = d3.rgb(d3.interpolateRgb(...ends)(Math.abs(value) / largest));
        }
        if (field && this.isField(field, p) === 0) colour = colour.darker(0.9);
        context.fillStyle = String(colour);
        context.fillRect(x * this.scale, y * this.tall, this.scale, this.tall);
      }
    }
    if (contributions && this.isImage) {
      const greys = d3.range(this.places()).map((p) => d3.mean(d3.range(channels), (c) => this.pixels[p * channels + c]));
      const middle = d3.mean(d3.extent(greys));
      this.outline(context, greys.map((grey) => grey > middle), "#0008", 1);
    }
    if (field && this.places() === field.length) this.outline(context, field, "#fff", 2);
    canvas.dataset.field = field ? d3.sum(field) : "";
  }

  isField(field, p) { return this.places() === field.length ? field[p] : 1; }

  // Draws a line around places of the picture.
  outline(context, field, colour, lineWidth) {
    Object.assign(context, { strokeStyle: colour, lineWidth });
    const inside = (x, y) => x >= 0 && y >= 0 && x < this.width && y < this.height
      && field[this.position(x, y)];
    const [w, t] = [this.scale, this.tall];
    context.beginPath();
    for (let y = 0; y < this.height; y++) {
      for (let x = 0; x < this.width; x++) {
        if (!inside(x, y)) continue;
        if (!inside(x - 1, y)) { context.moveTo(x * w, y * t); context.lineTo(x * w, (y + 1) * t); }
        if (!inside(x + 1, y)) { context.moveTo((x + 1) * w, y * t); context.lineTo((x + 1) * w, (y + 1) * t); }
        if (!inside(x, y - 1)) { context.moveTo(x * w, y * t); context.lineTo((x + 1) * w, y * t); }
        if (!inside(x, y + 1)) { context.moveTo(x * w, (y + 1) * t); context.lineTo((x + 1) * w, (y + 1) * t); }
      }
    }
    context.stroke();
  }

  // The colour of a pixel.
  colour(p, channels) {
    const value = (c) => this.pixels[p * channels + c];
    if (channels >= 3) return d3.rgb(value(0), value(1), value(2));
    let mean = 0;
    for (let c = 0; c < channels; c++) mean += value(c) / channels;
    return d3.rgb(mean, mean, mean);
  }

  drawWords(contributions, field, largest) {
    const spans = this.words.querySelectorAll("span");
    const per = contributions ? contributions.length / (this.shape[0] || 1) : 1;
    const sums = d3.range(spans.length).map((i) => (contributions
      ? d3.sum(contributions.slice(i * per, (i + 1) * per)) : 0));
    spans.forEach((span, i) => {
      const name = sums[i] > 0 ? "--positive" : "--negative";
      const strength = 75 * Math.abs(sums[i]) / largest;
      span.style.background = `color-mix(in srgb, var(${name}) ${strength}%, transparent)`;
      span.title = `contribution ${number(sums[i])}`;
      const at = field && field.length >= spans.length ? field[Math.floor(i * field.length / this.shape[0])] : 0;
      span.classList.toggle("field-of-neuron", Boolean(at));
    });
  }

  pointed(event) {
    const box = event.target.getBoundingClientRect();
    const x = Math.floor((event.clientX - box.left) * (this.canvas.width / box.width) / this.scale);
    const y = Math.floor((event.clientY - box.top) * (this.canvas.height / box.height) / this.tall);
    if (x < 0 || y < 0 || x >= this.width || y >= this.height) return;
    const p = this.position(x, y);
    const channels = this.shape.length === 3 ? this.shape[2] : 1;
    const { low, high } = this.view.row;
    const values = d3.range(channels).map((c) => number(
      low + (high - low) * this.pixels[p * channels + c] / 255));
    const given = this.overlay();
    const lines = [`(${this.isImage && !this.turned ? `${y}, ${x}` : x})`, `value ${values.join(", ")}`];
    if (given) lines.push(`contribution ${number(given[p])}`);
    this.explorer.hover(event, lines.join("\n"));
  }
}
