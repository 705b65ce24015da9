// Server-sent events from the bytes of a response.
//
// The format is that of the HTML standard, 9.2.6. EventSource cannot send a body or headers; `fetch` can.

/** Yields {event, data} for each event; comments and events without data are skipped. */
export async function* eventsOf(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
      // A carriage return at the end may be the first half of a line break: keep it for the next block.
      const whole = done || !rest.endsWith("\r") ? rest : rest.slice(0, -1);
      const blocks = whole.replace(/\r\n?/g, "\n").split("\n\n");
      rest = blocks.pop() + rest.slice(whole.length);
      for (const block of blocks) {
        const event = parse(block);
        if (event) yield event;
      }
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parse(block) {
  let event = "message";
  const data = [];
  for (const line of block.split("\n")) {
    const [, field, value] = line.match(/^([^:]*):? ?(.*)$/s) ?? [];
    if (field === "event") event = value;
    if (field === "data") data.push(value);
  }
  return data.length ? { event, data: data.join("\n") } : null;
}
