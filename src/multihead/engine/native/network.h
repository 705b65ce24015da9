// The Transformer (models/transformer.py) without gradients: its encoder on the words of several sentences, one after
// the other without padding, and one step of its decoder on hypotheses that may each stand at another position.
//
// A hypothesis's keys and values stay where they were written. Which of them are its ancestors' is a table of a byte a
// position, so that reordering a beam moves bytes and no keys. Keys and values of the source are kept once a sentence.
// Where products are not float32, keys and values of the decoder are kept in bfloat16: reading them is what takes time.

#pragma once

#include <algorithm>
#include <memory>
#include "products.h"

namespace network {

using namespace packed;

// e^x for x <= 0: 2^n p(f) with x = (n + f) ln 2; p is within 1e-7 of 2^f; below -87 it is e^-87.
static inline vf falling(vf x) {
    const float round = 12582912.f;  // added, it leaves a whole number
    x = x < -87.f ? vf{} - 87.f : x;
    const vf shifted = x * 1.44269504f + round;
    const vf f = x * 1.44269504f - (shifted - round);
    vf p = f * 1.32764716e-3f + 9.67554155e-3f;
    p = p * f + 5.55071328e-2f, p = p * f + 2.40221197e-1f, p = p * f + 6.93146967e-1f, p = p * f + 1.00000007f;
    return (vf)((vi)p + ((vi)shifted << 23));
}

static inline float exponential(float x) { return std::exp(x); }

// x[i ^ w]
static inline vf swapped(vf x, i64 w) {
    vi place;
    for (int i = 0; i < LANES; i++) place[i] = i ^ (int)w;
    return __builtin_shuffle(x, place);
}

// Lane i: the sum of the lanes of x[i].
template <int W = LANES / 2>
static inline vf sums_of(vf *x) {
    vi same, other;
    for (int i = 0; i < LANES; i++) same[i] = i & W ? LANES + i : i, other[i] = i & W ? LANES + (i ^ W) : i ^ W;
#pragma GCC unroll 16
    for (int i = 0; i < W; i++)
        x[i] = __builtin_shuffle(x[i], x[i + W], same) + __builtin_shuffle(x[i], x[i + W], other);
    if constexpr (W > 1) return sums_of<W / 2>(x);
    else return x[0];
}

enum Activation { RECTIFIER = 0, GELU = 1, GATED_RECTIFIER = 2, GATED_GELU = 3, GATED_SWISH = 4 };

struct Sizes {
    i64 kind, width, heads, kv_heads, key, value, inner, encoder_layers, decoder_layers, source_vocab, target_vocab,
        activation, pre, final_norm, embedding_norm;
    i64 q() const { return heads * key; }
    i64 k() const { return kv_heads * key; }
    i64 v() const { return kv_heads * value; }
    i64 kv() const { return k() + v(); }
};

struct Norm {
    std::vector<float> gain, shift;
    float eps = 0.f;

    void apply(const float *x, float *y, i64 width) const {
        float mean = 0.f, square = 0.f;
#pragma omp simd reduction(+ : mean)
        for (i64 f = 0; f < width; f++) mean += x[f];
        mean /= (float)width;
#pragma omp simd reduction(+ : square)
        for (i64 f = 0; f < width; f++) square += (x[f] - mean) * (x[f] - mean);
        const float scale = 1.f / std::sqrt(square / (float)width + eps), *g = gain.data(), *s = shift.data();
#pragma omp simd
        for (i64 f = 0; f < width; f++) y[f] = (x[f] - mean) * scale * g[f] + s[f];
    }
};

struct FeedForward {
    Norm norm;
    Weights expand, gate, contract;
};

struct Attention {
    Norm norm;
    Weights in, memory, out;  // queries, keys and values; or queries alone, and keys and values of the source
};

struct EncoderLayer {
    Attention own;
    FeedForward feed_forward;
};

struct DecoderLayer {
    Attention own, cross;
    FeedForward feed_forward;
};

struct Embedding {
    const float *table;  // the caller's
    Norm norm;
};

struct Positions {  // their vectors, the caller's; those beyond the last share it
    const float *table = nullptr;
    i64 count = 0;
};

struct Model {
    Sizes sizes;
    float scale, output_scale;
    Embedding source, target;
    std::vector<EncoderLayer> encoder;
    std::vector<DecoderLayer> decoder;
    Norm encoder_norm, decoder_norm;
    Weights output;
};

// Keys and values of the sources of some sentences, in every layer: [layer][word][kv].
struct Memory {
    Block block;
    i64 words = 0;
};

// What the decoder remembers of a sentence.
struct Cache {
    std::shared_ptr<Memory> memory;
    i64 first = 0, source = 0;              // its words in the memory
    i64 width = 0, time = 0, room = 0;      // hypotheses, positions written, positions there is room for
    std::vector<std::vector<char>> layers;  // [time][hypothesis][kv]
    std::vector<uint8_t> ancestors;         // [hypothesis][room]: who wrote what this one sees
    std::vector<uint8_t> spare;

