// Sessions of ONNX Runtime's JavaScript packages on request: the program that `node_process.py` starts.
//
//     node node_process.mjs PACKAGE OUTPUT [THREADS]
//
// PACKAGE is the folder of an npm package, OUTPUT the file descriptor for answers. A message in either direction is the
// length of a JSON text (4 bytes, little-endian), that text, and the buffers whose sizes it lists under `buffers`.

import { createRequire } from "node:module";
import { readFileSync, writeSync } from "node:fs";
import { Worker } from "node:worker_threads";
import { pathToFileURL } from "node:url";

const [folder, descriptor, threads] = process.argv.slice(2);
const ARRAYS = {
  float32: Float32Array, float64: Float64Array, float16: Uint16Array, int8: Int8Array, uint8: Uint8Array, int16: Int16Array,
  uint16: Uint16Array, int32: Int32Array, uint32: Uint32Array, int64: BigInt64Array, uint64: BigUint64Array, bool: Uint8Array,
};
const sessions = new Map();

// A run that takes forever blocks this thread. Another one ends the process when the process that started it is gone.
new Worker(
  `const parent = process.ppid;
   setInterval(() => { if (process.ppid !== parent) process.kill(process.pid, "SIGKILL"); }, 1000);`,
  { eval: true },
).unref();

function send(answer, buffers = []) {
  const head = Buffer.from(JSON.stringify({ ...answer, buffers: buffers.map((one) => one.byteLength) }));
  const length = Buffer.alloc(4);
  length.writeUInt32LE(head.length);
  for (const part of [length, head, ...buffers]) {
    for (let done = 0; done < part.byteLength; ) {
      try {
        done += writeSync(Number(descriptor), part, done);
      } catch (error) {
        if (error.code !== "EAGAIN") throw error;
      }
    }
  }
}

function toTensor(ort, { type, dims }, buffer) {
  if (type === "string") return new ort.Tensor("string", JSON.parse(buffer.toString()), dims);
  const Kind = ARRAYS[type];
  const own = buffer.buffer.slice(buffer.byteOffset, buffer.byteOffset + buffer.byteLength); // aligned
  return new ort.Tensor(type, new Kind(own), dims);
}

function fromTensor(tensor) {
  const { type, dims, data } = tensor;
  const bytes =
    type === "string" ? Buffer.from(JSON.stringify(data)) : Buffer.from(data.buffer, data.byteOffset, data.byteLength);
  return [{ type, dims }, bytes];
}

function feeds(ort, names, described, buffers) {
  return Object.fromEntries(names.map((name, index) => [name, toTensor(ort, described[index], buffers[index])]));
}

async function open(ort, { id, path, options, external }, buffers) {
  const rest = [...buffers];
  const source = path === undefined ? rest.shift() : readFileSync(path);
  const given = { ...options };
  if (external.length > 0) {
    given.externalData = external.map(({ name, file }) => ({ path: name, data: new Uint8Array(readFileSync(file)) }));
  }
  const bytes = new Uint8Array(source.buffer, source.byteOffset, source.byteLength);
  const session = await ort.InferenceSession.create(bytes, given);
  sessions.set(id, { session, taken: undefined });
  return [{ inputs: session.inputNames, outputs: session.outputNames }, []];
}

async function run(ort, { id, names, described, only }, buffers) {
  const { session } = sessions.get(id);
  const given = feeds(ort, names, described, buffers);
  const found = await (only ? session.run(given, only) : session.run(given));
  const tensors = (only ?? session.outputNames).map((name) => fromTensor(found[name]));
  return [{ outputs: tensors.map(([described]) => described) }, tensors.map(([, bytes]) => bytes)];
}

async function take(ort, { id, names, described }, buffers) {
  sessions.get(id).taken = feeds(ort, names, described, buffers);
  return [{}, []];
}

async function timed(ort, { id, runs, settle }) {
  const { session, taken } = sessions.get(id);
  for (const end = performance.now() + settle * 1e3; performance.now() < end; ) await session.run(taken);
  const seconds = [];
  for (let count = 0; count < runs; count += 1) {
    const started = performance.now();
    await session.run(taken);
    seconds.push((performance.now() - started) / 1e3);
  }
  return [{ seconds }, []];
}

async function profile(ort, { id }) {
  sessions.get(id).session.endProfiling();
  return [{}, []];
}

async function close(ort, { id }) {
  const found = sessions.get(id);
  sessions.delete(id);
  await found?.session.release();
  return [{}, []];
}

const ACTIONS = { open, run, take, timed, profile, close };

async function serve(ort) {
  let chunks = [];
  let held = 0;
  let wake = () => {};
  let ended = false;
  process.stdin.on("data", (chunk) => { chunks.push(chunk); held += chunk.length; wake(); });
  process.stdin.on("end", () => { ended = true; wake(); });
  const take = async (size) => {
    while (held < size) {
      if (ended) process.exit(0);
      await new Promise((resolve) => { wake = resolve; });
    }
    const all = chunks.length === 1 ? chunks[0] : Buffer.concat(chunks);
    chunks = size < all.length ? [all.subarray(size)] : [];
    held -= size;
    return all.subarray(0, size);
  };
  for (;;) {
    const length = (await take(4)).readUInt32LE();
    const request = JSON.parse((await take(length)).toString());
    const buffers = [];
    for (const size of request.buffers) buffers.push(await take(size));
    try {
      const [answer, content] = await ACTIONS[request.action](ort, request, buffers);
      send({ ok: true, ...answer }, content);
    } catch (error) {
      send({ ok: false, error: String(error?.message ?? error), kind: error?.name });
    }
  }
}

let ort;
try {
  ort = createRequire(pathToFileURL(`${folder}/package.json`))(folder);
  if (ort.env.wasm && Number(threads) > 0) ort.env.wasm.numThreads = Number(threads);
} catch (error) {
  send({ ok: false, error: String(error?.message ?? error) });
  process.exit(1);
}
send({ ok: true, version: ort.env.versions });
await serve(ort);
