// The page that shows the API: renders openapi.json, and sends requests.
//
// Everything comes from the description; texts are set as text, never as HTML.
import { Server } from "./api.js";
import { Notice } from "./notice.js";

const DEPTH = 4; // nested schemas that are shown

const byId = (id) => document.getElementById(id);
const server = new Server();
const notice = new Notice(byId("notice"), server, start);
let description = null;

async function start() {
  try {
    show(await server.description());
  } catch (problem) {
    if (!problem.kind) throw problem;
    notice.show(problem);
  }
}

function show(received) {
  description = received;
  byId("model").textContent = `API, version ${description.info.version}`;
  const operations = Object.entries(description.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({ path, method: method.toUpperCase(), ...operation })),
  );
  byId("contents").replaceChildren(...operations.map(link));
  byId("contents").hidden = false;
  byId("operations").replaceChildren(...operations.map(section));
}

const nameOf = ({ method, path }) => `${method} ${path}`;
const idOf = ({ method, path }) => `${method}${path.replaceAll("/", "-")}`.toLowerCase();

function link(operation) {
  return element("a", { href: `#${idOf(operation)}` }, nameOf(operation));
}

function section(operation) {
  const { requestBody, responses } = operation;
  return element(
    "section",
    { className: "operation card", id: idOf(operation) },
    element("h2", {}, nameOf(operation)),
    ...paragraphs(operation.description ?? operation.summary ?? ""),
    ...(requestBody ? bodies(requestBody.content) : []),
    trial(operation),
    element("h3", {}, "Responses"),
    ...Object.entries(responses).map(([status, response]) => answer(status, response)),
  );
}

function paragraphs(text) {
  return text.split(/\n\s*\n/).filter(Boolean).map((part) => element("p", {}, ...marked(part)));
}

/** A text with `code` in it. */
function marked(text) {
  return text.split("`").map((part, place) => (place % 2 ? element("code", {}, part) : part));
}

function bodies(content) {
  const byFields = new Map();
  for (const [type, { schema }] of Object.entries(content)) {
    for (const one of schema.anyOf ?? [schema]) {
      const key = JSON.stringify(one);
      byFields.set(key, { schema: one, types: [...(byFields.get(key)?.types ?? []), type] });
    }
  }
  return [...byFields.values()].flatMap(({ schema, types }) => [
    element("h3", {}, `Request: ${types.join(", ")}`),
    table(schema),
  ]);
}

/** The example of a request, which can be changed and sent. */
function trial({ method, path, requestBody }) {
  const [type, content] = Object.entries(requestBody?.content ?? {})[0] ?? [];
  const json = !type || type === "application/json";
  const examples = content?.schema.examples ?? content?.schema.anyOf?.[0].examples ?? [];
  const body = element("textarea", { rows: 4, spellcheck: false, value: JSON.stringify(examples[0] ?? {}, null, 2) });
  body.setAttribute("aria-label", `Body of ${method} ${path}`);
  const output = element("pre", { hidden: true });
  output.setAttribute("role", "status");
  const send = element("button", { className: "primary", type: "button" }, "Send");
  send.setAttribute("aria-label", `Send ${method} ${path}`);
  send.addEventListener("click", async () => {
    output.hidden = false;
    output.textContent = "...";
    output.textContent = await server.send(method, path.slice(1), type && body.value);
  });
  return element(
    "details",
    {},
    element("summary", {}, "Try it"),
    ...(json ? [...(type ? [body] : []), send, output] : [element("p", {}, `Send a form (${type}) with a program.`)]),
  );
}

function answer(status, { description: text, content = {} }) {
  const shown = Object.entries(content).flatMap(([type, { schema, example, examples }]) => [
    element("p", {}, type),
    ...(schema ? [table(schema)] : []),
    ...(example ? [element("pre", {}, asText(example))] : []),
    ...Object.values(examples ?? {}).map(({ value }) => element("pre", {}, asText(value))),
  ]);
  return element("details", {}, element("summary", {}, `${status}: ${text}`), ...shown);
}

const asText = (example) => (typeof example === "string" ? example : JSON.stringify(example, null, 2));

// ---- schemas

function resolved(schema) {
  return schema.$ref ? schema.$ref.slice(2).split("/").reduce((whole, name) => whole[name], description) : schema;
}

/** The fields of an object, with those of the objects in it; nothing for other schemas. */
function table(schema) {
  const rows = fields(schema, "", DEPTH);
  if (!rows.length) return element("p", {}, typeOf(schema));
  return element("table", {}, element("tbody", {}, ...rows));
}

function fields(schema, prefix, depth) {
  const whole = resolved(schema);
  if (depth === 0) return [];
  if (whole.anyOf) return whole.anyOf.flatMap((one) => fields(one, prefix, depth));
  if (whole.items) return fields(whole.items, `${prefix}[]`, depth);
  return Object.entries(whole.properties ?? {}).flatMap(([name, field]) => {
    const path = prefix ? `${prefix}.${name}` : name;
    const required = whole.required?.includes(name) ? "" : ", optional";
    const row = element(
      "tr",
      {},
      element("th", { scope: "row" }, path),
      element("td", {}, typeOf(field) + required),
      element("td", {}, ...marked(field.description ?? "")),
    );
    return [row, ...fields(field, path, depth - 1)];
  });
}

/** A schema in words. */
function typeOf(schema) {
  const whole = resolved(schema);
  if (whole.anyOf) return whole.anyOf.map(typeOf).join(" or ");
  if (whole.enum) return whole.enum.map((value) => JSON.stringify(value)).join(" or ");
  if ("const" in whole) return JSON.stringify(whole.const);
  if (whole.type === "array") return whole.items ? `list of ${typeOf(whole.items)}` : "list";
  return whole.format === "binary" ? "file" : (whole.type ?? "anything");
}

function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

start();