    void grow(i64 bytes) {  // of a hypothesis's keys and values
        if (time < room) return;
        i64 more = room ? 2 * room : 16;
        for (auto &layer : layers) layer.resize(more * width * bytes);
        spare.assign(width * more, 0);
        for (i64 k = 0; k < width && room; k++) memcpy(&spare[k * more], &ancestors[k * room], time);
        ancestors.swap(spare);
        room = more;
    }
    // Hypothesis k goes on from parents[k]; what it wrote last is its parent's.
    void follow(const i64 *parents) {
        spare.resize(ancestors.size());
        for (i64 k = 0; k < width; k++) memcpy(&spare[k * room], &ancestors[parents[k] * room], time);
        ancestors.swap(spare);
    }
};

struct Row {
    Cache *cache;
    i64 hypothesis, token;
};

// Room for what a thread computes.
struct Scratch {
    Block states, hidden, wide, gates, heads, scores, turned;
    Rows rows;
};

struct Machine {
    const Model &model;
    const Sizes &s;
    const Positions &sources, &targets;
    Scratch scratch;
    i64 stride;

    Machine(const Model &model, const Positions &sources, const Positions &targets)
        : model(model), s(model.sizes), sources(sources), targets(targets), stride(up(model.sizes.width)) {}

    // The rows as a product takes them, normed if a norm is given.
    void ready(const float *x, i64 rows, i64 width, i64 step, const Norm *norm) {
        scratch.rows.reserve((int)s.kind, rows, width);
        float *h = norm ? scratch.hidden.get<float>(stride) : nullptr;
        for (i64 r = 0; r < rows; r++) {
            const float *from = x + r * step;
            if (norm) norm->apply(from, h, width), from = h;
            scratch.rows.fill((int)s.kind, r, from, width);
        }
    }

    void settle(float *x, i64 rows, const Norm &norm) const {  // behind a residual sum
        if (s.pre) return;
        for (i64 r = 0; r < rows; r++) norm.apply(x + r * stride, x + r * stride, s.width);
    }

    void feed_forward(const FeedForward &f, float *x, i64 rows) {
        ready(x, rows, s.width, stride, s.pre ? &f.norm : nullptr);
        const i64 step = up(s.inner);
        float *h = scratch.wide.get<float>(rows * step);
        if (s.activation < GATED_RECTIFIER) {
            product(f.expand, scratch.rows, rows, h, step, s.activation == RECTIFIER ? RELU : SET);
            if (s.activation == GELU)
                for (i64 i = 0; i < rows * step; i++) h[i] = 0.5f * h[i] * (1.f + std::erf(h[i] * 0.70710678f));
        } else {
            float *g = scratch.gates.get<float>(rows * step);
            product(f.expand, scratch.rows, rows, h, step);
            product(f.gate, scratch.rows, rows, g, step, s.activation == GATED_RECTIFIER ? RELU : SET);
            for (i64 i = 0; i < rows * step; i++) {
                float value = g[i];
                if (s.activation == GATED_GELU) value *= 0.5f * (1.f + std::erf(value * 0.70710678f));
                if (s.activation == GATED_SWISH) value /= 1.f + exponential(-value);
                h[i] *= value;
            }
        }
        ready(h, rows, s.inner, step, nullptr);
        product(f.contract, scratch.rows, rows, x, stride, ADD);
        settle(x, rows, f.norm);
    }

    void attended(const Attention &a, const float *heads, float *x, i64 rows) {  // W^O, sum and norm
        ready(heads, rows, s.heads * s.value, s.heads * s.value, nullptr);
        product(a.out, scratch.rows, rows, x, stride, ADD);
        settle(x, rows, a.norm);
    }

