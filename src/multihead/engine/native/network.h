// The Transformer (models/transformer.py) for inference.
//
// The encoder runs on the words of several sentences, one after the other without padding, and one step of the decoder
// on hypotheses at different positions.
//
// Keys and values stay where a hypothesis wrote them. A table with one byte per position says which hypothesis wrote
// each ancestor, so that reordering a beam moves bytes instead of keys. Keys and values of the source are stored once
// per sentence. Unless products are float32, keys and values of the decoder are stored in bfloat16: reading them is the
// bottleneck.
//
// Rows of states are `stride` floats apart, rows of other products a multiple of PANEL; the padding has no meaning.

#pragma once

#include <algorithm>
#include <memory>
#include "helper.h"
#include "products.h"

namespace network {

using namespace gemm;

// e^x for x <= 0, as 2^n p(f) with x = (n + f) ln 2, |f| <= 1/2. The polynomial p is within 1e-7 of 2^f. x < -87 gives
// e^-87.
template <class V, class I>
static inline V exp_of(V x) {
    const float round = 12582912.f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
    x = x < -87.f ? V{} - 87.f : x;
    const V shifted = fused(x, V{} + 1.44269504f, V{} + round);
    const V f = fused(x, V{} + 1.44269504f, -(shifted - round));
    V p = fused(f, V{} + 1.32764716e-3f, V{} + 9.67554155e-3f);
    p = fused(p, f, V{} + 5.55071328e-2f), p = fused(p, f, V{} + 2.40221197e-1f);
    p = fused(p, f, V{} + 6.93146967e-1f), p = fused(p, f, V{} + 1.00000007f);
    return (V)((I)p + ((I)shifted << 23));
}
#ifdef __wasm__
static inline vf exp_nonpositive(vf x) { return by_pairs(exp_of<vf2, vi2>, x); }
static inline float exponential(float x) { return (float)std::exp((double)x); }
static inline float logarithm(float x) { return (float)std::log((double)x); }
#else
static inline vf exp_nonpositive(vf x) { return exp_of<vf, vi>(x); }
static inline float exponential(float x) { return std::exp(x); }
static inline float logarithm(float x) { return std::log(x); }
#endif

// 1 / (1 + e^-x), from e^-|x|, which cannot overflow.
static inline vf sigmoid(vf x) {
    const vf e = exp_nonpositive(x > 0.f ? -x : x);
    return (x > 0.f ? vf{} + 1.f : e) / (1.f + e);
}

#ifndef __wasm__
// Lane i of the result is the sum of the lanes of x[i]; overwrites x. Each level halves the number of vectors.
template <int W = LANES / 2>
static inline vf lane_sums(vf *x) {
    vi same, other;
    for (int i = 0; i < LANES; i++) same[i] = i & W ? LANES + i : i, other[i] = i & W ? LANES + (i ^ W) : i ^ W;
#pragma GCC unroll 16
    for (int i = 0; i < W; i++)
        x[i] = __builtin_shuffle(x[i], x[i + W], same) + __builtin_shuffle(x[i], x[i + W], other);
    if constexpr (W > 1) return lane_sums<W / 2>(x);
    else return x[0];
}
#endif

// Overwrites all but the first `count` of LANES scores by -1e30. Single stores before a load of the vector would delay it.
static inline void keep_lanes(float *x, i64 count) {
    vi lane;
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) lane[i] = i;
    *(vf *)x = lane < (int32_t)count ? *(const vf *)x : vf{} - 1e30f;
}

// GELU by its tanh formula, x / 2 (1 + tanh u) = x sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3), in place.
static inline void gelu_by_tanh(float *x, i64 count) {
    for (i64 i = 0; i < count; i += LANES) {
        vf &one = *(vf *)(x + i);
        one *= sigmoid(one * fused(one * one, vf{} + 0.0713548163f, vf{} + 1.5957691216f));
    }
}

enum Activation {
    RECTIFIER = 0, GELU = 1, SWISH = 2, TANH_GELU = 3,
    GATED_RECTIFIER = 4, GATED_GELU = 5, GATED_SWISH = 6, GATED_TANH_GELU = 7
};

struct Sizes {
    i64 kind, width, heads, kv_heads, key, value, inner, encoder_layers, decoder_layers, source_vocab, target_vocab,
        activation, pre, final_norm, embedding_norm, rms,
        reach,   // distance from which on relative biases are the same; 0: there are none
        unread,  // ids at the end of a source that the encoder does not read if there are others: 0 or 1
        rotary,  // whether positions rotate queries and keys of self-attention, rather than being added to embeddings
        linear,     // whether scores of self-attention fall linearly with the distance (ALiBi)
        head_norm,  // of the queries and keys of every head: 0 none, 1 layer norm, 2 RMS norm
        window,     // how far the encoder sees to either side; 0: everything
        parallel,   // whether all parts of a layer read its normed input, with pre-norm (models/parallel_blocks.py)
        apart;      // distance up to which relative positions have vectors (attention/relative.py); 0: there are none
    i64 q() const { return heads * key; }
    i64 k() const { return kv_heads * key; }
    i64 v() const { return kv_heads * value; }
    i64 kv() const { return k() + v(); }
};

