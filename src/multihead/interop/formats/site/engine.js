// The compiled search (decoding.wasm): ids in, ids out.

const STOPPING = ["exact", "ahead", "patience"];
const ROWS = 64; // maximum number of hypotheses in the running batch

/** A Transformer in the memory of a WebAssembly module. */
export class Engine {
  /**
   * @param {WebAssembly.Module} module decoding.wasm
   * @param {object} network the `network` of model.json
   * @param {Uint8Array} weights weights.bin
   */
  constructor(module, network, weights) {
    this.wasm = new WebAssembly.Instance(module, { wasi_snapshot_preview1: this.system() }).exports;
    this.wasm._initialize();
    const { sizes, scales, tensors, tied } = network;
    this.sourceVocabulary = network.source_vocabulary;
    this.symbols = network.symbols;
    const data = this.allocate(weights.length);
    new Uint8Array(this.wasm.memory.buffer).set(weights, data);
    this.model = this.given([Int32Array, sizes], [Float32Array, scales], [Int32Array, tensors], (at, by, of) =>
      this.wasm.model(at, sizes.length, by, of, tensors.length / 4, tied ? 1 : 0, network.layout, data),
    );
    this.wasm.release(data);
  }

  /** What the C++ library asks of a system: the time, and to report a fault. */
  system() {
    const view = () => new DataView(this.wasm.memory.buffer);
    return {
      clock_time_get: (clock, precision, at) => {
        view().setBigUint64(at, BigInt(Math.round(performance.now() * 1e6)), true);
        return 0;
      },
      fd_write: () => 8, // bad file descriptor: there are no files
      fd_seek: () => 8,
      fd_close: () => 8,
      proc_exit: (status) => {
        throw new Error(`the compiled search ended with status ${status}`);
      },
    };
  }

  /** The address of new memory. WebAssembly's numbers are signed: from 2 GB on it gives them as negative ones. */
  allocate(bytes) {
    const address = this.wasm.allocate(bytes) >>> 0;
    if (!address) throw new Error(`too little memory for this model: the browser refused ${bytes} more bytes`);
    return address;
  }

  /** Calls `use` with the addresses of copies of some arrays. */
  given(...all) {
    const use = all.pop();
    const at = all.map(([kind, values]) => {
      const address = this.allocate(Math.max(values.length, 1) * kind.BYTES_PER_ELEMENT);
      new kind(this.wasm.memory.buffer, address, values.length).set(values);
      return address;
    });
    try {
      return use(...at);
    } finally {
      at.forEach((address) => this.wasm.release(address));
    }
  }

  /**
   * Opens a search; sentences are added to it, and `run` returns the finished ones.
   *
   * @param {object} settings the `search` of model.json
   * @param {number} longest the highest limit of a sentence
   */
  open(settings, longest) {
    return new RunningSearch(this, settings, longest);
  }
}

class RunningSearch {
  constructor(engine, settings, longest) {
    this.engine = engine;
    const { beam, alpha, stopping, patience, length_penalty: penalty } = settings;
    const { begin, end, forbidden } = engine.symbols;
    const places = [beam, STOPPING.indexOf(stopping), begin, end, ROWS, penalty === "wu" ? 1 : 0, longest, ...forbidden];
    this.at = engine.given([Int32Array, places], (at) =>
      // As `patience_count` of multihead.decoding.search has it, as a factor without a rounded product.
      engine.wasm.search(engine.model, at, places.length, alpha, (Math.ceil(patience * beam - 1e-9) - 0.5) / beam),
    );
  }

  /** Appends a sentence to the queue: its ids with the end symbol, the most and the fewest ids of its translation. */
  add(number, ids, limit, minimum) {
    this.engine.given([Int32Array, ids], (at) => this.engine.wasm.add(this.at, number, at, ids.length, limit, minimum));
  }

  /** Runs for about this many seconds; returns the number of unfinished sentences and the translations found. */
  run(seconds) {
    const { wasm } = this.engine, found = [];
    const left = wasm.run(this.at, seconds);
    for (let count; (count = wasm.next(this.at)) >= 0; ) found.push(this.take(count));
    return { left, found };
  }

  take(count) {
    const { wasm } = this.engine;
    return this.engine.given([Float64Array, [0, 0]], [Int32Array, [0, 0, 0]], [Int32Array, Array(count).fill(0)], (scores, facts, ids) => {
      wasm.take(this.at, facts, scores, ids);
      const [number, fault, finished] = new Int32Array(wasm.memory.buffer, facts, 3);
      const [logProbability, score] = new Float64Array(wasm.memory.buffer, scores, 2);
      if (fault === 1) throw new Error("the model gave a probability that is not a number");
      if (fault) throw new Error("a sentence has no permitted continuation");
      const tokens = [...new Int32Array(wasm.memory.buffer, ids, count)];
      return { number, tokens, finished: finished === 1, logProbability, score };
    });
  }

  close() {
    this.engine.wasm.search_free(this.at);
  }
}