    void embed(const Embedding &e, const Positions &p, i64 token, i64 position, float *x) const {
        const float *word = e.table + token * s.width;
        const float *place = p.table + (position < p.count ? position : p.count - 1) * s.width;
#pragma omp simd
        for (i64 f = 0; f < s.width; f++) x[f] = word[f] * model.scale + place[f];
        if (s.embedding_norm) e.norm.apply(x, x, s.width);
    }

    // One query against some keys; `at(j)` is where key j lies, its value behind it.
    template <class At>
    void attend(const float *query, i64 keys, At at, float *out) {
        const i64 d = s.key / LANES, v = s.value / LANES;
        const bool even = LANES % s.heads == 0 && s.key % LANES == 0 && s.value % LANES == 0 && d == v;
        if (even && d == 1) return attend_evenly<1>(query, keys, at, out);
        if (even && d == 2) return attend_evenly<2>(query, keys, at, out);
        if (even && d == 4) return attend_evenly<4>(query, keys, at, out);
        attend_plainly(query, keys, at, out);
    }

    // Scores lie [key][head], so that a vector holds those of all heads for some keys.
    template <int D, class At>
    void attend_evenly(const float *query, i64 keys, At at, float *out) {
        const i64 heads = s.heads, group = heads / s.kv_heads, offset = s.k(), together = LANES / heads;
        const i64 padded = up(keys, together);
        const float scale = 1.f / std::sqrt((float)s.key);
        float *scores = scratch.scores.get<float>(padded * heads);
        for (i64 j = 0; j < padded; j += together) {
            vf parts[LANES];
            for (i64 one = 0; one < together; one++) {
                const auto *key = at(std::min(j + one, keys - 1));
                for (i64 h = 0; h < heads; h++) {
                    const vf *q = (const vf *)(query + h * D * LANES);
                    const auto *k = key + h / group * D * LANES;
                    vf sum = q[0] * several(k);
#pragma GCC unroll 4
                    for (int i = 1; i < D; i++) sum += q[i] * several(k + i * LANES);
                    parts[one * heads + h] = sum;
                }
            }
            *(vf *)(scores + j * heads) = sums_of(parts) * scale;
        }
        for (i64 i = keys * heads; i < padded * heads; i++) scores[i] = -1e30f;
        vf most = *(const vf *)scores, sum = {};
        for (i64 i = LANES; i < padded * heads; i += LANES) {
            const vf x = *(const vf *)(scores + i);
            most = x > most ? x : most;
        }
        for (i64 w = LANES / 2; w >= heads; w /= 2) {
            const vf other = swapped(most, w);
            most = other > most ? other : most;
        }
        for (i64 i = 0; i < padded * heads; i += LANES) {
            vf &x = *(vf *)(scores + i);
            x = falling(x - most);
            sum += x;
        }
        for (i64 w = LANES / 2; w >= heads; w /= 2) sum += swapped(sum, w);
        const vf share = 1.f / sum;
        for (i64 i = 0; i < padded * heads; i += LANES) *(vf *)(scores + i) *= share;
        for (i64 h = 0; h < heads;) {
            if (h + 4 <= heads && group == 1) blend_heads<D, 4>(scores, keys, h, at, offset, out), h += 4;
            else blend_heads<D, 1>(scores, keys, h, at, offset, out), h += 1;
        }
    }

    // The weighted sums of the values of H heads, from head h on.
    template <int D, int H, class At>
    void blend_heads(const float *weights, i64 keys, i64 h, At at, i64 offset, float *out) const {
        const i64 place = offset + h / (s.heads / s.kv_heads) * D * LANES;
        vf sum[H * D] = {};
        for (i64 j = 0; j < keys; j++) {
            const auto *value = at(j) + place;
            const float *weight = weights + j * s.heads + h;
#pragma GCC unroll 16
            for (int i = 0; i < H * D; i++) sum[i] += weight[i / D] * several(value + i * LANES);
        }
#pragma GCC unroll 16
        for (int i = 0; i < H * D; i++) *(vf *)(out + (h * D + i) * LANES) = sum[i];
    }

