// Attention over long sequences, forward and backward: a part of kernels.cpp.
//
// Each query sees one stretch of keys, [low, high): causal, windows, documents and padding are such masks. Queries are
// computed in blocks of QUERIES, keys in blocks of KEYS, so that the scores of a block stay in the cache and the memory
// is linear in the length (Dao et al. 2022, "FlashAttention"). The softmax is computed on the fly (Milakov & Gimelshein
// 2018); the backward pass recomputes the weights from the logarithm of each row's sum.
//
// Products are sums of tiles (tiles.h). Tiles that no query of a group sees are left out.
//
// Scores are multiplied by log2(e), so that weights are powers of two. Sums are in the order of the keys (of the
// queries, for the gradients of keys and values), whatever thread computes them: results do not depend on their number.

#pragma once

#include "softmax.h"

namespace tiles::long_attention_kernel {

constexpr i64 QUERIES = 96, KEYS = 192;
constexpr i64 ROW = KEYS + 16;  // of scores; not a multiple of many cache lines, so that columns use all of the cache
static_assert(KEYS % PANEL == 0 && KEYS % GROUP == 0 && QUERIES % GROUP == 0);

// -------------------------------------------------------------------------------------------------------------- call

struct Job {
    i64 batch, heads, kv_heads, queries, keys, width;
    const int32_t *low, *high;  // [1 or batch, queries]
    i64 interval_rows;
    float scale;
    const float *slopes;  // ALiBi's, of each head; null = none
    int symmetric;        // ALiBi falls to both sides: -m |i - j| rather than m (j - i)
    i64 shared() const { return heads / kv_heads; }  // query heads of a key head
    const int32_t *lows(i64 b) const { return low + (interval_rows > 1 ? b * queries : 0); }
    const int32_t *highs(i64 b) const { return high + (interval_rows > 1 ? b * queries : 0); }
    // Adds ALiBi's bias to scores [from, to) of a query, of which s[0] is that of key `first`. The last query stands at
    // the last key.
    void add_distances(float *s, i64 from, i64 to, i64 first, i64 query, i64 head) const {
        if (!slopes) return;
        const float slope = slopes[head] * LOG2_E;
        const int32_t start = (int32_t)(first - query - (keys - queries));
#pragma omp simd
        for (int32_t j = (int32_t)from; j < (int32_t)to; j++) {
            const float distance = (float)(start + j);
            s[j] += slope * (symmetric && distance > 0.f ? -distance : distance);
        }
    }
};

// From the first to the last; empty if begin >= end.
struct Span {
    i64 begin, end;
    bool empty() const { return begin >= end; }
    Span within(i64 a, i64 b) const { return {std::max(begin, a), std::min(end, b)}; }
};

// The keys that any of the queries [begin, end) sees.
static Span hull(const int32_t *low, const int32_t *high, i64 begin, i64 end) {
    Span span{INT64_MAX, 0};
    for (i64 q = begin; q < end; q++)
        if (low[q] < high[q]) span = {std::min<i64>(span.begin, low[q]), std::max<i64>(span.end, high[q])};
    return span.empty() ? Span{0, 0} : span;
}

// What the groups of a block of queries see, in whole panels.
struct Block {
    i64 first, queries, groups;
    Span seen[QUERIES / GROUP], all;
    Block(const int32_t *low, const int32_t *high, i64 first, i64 end)
        : first(first), queries(std::min(QUERIES, end - first)), groups((queries + GROUP - 1) / GROUP),
          all{INT64_MAX, 0} {
        for (i64 g = 0; g < groups; g++) {
            const i64 from = first + g * GROUP;
            const Span keys = hull(low, high, from, std::min(from + GROUP, first + queries));
            seen[g] = {down(keys.begin, PANEL), up(keys.end, PANEL)};
            if (!keys.empty()) all = {std::min(all.begin, seen[g].begin), std::max(all.end, seen[g].end)};
        }
        if (all.empty()) all = {0, 0};
    }
};

// Runs tasks [0, count) on threads, which take one after the other.
template <class Make>
static void share_out(i64 count, i64 threads, const Make &make) {
    std::atomic<i64> next{0};
    Failures failures;
#pragma omp parallel num_threads((int)std::min(count, threads))
    try {
        auto run = make();
        for (i64 task = next++; task < count; task = next++) run(task);
    } catch (const std::exception &) {
        failures.any = true;
    }
    failures.end_of_region();
}

// ----------------------------------------------------------------------------------------------------------- forward

// The running softmax of a row.
template <class T>
struct Softmax {
    float largest = -INFINITY, sum = 0;

