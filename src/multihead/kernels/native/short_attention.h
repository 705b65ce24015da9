// Attention over short sequences, forward and backward: a part of kernels.cpp.
//
// Sequences are so short that everything of one head of one sequence stays in the cache of a core. A thread computes whole
// heads. Factors of products are words (tiles.h): where the processor multiplies bfloat16, weights and dS are rounded to
// pairs of it, and queries and gradients are read where they lie; elsewhere factors are in float32. Sums are in float32.

#pragma once

#include "softmax.h"
#include "strips.h"

namespace tiles::short_attention_kernel {

struct Job {
    i64 batch, heads, queries, keys, width;
    const i64 *key_lengths, *query_lengths;  // number of real keys and queries of each sequence; null = all
    const i64 *key_starts, *query_starts;    // packed: where each sequence starts in the one row; null = not packed
    int causal;
    const float *slopes;  // ALiBi's, of each head; null = none
    int symmetric;        // ALiBi falls to both sides: -m |i - j| rather than m (j - i)
    float scale;
};

// One head of one sequence.
struct Head {
    const Job &job;
    const i64 b, h;
    const i64 keys, queries;                  // real ones
    const i64 rows_of_keys, rows_of_queries;  // those beyond the real ones are written as zeros
    const i64 padded;                         // keys, in whole vectors

    Head(const Job &job, i64 index)
        : job(job), b(index / job.heads), h(index % job.heads), keys(job.key_lengths ? job.key_lengths[b] : job.keys),
          queries(job.query_lengths ? job.query_lengths[b] : job.queries), rows_of_keys(job.key_starts ? keys : job.keys),
          rows_of_queries(job.query_starts ? queries : job.queries), padded(round_up(keys)) {}

    // Where its keys and queries start in a tensor.
    template <class T>
    T *keys_in(T *tensor, const View &view) const {
        return tensor + h * view.head + (job.key_starts ? job.key_starts[b] * view.time : b * view.batch);
    }
    template <class T>
    T *queries_in(T *tensor, const View &view) const {
        return tensor + h * view.head + (job.query_starts ? job.query_starts[b] * view.time : b * view.batch);
    }

    // Scores [queries, padded] become weights: those of the keys that a query sees, and zeros.
    void softmax(float *scores) const {
        i64 i = 0;
        for (; i + 4 <= queries; i += 4) softmax_rows<4>(scores + i * padded, i);
        for (; i < queries; i++) softmax_rows<1>(scores + i * padded, i);
    }

    // Of queries [first, first + ROWS). The chains of dependent operations of their rows are interleaved.
    template <int ROWS>
    void softmax_rows(float *scores, i64 first) const {
        ints place;
        for (int n = 0; n < FLOATS; n++) place[n] = n;
        const float factor = job.scale * LOG2_E, slope = job.slopes ? job.slopes[h] * LOG2_E : 0;
        const auto at = [=](i64 i, i64 j) -> vec & { return *(vec *)(scores + i * padded + j); };
        int32_t seen[ROWS];
        vec top[ROWS], sum[ROWS];
        for (int i = 0; i < ROWS; i++) {
            seen[i] = (int32_t)(job.causal ? std::min(first + i + 1, keys) : keys);
            top[i] = splat(-INFINITY);
            sum[i] = vec{};
        }
        for (i64 j = 0; j < padded; j += FLOATS)
#pragma GCC unroll 4
            for (int i = 0; i < ROWS; i++) {
                const ints key = place + (int32_t)j;
                vec x = at(i, j) * factor;
                if (job.slopes) {
                    const vec distance = __builtin_convertvector(key - (int32_t)(first + i), vec);
                    x += slope * (job.symmetric ? (distance > 0.f ? -distance : distance) : distance);
                }
                at(i, j) = x = key < seen[i] ? x : splat(-INFINITY);
                top[i] = larger(x, top[i]);
            }
#pragma GCC unroll 4
        for (int i = 0; i < ROWS; i++) top[i] = highest_of(top[i]);
        for (i64 j = 0; j < padded; j += FLOATS)
#pragma GCC unroll 4
            for (int i = 0; i < ROWS; i++) {
                const vec e = power_of_two(at(i, j) - top[i]);
                sum[i] += at(i, j) = place + (int32_t)j < seen[i] ? e : vec{};
            }
#pragma GCC unroll 4
        for (int i = 0; i < ROWS; i++) sum[i] = seen[i] ? 1.f / sum_of(sum[i]) : vec{};
        for (i64 j = 0; j < padded; j += FLOATS)
#pragma GCC unroll 4
            for (int i = 0; i < ROWS; i++) at(i, j) *= sum[i];
    }

