// Fetches the files of an exported model.

/** model.json, weights.bin and decoding.wasm of a folder; `progress(done, all)` counts bytes. */
export async function fetchModel(folder, progress = () => {}) {
  const settings = await (await get(new URL("model.json", folder))).json();
  const all = settings.bytes.weights + settings.bytes.module;
  let done = 0;
  const count = (bytes) => progress((done += bytes), all);
  const [weights, module] = await Promise.all([
    read(new URL("weights.bin", folder), settings.bytes.weights, count),
    read(new URL("decoding.wasm", folder), settings.bytes.module, count),
  ]);
  return { settings, weights, module: await WebAssembly.compile(module) };
}

async function get(address) {
  const response = await fetch(address);
  if (!response.ok) throw new Error(`${address}: the file server answered ${response.status}`);
  return response;
}

/** A file of known size, in the order of its bytes. */
async function read(address, size, count) {
  const bytes = new Uint8Array(size), reader = (await get(address)).body.getReader();
  let at = 0;
  for (let step; !(step = await reader.read()).done; at += step.value.length) {
    if (at + step.value.length > size) throw new Error(`${address}: more than ${size} bytes; copy the folder again`);
    bytes.set(step.value, at);
    count(step.value.length);
  }
  if (at < size) throw new Error(`${address}: ${at} of ${size} bytes; copy the folder again`);
  return bytes;
}