    // Scores [from, to) of a row, of which [begin, end) are seen, become weights, in words from the beginning of the row
    // on; o [width] is scaled to fit them.
    void add(float *s, i64 from, i64 to, i64 begin, i64 end, float *o, i64 width) {
        if (begin >= end) return set_zero<T>(s, from, to);
        for (i64 j = from; j < begin; j++) s[j] = -INFINITY;
        for (i64 j = end; j < to; j++) s[j] = -INFINITY;
        vec top[VECTORS], total[VECTORS];
        for (int n = 0; n < VECTORS; n++) top[n] = splat(-INFINITY), total[n] = vec{};
        for (i64 j = from; j < to; j += PANEL)
#pragma GCC unroll 4
            for (int n = 0; n < VECTORS; n++) {
                const vec x = *(const vec *)(s + j + n * FLOATS);
                top[n] = larger(x, top[n]);
            }
        for (int n = 1; n < VECTORS; n++) top[0] = larger(top[n], top[0]);
        const float now = std::max(largest, highest_of(top[0])[0]), base = now == -INFINITY ? 0.f : now;
        for (i64 j = from; j < to; j += PANEL) {
            vec x[VECTORS];
#pragma GCC unroll 4
            for (int n = 0; n < VECTORS; n++) {
                x[n] = power_of_two(*(const vec *)(s + j + n * FLOATS) - base);
                total[n] += x[n];
            }
            write_row<T>(s, j, x);
        }
        for (int n = 1; n < VECTORS; n++) total[0] += total[n];
        if (now != largest) {
            const float factor = largest == -INFINITY ? 0.f : power_of_two(splat(largest - base))[0];
            for (i64 d = 0; d < width; d += FLOATS) *(vec *)(o + d) *= factor;
            sum *= factor;
            largest = now;
        }
        sum += sum_of(total[0])[0];
        set_zero<T>(s, from, begin);
        set_zero<T>(s, end, to);
    }
};

template <class T>
struct Forward {
    const Job &job;
    const T *query, *key, *value;
    T *out;
    float *logs;  // [batch, heads, queries]: log2 of the sum of each row's exponentials
    View of_query, of_key, of_value, of_out;
    Room keys_room, values_room, room;
    typedef typename Words<T>::Word Word;

    // Queries [begin, end) of all heads of a key head.
    void run(i64 b, i64 kv_head, i64 begin, i64 end) {
        const i64 d = job.width, w = up(d, PANEL), depth = words_of<T>(d);
        const int32_t *low = job.lows(b), *high = job.highs(b);
        const Span seen = hull(low, high, begin, end);
        const i64 base = down(seen.begin, PANEL), count = up(seen.end, PANEL) - base;
        Word *k = (Word *)keys_room.get(count * depth), *v = (Word *)values_room.get(words_of<T>(count) * w);
        const Rows<T> keys{key + b * of_key.batch + kv_head * of_key.head, of_key.time, seen.begin, seen.end};
        const Rows<T> values{value + b * of_value.batch + kv_head * of_value.head, of_value.time, seen.begin, seen.end};
        for (i64 n = 0; n < count; n += PANEL) pack_transposed<PANEL>(keys, base + n, d, k + n * depth);
        const i64 v_step = words_of<T>(count) * PANEL;
        pack_panels(values, base, count, d, v, v_step);
        float *s = room.get(QUERIES * (depth + w + ROW) + 16), *o = s + QUERIES * ROW;
        Word *q = (Word *)(o + QUERIES * w);
        for (i64 h = kv_head * job.shared(); h < (kv_head + 1) * job.shared(); h++) {
            const Rows<T> rows{query + b * of_query.batch + h * of_query.head, of_query.time, 0, job.queries, low,
                               high};
            for (i64 first = begin; first < end; first += QUERIES) {
                const Block block(low, high, first, end);
                for (i64 g = 0; g < block.groups; g++)
                    pack_transposed<GROUP>(rows, first + g * GROUP, d, q + g * GROUP * depth);
                for (i64 n = 0; n < QUERIES * w; n++) o[n] = 0;
                Softmax<T> softmax[QUERIES];
                for (i64 at = down(block.all.begin, KEYS); at < block.all.end; at += KEYS)
                    one_block(block, at, h, q, k - base * depth, v - words_of<T>(base) * PANEL, v_step, s, o, softmax,
                              low, high);
                T *to = out + b * of_out.batch + h * of_out.head;
                float *log = logs + (b * job.heads + h) * job.queries;
                for (i64 i = 0; i < block.queries; i++) {
                    const float sum = softmax[i].sum;
                    const bool empty = low[first + i] >= high[first + i];
                    store_row(o + i * w, d, empty ? 0.f : 1.f / sum, to + (first + i) * of_out.time);
                    log[first + i] = empty ? 0.f : softmax[i].largest + std::log2(sum);
                }
            }
        }
    }

