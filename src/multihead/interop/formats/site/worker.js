// The thread that holds the model. multihead.js starts it and sends requests; answers carry the number of the request.

import { fetchModel } from "./loading.js";
import { LocalTranslator } from "./translator.js";

let translator = null;
const stops = new Map(); // number of a request that runs: its AbortController

const kinds = {
  async load({ folder }, say) {
    const { settings, weights, module } = await fetchModel(folder, (done, all) => say({ done, all }));
    translator = new LocalTranslator(settings, weights, module);
    const { source_language: source, target_language: target, directions = [], search } = settings;
    return { source, target, directions, search };
  },
  async translate({ texts, options }, say, signal) {
    return translator.translate(texts, { ...options, signal, progress: (done, all) => say({ done, all }) });
  },
};

self.onmessage = async ({ data: { number, kind, given } }) => {
  if (kind === "stop") return stops.get(number)?.abort();
  const stop = new AbortController();
  stops.set(number, stop);
  try {
    const result = await kinds[kind](given, (progress) => self.postMessage({ number, progress }), stop.signal);
    self.postMessage({ number, result });
  } catch (error) {
    self.postMessage({ number, error: error instanceof Error || error instanceof DOMException ? error : Error(error) });
  } finally {
    stops.delete(number);
  }
};