    // ds [queries, padded] = scale p (dp - sum_j p dp), which takes the place of dp.
    void softmax_backward(const float *p, float *dp) const {
        i64 i = 0;
        for (; i + 4 <= queries; i += 4) softmax_backward_rows<4>(p + i * padded, dp + i * padded);
        for (; i < queries; i++) softmax_backward_rows<1>(p + i * padded, dp + i * padded);
    }

    template <int ROWS>
    void softmax_backward_rows(const float *p, float *dp) const {
        const auto at = [=](auto *x, i64 i, i64 j) { return (vec *)(x + i * padded + j); };
        vec mean[ROWS]{};
        for (i64 j = 0; j < padded; j += FLOATS)
#pragma GCC unroll 4
            for (int i = 0; i < ROWS; i++) mean[i] += *at(dp, i, j) * *at(p, i, j);
#pragma GCC unroll 4
        for (int i = 0; i < ROWS; i++) mean[i] = sum_of(mean[i]);
        for (i64 j = 0; j < padded; j += FLOATS)
#pragma GCC unroll 4
            for (int i = 0; i < ROWS; i++) *at(dp, i, j) = *at(p, i, j) * ((*at(dp, i, j) - mean[i]) * job.scale);
    }
};

// The left factor of a product: word (i, k) is at[i * row + k * step].
template <class Word>
struct Left {
    const Word *at;
    i64 row, step;
};

// The right factor of a product: word (k, j) is at[k * row + j].
template <class Word>
struct Right {
    const Word *at;
    i64 row;
};

// Factors of products, from tensors of type T and from weights.
template <class T>
struct Factors {
    typedef typename Words<T>::Word Word;
    static constexpr i64 NUMBERS = Words<T>::NUMBERS;

    // Words of a row, in whole vectors.
    static i64 row_of(i64 numbers) { return up(words_of<T>(numbers), FLOATS); }

    // Rows [rows, width] as a left factor: where they lie if they consist of words, or copied to `to` [rows, row_of(width)].
    static Left<Word> rows(const T *from, i64 step, i64 rows, i64 width, Word *to) {
        if (sizeof(T) * NUMBERS == sizeof(Word) && width % NUMBERS == 0 && step % NUMBERS == 0)
            return {(const Word *)from, step / NUMBERS, 1};
        const i64 row = row_of(width);
        for (i64 t = 0; t < rows; t++)
            for (i64 d = 0; d < row; d += FLOATS)
                *(vec *)(to + t * row + d) = words_at(from + t * step + d * NUMBERS, width - d * NUMBERS);
        return {to, row, 1};
    }

    // The transpose of rows [rows, width] as a right factor, [words of width, padded] in `to`.
    static Right<Word> transpose(const T *from, i64 step, i64 rows, i64 width, Word *to, i64 padded) {
        const i64 depth = words_of<T>(width);
        for (i64 t = 0; t < padded; t += FLOATS)
            for (i64 d = 0; d < depth; d += FLOATS) {
                Lanes<FLOATS>::floats x[FLOATS];
#pragma GCC unroll 16
                for (i64 r = 0; r < FLOATS; r++) {
                    const T *row = from + (t + r) * step + d * NUMBERS;
                    x[r] = t + r < rows ? words_at(row, width - d * NUMBERS) : vec{};
                }
                transpose_block<FLOATS>(x);
                for (i64 n = 0; n < std::min<i64>(FLOATS, depth - d); n++) *(vec *)(to + (d + n) * padded + t) = x[n];
            }
        return {to, padded};
    }

    // Rows [rows, width] as a right factor, with words along the rows, [words of rows, round_up(width)] in `to`: a product
    // reads it once for each block of rows, so it would wait where it lies.
    static Right<Word> columns(const T *from, i64 step, i64 rows, i64 width, Word *to) {
        const i64 row = round_up(width);
        for (i64 t = 0; t < rows; t += NUMBERS)
            for (i64 d = 0; d < row; d += FLOATS) {
                const T *at = from + t * step + d;
                *(vec *)(to + t / NUMBERS * row + d) = columns_at(at, t + 1 < rows ? at + step : nullptr, width - d);
            }
        return {to, row};
    }

    // Weights [rows, padded] as a left factor, along the rows.
    static Left<Word> along_rows(const float *x, i64 rows, i64 padded, Word *to) {
        if constexpr (NUMBERS == 1) return {x, padded, 1};
        else {
            const i64 row = row_of(padded);
            for (i64 i = 0; i < rows; i++, x += padded)
                for (i64 j = 0; j < padded; j += 2 * FLOATS)
                    *(vec *)(to + i * row + j / 2) = Words<T>::of_row(
                        *(const vec *)(x + j), j + FLOATS < padded ? *(const vec *)(x + j + FLOATS) : vec{});
            return {to, row, 1};
        }
    }