    // Adds what a block of queries gets from keys [at, at + KEYS).
    void one_block(const Block &block, i64 at, i64 h, const Word *q, const Word *k, const Word *v, i64 v_step,
                   float *s, float *o, Softmax<T> *softmax, const int32_t *low, const int32_t *high) {
        const i64 d = words_of<T>(job.width), w = up(job.width, PANEL);
        Span seen[QUERIES / GROUP];
        for (i64 g = 0; g < block.groups; g++) seen[g] = block.seen[g].within(at, at + KEYS);
        const Span all = block.all.within(at, at + KEYS);
        for (i64 n = all.begin; n < all.end; n += PANEL)
            for (i64 g = 0; g < block.groups; g++)
                if (n >= seen[g].begin && n < seen[g].end)
                    tile<1, GROUP, false>(q + g * GROUP * d, k + n * d, d, s + g * GROUP * ROW + n - at, ROW,
                                          job.scale * LOG2_E);
        for (i64 g = 0; g < block.groups; g++) {
            if (seen[g].empty()) continue;
            const i64 from = seen[g].begin - at, to = seen[g].end - at;
            for (i64 i = g * GROUP; i < (g + 1) * GROUP; i++) {
                const bool real = i < block.queries;
                const i64 begin = real ? std::max(from, low[block.first + i] - at) : to;
                const i64 end = real ? std::min(to, high[block.first + i] - at) : to;
                job.add_distances(s + i * ROW, begin, end, at, block.first + i, h);
                softmax[i].add(s + i * ROW, from, to, begin, end, o + i * w, w);
            }
        }
        for (i64 n = 0; n < w; n += PANEL)
            for (i64 g = 0; g < block.groups; g++)
                if (!seen[g].empty())
                    tile<ROW, 1, true>((const Word *)s + g * GROUP * ROW + words_of<T>(seen[g].begin - at),
                                       v + n / PANEL * v_step + words_of<T>(seen[g].begin) * PANEL,
                                       words_of<T>(seen[g].end - seen[g].begin), o + g * GROUP * w + n, w);
    }
};

template <class T>
static void forward(const Job &job, const i64 *s, const T *query, const T *key, const T *value, T *out, float *logs,
                    i64 threads) {
    const i64 heads = job.batch * job.kv_heads;
    // Heads are divided into parts where threads would otherwise wait; each part copies its keys again.
    const i64 most = (job.queries + 4 * QUERIES - 1) / (4 * QUERIES);
    const i64 parts = heads % threads == 0 ? 1 : std::max<i64>(1, std::min(most, (4 * threads + heads - 1) / heads));
    const i64 part = up((job.queries + parts - 1) / parts, QUERIES);
    share_out(heads * parts, threads, [&] {
        auto work = std::make_shared<Forward<T>>(Forward<T>{job, query, key, value, out, logs, {s[0], s[1], s[2]},
                                                            {s[3], s[4], s[5]}, {s[6], s[7], s[8]},
                                                            {s[9], s[10], s[11]}, {}, {}, {}});
        return [=, &job](i64 task) {
            // The last queries first, since with a causal mask they take longest.
            const i64 index = task % heads, begin = (parts - 1 - task / heads) * part;
            if (begin < job.queries)
                work->run(index / job.kv_heads, index % job.kv_heads, begin, std::min(begin + part, job.queries));
        };
    });
}

// ---------------------------------------------------------------------------------------------------------- backward

// With P = softmax(scale Q K^T) and the gradient G of the output O, for each head
//     dV = P^T G,   dP = G V^T,   dS = P (dP - sum_j G O),   dQ = scale dS K,   dK = scale dS^T Q.
template <class T>
struct Backward {
    const Job &job;
    const T *query, *key, *value, *out, *gradient;
    const float *logs;
    T *of_keys, *of_values;
    View query_view, key_view, value_view, out_view, gradient_view, of_key_view;
    Room queries_room, sums_room, room;
    typedef typename Words<T>::Word Word;
    static constexpr int NUMBERS = Words<T>::NUMBERS;

