// A Transformer (models/transformer.py) as the search holds it: sizes, weights, what the decoder remembers of each
// hypothesis, and the buffers of a thread.
//
// Keys and values stay where a hypothesis wrote them. A table with one byte per position says which hypothesis wrote
// each ancestor, so that reordering a beam moves bytes instead of keys. Keys and values of the source are stored once
// per sentence. Unless products are float32, keys and values of the decoder are stored in bfloat16: reading them is the
// bottleneck.

#pragma once

#include <algorithm>
#include <memory>
#include "functions.h"
#include "products.h"

namespace network {

using namespace gemm;

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

}  // namespace network