    // The transpose of weights [rows, padded] as a left factor.
    static Left<Word> along_columns(const float *x, i64 rows, i64 padded, Word *to) {
        if constexpr (NUMBERS == 1) return {x, 1, padded};
        else {
            for (i64 i = 0; i < rows; i += 2, x += 2 * padded)
                for (i64 j = 0; j < padded; j += FLOATS)
                    *(vec *)(to + i / 2 * padded + j) = Words<T>::of_columns(
                        *(const vec *)(x + j), i + 1 < rows ? *(const vec *)(x + padded + j) : vec{});
            return {to, 1, padded};
        }
    }
};

// c [rows, columns] = a b; depth is in numbers.
template <class T, class Word = typename Words<T>::Word>
static void multiply(i64 rows, i64 columns, i64 depth, const Left<Word> &a, const Right<Word> &b, float *c) {
    product(rows, columns, words_of<T>(depth), a.at, a.row, a.step, b.at, b.row, c, columns);
}

// Writes `real` rows [rows, row], and zeros below them.
template <class T>
static void write_rows(float *from, i64 row, i64 real, i64 rows, i64 width, T *to, i64 step) {
    std::fill(from + real * row, from + rows * row, 0.f);
    for (i64 t = 0; t < rows; t++) store_row(from + t * row, width, 1.f, to + t * step);
}

// Runs `work` on each head, with the thread's memory of `size` words.
template <class Work>
static void for_each_head(const Job &job, i64 size, i64 threads, const Work &work) {
    Failures failures;
#pragma omp parallel num_threads(thread_count(job.batch * job.heads * job.queries * job.width, threads))
    try {
        Room room;
        float *memory = room.get(size);
        i64 begin, end;
        thread_rows(job.batch * job.heads, begin, end);
        for (i64 index = begin; index < end; index++) work(Head(job, index), memory);
    } catch (const std::exception &) {
        failures.any = true;
    }
    failures.end_of_region();
}

// out = softmax(scale Q K^T) V
template <class T>
static void forward(const Job &job, const i64 *s, const T *query, const T *key, const T *value, T *out, i64 threads) {
    typedef Factors<T> F;
    typedef typename F::Word Word;
    const View of_query{s[0], s[1], s[2]}, of_key{s[3], s[4], s[5]}, of_value{s[6], s[7], s[8]}, of_out{s[9], s[10], s[11]};
    const i64 d = job.width, w = round_up(d), padded = round_up(job.keys), depth = up(words_of<T>(d), FLOATS);
    // left: [queries, the longer row]; k: [depth, padded]; v: [keys, w]; scores: [queries, padded]; o: [queries, w]
    const i64 left_size = job.queries * std::max(F::row_of(d), F::row_of(padded)), k_size = depth * padded;
    const i64 size = left_size + k_size + padded * w + job.queries * (padded + w);
    for_each_head(job, size, threads, [&](const Head &head, float *memory) {
        Word *left = (Word *)memory, *k = left + left_size, *v = k + k_size;
        float *scores = (float *)(v + padded * w), *o = scores + job.queries * padded;
        const auto q = F::rows(head.queries_in(query, of_query), of_query.time, head.queries, d, left);
        const auto turned = F::transpose(head.keys_in(key, of_key), of_key.time, head.keys, d, k, head.padded);
        multiply<T>(head.queries, head.padded, d, q, turned, scores);
        head.softmax(scores);
        const auto values = F::columns(head.keys_in(value, of_value), of_value.time, head.keys, d, v);
        multiply<T>(head.queries, w, head.keys, F::along_rows(scores, head.queries, head.padded, left), values, o);
        write_rows(o, w, head.queries, head.rows_of_queries, d, head.queries_in(out, of_out), of_out.time);
    });
}

// The gradients of forward, from that of `out`, G. The weights P are computed again:
//     dV = P^T G,   dP = G V^T,   dS = scale P (dP - sum_j P dP),   dQ = dS K,   dK = dS^T Q
template <class T>
static void backward(const Job &job, const i64 *s, const T *query, const T *key, const T *value, const T *gradient,
                     T *grad_query, T *grad_key, T *grad_value, i64 threads) {
    typedef Factors<T> F;
    typedef typename F::Word Word;
    const View of_query{s[0], s[1], s[2]}, of_key{s[3], s[4], s[5]}, of_value{s[6], s[7], s[8]};
    const View of_gradient{s[9], s[10], s[11]}, of_grad_query{s[12], s[13], s[14]}, of_grad_key{s[15], s[16], s[17]};
    const i64 d = job.width, w = round_up(d), padded = round_up(job.keys), depth = up(words_of<T>(d), FLOATS);
    // left: [queries, the longer row]; right: [queries or keys, w], or [depth, padded]; p, ds: [queries, padded];
    // sums: [queries or keys, w]
    const i64 most = std::max(job.queries, padded);
    const i64 left_size = (job.queries + 1) * std::max(F::row_of(d), std::max(F::row_of(padded), padded));
    const i64 right_size = std::max(most * w, depth * padded);
    const i64 size = left_size + right_size + 2 * job.queries * padded + most * w;
    for_each_head(job, size, threads, [&](const Head &head, float *memory) {
        Word *left = (Word *)memory, *right = left + left_size;
        float *p = (float *)(right + right_size), *ds = p + job.queries * padded, *sums = ds + job.queries * padded;
        const T *q = head.queries_in(query, of_query), *g = head.queries_in(gradient, of_gradient);
        const T *k = head.keys_in(key, of_key), *v = head.keys_in(value, of_value);
        const i64 queries = head.queries, keys = head.keys;
        const auto turned_k = F::transpose(k, of_key.time, keys, d, right, head.padded);
        multiply<T>(queries, head.padded, d, F::rows(q, of_query.time, queries, d, left), turned_k, p);
        head.softmax(p);
        const auto turned_v = F::transpose(v, of_value.time, keys, d, right, head.padded);
        multiply<T>(queries, head.padded, d, F::rows(g, of_gradient.time, queries, d, left), turned_v, ds);  // dP
        head.softmax_backward(p, ds);
        const auto own_g = F::columns(g, of_gradient.time, queries, d, right);
        multiply<T>(keys, w, queries, F::along_columns(p, queries, head.padded, left), own_g, sums);
        write_rows(sums, w, keys, head.rows_of_keys, d, head.keys_in(grad_value, of_grad_key), of_grad_key.time);
        const auto own_q = F::columns(q, of_query.time, queries, d, right);
        multiply<T>(keys, w, queries, F::along_columns(ds, queries, head.padded, left), own_q, sums);
        write_rows(sums, w, keys, head.rows_of_keys, d, head.keys_in(grad_key, of_grad_key), of_grad_key.time);
        const auto own_k = F::columns(k, of_key.time, keys, d, right);
        multiply<T>(queries, w, keys, F::along_rows(ds, queries, head.padded, left), own_k, sums);
        write_rows(sums, w, queries, head.rows_of_queries, d, head.queries_in(grad_query, of_grad_query),
                   of_grad_query.time);
    });
}

}  // namespace tiles::short_attention_kernel