    // Keys [begin, end) of a key head. dq: gradients of its query heads, [shared, queries, w], from these keys alone.
    void run(i64 b, i64 kv_head, i64 begin, i64 end, float *dq) {
        const i64 d = job.width, w = up(d, PANEL), n = up(job.queries, QUERIES), m = up(end - begin, KEYS);
        const i64 depth = words_of<T>(d), step = n / NUMBERS * PANEL;
        const int32_t *low = job.lows(b), *high = job.highs(b);
        const Span seen = hull(low, high, 0, job.queries);
        // means: [n]; q_groups, g_groups: [n / GROUP, depth, GROUP]; q_panels, g_panels: [w / PANEL, n / NUMBERS, PANEL]
        float *means = queries_room.get(2 * n * (depth + w / NUMBERS) + n + 32);
        Word *q_groups = (Word *)(means + n), *g_groups = q_groups + n * depth + 16,
             *q_panels = g_groups + n * depth + 16, *g_panels = q_panels + n / NUMBERS * w;
        float *dk = sums_room.get(2 * m * w), *dv = dk + m * w;
        Scratch x;
        x.s = room.get(KEYS * (2 * depth + w / NUMBERS) + 4 * QUERIES * ROW), x.p = x.s + QUERIES * ROW;
        x.s_columns = NUMBERS == 1 ? (Word *)x.s : (Word *)(x.p + QUERIES * ROW);
        x.p_columns = NUMBERS == 1 ? (Word *)x.p : x.s_columns + QUERIES * ROW;
        Word *k = (Word *)(x.s + 4 * QUERIES * ROW), *v = k + KEYS * depth, *k_panels = v + KEYS * depth;
        for (i64 j = 0; j < 2 * m * w; j++) dk[j] = 0;
        const Rows<T> keys{key + b * key_view.batch + kv_head * key_view.head, key_view.time, seen.begin, seen.end};
        const Rows<T> values{value + b * value_view.batch + kv_head * value_view.head, value_view.time, seen.begin,
                             seen.end};
        for (i64 h = kv_head * job.shared(); h < (kv_head + 1) * job.shared(); h++, dq += n * w) {
            const Rows<T> q{query + b * query_view.batch + h * query_view.head, query_view.time, 0, job.queries, low,
                            high};
            const Rows<T> g{gradient + b * gradient_view.batch + h * gradient_view.head, gradient_view.time, 0,
                            job.queries, low, high};
            const T *o = out + b * out_view.batch + h * out_view.head;
            for (i64 i = 0; i < n; i += GROUP) {
                pack_transposed<GROUP>(q, i, d, q_groups + i * depth);
                pack_transposed<GROUP>(g, i, d, g_groups + i * depth);
            }
            pack_panels(q, 0, n, d, q_panels, step);
            pack_panels(g, 0, n, d, g_panels, step);
            for (i64 i = 0; i < n; i++) {
                const T *row = g.row(i);
                vec sum{};
                for (i64 at = 0; row && at < d; at += FLOATS)
                    sum += numbers(row + at, d - at) * numbers(o + i * out_view.time + at, d - at);
                means[i] = sum_of(sum)[0];
            }
            for (i64 i = 0; i < n * w; i++) dq[i] = 0;
            const float *log = logs + (b * job.heads + h) * job.queries;
            for (i64 at = std::max(begin, down(seen.begin, KEYS)); at < std::min(end, seen.end); at += KEYS) {
                for (i64 j = 0; j < KEYS; j += PANEL) {
                    pack_transposed<PANEL>(keys, at + j, d, k + j * depth);
                    pack_transposed<PANEL>(values, at + j, d, v + j * depth);
                }
                pack_panels(keys, at, KEYS, d, k_panels, KEYS / NUMBERS * PANEL);
                for (i64 first = 0; first < job.queries; first += QUERIES) {
                    const Block block(low, high, first, job.queries);
                    if (block.all.within(at, at + KEYS).empty()) continue;
                    scores(block, at, q_groups + first * depth, g_groups + first * depth, k, v, x);
                    weights(block, at, h, x, log, means, low, high);
                    products(block, at, x, q_panels + first / NUMBERS * PANEL, g_panels + first / NUMBERS * PANEL, step,
                             k_panels, dq + first * w, dk + (at - begin) * w, dv + (at - begin) * w);
                }
            }
        }
        T *to_keys = of_keys + b * of_key_view.batch + kv_head * of_key_view.head;
        T *to_values = of_values + b * of_key_view.batch + kv_head * of_key_view.head;
        for (i64 j = begin; j < std::min(end, job.keys); j++) {
            store_row(dk + (j - begin) * w, d, job.scale, to_keys + j * of_key_view.time);
            store_row(dv + (j - begin) * w, d, 1.f, to_values + j * of_key_view.time);
        }
    }