struct Norm {  // layer norm, or RMS norm: without mean, and with a shift of zeros
    std::vector<float> gain, shift;
    float eps = 0.f;
    bool rms = false;

    void apply(const float *x, float *y, i64 width) const {
        const auto add = [](auto one, auto sum) { return sum + one; };
        const float mean = rms ? 0.f : sum_of(x, width, add) / (float)width;
        const float square = sum_of(x, width, [&](auto one, auto sum) { return fused(one - mean, one - mean, sum); });
        const float scale = 1.f / std::sqrt(square / (float)width + eps), *g = gain.data(), *s = shift.data();
#pragma omp simd
        for (i64 f = 0; f < width; f++) y[f] = fused((x[f] - mean) * scale, g[f], s[f]);
    }
};

struct FeedForward {
    Norm norm;
    Weights expand, gate, contract;
};

struct Attention {
    Norm norm;
    Weights in, memory, out;  // self: in = q, k, v; cross: in = q, memory = k, v of the source
    Norm query_norm, key_norm;
    // Vectors of distances, added to keys and values, from the key `apart` before the query on: [distance][key] and
    // [distance][value]; of the encoder to the key `apart` after it, of the decoder to the query itself.
    std::vector<float> key_places, value_places;
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
    const float *table;  // [vocabulary][width], the caller's
    Norm norm;
};

// The caller's; positions beyond the last share its row. Vectors [count][width], or of rotary positions the sines, then
// the cosines, of the angles of a head [count][key].
struct Positions {
    const float *table = nullptr;
    i64 count = 0;

    const float *at(i64 position, i64 width) const { return table + (position < count ? position : count - 1) * width; }
};

struct Model {
    Sizes sizes;
    Pages pages;
    float scale, output_scale;
    Embedding source, target;
    std::vector<EncoderLayer> encoder;
    std::vector<DecoderLayer> decoder;
    Norm encoder_norm, decoder_norm;
    Weights output;
    // Relative biases of self-attention: [head][reach + key - query], [reach + key - query][head]; further keys have
    // those of the distance `reach`.
    std::vector<float> encoder_biases, decoder_biases;
    std::vector<float> slopes;  // of each head, by which scores fall per position
};

// Keys and values of the sources of some sentences in every layer: [layer][word][kv].
struct Memory {
    Block block;
    i64 words = 0;
};

// The state of the decoder for the hypotheses of a sentence.
struct Cache {
    std::shared_ptr<Memory> memory;
    i64 first = 0, source = 0;              // first word in the memory, number of words
    i64 width = 0, time = 0, room = 0;      // hypotheses, positions written, positions allocated
    std::vector<std::vector<char>> layers;  // [time][hypothesis][kv]
    std::vector<uint8_t> ancestors;         // [hypothesis][room]: which hypothesis wrote the entry of each position
    std::vector<uint8_t> spare;

    void grow(i64 positions, i64 bytes) {  // makes room for some more positions; bytes: of one entry [kv]
        if (time + positions <= room) return;
        const i64 more = std::max(room ? 2 * room : 16, time + positions);
        for (auto &layer : layers) layer.resize(more * width * bytes);
        spare.assign(width * more, 0);
        for (i64 k = 0; k < width && room; k++) memcpy(&spare[k * more], &ancestors[k * room], time);
        ancestors.swap(spare);
        room = more;
    }
    // Hypothesis k becomes a continuation of parents[k]: only the ancestors move.
    void follow(const i64 *parents) {
        spare.resize(ancestors.size());
        for (i64 k = 0; k < width; k++) memcpy(&spare[k * room], &ancestors[parents[k] * room], time);
        ancestors.swap(spare);
    }
};

struct Row {
    Cache *cache;
    i64 hypothesis, token;
    i64 ahead = 0;  // positions after the last one that is written; rows of a hypothesis follow one another

    i64 position() const { return cache->time + ahead; }
};

// Buffers of a thread.
struct Scratch {
    Block states, given, hidden, wide, gates, heads, scores, turned, places;
    Rows rows;
};

struct Runner {
    const Model &model;
    const Sizes &s;
    const Positions &sources, &targets;
    Scratch scratch;
    i64 stride;
    Helper *helper = nullptr;

    Runner(const Model &model, const Positions &sources, const Positions &targets)
        : model(model), s(model.sizes), sources(sources), targets(targets), stride(round_up(model.sizes.width)) {}

    // scratch.rows by weights. y: [rows][step].
    void multiply(const Weights &w, i64 rows, float *y, i64 step, int mode = SET) const {
#ifdef _OPENMP
        const i64 bytes = w.depth * PANEL * 4;  // of a panel
        if (helper && bytes * w.panels * rows >= shared()) {
            const i64 some = std::max<i64>({1, shared() / 8 / (bytes * rows), w.panels / Helper::MOST_PARTS + 1});
            return helper->share((w.panels + some - 1) / some, [&](i64 part) {
                const i64 first = part * some, last = std::min(first + some, w.panels);
                product(w, scratch.rows, 0, rows, first, last, y + first * PANEL, step, mode);
            });
        }
#endif
        product(w, scratch.rows, rows, y, step, mode);
    }