    // For any widths: head by head.
    template <class At>
    void attend_plainly(const float *query, i64 keys, At at, float *out) {
        const i64 group = s.heads / s.kv_heads, d = s.key, v = s.value, offset = s.k();
        const float scale = 1.f / std::sqrt((float)d);
        const i64 room = up(keys, LANES);
        float *scores = scratch.scores.get<float>(s.heads * room);
        for (i64 j = 0; j < keys; j++) {
            const auto *key = at(j);
            for (i64 h = 0; h < s.heads; h++) {
                float sum = 0.f;
                for (i64 i = 0; i < d; i++) sum += query[h * d + i] * single(key[h / group * d + i]);
                scores[h * room + j] = sum * scale;
            }
        }
        for (i64 h = 0; h < s.heads; h++) softmax(scores + h * room, keys);
        std::fill(out, out + s.heads * v, 0.f);
        for (i64 j = 0; j < keys; j++) {
            const auto *value = at(j) + offset;
            for (i64 h = 0; h < s.heads; h++) blend(out + h * v, value + h / group * v, scores[h * room + j], v);
        }
    }

    template <class T>
    static inline void blend(float *to, const T *from, float weight, i64 d) {
#pragma omp simd
        for (i64 i = 0; i < d; i++) to[i] += weight * single(from[i]);
    }

    // In place; x has room for whole vectors.
    static inline void softmax(float *x, i64 count) {
        for (i64 j = count; j < up(count, LANES); j++) x[j] = -1e30f;
        float most = x[0], total = 0.f;
        for (i64 j = 1; j < count; j++) most = x[j] > most ? x[j] : most;
        vf sum = {};
        for (i64 j = 0; j < count; j += LANES) {
            vf &one = *(vf *)(x + j);
            one = falling(one - most);
            sum += one;
        }
        for (int i = 0; i < LANES; i++) total += sum[i];
        const float share = 1.f / total;
        for (i64 j = 0; j < count; j++) x[j] *= share;
    }

    // Self-attention of one sentence's words: rows of queries, keys and values side by side.
    void own_attention(const float *qkv, i64 step, i64 words, float *out) {
        const i64 d = s.key, v = s.value, group = s.heads / s.kv_heads, wide = up(words, LANES), q = s.q();
        const float scale = 1.f / std::sqrt((float)d);
        float *turned = scratch.turned.get<float>(d * wide), *scores = scratch.scores.get<float>(wide * 4);
        for (i64 h = 0; h < s.heads; h++) {
            const float *queries = qkv + h * d, *keys = qkv + q + h / group * d;
            const float *values = qkv + q + s.k() + h / group * v;
            if (h % group == 0) {
                memset(turned, 0, d * wide * 4);
                for (i64 j = 0; j < words; j++)
                    for (i64 i = 0; i < d; i++) turned[i * wide + j] = keys[j * step + i];
            }
            for (i64 first = 0; first < words; first += 4) {
                const i64 some = std::min<i64>(4, words - first);
                const float *of[4];
                for (i64 r = 0; r < 4; r++) of[r] = queries + (first + std::min(r, some - 1)) * step;
                for (i64 j = 0; j < wide; j += LANES) {
                    vf sum[4] = {};
                    for (i64 i = 0; i < d; i++) {
                        const vf key = *(const vf *)(turned + i * wide + j);
#pragma GCC unroll 4
                        for (int r = 0; r < 4; r++) sum[r] += of[r][i] * key;
                    }
                    for (int r = 0; r < 4; r++) *(vf *)(scores + r * wide + j) = sum[r] * scale;
                }
                for (i64 r = 0; r < some; r++) {
                    float *weight = scores + r * wide, *to = out + (first + r) * s.heads * v + h * v;
                    softmax(weight, words);
                    std::fill(to, to + v, 0.f);
                    for (i64 j = 0; j < words; j++) blend(to, values + j * step, weight[j], v);
                }
            }
        }
    }

    // The keys and values that the decoder attends to, of sentences of these lengths, their words one after the other.
    std::shared_ptr<Memory> encode(const i64 *words, const std::vector<i64> &lengths) {
        i64 rows = 0;
        for (i64 length : lengths) rows += length;
        float *x = scratch.states.get<float>(rows * stride);
        memset(x, 0, rows * stride * 4);
        i64 row = 0;
        for (i64 length : lengths)
            for (i64 t = 0; t < length; t++, row++) embed(model.source, sources, words[row], t, x + row * stride);
        const i64 step = up(s.q() + s.kv());
        for (const EncoderLayer &layer : model.encoder) {
            ready(x, rows, s.width, stride, s.pre ? &layer.own.norm : nullptr);
            float *qkv = scratch.wide.get<float>(rows * step);
            float *heads = scratch.heads.get<float>(rows * s.heads * s.value);
            product(layer.own.in, scratch.rows, rows, qkv, step);
            i64 first = 0;
            for (i64 length : lengths) {
                own_attention(qkv + first * step, step, length, heads + first * s.heads * s.value);
                first += length;
            }
            attended(layer.own, heads, x, rows);
            feed_forward(layer.feed_forward, x, rows);
        }
        ready(x, rows, s.width, stride, s.final_norm ? &model.encoder_norm : nullptr);
        auto memory = std::make_shared<Memory>();
        memory->words = rows;
        s.kind == FLOAT32 ? remember<float>(*memory, rows) : remember<uint16_t>(*memory, rows);
        return memory;
    }