    // Numbers of a block of queries and one of keys, [QUERIES, ROW] each.
    struct Scratch {
        float *s, *p;                  // scores and dP, which become dS (as words along the keys) and P
        Word *s_columns, *p_columns;   // dS and P as words along the queries, [QUERIES / NUMBERS, ROW]
    };

    // Scores and dP of a block.
    void scores(const Block &block, i64 at, const Word *q, const Word *g, const Word *k, const Word *v, Scratch &x) {
        const i64 d = words_of<T>(job.width);
        const Span all = block.all.within(at, at + KEYS);
        for (int which = 0; which < 2; which++)
            for (i64 n = all.begin; n < all.end; n += PANEL)
                for (i64 i = 0; i < block.groups; i++)
                    if (n >= block.seen[i].begin && n < block.seen[i].end)
                        tile<1, GROUP, false>((which ? g : q) + i * GROUP * d, (which ? v : k) + (n - at) * d, d,
                                              (which ? x.p : x.s) + i * GROUP * ROW + n - at, ROW,
                                              which ? 1.f : job.scale * LOG2_E);
    }

    // From the columns that `products` reads: whole panels and groups of keys.
    static Span columns(const Block &block, i64 at) {
        const Span all = block.all.within(at, at + KEYS);
        return {std::min(all.begin - at, down(all.begin - at, GROUP)), up(all.end - at, GROUP)};
    }

    // dS and P from scores and dP; zeros where a query does not see the key.
    void weights(const Block &block, i64 at, i64 h, Scratch &x, const float *log, const float *means, const int32_t *low,
                 const int32_t *high) {
        const Span all = columns(block, at);
        for (i64 i = 0; i < block.groups * GROUP; i++) {
            const Span seen = block.seen[i / GROUP].within(at, at + KEYS);
            const i64 query = block.first + i;
            float *row = x.s + i * ROW, *weight = x.p + i * ROW;
            i64 begin = all.end, end = all.end;
            if (i < block.queries && !seen.empty() && low[query] < high[query]) {
                begin = std::max(seen.begin, (i64)low[query]) - at;
                end = std::min(seen.end, (i64)high[query]) - at;
            }
            if (begin >= end) {
                for (i64 j = all.begin; j < all.end; j++) row[j] = weight[j] = 0;
                continue;
            }
            job.add_distances(row, begin, end, at, query, h);
            const float base = log[query], mean = means[query];
            for (i64 j = seen.begin - at; j < seen.end - at; j += PANEL)
#pragma GCC unroll 4
                for (int n = 0; n < VECTORS; n++) {
                    vec *score = (vec *)(row + j + n * FLOATS), *other = (vec *)(weight + j + n * FLOATS);
                    const vec e = power_of_two(*score - base);
                    *score = e * (*other - mean);
                    *other = e;
                }
            for (i64 j = all.begin; j < begin; j++) row[j] = weight[j] = 0;
            for (i64 j = end; j < all.end; j++) row[j] = weight[j] = 0;
        }
        if constexpr (NUMBERS == 2) make_words(all, block.groups * GROUP, x);
    }

