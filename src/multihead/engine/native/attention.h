// Attention of the search: of a query of the decoder to keys that lie anywhere, and of the words of a sentence to each
// other in the encoder.
//
// Positions may add biases or vectors of distances. Projections before and after it are network.h's.

#pragma once

#include "model.h"

namespace network {

struct Attending {
    const Model &model;
    const Sizes &s;
    Scratch scratch;

    explicit Attending(const Model &model) : model(model), s(model.sizes) {}

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
};

}  // namespace network
