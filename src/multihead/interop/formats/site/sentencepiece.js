// Text to the ids of a SentencePiece unigram model and back, as multihead's text/sentencepiece.py.
//
// Kudo (2018), "Subword regularization"; the normalization and the rounding are those of the library.

const MARK = "\u2581";
const NORMAL = 1, UNKNOWN = 2, USER = 4, UNUSED = 5, BYTE = 6; // types of pieces
const PENALTY = 10; // of an unknown character, below the lowest score

const utf8 = new TextEncoder();
const strict = new TextDecoder("utf-8", { ignoreBOM: true });

export class UnigramTokenizer {
  /** @param {object} parts what interop/formats/web_vocabulary.py writes */
  constructor(parts) {
    this.parts = parts;
    this.names = new Map(parts.names); // piece: id, of the entries that a text may become
    this.root = new Map();
    this.user = new Map(); // a tree of the pieces that normalization does not change
    const scores = [];
    parts.pieces.forEach(([piece, rounded, type], own) => {
      const score = Math.fround(rounded);
      if (type === NORMAL) scores.push(score);
      if (type === NORMAL || type === USER || type === UNUSED) plant(this.root, utf8.encode(piece), { own, score, type });
      if (type === USER) plant(this.user, utf8.encode(piece), { own });
    });
    this.unknown = parts.pieces.findIndex(([, , type]) => type === UNKNOWN);
    this.lowest = scores.reduce((one, other) => Math.min(one, other), Infinity);
    this.highest = scores.reduce((one, other) => Math.max(one, other), -Infinity);
    this.ofByte = parts.pieces.some(([, , type]) => type === BYTE)
      ? Array.from({ length: 256 }, (_, byte) => parts.ids[parts.pieces.findIndex(([piece]) => piece === byteName(byte))])
      : null;
    const map = Uint8Array.from(atob(parts.charsmap), (character) => character.charCodeAt(0));
    if (map.length) {
      const size = new DataView(map.buffer).getUint32(0, true);
      this.trie = new Uint32Array(map.slice(4, 4 + size).buffer);
      this.replacements = map.subarray(4 + size);
    }
    this.bytes = parts.entries.map((entry) => (typeof entry === "number" ? Uint8Array.of(entry) : utf8.encode(entry)));
  }

  /** The ids of a text after the prefix. Throws a `RangeError` if the text has a lone surrogate. */
  encode(text) {
    if (!text.isWellFormed()) throw new RangeError("the text has a lone surrogate, which is not valid Unicode");
    const bytes = this.normalize(utf8.encode(text)), ids = [];
    let unknown = []; // bytes of adjacent unknown characters, which become one symbol
    const flush = () => {
      if (unknown.length) ids.push(this.lookUp(strict.decode(Uint8Array.from(unknown))));
      unknown = [];
    };
    for (const [own, start, end] of this.best(bytes)) {
      if (own !== this.unknown) {
        flush();
        ids.push(this.parts.ids[own]);
      } else if (this.ofByte) {
        for (let i = start; i < end; i++) ids.push(this.ofByte[bytes[i]]);
      } else {
        for (let i = start; i < end; i++) unknown.push(bytes[i]);
      }
    }
    flush();
    return ids.length ? [...this.parts.prefix, ...ids] : [];
  }

  /** A separate vocabulary may have an entry for what the model does not know. */
  lookUp(piece) {
    return this.names.get(piece) ?? this.parts.unknown;
  }