// Arguments of both functions behind the tensors, and the job that they are.
#define JOB_ARGS                                                                                                  \
    int type, const i64 *key_lengths, const i64 *query_lengths, const i64 *key_starts, const i64 *query_starts,   \
        int causal, const float *slopes, int symmetric, float scale, i64 threads
#define MAKE_JOB                                                                                                  \
    tiles::short_attention_kernel::Job {                                                                          \
        sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], key_lengths, query_lengths, key_starts, query_starts,   \
            causal, slopes, symmetric, scale                                                                      \
    }

// sizes: batch, heads, queries, keys, width. s: batch, head and position strides of query, key, value and out.
extern "C" int attention(const i64 *sizes, const i64 *s, const void *query, const void *key, const void *value,
                         void *out, JOB_ARGS) {
    return status_of([&] {
        const auto job = MAKE_JOB;
        const auto run = [&](auto type_of) {
            typedef decltype(type_of) T;
            tiles::short_attention_kernel::forward(job, s, (const T *)query, (const T *)key, (const T *)value, (T *)out,
                                                   threads);
        };
        if (type) run(bf16{}); else run(0.f);
    });
}

// s: batch, head and position strides of query, key, value, gradient, grad_query, and grad_key and grad_value (equal).
extern "C" int attention_backward(const i64 *sizes, const i64 *s, const void *query, const void *key,
                                  const void *value, const void *gradient, void *grad_query, void *grad_key,
                                  void *grad_value, JOB_ARGS) {
    return status_of([&] {
        const auto job = MAKE_JOB;
        const auto run = [&](auto type_of) {
            typedef decltype(type_of) T;
            tiles::short_attention_kernel::backward(job, s, (const T *)query, (const T *)key, (const T *)value,
                                                    (const T *)gradient, (T *)grad_query, (T *)grad_key,
                                                    (T *)grad_value, threads);
        };
        if (type) run(bf16{}); else run(0.f);
    });
}