    // Words from the numbers of columns `all`, those of pairs of queries first, since the others take their place.
    static void make_words(const Span &all, i64 queries, Scratch &x) {
        for (i64 i = 0; i < queries; i += 2) {
            float *s = x.s + i * ROW, *p = x.p + i * ROW;
            Word *s_columns = x.s_columns + i / 2 * ROW, *p_columns = x.p_columns + i / 2 * ROW;
            for (i64 j = down(all.begin, PANEL); j < all.end; j += PANEL) {
                const auto at = [=](float *row, int n) -> vec & { return *(vec *)(row + j + n * FLOATS); };
                const vec even[] = {at(s, 0), at(s, 1)}, odd[] = {at(s + ROW, 0), at(s + ROW, 1)};
                for (int n = 0; n < VECTORS; n++) {
                    *(vec *)(s_columns + j + n * FLOATS) = Words<T>::of_columns(even[n], odd[n]);
                    *(vec *)(p_columns + j + n * FLOATS) = Words<T>::of_columns(at(p, n), at(p + ROW, n));
                }
                write_row<T>(s, j, even);
                write_row<T>(s + ROW, j, odd);
            }
        }
    }

    // Adds a block to dQ, dK and dV.
    void products(const Block &block, i64 at, const Scratch &x, const Word *q, const Word *g, i64 step, const Word *k,
                  float *dq, float *dk, float *dv) {
        const i64 w = up(job.width, PANEL);
        const Span all = columns(block, at);
        for (i64 j = all.begin; j < all.end; j += GROUP) {
            i64 first = block.groups, last = 0;
            for (i64 i = 0; i < block.groups; i++)
                if (block.seen[i].begin < at + j + GROUP && block.seen[i].end > at + j)
                    first = std::min(first, i), last = i + 1;
            if (first >= last) continue;
            const i64 from = first * GROUP / NUMBERS, depth = (last - first) * GROUP / NUMBERS;
            for (int which = 0; which < 2; which++)
                for (i64 n = 0; n < w; n += PANEL)
                    tile<1, ROW, true>((which ? x.s_columns : x.p_columns) + from * ROW + j,
                                       (which ? q : g) + n / PANEL * step + from * PANEL, depth,
                                       (which ? dk : dv) + j * w + n, w);
        }
        for (i64 n = 0; n < w; n += PANEL)
            for (i64 i = 0; i < block.groups; i++) {
                const Span seen = block.seen[i].within(at, at + KEYS);
                if (!seen.empty())
                    tile<ROW, 1, true>((const Word *)x.s + i * GROUP * ROW + (seen.begin - at) / NUMBERS,
                                       k + (n * KEYS + (seen.begin - at) * PANEL) / NUMBERS,
                                       (seen.end - seen.begin) / NUMBERS, dq + i * GROUP * w + n, w);
            }
    }
};

// Parts into which the keys of a head are divided: they depend on sizes alone, since dQ is the sum of their sums.
static i64 key_parts(const Job &job) {
    const i64 heads = job.batch * job.kv_heads;
    return std::max<i64>(1, std::min<i64>({4, (15 + heads) / heads, job.keys / 1024}));
}

template <class T>
static void backward(const Job &job, const i64 *s, const T *query, const T *key, const T *value, const T *out,
                     const T *gradient, const float *logs, T *of_query, T *of_key, T *of_value, i64 threads) {
    const i64 heads = job.batch * job.kv_heads, parts = key_parts(job), d = job.width, w = up(d, PANEL);
    const i64 part = up((job.keys + parts - 1) / parts, KEYS), rows = up(job.queries, QUERIES);
    const i64 size = job.shared() * rows * w;
    const View query_view{s[0], s[1], s[2]}, key_view{s[3], s[4], s[5]}, value_view{s[6], s[7], s[8]},
        out_view{s[9], s[10], s[11]}, gradient_view{s[12], s[13], s[14]}, of_query_view{s[15], s[16], s[17]},
        of_key_view{s[18], s[19], s[20]};
    // Writes the gradients of the queries of a key head, the sum of `count` buffers.
    const auto write = [&](i64 index, const float *sums, i64 count, i64 step) {
        const i64 b = index / job.kv_heads, h = index % job.kv_heads * job.shared();
        std::vector<float> row(w);
        for (i64 i = 0; i < job.shared(); i++)
            for (i64 t = 0; t < job.queries; t++) {
                const float *from = sums + (i * rows + t) * w;
                if (count > 1) {
                    for (i64 at = 0; at < w; at++) row[at] = from[at];
                    for (i64 n = 1; n < count; n++)
                        for (i64 at = 0; at < w; at++) row[at] += from[n * step + at];
                    from = row.data();
                }
                store_row(from, d, job.scale,
                          of_query + b * of_query_view.batch + (h + i) * of_query_view.head + t * of_query_view.time);
            }
    };
    Room partial;
    float *sums = parts > 1 ? partial.get(heads * parts * size) : nullptr;
    share_out(heads * parts, threads, [&] {
        auto work = std::make_shared<Backward<T>>(Backward<T>{job, query, key, value, out, gradient, logs, of_key,
                                                              of_value, query_view, key_view, value_view, out_view,
                                                              gradient_view, of_key_view, {}, {}, {}});
        auto own = std::make_shared<Room>();
        return [=, &job, &write](i64 task) {
            const i64 index = task % heads, n = task / heads, begin = n * part;
            float *dq = parts > 1 ? sums + (index * parts + n) * size : own->get(size);
            const i64 end = std::min(begin + part, up(job.keys, KEYS));
            work->run(index / job.kv_heads, index % job.kv_heads, begin, end, dq);
            if (parts == 1) write(index, dq, 1, 0);
        };
    });
    if (parts == 1) return;
    share_out(heads, threads, [&] {
        return [&](i64 index) { write(index, sums + index * parts * size, parts, size); };
    });
}

static Job job_of(const i64 *sizes, const int32_t *low, const int32_t *high, const float *slopes, int symmetric,
                  float scale) {
    return {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], low, high, sizes[6], scale, slopes, symmetric};
}

}  // namespace tiles::long_attention_kernel