  /** The most probable pieces: [piece, start, end] of each. Sums are rounded as the library rounds them. */
  best(bytes) {
    const size = bytes.length;
    const score = new Float32Array(size + 1), from = new Int32Array(size + 1).fill(-1), piece = new Int32Array(size + 1);
    const offer = (start, end, own, candidate) => {
      if (from[end] >= 0 && !(candidate > score[end])) return;
      (from[end] = start), (piece[end] = own), (score[end] = candidate);
    };
    for (let start = 0, length; start < size; start += length) {
      length = Math.min(lengthOf(bytes[start]), size - start);
      let alone = false;
      for (let node = this.root, end = start; end < size && (node = node.get(bytes[end])); ) {
        end++;
        const leaf = node.leaf;
        if (!leaf || leaf.type === UNUSED) continue;
        const own = leaf.type === USER ? Math.fround((end - start) * this.highest) - 0.1 : leaf.score;
        offer(start, end, leaf.own, own + score[start]);
        if (end - start === length) alone = true;
      }
      if (!alone) {
        const low = Math.fround(this.lowest - PENALTY);
        offer(start, start + length, this.unknown, Math.fround(low + score[start]));
      }
    }
    const found = [];
    for (let end = size; end > 0; end = from[end]) found.push([piece[end], from[end], end]);
    return found.reverse();
  }

  /** The text as the model reads it, with marks for spaces. */
  normalize(bytes) {
    const { remove_extra_whitespaces: remove, add_dummy_prefix: dummy, escape_whitespaces: escape } = this.parts.normalizer;
    const out = [], space = escape ? [...utf8.encode(MARK)] : [32];
    let at = 0;
    const isSpace = (found) => found.length === 1 && found[0] === 32;
    if (remove) {
      while (at < bytes.length) {
        const [found, used] = this.normalizePrefix(bytes, at);
        if (!isSpace(found)) break;
        at += used;
      }
    }
    if (at === bytes.length) return Uint8Array.of();
    if (dummy) out.push(...space);
    let after = remove; // whether what was written ends with a space
    while (at < bytes.length) {
      const [found, used] = this.normalizePrefix(bytes, at);
      let i = 0;
      while (after && i < found.length && found[i] === 32) i++;
      if (i < found.length) {
        for (; i < found.length; i++) found[i] === 32 ? out.push(...space) : out.push(found[i]);
        after = found.at(-1) === 32;
      }
      at += used;
      if (!remove) after = false;
    }
    if (remove) while (out.length && space.every((byte, i) => out[out.length - space.length + i] === byte)) out.length -= space.length;
    return Uint8Array.from(out);
  }

  /** What the longest known beginning becomes, and its length. */
  normalizePrefix(bytes, at) {
    let length = 0;
    for (let node = this.user, end = at; end < bytes.length && (node = node.get(bytes[end])); ) {
      end++;
      if (node.leaf) length = end - at;
    }
    if (length) return [bytes.subarray(at, at + length), length];
    let value = -1;
    if (this.trie) {
      let unit = this.trie[0], place = offsetOf(unit);
      for (let end = at; end < bytes.length; ) {
        place ^= bytes[end];
        unit = this.trie[place];
        if ((unit & 0x800000ff) >>> 0 !== bytes[end]) break;
        end++;
        place ^= offsetOf(unit);
        if ((unit >>> 8) & 1) (value = this.trie[place] & 0x7fffffff), (length = end - at);
      }
    }
    if (length) return [this.replacements.subarray(value, this.replacements.indexOf(0, value)), length];
    length = Math.min(lengthOf(bytes[at]), bytes.length - at);
    return [bytes.subarray(at, at + length), length];
  }

  /** The text of ids, without white space around it. */
  decode(ids) {
    const parts = ids.map((id) => this.bytes[id]);
    const raw = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
    let at = 0;
    for (const part of parts) raw.set(part, at), (at += part.length);
    const white = "[\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]+";
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(raw).replace(new RegExp(`^${white}|${white}$`, "g"), "");
  }
}

/** The offset of a unit of a double array (Darts). */
const offsetOf = (unit) => (unit >>> 10) << ((unit & 512) >>> 6);

const lengthOf = (byte) => (byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4);

const byteName = (byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;

/** Adds a sequence of bytes to a tree of maps; `leaf` of its last one is the value. */
function plant(node, bytes, leaf) {
  for (const byte of bytes) {
    if (!node.has(byte)) node.set(byte, new Map());
    node = node.get(byte);
  }
  node.leaf ??= leaf;
}
