// Text to subword ids and back, exactly as multihead's text/tokenizer.py: byte-pair encoding with a word mark, and bytes
// for characters without an entry.

const MARK = "\u2581";
const FIRST_BYTE = 4;
const FIRST_CHARACTER = 260;

const utf8 = new TextEncoder();

/** A learned byte-pair vocabulary. */
export class BytePairTokenizer {
  /**
   * @param {object} parts what interop/formats/web.py writes: `entries` by id, `merges` (pairs of ids, flat, in the order
   *   they were learned), `pattern` and the character `classes` in it; user-defined `symbols`, whose ids come last.
   */
  constructor({ entries, merges, pattern, classes, symbols = [] }) {
    this.entries = entries;
    this.ids = new Map();
    entries.forEach((entry, id) => id < FIRST_CHARACTER || this.ids.set(entry, id));
    this.size = entries.length;
    this.ranks = new Map(); // left * size + right: its place in the order
    this.joined = [];
    for (let i = 0; i < merges.length; i += 2) {
      const pair = merges[i] * this.size + merges[i + 1];
      this.ranks.set(pair, i / 2);
      this.joined[i / 2] = this.ids.get(entries[merges[i]] + entries[merges[i + 1]]);
    }
    this.pattern = new RegExp(withClasses(pattern, classes), "gu");
    this.bytes = entries.map((entry, id) => {
      if (id < FIRST_BYTE) return new Uint8Array(0);
      if (id < FIRST_CHARACTER) return Uint8Array.of(id - FIRST_BYTE);
      return utf8.encode(entry.replaceAll(MARK, " "));
    });
    this.symbols = new Map(symbols.map((symbol, place) => [symbol, entries.length + place]));
    for (const symbol of symbols) this.bytes.push(utf8.encode(symbol));
    const longest = [...symbols].sort((one, other) => other.length - one.length);
    const escaped = longest.map((symbol) => symbol.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&"));
    this.cuts = symbols.length ? new RegExp(`(${escaped.join("|")})`, "u") : null;
    this.known = new Map(); // pieces that were segmented before
  }

  /** The ids of a text, without begin and end symbols. Throws a `RangeError` if the text has a lone surrogate. */
  encode(text) {
    if (!text.isWellFormed()) throw new RangeError("the text has a lone surrogate, which is not valid Unicode");
    const ids = [];
    if (!text) return ids;
    const between = this.cuts ? ` ${text}`.split(this.cuts) : [` ${text}`]; // every second one is a symbol
    between.forEach((part, place) => (place % 2 ? ids.push(this.symbols.get(part)) : this.encodeRest(part, ids)));
    return ids;
  }

  /** Appends the ids of a text without symbols that continues another. */
  encodeRest(text, ids) {
    text.split(MARK).forEach((part, number) => {
      if (number) for (const byte of utf8.encode(MARK)) ids.push(FIRST_BYTE + byte);
      for (const piece of this.split(part.replaceAll(" ", MARK))) for (const id of this.segment(piece)) ids.push(id);
    });
  }

  /** The pieces of a text with word marks: what the pattern matches, and what is between its matches. */
  *split(text) {
    let end = 0;
    for (const match of text.matchAll(this.pattern)) {
      if (match.index > end) yield text.slice(end, match.index);
      yield match[0];
      end = match.index + match[0].length;
    }
    if (end < text.length) yield text.slice(end);
  }

  /** The ids of a piece: its characters, joined in the order in which the merges were learned. */
  segment(piece) {
    const known = this.known.get(piece);
    if (known) return known;
    const ids = [];
    for (const character of piece) {
      const id = this.ids.get(character);
      if (id !== undefined) ids.push(id);
      else for (const byte of utf8.encode(character)) ids.push(FIRST_BYTE + byte);
    }
    const found = ids.length > 100 ? this.mergeLong(ids) : this.merge(ids);
    if (this.known.size > 20000) this.known.clear();
    if (piece.length < 50) this.known.set(piece, found);
    return found;
  }

  /** Joins the pair of the lowest rank, the first of equal ones, until no pair has a rank. */
  merge(ids) {
    for (;;) {
      let best = Infinity, at = -1;
      for (let i = 0; i + 1 < ids.length; i++) {
        const rank = this.ranks.get(ids[i] * this.size + ids[i + 1]);
        if (rank < best) (best = rank), (at = i);
      }
      if (at < 0) return ids;
      ids.splice(at, 2, this.joined[best]);
    }
  }

  /** The same in n log n steps: pairs wait in a heap, by rank and then by place. */
  mergeLong(ids) {
    const next = ids.map((_, i) => i + 1), before = ids.map((_, i) => i - 1), heap = new Heap();
    const offer = (i) => {
      if (i < 0 || next[i] >= ids.length) return;
      const rank = this.ranks.get(ids[i] * this.size + ids[next[i]]);
      if (rank !== undefined) heap.push([rank, i, ids[i], ids[next[i]]]);
    };
    for (let i = 0; i < ids.length; i++) offer(i);
    while (heap.size) {
      const [rank, i, left, right] = heap.pop();
      const other = next[i];
      if (ids[i] !== left || other >= ids.length || ids[other] !== right) continue; // one of them was joined meanwhile
      ids[i] = this.joined[rank];
      ids[other] = -1;
      next[i] = next[other];
      if (next[i] < ids.length) before[next[i]] = i;
      offer(before[i]);
      offer(i);
    }
    return ids.filter((id) => id >= 0);
  }

  /** The text of ids. Special symbols are skipped; bytes that are not valid UTF-8 become U+FFFD. */
  decode(ids) {
    const parts = ids.map((id) => this.bytes[id]);
    const raw = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
    let at = 0;
    for (const part of parts) raw.set(part, at), (at += part.length);
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(raw[0] === 32 ? raw.subarray(1) : raw);
  }
}

/** The pattern with its classes, such as \p{L}, spelled out: browsers know other versions of Unicode. */
function withClasses(pattern, classes) {
  let inside = false;
  return pattern.replace(/\\p\{(\w+)\}|\\.|[[\]]/gu, (found, name) => {
    if (name) return inside ? classes[name] : `[${classes[name]}]`;
    if (found === "[" || found === "]") inside = found === "[";
    return found;
  });
}

/** A binary heap of arrays that are compared by their first two numbers. */
class Heap {
  items = [];

  get size() {
    return this.items.length;
  }

  push(item) {
    const items = this.items;
    let at = items.length;
    for (let up; at && less(item, items[(up = (at - 1) >> 1)]); at = up) items[at] = items[up];
    items[at] = item;
  }

  pop() {
    const items = this.items, top = items[0], last = items.pop();
    if (!items.length) return top;
    let at = 0;
    for (let down; (down = 2 * at + 1) < items.length; at = down) {
      if (down + 1 < items.length && less(items[down + 1], items[down])) down++;
      if (!less(items[down], last)) break;
      items[at] = items[down];
    }
    items[at] = last;
    return top;
  }
}

const less = (one, other) => one[0] < other[0] || (one[0] === other[0] && one[1] < other[1]);