    // Loads x [rows, width], rows `step` apart, into scratch.rows for a product; normalizes them if a norm is given.
    void load_rows(const float *x, i64 rows, i64 width, i64 step, const Norm *norm) {
        scratch.rows.reserve((int)s.kind, rows, width);
        float *h = norm ? scratch.hidden.get<float>(stride) : nullptr;
        for (i64 r = 0; r < rows; r++) {
            const float *from = x + r * step;
            if (norm) norm->apply(from, h, width), from = h;
            scratch.rows.fill((int)s.kind, r, from, width);
        }
    }

    void post_norm(float *x, i64 rows, const Norm &norm) const {  // post-norm, after a residual sum
        if (s.pre) return;
        for (i64 r = 0; r < rows; r++) norm.apply(x + r * stride, x + r * stride, s.width);
    }

    // What the parts of a layer read: x itself, or a copy of x if all of them read what the layer is given.
    const float *entered(const float *x, i64 rows) {
        if (!s.parallel) return x;
        float *copy = scratch.given.get<float>(rows * stride);
        memcpy(copy, x, rows * stride * 4);
        return copy;
    }

    void feed_forward(const FeedForward &f, const float *from, float *x, i64 rows) {
        load_rows(from, rows, s.width, stride, s.pre ? &f.norm : nullptr);
        const i64 step = round_up(s.inner);
        float *h = scratch.wide.get<float>(rows * step);
        if (s.activation < GATED_RECTIFIER) {
            multiply(f.expand, rows, h, step, s.activation == RECTIFIER ? RELU : SET);
            if (s.activation == GELU)
                for (i64 i = 0; i < rows * step; i++) h[i] = 0.5f * h[i] * (1.f + std::erf(h[i] * 0.70710678f));
            if (s.activation == SWISH)
                for (i64 i = 0; i < rows * step; i += LANES) *(vf *)(h + i) *= sigmoid(*(const vf *)(h + i));
            if (s.activation == TANH_GELU) gelu_by_tanh(h, rows * step);
        } else {
            float *g = scratch.gates.get<float>(rows * step);
            multiply(f.expand, rows, h, step);
            multiply(f.gate, rows, g, step, s.activation == GATED_RECTIFIER ? RELU : SET);
            if (s.activation == GATED_TANH_GELU) gelu_by_tanh(g, rows * step);
            if (s.activation == GATED_GELU)
                for (i64 i = 0; i < rows * step; i++) g[i] *= 0.5f * (1.f + std::erf(g[i] * 0.70710678f));
            if (s.activation == GATED_SWISH)
                for (i64 i = 0; i < rows * step; i += LANES) *(vf *)(g + i) *= sigmoid(*(const vf *)(g + i));
            for (i64 i = 0; i < rows * step; i++) h[i] *= g[i];
        }
        load_rows(h, rows, s.inner, step, nullptr);
        multiply(f.contract, rows, x, stride, ADD);
        post_norm(x, rows, f.norm);
    }

    void project_heads(const Attention &a, const float *heads, float *x, i64 rows) {  // x += W^O heads, norm
        load_rows(heads, rows, s.heads * s.value, s.heads * s.value, nullptr);
        multiply(a.out, rows, x, stride, ADD);
        post_norm(x, rows, a.norm);
    }

    void embed(const Embedding &e, const Positions &p, i64 token, i64 position, float *x) const {
        const float *word = e.table + token * s.width;
        if (s.rotary) {
            for (i64 f = 0; f < s.width; f++) x[f] = word[f] * model.scale;
        } else {
            const float *place = p.at(position, s.width);
#pragma omp simd
            for (i64 f = 0; f < s.width; f++) x[f] = fused(word[f], model.scale, place[f]);
        }
        if (s.embedding_norm) e.norm.apply(x, x, s.width);
    }

    // Normalizes heads [heads][key], if there is such a norm.
    void norm_heads(float *x, i64 heads, const Norm &norm) const {
        for (i64 h = 0; s.head_norm && h < heads; h++, x += s.key) norm.apply(x, x, s.key);
    }

    // The same of a query [heads][key] and the key [kv_heads][key] after it.
    void norm_heads(float *qk, const Attention &a) const {
        norm_heads(qk, s.heads, a.query_norm), norm_heads(qk + s.q(), s.kv_heads, a.key_norm);
    }

    // Rotates a query [heads][key] and the key [kv_heads][key] after it to a position (kernels/pointwise.py).
    void rotate(float *qk, const Positions &p, i64 position) const {
        const i64 half = s.key / 2;
        const float *sine = p.at(position, s.key), *cosine = sine + half;
        for (i64 h = 0; h < s.heads + s.kv_heads; h++, qk += s.key)
            for (i64 i = 0; i < half; i++) {
                const float a = qk[i], b = qk[half + i];
                qk[i] = a * cosine[i] - b * sine[i], qk[half + i] = a * sine[i] + b * cosine[i];
            }
    }