// sizes: batch, heads, key heads, queries, keys, width, rows of low and high (1 or batch). s: batch, head and position
// strides of query, key, value and out. low, high: the keys [low, high) that each query sees. logs: written for the
// backward pass, [batch, heads, queries].
extern "C" int long_attention(const i64 *sizes, const i64 *s, const void *query, const void *key, const void *value,
                              void *out, float *logs, int type, const int32_t *low, const int32_t *high,
                              const float *slopes, int symmetric, float scale, i64 threads) {
    return status_of([&] {
        namespace kernel = tiles::long_attention_kernel;
        const auto job = kernel::job_of(sizes, low, high, slopes, symmetric, scale);
        threads = thread_count(job.batch * job.heads * job.queries * job.width, threads);
        const auto run = [&](auto type_of) {
            typedef decltype(type_of) T;
            kernel::forward(job, s, (const T *)query, (const T *)key, (const T *)value, (T *)out, logs,
                                           threads);
        };
        if (type) run(bf16{}); else run(0.f);
    });
}

// s: batch, head and position strides of query, key, value, out, gradient, of_query, and of_key and of_value (equal).
extern "C" int long_attention_backward(const i64 *sizes, const i64 *s, const void *query, const void *key,
                                       const void *value, const void *out, const void *gradient, const float *logs,
                                       void *of_query, void *of_key, void *of_value, int type, const int32_t *low,
                                       const int32_t *high, const float *slopes, int symmetric, float scale,
                                       i64 threads) {
    return status_of([&] {
        namespace kernel = tiles::long_attention_kernel;
        const auto job = kernel::job_of(sizes, low, high, slopes, symmetric, scale);
        threads = thread_count(job.batch * job.heads * job.queries * job.width, threads);
        const auto run = [&](auto type_of) {
            typedef decltype(type_of) T;
            kernel::backward(job, s, (const T *)query, (const T *)key, (const T *)value, (const T *)out,
                                            (const T *)gradient, logs, (T *)of_query, (T *)of_key, (T *)of_value,
                                            threads);
        };
        if (type) run(bf16{}); else run(0.f);
    });
}
