// The Transformer (models/transformer.py) for inference: its layers, from the products of products.h and the attention
// of attention.h.
//
// The encoder runs on the words of several sentences, one after the other without padding, and one step of the decoder
// on hypotheses at different positions.
//
// Rows of states are `stride` floats apart, rows of other products a multiple of PANEL; the padding has no meaning.

#pragma once

#include "attention.h"
#include "helper.h"

namespace network {

struct Runner : Attending {
    const Positions &sources, &targets;
    i64 stride;
    Helper *helper = nullptr;

    Runner(const Model &model, const Positions &sources, const Positions &targets)
        : Attending(model), sources(sources), targets(targets), stride(round_up(model.sizes.width)) {}

    // Rows that a product by the output projection takes at a time.
    i64 rows_together() const { return s.kind != FLOAT32 && tiles::used() ? 2 * DEEP : 4 * ROWS; }

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

    // Steps the decoder by one symbol per row, those of a hypothesis in their order; leaves the states [rows, width]
    // before the output projection in scratch.rows.
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