    // Calls f with the number of vectors as a constant, if there is code of its own for it; returns whether there is.
    template <class F>
    static bool with_vectors(i64 count, const F &f) {
        const auto call = [&](auto constant) { return f(constant), true; };
        if (count == 1) return call(std::integral_constant<int, 1>());
        if (count == 2) return call(std::integral_constant<int, 2>());
        if (count == 3) return call(std::integral_constant<int, 3>());
        if (count == 4) return call(std::integral_constant<int, 4>());
        if constexpr (LANES == 8) {  // heads of 48 and of 64 numbers
            if (count == 6) return call(std::integral_constant<int, 6>());
            if (count == 8) return call(std::integral_constant<int, 8>());
        }
        return false;
    }

    // How many rows of sums of D vectors stay in registers: 4, 2 or 1.
    static constexpr int sums_together(int D) { return 4 * D <= SUMS ? 4 : 2 * D <= SUMS ? 2 : 1; }

    // Attention of one query [heads][key] to some keys; `at(j)` points to entry j: its keys [kv_heads][key], then its
    // values [kv_heads][value]. out: [heads][value]. Common widths use vectors, all others plain loops. biases: those of
    // the decoder, or the slopes, if the query is at the last key; else null. own: the same for vectors of distances.
    template <class At>
    void attend(const float *query, i64 keys, At at, float *out, const float *biases = nullptr,
                const Attention *own = nullptr) {
        const auto attend_with = [&](auto count) {
            constexpr int D = decltype(count)::value;
            if (LANES % s.heads == 0) attend_together<D>(query, keys, at, out, biases, own);
            else attend_by_head<D>(query, keys, at, out, biases, own);
        };
        if (s.key == s.value && s.key % LANES == 0 && with_vectors(s.key / LANES, attend_with)) return;
        attend_by_head<0>(query, keys, at, out, biases, own);
    }

    static float dot(const float *x, const float *y, i64 count) {
        float sum = 0.f;
#pragma omp simd reduction(+ : sum)
        for (i64 i = 0; i < count; i++) sum += x[i] * y[i];
        return sum;
    }

    // Adds the query's products with the vectors of the keys' distances, for the query at the last key; scores as in
    // `add_biases`.
    __attribute__((noinline)) void add_places(float *scores, i64 keys, i64 key, i64 head, const float *query,
                                              const Attention &own) const {
        const float scale = 1.f / std::sqrt((float)s.key);
        for (i64 h = 0; h < s.heads; h++)
            for (i64 back = 0; back <= std::min(s.apart, keys - 1); back++) {
                const float *place = &own.key_places[(s.apart - back) * s.key];
                const float score = dot(query + h * s.key, place, s.key) * scale;
                const i64 last = keys - 1 - back;
                for (i64 j = back == s.apart ? 0 : last; j <= last; j++) scores[j * key + h * head] += score;
            }
    }

    // Adds the vectors of the values' distances, weighted; weights are where the scores were.
    __attribute__((noinline)) void sum_places(const float *weights, i64 keys, i64 key, i64 head, float *out,
                                              const Attention &own) const {
        for (i64 h = 0; h < s.heads; h++)
            for (i64 back = 0; back <= std::min(s.apart, keys - 1); back++) {
                const i64 last = keys - 1 - back;
                float share = 0.f;
                for (i64 j = back == s.apart ? 0 : last; j <= last; j++) share += weights[j * key + h * head];
                add_weighted(out + h * s.value, &own.value_places[(s.apart - back) * s.value], share, s.value);
            }
    }

    // Adds the biases of all keys for the query at the last one; the score of key j and head h is at j * key + h * head.
    void add_biases(float *scores, i64 keys, i64 key, i64 head, const float *biases) const {
        for (i64 j = 0; s.linear && j < keys; j++)
            for (i64 h = 0; h < s.heads; h++) scores[j * key + h * head] -= biases[h] * (float)(keys - 1 - j);
        for (i64 j = 0; s.reach && j < keys; j++) {
            const float *row = biases + (s.reach - std::min(s.reach, keys - 1 - j)) * s.heads;
            for (i64 h = 0; h < s.heads; h++) scores[j * key + h * head] += row[h];
        }
    }

    // Lanes of the product of a query and a key of D vectors.
    template <int D, class T>
    static inline vf product_lanes(const float *query, const T *key) {
        vf sum = {};
#pragma GCC unroll 8
        for (int i = 0; i < D; i++) sum = fused(*(const vf *)(query + i * LANES), load_lanes(key + i * LANES), sum);
        return sum;
    }