    // Keys and values of `scratch.rows` for every layer of the decoder.
    template <class T>
    void remember(Memory &memory, i64 rows) {
        const i64 kv = s.kv(), step = up(kv);
        T *to = memory.block.get<T>(s.decoder_layers * rows * kv);
        float *wide = scratch.wide.get<float>(rows * step);
        for (const DecoderLayer &layer : model.decoder) {
            product(layer.cross.memory, scratch.rows, rows, wide, step);
            for (i64 r = 0; r < rows; r++, to += kv) lay(wide + r * step, kv, to);
        }
    }

    // Self-attention of each row, which first writes what it brings; [q k v] side by side.
    template <class T>
    void look_back(const std::vector<Row> &given, i64 layer, const float *qkv, i64 step, float *heads) {
        const i64 kv = s.kv();
        for (size_t r = 0; r < given.size(); r++, qkv += step, heads += s.heads * s.value) {
            Cache &c = *given[r].cache;
            const i64 me = given[r].hypothesis;
            T *cached = (T *)c.layers[layer].data();
            lay(qkv + s.q(), kv, cached + (c.time * c.width + me) * kv);
            uint8_t *mine = &c.ancestors[me * c.room];
            mine[c.time] = (uint8_t)me;
            attend(qkv, c.time + 1, [&](i64 t) { return (const T *)cached + (t * c.width + mine[t]) * kv; }, heads);
        }
    }

    // Attention of each row to its sentence's source.
    template <class T>
    void look_across(const std::vector<Row> &given, i64 layer, const float *query, i64 step, float *heads) {
        const i64 kv = s.kv();
        for (size_t r = 0; r < given.size(); r++, query += step, heads += s.heads * s.value) {
            const Cache &c = *given[r].cache;
            const T *from = (const T *)c.memory->block.at + (layer * c.memory->words + c.first) * kv;
            attend(query, c.source, [&](i64 j) { return from + j * kv; }, heads);
        }
    }

    // One symbol more for each row: leaves the states before the output projection in `scratch.rows`.
    void step(const std::vector<Row> &given) {
        const i64 rows = (i64)given.size(), kv = s.kv(), wide = up(s.q() + kv), narrow = up(s.q());
        float *x = scratch.states.get<float>(rows * stride);
        memset(x, 0, rows * stride * 4);
        for (i64 r = 0; r < rows; r++)
            embed(model.target, targets, given[r].token, given[r].cache->time, x + r * stride);
        float *heads = scratch.heads.get<float>(rows * s.heads * s.value);
        for (i64 l = 0; l < s.decoder_layers; l++) {
            const DecoderLayer &layer = model.decoder[l];
            ready(x, rows, s.width, stride, s.pre ? &layer.own.norm : nullptr);
            float *qkv = scratch.wide.get<float>(rows * wide);
            product(layer.own.in, scratch.rows, rows, qkv, wide);
            s.kind == FLOAT32 ? look_back<float>(given, l, qkv, wide, heads)
                              : look_back<uint16_t>(given, l, qkv, wide, heads);
            attended(layer.own, heads, x, rows);
            ready(x, rows, s.width, stride, s.pre ? &layer.cross.norm : nullptr);
            float *q = scratch.wide.get<float>(rows * narrow);
            product(layer.cross.in, scratch.rows, rows, q, narrow);
            s.kind == FLOAT32 ? look_across<float>(given, l, q, narrow, heads)
                              : look_across<uint16_t>(given, l, q, narrow, heads);
            attended(layer.cross, heads, x, rows);
            feed_forward(layer.feed_forward, x, rows);
        }
        for (i64 r = 0; r < rows; r++) {
            if (s.final_norm) model.decoder_norm.apply(x + r * stride, x + r * stride, s.width);
            if (model.output_scale != 1.f)
                for (i64 f = 0; f < s.width; f++) x[r * stride + f] *= model.output_scale;
        }
        ready(x, rows, s.width, stride, nullptr);
    }
};

}  // namespace network