    // Head width D * LANES. Scores are [key][head], so that a vector holds those of all heads for `together` keys.
    // The padding keys repeat the last one; their scores are overwritten by -1e30, so that their weights are negligible.
    template <int D, class At>
    void attend_together(const float *query, i64 keys, At at, float *out, const float *biases, const Attention *own) {
        const i64 heads = s.heads, group = heads / s.kv_heads, offset = s.k(), together = LANES / heads;
        const i64 padded = round_up(keys, together);
        const float scale = 1.f / std::sqrt((float)s.key);
        float *scores = scratch.scores.get<float>(padded * heads);
        for (i64 j = 0; j < padded; j += together) {
            vf parts[LANES];
            for (i64 one = 0; one < together; one++) {
                const auto *key = at(std::min(j + one, keys - 1));
                for (i64 h = 0; h < heads; h++)
                    parts[one * heads + h] = product_lanes<D>(query + h * D * LANES, key + h / group * D * LANES);
            }
            *(vf *)(scores + j * heads) = lane_sums(parts) * scale;
        }
        if (biases) add_biases(scores, keys, heads, 1, biases);
        if (own) add_places(scores, keys, heads, 1, query, *own);
        keep_lanes(scores + padded * heads - LANES, (keys - padded) * heads + LANES);
        const vf most = join_lanes(largest(scores, padded * heads), heads, larger<vf>);
        vf sum = {};
        for (i64 i = 0; i < padded * heads; i += LANES) {
            vf &x = *(vf *)(scores + i);
            x = exp_nonpositive(x - most);
            sum += x;
        }
        sum = join_lanes(sum, heads, added);
        const vf share = 1.f / sum;
        for (i64 i = 0; i < padded * heads; i += LANES) *(vf *)(scores + i) *= share;
        constexpr int H = sums_together(D);
        for (i64 h = 0; h < heads;) {
            const i64 place = offset + h / group * D * LANES;
            float *to = out + h * D * LANES;
            if (h + H <= heads && group == 1) weigh_values<D, H>(scores + h, heads, keys, at, place, to), h += H;
            else weigh_values<D, 1>(scores + h, heads, keys, at, place, to), h += 1;
        }
        if (own) sum_places(scores, keys, heads, 1, out, *own);
    }

    // Weighted sums of the values of H heads, in registers. weights: of key j from j * apart on. place: of the first
    // head's values in an entry. out: [H][value].
    template <int D, int H, class At>
    static void weigh_values(const float *weights, i64 apart, i64 keys, At at, i64 place, float *out) {
        vf sum[H * D] = {};
        for (i64 j = 0; j < keys; j++, weights += apart) {
            const auto *value = at(j) + place;
#pragma GCC unroll 16
            for (int i = 0; i < H * D; i++) sum[i] = fused(weights[i / D], load_lanes(value + i * LANES), sum[i]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < H * D; i++) *(vf *)(out + i * LANES) = sum[i];
    }

    // Each head by itself: in D vectors, or in plain loops for any widths if D is 0. scores: [head][room].
    template <int D, class At>
    void attend_by_head(const float *query, i64 keys, At at, float *out, const float *biases, const Attention *own) {
        const i64 group = s.heads / s.kv_heads, d = s.key, v = s.value, offset = s.k();
        const float scale = 1.f / std::sqrt((float)d);
        const i64 room = round_up(keys, LANES);
        float *scores = scratch.scores.get<float>(s.heads * room);
        if constexpr (D)
            for (i64 j = 0; j < keys; j += LANES)
                for (i64 h = 0; h < s.heads; h++) {
                    vf parts[LANES] = {};
                    for (i64 one = 0; one < std::min<i64>(LANES, keys - j); one++)
                        parts[one] = product_lanes<D>(query + h * d, at(j + one) + h / group * d);
                    *(vf *)(scores + h * room + j) = lane_sums(parts) * scale;
                }
        else
            for (i64 j = 0; j < keys; j++) {
                const auto *key = at(j);
                for (i64 h = 0; h < s.heads; h++) {
                    float sum = 0.f;
                    for (i64 i = 0; i < d; i++) sum += query[h * d + i] * to_float(key[h / group * d + i]);
                    scores[h * room + j] = sum * scale;
                }
            }
        if (biases) add_biases(scores, keys, 1, room, biases);
        if (own) add_places(scores, keys, 1, room, query, *own);
        for (i64 h = 0; h < s.heads; h++) softmax<1>(scores + h * room, room, keys);
        if constexpr (D)
            for (i64 h = 0; h < s.heads; h++)
                weigh_values<D, 1>(scores + h * room, 1, keys, at, offset + h / group * v, out + h * v);
        else {
            std::fill(out, out + s.heads * v, 0.f);
            for (i64 j = 0; j < keys; j++) {
                const auto *value = at(j) + offset;
                for (i64 h = 0; h < s.heads; h++)
                    add_weighted(out + h * v, value + h / group * v, scores[h * room + j], v);
            }
        }
        if (own) sum_places(scores, keys, 1, room, out, *own);
    }

    template <class T>
    static inline void add_weighted(float *to, const T *from, float weight, i64 d) {
#pragma omp simd
        for (i64 i = 0; i < d; i++) to[i] = fused(weight, to_float(from[i]), to[i]);
    }

    // In place over the first `count` numbers of R rows, `wide` apart; rows are padded to whole vectors.
    template <int R>
    static inline void softmax(float *x, i64 wide, i64 count) {
        const i64 padded = round_up(count, LANES);
        vf most[R], sum[R] = {};
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            keep_lanes(x + r * wide + padded - LANES, count - padded + LANES);
            most[r] = *(const vf *)(x + r * wide);
        }
        for (i64 j = LANES; j < padded; j += LANES)
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) most[r] = larger(most[r], *(const vf *)(x + r * wide + j));
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) most[r] = join_lanes(most[r], 1, larger<vf>);
        for (i64 j = 0; j < padded; j += LANES)
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                vf &one = *(vf *)(x + r * wide + j);
                one = exp_nonpositive(one - most[r]);
                sum[r] += one;
            }
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) sum[r] = 1.f / join_lanes(sum[r], 1, added);
        for (i64 j = 0; j < padded; j += LANES)
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) *(vf *)(x + r * wide + j) *= sum[r];
    }

    static constexpr i64 QUERIES = 4;  // of the encoder, that share the loading of keys and values

    // Weighted sums of the values begin ... end - 1, `step` apart, of at most QUERIES rows of weights, `wide` apart.
    // out: rows [value], heads * value apart.
    void weigh_rows(const float *weights, i64 wide, i64 rows, i64 begin, i64 end, const float *values, i64 step,
                    float *out) const {
        const auto weigh = [&](auto count) {
            constexpr int D = decltype(count)::value, R = sums_together(D);
            const i64 apart = s.heads * s.value;
            for (i64 r = 0; r < rows;) {
                const float *from = weights + r * wide;
                float *to = out + r * apart;
                if (r + R <= rows) weigh_vectors<D, R>(from, wide, begin, end, values, step, to), r += R;
                else if (R > 2 && r + 2 <= rows) weigh_vectors<D, 2>(from, wide, begin, end, values, step, to), r += 2;
                else weigh_vectors<D, 1>(from, wide, begin, end, values, step, to), r += 1;
            }
        };
        if (s.value % LANES == 0 && with_vectors(s.value / LANES, weigh)) return;
        for (i64 r = 0; r < rows; r++, weights += wide, out += s.heads * s.value) {
            std::fill(out, out + s.value, 0.f);
            for (i64 j = begin; j < end; j++) add_weighted(out, values + j * step, weights[j], s.value);
        }
    }

    // The same for R rows of values of D * LANES numbers, with the sums in registers.
    template <int D, int R>
    void weigh_vectors(const float *weights, i64 wide, i64 begin, i64 end, const float *values, i64 step,
                       float *out) const {
        vf sum[R][D] = {};
        for (i64 j = begin; j < end; j++) {
            const float *value = values + j * step;
#pragma GCC unroll 4
            for (int r = 0; r < R; r++)
#pragma GCC unroll 8
                for (int i = 0; i < D; i++)
                    sum[r][i] = fused(weights[r * wide + j], load_lanes(value + i * LANES), sum[r][i]);
        }
        for (int r = 0; r < R; r++)
            for (int i = 0; i < D; i++) *(vf *)(out + r * s.heads * s.value + i * LANES) = sum[r][i];
    }

    // Scores of at most QUERIES queries, `step` apart, for the keys low ... high - 1, transposed: `turned` has
    // [key][wide]. scores: QUERIES rows, `wide` apart.
    void score_rows(const float *queries, i64 step, i64 rows, const float *turned, i64 wide, i64 low, i64 high,
                    float *scores) const {
        const float scale = 1.f / std::sqrt((float)s.key), *of[QUERIES];
        for (i64 r = 0; r < QUERIES; r++) of[r] = queries + std::min(r, rows - 1) * step;
        for (i64 j = low; j < high; j += LANES) {
            vf sum[QUERIES] = {};
            for (i64 i = 0; i < s.key; i++) {
                const vf key = *(const vf *)(turned + i * wide + j);
#pragma GCC unroll 4
                for (int r = 0; r < QUERIES; r++) sum[r] = fused(of[r][i], key, sum[r]);
            }
            for (int r = 0; r < QUERIES; r++) *(vf *)(scores + r * wide + j) = sum[r] * scale;
        }
    }

    // Encoder self-attention of one sentence. qkv: [words], rows of q [heads][key], k [kv_heads][key], v
    // [kv_heads][value], `step` apart. out: [words][heads][value]. Keys are transposed to [key][word], and four
    // queries at a time share them.
    void encoder_attention(const float *qkv, i64 step, i64 words, float *out, const Attention &own) {
        const i64 d = s.key, v = s.value, group = s.heads / s.kv_heads, wide = round_up(words, LANES), q = s.q();
        const float scale = 1.f / std::sqrt((float)d);
        float *turned = scratch.turned.get<float>(d * wide), *scores = scratch.scores.get<float>(wide * QUERIES);
        const bool placed = s.reach || s.linear || s.apart || s.window;  // scores depend on positions
        float *places = s.apart ? scratch.places.get<float>(2 * s.apart + 1) + s.apart : nullptr;  // of each distance
        for (i64 h = 0; h < s.heads; h++) {
            const float *queries = qkv + h * d, *keys = qkv + q + h / group * d;
            const float *values = qkv + q + s.k() + h / group * v;
            if (h % group == 0) {
                memset(turned, 0, d * wide * 4);
                for (i64 j = 0; j < words; j++)
                    for (i64 i = 0; i < d; i++) turned[i * wide + j] = keys[j * step + i];
            }
            for (i64 first = 0; first < words; first += QUERIES) {
                const i64 some = std::min<i64>(QUERIES, words - first), sight = s.window ? s.window : words;
                const i64 low = std::max<i64>(0, first - sight) / LANES * LANES;  // of all keys that they see
                const i64 high = std::min(words, first + some + sight);
                const auto hide = [&](i64 r, float value) {  // what is outside the window of a query
                    float *weight = scores + r * wide;
                    std::fill(weight + low, weight + std::max(low, first + r - sight), value);
                    std::fill(weight + std::min(words, first + r + sight + 1), weight + high, value);
                };
                score_rows(queries + first * step, step, some, turned, wide, low, high, scores);
                for (i64 r = 0; placed && r < some; r++) {
                    float *weight = scores + r * wide;
                    const i64 me = first + r;
                    const i64 begin = std::max<i64>(0, me - sight), end = std::min(words, me + sight + 1);
                    if (s.reach) {
                        const float *biases = &model.encoder_biases[h * (2 * s.reach + 1) + s.reach];
                        for (i64 j = begin; j < end; j++) weight[j] += biases[std::clamp(j - me, -s.reach, s.reach)];
                    }
                    for (i64 j = begin; s.linear && j < end; j++)
                        weight[j] -= model.slopes[h] * (float)std::abs(j - me);
                    const i64 nearest = std::max(-s.apart, begin - me), farthest = std::min(s.apart, end - 1 - me);
                    for (i64 far = nearest; s.apart && far <= farthest; far++)
                        places[far] = dot(queries + me * step, &own.key_places[(s.apart + far) * d], d) * scale;
                    for (i64 j = begin; s.apart && j < end; j++)
                        weight[j] += places[std::clamp(j - me, -s.apart, s.apart)];
                    if (s.window) hide(r, -1e30f);
                }
                softmax<QUERIES>(scores + low, wide, high - low);
                for (i64 r = 0; s.window && r < some; r++) hide(r, 0.f);
                float *to = out + first * s.heads * v + h * v;
                weigh_rows(scores, wide, some, low, high, values, step, to);
                for (i64 r = 0; s.apart && r < some; r++, to += s.heads * v) {
                    const i64 me = first + r, nearest = std::max(-s.apart, low - me);
                    const i64 farthest = std::min(s.apart, high - 1 - me);
                    std::fill(places + nearest, places + farthest + 1, 0.f);
                    for (i64 j = low; j < high; j++)
                        places[std::clamp(j - me, -s.apart, s.apart)] += scores[r * wide + j];
                    for (i64 far = nearest; far <= farthest; far++)
                        add_weighted(to, &own.value_places[(s.apart + far) * v], places[far], v);
                }
            }
        }
    }

    // Runs the encoder on sentences of these lengths, their words one after the other; returns the keys and values
    // for the decoder's cross-attention.
    std::shared_ptr<Memory> encode(const i64 *words, const std::vector<i64> &lengths) {
        i64 rows = 0;
        for (i64 length : lengths) rows += length;
        float *x = scratch.states.get<float>(rows * stride);
        memset(x, 0, rows * stride * 4);
        i64 row = 0;
        for (i64 length : lengths)
            for (i64 t = 0; t < length; t++, row++) embed(model.source, sources, words[row], t, x + row * stride);
        const i64 step = round_up(s.q() + s.kv());
        for (const EncoderLayer &layer : model.encoder) {
            const float *from = entered(x, rows);
            load_rows(from, rows, s.width, stride, s.pre ? &layer.own.norm : nullptr);
            float *qkv = scratch.wide.get<float>(rows * step);
            float *heads = scratch.heads.get<float>(rows * s.heads * s.value);
            multiply(layer.own.in, rows, qkv, step);
            i64 first = 0;
            for (i64 length : lengths) {
                for (i64 t = 0; t < length; t++) norm_heads(qkv + (first + t) * step, layer.own);
                for (i64 t = 0; s.rotary && t < length; t++) rotate(qkv + (first + t) * step, sources, t);
                encoder_attention(qkv + first * step, step, length, heads + first * s.heads * s.value, layer.own);
                first += length;
            }
            project_heads(layer.own, heads, x, rows);
            feed_forward(layer.feed_forward, from, x, rows);
        }
        load_rows(x, rows, s.width, stride, s.final_norm ? &model.encoder_norm : nullptr);
        auto memory = std::make_shared<Memory>();
        memory->words = rows;
        s.kind == FLOAT32 ? store_memory<float>(*memory, rows) : store_memory<uint16_t>(*memory, rows);
        return memory;
    }

    // Keys and values of scratch.rows for the cross-attention of every decoder layer.
    template <class T>
    void store_memory(Memory &memory, i64 rows) {
        const i64 kv = s.kv(), step = round_up(kv);
        T *to = memory.block.get<T>(s.decoder_layers * rows * kv);
        float *wide = scratch.wide.get<float>(rows * step);
        for (const DecoderLayer &layer : model.decoder) {
            multiply(layer.cross.memory, rows, wide, step);
            for (i64 r = 0; r < rows; r++, to += kv) {
                norm_heads(wide + r * step, s.kv_heads, layer.cross.key_norm);
                store(wide + r * step, kv, to);
            }
        }
    }

    // Self-attention of each row to its ancestors and itself. qkv: [rows], q, k and v side by side; k and v are first
    // written to the cache. heads: [rows][heads][value].
    template <class T>
    void self_attention(const std::vector<Row> &given, i64 layer, const float *qkv, i64 step, float *heads) {
        const i64 kv = s.kv();
        const float *biases = s.linear ? model.slopes.data() : s.reach ? model.decoder_biases.data() : nullptr;
        for (size_t r = 0; r < given.size(); r++, qkv += step, heads += s.heads * s.value) {
            Cache &c = *given[r].cache;
            const i64 me = given[r].hypothesis, now = given[r].position();
            T *cached = (T *)c.layers[layer].data();
            store(qkv + s.q(), kv, cached + (now * c.width + me) * kv);
            uint8_t *mine = &c.ancestors[me * c.room];
            mine[now] = (uint8_t)me;
            const auto at = [&](i64 t) { return (const T *)cached + (t * c.width + mine[t]) * kv; };
            attend(qkv, now + 1, at, heads, biases, s.apart ? &model.decoder[layer].own : nullptr);
        }
    }

    // Attention of each row to the source of its sentence. query: [rows][heads][key], rows `step` apart.
    template <class T>
    void cross_attention(const std::vector<Row> &given, i64 layer, const float *query, i64 step, float *heads) {
        const i64 kv = s.kv();
        for (size_t r = 0; r < given.size(); r++, query += step, heads += s.heads * s.value) {
            const Cache &c = *given[r].cache;
            const T *from = (const T *)c.memory->block.at + (layer * c.memory->words + c.first) * kv;
            attend(query, c.source, [&](i64 j) { return from + j * kv; }, heads);
        }
    }

    // Steps the decoder by one symbol per row, those of a hypothesis in their order; leaves the states [rows, width] before the output projection in
    // scratch.rows.
    void step(const std::vector<Row> &given) {
        const i64 rows = (i64)given.size(), kv = s.kv(), wide = round_up(s.q() + kv), narrow = round_up(s.q());
        float *x = scratch.states.get<float>(rows * stride);
        memset(x, 0, rows * stride * 4);
        for (i64 r = 0; r < rows; r++)
            embed(model.target, targets, given[r].token, given[r].position(), x + r * stride);
        float *heads = scratch.heads.get<float>(rows * s.heads * s.value);
        for (i64 l = 0; l < s.decoder_layers; l++) {
            const DecoderLayer &layer = model.decoder[l];
            const float *from = entered(x, rows);
            load_rows(from, rows, s.width, stride, s.pre ? &layer.own.norm : nullptr);
            float *qkv = scratch.wide.get<float>(rows * wide);
            multiply(layer.own.in, rows, qkv, wide);
            for (i64 r = 0; r < rows; r++) norm_heads(qkv + r * wide, layer.own);
            for (i64 r = 0; s.rotary && r < rows; r++) rotate(qkv + r * wide, targets, given[r].position());
            s.kind == FLOAT32 ? self_attention<float>(given, l, qkv, wide, heads)
                              : self_attention<uint16_t>(given, l, qkv, wide, heads);
            project_heads(layer.own, heads, x, rows);
            load_rows(from, rows, s.width, stride, s.pre ? &layer.cross.norm : nullptr);
            float *q = scratch.wide.get<float>(rows * narrow);
            multiply(layer.cross.in, rows, q, narrow);
            for (i64 r = 0; r < rows; r++) norm_heads(q + r * narrow, s.heads, layer.cross.query_norm);
            s.kind == FLOAT32 ? cross_attention<float>(given, l, q, narrow, heads)
                              : cross_attention<uint16_t>(given, l, q, narrow, heads);
            project_heads(layer.cross, heads, x, rows);
            feed_forward(layer.feed_forward, from, x, rows);
        }
        for (i64 r = 0; r < rows; r++) {
            if (s.final_norm) model.decoder_norm.apply(x + r * stride, x + r * stride, s.width);
            if (model.output_scale != 1.f)
                for (i64 f = 0; f < s.width; f++) x[r * stride + f] *= model.output_scale;
        }
        load_rows(x, rows, s.width, stride, nullptr);
    }
};

}  // namespace network
