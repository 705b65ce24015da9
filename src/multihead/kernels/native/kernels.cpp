// The operations of a training update that are not matrix products, each in one pass over memory.
//
// Plain C functions on raw pointers: no header of PyTorch is needed, so that the build takes seconds and fits every
// version of it. Loops are written so that the compiler makes vector code of them (-march=native) on any processor.
// What each function computes is said where it is called: dropout.py, residual.py, activation.py, attention.py and
// linear_cross_entropy.py, one folder up. Each thread does one piece of the rows: a result depends on the number of
// threads in the last bits of column sums, and on nothing else.
//
// Types of elements: 0 = float32, 1 = bfloat16 (rounded to nearest even). Every sum is taken in float32 at least.

#include <cmath>
#include <cstdint>
#include <vector>
#include <omp.h>

typedef int64_t i64;
typedef uint32_t u32;
typedef uint8_t u8;
struct bf16 { uint16_t bits; };

static inline float as_float(u32 x) { return __builtin_bit_cast(float, x); }
static inline u32 as_bits(float x) { return __builtin_bit_cast(u32, x); }
static inline float load(float x) { return x; }
static inline float load(bf16 x) { return as_float((u32)x.bits << 16); }
static inline void store(float &to, float x) { to = x; }
static inline void store(bf16 &to, float x) {
    u32 u = as_bits(x);
    u32 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    to.bits = (uint16_t)(x != x ? 0x7fc0u : rounded);
}

// ------------------------------------------------------------------------------------------------ random numbers

static inline u32 mix(u32 x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return x;
}

// Which random number belongs to which element: see kernels/random.py.
struct Key {
    u32 low, high;
    i64 first_row, row_stride, positions;
    const i64 *places;  // of packed rows: 2^32 row + position
};

struct Bytes {  // the random bytes of one row of features at a time
    Key key;
    i64 width, words;
    std::vector<u32> column, drawn;
    Bytes(const Key &key, i64 width)
        : key(key), width(width), words((width + 3) / 4), column(words), drawn(words) {
        for (i64 j = 0; j < words; j++) column[j] = mix(key.high + (u32)j);
    }
    const u8 *row(i64 index) {
        i64 place = key.places ? key.places[index] : 0;
        i64 number = key.places ? place >> 32 : index / key.positions;
        u32 position = (u32)(key.places ? place : index % key.positions);
        u32 base = mix(mix(key.low + (u32)(key.first_row + key.row_stride * number)) ^ position);
        const u32 *from = column.data();
        u32 *to = drawn.data();
#pragma omp simd
        for (i64 j = 0; j < words; j++) to[j] = mix(base + from[j]);
        return (const u8 *)to;  // little-endian: byte b of word j is feature 4 j + b
    }
};

static inline void share(i64 count, i64 &begin, i64 &end) {
    i64 threads = omp_get_num_threads(), me = omp_get_thread_num();
    begin = count * me / threads;
    end = count * (me + 1) / threads;
}

// How many threads a job of so many elements is worth.
static inline int team(i64 elements, i64 threads) {
    i64 worth = elements / 8192;
    return (int)(worth < 1 ? 1 : worth < threads ? worth : threads);
}

template <class A, class B>
static void dropout_(const A *x, B *y, i64 rows, i64 width, const Key &key, u32 level, float scale, i64 threads) {
#pragma omp parallel num_threads(team(rows * width, threads))
    {
        Bytes bytes(key, width);
        i64 begin, end;
        share(rows, begin, end);
        for (i64 r = begin; r < end; r++) {
            const u8 *drawn = bytes.row(r);
            const A *from = x + r * width;
            B *to = y + r * width;
#pragma omp simd
            for (i64 f = 0; f < width; f++) store(to[f], drawn[f] >= level ? load(from[f]) * scale : 0.f);
        }
    }
}

#define KEY u32 low, u32 high, i64 first_row, i64 row_stride, i64 positions, const i64 *places
#define THE_KEY Key{low, high, first_row, row_stride, positions, places}

extern "C" void dropout(const void *x, int x_type, void *y, int y_type, i64 rows, i64 width, KEY, int level,
                        float scale, i64 threads) {
    Key key = THE_KEY;
    if (!x_type && !y_type) dropout_((const float *)x, (float *)y, rows, width, key, level, scale, threads);
    if (!x_type && y_type) dropout_((const float *)x, (bf16 *)y, rows, width, key, level, scale, threads);
    if (x_type && !y_type) dropout_((const bf16 *)x, (float *)y, rows, width, key, level, scale, threads);
    if (x_type && y_type) dropout_((const bf16 *)x, (bf16 *)y, rows, width, key, level, scale, threads);
}

extern "C" void keep_mask(u8 *y, i64 rows, i64 width, KEY, int level, i64 threads) {
    Key key = THE_KEY;
#pragma omp parallel num_threads(team(rows * width, threads))
    {
        Bytes bytes(key, width);
        i64 begin, end;
        share(rows, begin, end);
        for (i64 r = begin; r < end; r++) {
            const u8 *drawn = bytes.row(r);
            u8 *to = y + r * width;
#pragma omp simd
            for (i64 f = 0; f < width; f++) to[f] = drawn[f] >= level;
        }
    }
}

// ------------------------------------------------------------------------------- dropout, residual sum, layer norm

// total = x + dropout(branch);  normed = (total - mean) * rstd * gain + shift.
// Without a branch total is x and is not written; without a gain there is no norm.
template <class F, class O>
static void add_norm_(const float *x, const F *branch, float *total, const float *gain, const float *shift,
                      O *normed, float *means, float *rstds, i64 rows, i64 width, float eps,
                      const Key &key, u32 level, float scale, i64 threads) {
#pragma omp parallel num_threads(team(rows * width, threads))
    {
        Bytes bytes(key, width);
        i64 begin, end;
        share(rows, begin, end);
        for (i64 r = begin; r < end; r++) {
            const float *sum = x + r * width;
            if (branch) {
                const F *from = branch + r * width;
                float *to = total + r * width;
                const float *old = sum;
                if (level) {
                    const u8 *drawn = bytes.row(r);
#pragma omp simd
                    for (i64 f = 0; f < width; f++)
                        to[f] = old[f] + (drawn[f] >= level ? load(from[f]) * scale : 0.f);
                } else {
#pragma omp simd
                    for (i64 f = 0; f < width; f++) to[f] = old[f] + load(from[f]);
                }
                sum = to;
            }
            if (!gain) continue;
            float mean = 0, square = 0;
#pragma omp simd reduction(+ : mean)
            for (i64 f = 0; f < width; f++) mean += sum[f];
            mean /= width;
#pragma omp simd reduction(+ : square)
            for (i64 f = 0; f < width; f++) square += (sum[f] - mean) * (sum[f] - mean);
            float rstd = 1.f / std::sqrt(square / width + eps);
            O *to = normed + r * width;
            if (shift) {
#pragma omp simd
                for (i64 f = 0; f < width; f++) store(to[f], (sum[f] - mean) * rstd * gain[f] + shift[f]);
            } else {
#pragma omp simd
                for (i64 f = 0; f < width; f++) store(to[f], (sum[f] - mean) * rstd * gain[f]);
            }
            means[r] = mean;
            rstds[r] = rstd;
        }
    }
}

extern "C" void add_norm(const float *x, const void *branch, int branch_type, float *total,
                         const float *gain, const float *shift, void *normed, int normed_type, float *means,
                         float *rstds, i64 rows, i64 width, float eps, KEY, int level, float scale, i64 threads) {
    Key key = THE_KEY;
#define CALL(F, O)                                                                                                 \
    add_norm_((const float *)x, (const F *)branch, total, gain, shift, (O *)normed, means, rstds, rows, width, \
              eps, key, level, scale, threads)
    if (branch_type) {
        if (normed_type) CALL(bf16, bf16); else CALL(bf16, float);
    } else {
        if (normed_type) CALL(float, bf16); else CALL(float, float);
    }
#undef CALL
}

// The gradient of total (what came to it from elsewhere, `passed`, and what came through the norm), of the branch, and
// the column sums that are the gradients of gain and shift.
template <class F, class O>
static void add_norm_backward_(const O *of_normed, const float *passed, const float *total, const float *gain,
                               const float *means, const float *rstds, float *of_total, F *of_branch, float *of_gain,
                               float *of_shift, i64 rows, i64 width, const Key &key, u32 level,
                               float scale, i64 threads) {
    int workers = team(rows * width, threads);
    std::vector<float> sums((size_t)workers * 2 * width, 0.f);
#pragma omp parallel num_threads(workers)
    {
        Bytes bytes(key, width);
        std::vector<float> work(width);
        float *gains = sums.data() + (size_t)omp_get_thread_num() * 2 * width, *shifts = gains + width;
        i64 begin, end;
        share(rows, begin, end);
        for (i64 r = begin; r < end; r++) {
            const float *gradient = passed ? passed + r * width : nullptr;
            if (gain) {
                const O *g = of_normed + r * width;
                const float *t = total + r * width;
                float mean = means[r], rstd = rstds[r], first = 0, second = 0;
#pragma omp simd reduction(+ : first, second)
                for (i64 f = 0; f < width; f++) {
                    float given = load(g[f]), z = (t[f] - mean) * rstd, scaled = given * gain[f];
                    gains[f] += given * z;
                    shifts[f] += given;
                    first += scaled;
                    second += scaled * z;
                }
                first /= width;
                second /= width;
                float *to = of_total ? of_total + r * width : work.data();
                if (gradient) {
#pragma omp simd
                    for (i64 f = 0; f < width; f++) {
                        float z = (t[f] - mean) * rstd;
                        to[f] = gradient[f] + (load(g[f]) * gain[f] - first - z * second) * rstd;
                    }
                } else {
#pragma omp simd
                    for (i64 f = 0; f < width; f++) {
                        float z = (t[f] - mean) * rstd;
                        to[f] = (load(g[f]) * gain[f] - first - z * second) * rstd;
                    }
                }
                gradient = to;
            }
            if (of_branch) {
                F *to = of_branch + r * width;
                if (level) {
                    const u8 *drawn = bytes.row(r);
#pragma omp simd
                    for (i64 f = 0; f < width; f++)
                        store(to[f], drawn[f] >= level ? gradient[f] * scale : 0.f);
                } else {
#pragma omp simd
                    for (i64 f = 0; f < width; f++) store(to[f], gradient[f]);
                }
            }
        }
    }
    for (i64 f = 0; f < width; f++) {
        float a = 0, b = 0;
        for (int w = 0; w < workers; w++) {
            const float *mine = sums.data() + (size_t)w * 2 * width;
            a += mine[f];
            b += mine[width + f];
        }
        if (of_gain) of_gain[f] = a;
        if (of_shift) of_shift[f] = b;
    }
}

extern "C" void add_norm_backward(const void *of_normed, int normed_type, const float *passed, const float *total,
                                  const float *gain, const float *means, const float *rstds, float *of_total,
                                  void *of_branch, int branch_type, float *of_gain, float *of_shift,
                                  i64 rows, i64 width, KEY, int level, float scale, i64 threads) {
    Key key = THE_KEY;
#define CALL(F, O)                                                                                            \
    add_norm_backward_((const O *)of_normed, passed, total, gain, means, rstds, of_total, (F *)of_branch, of_gain, \
                       of_shift, rows, width, key, level, scale, threads)
    if (branch_type) {
        if (normed_type) CALL(bf16, bf16); else CALL(bf16, float);
    } else {
        if (normed_type) CALL(float, bf16); else CALL(float, float);
    }
#undef CALL
}

// ---------------------------------------------------------------------------------- exponential and what needs it

static inline float exponential(float x) {  // relative error below 2e-7; 0 below -87
    float bounded = x < -87.f ? -87.f : x > 88.f ? 88.f : x;
    float n = __builtin_rintf(bounded * 1.44269504088896341f);
    float r = bounded - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    float y = p * r * r + r + 1.f;
    float power = as_float((u32)((int32_t)n + 127) << 23);
    float result = y * power;
    return x < -87.f ? 0.f : x == x ? result : x;
}

static inline float normal_cumulative(float x) {  // P[X <= x]; Abramowitz & Stegun 1964, 7.1.26: error below 1e-7
    float a = std::fabs(x) * 0.70710678118654752f;
    float t = 1.f / (1.f + 0.3275911f * a);
    float p = 1.061405429f;
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    float tail = 0.5f * p * t * exponential(-a * a);
    return x < 0.f ? tail : 1.f - tail;
}

// --------------------------------------------------------------------------- bias, activation, dropout in one pass

template <int KIND>
static inline float activate(float x) {
    if (KIND == 0) return x > 0.f ? x : x != x ? x : 0.f;
    return x * normal_cumulative(x);
}

template <int KIND>
static inline float slope(float x) {
    if (KIND == 0) return x > 0.f ? 1.f : 0.f;
    return normal_cumulative(x) + x * 0.39894228040143268f * exponential(-0.5f * x * x);
}

template <class T, int KIND>
static void activation_(const T *x, const float *bias, T *y, i64 rows, i64 width, const Key &key, u32 level,
                        float scale, i64 threads) {
#pragma omp parallel num_threads(team(rows * width, threads))
    {
        Bytes bytes(key, width);
        std::vector<float> zero(width, 0.f);
        std::vector<u8> all(width, 255);
        const float *add = bias ? bias : zero.data();
        i64 begin, end;
        share(rows, begin, end);
        for (i64 r = begin; r < end; r++) {
            const u8 *drawn = level ? bytes.row(r) : all.data();
            const T *from = x + r * width;
            T *to = y + r * width;
#pragma omp simd
            for (i64 f = 0; f < width; f++) {
                float value = activate<KIND>(load(from[f]) + add[f]) * scale;
                store(to[f], drawn[f] >= level ? value : 0.f);
            }
        }
    }
}

template <class T, int KIND>
static void activation_backward_(const T *g, const T *x, const float *bias, T *of_x, float *of_bias, i64 rows,
                                 i64 width, const Key &key, u32 level, float scale, i64 threads) {
    int workers = team(rows * width, threads);
    std::vector<float> sums((size_t)workers * width, 0.f);
#pragma omp parallel num_threads(workers)
    {
        Bytes bytes(key, width);
        std::vector<float> zero(width, 0.f);
        std::vector<u8> all(width, 255);
        const float *add = bias ? bias : zero.data();
        float *column = sums.data() + (size_t)omp_get_thread_num() * width;
        i64 begin, end;
        share(rows, begin, end);
        for (i64 r = begin; r < end; r++) {
            const u8 *drawn = level ? bytes.row(r) : all.data();
            const T *given = g + r * width, *from = x + r * width;
            T *to = of_x + r * width;
#pragma omp simd
            for (i64 f = 0; f < width; f++) {
                float value = load(given[f]) * slope<KIND>(load(from[f]) + add[f]) * scale;
                value = drawn[f] >= level ? value : 0.f;
                column[f] += value;
                store(to[f], value);
            }
        }
    }
    if (of_bias)
        for (i64 f = 0; f < width; f++) {
            float total = 0;
            for (int w = 0; w < workers; w++) total += sums[(size_t)w * width + f];
            of_bias[f] = total;
        }
}

#define EACH(FUNCTION, ...)                                                                          \
    if (type) {                                                                                      \
        if (kind) FUNCTION<bf16, 1>(__VA_ARGS__); else FUNCTION<bf16, 0>(__VA_ARGS__);               \
    } else {                                                                                         \
        if (kind) FUNCTION<float, 1>(__VA_ARGS__); else FUNCTION<float, 0>(__VA_ARGS__);             \
    }

struct Any {  // a pointer that takes the type which is wanted
    const void *at;
    template <class T> operator const T *() const { return (const T *)at; }
    template <class T> operator T *() const { return (T *)at; }
};

extern "C" void activation(const void *x, const float *bias, void *y, int type, int kind, i64 rows, i64 width, KEY,
                           int level, float scale, i64 threads) {
    Key key = THE_KEY;
    EACH(activation_, Any{x}, bias, Any{y}, rows, width, key, level, scale, threads)
}

extern "C" void activation_backward(const void *g, const void *x, const float *bias, void *of_x, float *of_bias,
                                    int type, int kind, i64 rows, i64 width, KEY, int level, float scale,
                                    i64 threads) {
    Key key = THE_KEY;
    EACH(activation_backward_, Any{g}, Any{x}, bias, Any{of_x}, of_bias, rows, width, key, level, scale, threads)
}

// ----------------------------------------------------------------------------------------------------- cross-entropy

template <class T>
static void cross_entropy_(T *logits, const i64 *target, i64 rows, i64 width, float smoothing, int wanted,
                           double *totals, double *nlls, i64 *hits, i64 threads) {
    float even = smoothing / width;
#pragma omp parallel num_threads(team(rows * width, threads))
    {
        std::vector<float> work(width);
        float *e = work.data();
        i64 begin, end;
        share(rows, begin, end);
        for (i64 r = begin; r < end; r++) {
            T *z = logits + r * width;
            float largest = -INFINITY, sum = 0, partition = 0;
#pragma omp simd reduction(max : largest) reduction(+ : sum)
            for (i64 v = 0; v < width; v++) {
                float value = load(z[v]);
                largest = value > largest ? value : largest;
                sum += value;
            }
#pragma omp simd reduction(+ : partition)
            for (i64 v = 0; v < width; v++) {
                e[v] = exponential(load(z[v]) - largest);
                partition += e[v];
            }
            float chosen = load(z[target[r]]);
            double log_partition = (double)largest + std::log((double)partition);
            nlls[r] = log_partition - chosen;
            totals[r] = log_partition - (1.0 - smoothing) * chosen - (smoothing ? (double)smoothing / width * sum : 0);
            hits[r] = chosen == largest;
            if (!wanted) continue;
            float inverse = 1.f / partition;
            float at_target = e[target[r]] * inverse - even - (1.f - smoothing);
#pragma omp simd
            for (i64 v = 0; v < width; v++) store(z[v], e[v] * inverse - even);
            store(z[target[r]], at_target);
        }
    }
}

extern "C" void cross_entropy(void *logits, int type, const i64 *target, i64 rows, i64 width, float smoothing,
                              int wanted, double *totals, double *nlls, i64 *hits, i64 threads) {
    if (type) cross_entropy_((bf16 *)logits, target, rows, width, smoothing, wanted, totals, nlls, hits, threads);
    else cross_entropy_((float *)logits, target, rows, width, smoothing, wanted, totals, nlls, hits, threads);
}

// ------------------------------------------------------------------------------------ attention over short sequences

typedef float vector __attribute__((vector_size(64), aligned(4)));
static const i64 LANES = 16;

template <int ROWS, int COLUMNS>
static inline void block(const float *a, i64 a_row, i64 a_step, const float *b, i64 b_row, float *c, i64 c_row,
                         i64 depth) {
    vector sum[ROWS][COLUMNS];
#pragma GCC unroll 6
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
        for (int n = 0; n < COLUMNS; n++) sum[i][n] = vector{};
    for (i64 k = 0; k < depth; k++) {
        vector right[COLUMNS];
#pragma GCC unroll 4
        for (int n = 0; n < COLUMNS; n++) right[n] = *(const vector *)(b + k * b_row + n * LANES);
#pragma GCC unroll 6
        for (int i = 0; i < ROWS; i++) {
            float left = a[i * a_row + k * a_step];
    #pragma GCC unroll 4
        for (int n = 0; n < COLUMNS; n++) sum[i][n] += left * right[n];
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
        for (int n = 0; n < COLUMNS; n++) *(vector *)(c + i * c_row + n * LANES) = sum[i][n];
}

template <int COLUMNS>
static inline void strip(i64 rows, i64 depth, const float *a, i64 a_row, i64 a_step, const float *b, i64 b_row,
                         float *c, i64 c_row) {
    i64 i = 0;
    for (; i + 6 <= rows; i += 6)
        block<6, COLUMNS>(a + i * a_row, a_row, a_step, b, b_row, c + i * c_row, c_row, depth);
    if (i + 4 <= rows) {
        block<4, COLUMNS>(a + i * a_row, a_row, a_step, b, b_row, c + i * c_row, c_row, depth);
        i += 4;
    }
    if (i + 2 <= rows) {
        block<2, COLUMNS>(a + i * a_row, a_row, a_step, b, b_row, c + i * c_row, c_row, depth);
        i += 2;
    }
    if (i < rows) block<1, COLUMNS>(a + i * a_row, a_row, a_step, b, b_row, c + i * c_row, c_row, depth);
}

// c [rows, columns] = a b, where a's element (i, k) is a[i * a_row + k * a_step]; columns in whole vectors.
static void product(i64 rows, i64 columns, i64 depth, const float *a, i64 a_row, i64 a_step, const float *b, i64 b_row,
                    float *c, i64 c_row) {
    i64 n = 0;
    for (; n + 4 * LANES <= columns; n += 4 * LANES)
        strip<4>(rows, depth, a, a_row, a_step, b + n, b_row, c + n, c_row);
    if (n + 2 * LANES <= columns) {
        strip<2>(rows, depth, a, a_row, a_step, b + n, b_row, c + n, c_row);
        n += 2 * LANES;
    }
    if (n < columns) strip<1>(rows, depth, a, a_row, a_step, b + n, b_row, c + n, c_row);
}

// A [batch, heads, length, width] tensor whose last axis is dense.
struct View {
    i64 batch, head, time;
};

struct Job {
    i64 batch, heads, queries, keys, width;
    View query, key, value, out;
    const i64 *key_lengths, *query_lengths;
    const i64 *key_starts, *query_starts;  // of sequences end to end in one row of the tensors; or none
    int causal;
    float scale;
    // Where sequence b begins in a tensor, and how many of its positions are there to be written.
    i64 keys_at(const View &view, i64 b) const { return key_starts ? key_starts[b] * view.time : b * view.batch; }
    i64 queries_at(const View &view, i64 b) const { return query_starts ? query_starts[b] * view.time : b * view.batch; }
    i64 keys_of(i64 b) const { return key_starts ? key_lengths[b] : keys; }
    i64 queries_of(i64 b) const { return query_starts ? query_lengths[b] : queries; }
};

// Rows of a tensor into float32 rows of whole vectors, whose rest is zero; and back.
template <class T>
static void take(const T *from, i64 step, i64 rows, i64 width, float factor, float *to, i64 to_row) {
    for (i64 t = 0; t < rows; t++) {
        const T *row = from + t * step;
        float *out = to + t * to_row;
#pragma omp simd
        for (i64 d = 0; d < width; d++) out[d] = load(row[d]) * factor;
        for (i64 d = width; d < to_row; d++) out[d] = 0;
    }
}

template <class T>
static void give(const float *from, i64 from_row, i64 rows, i64 width, float factor, T *to, i64 step) {
    for (i64 t = 0; t < rows; t++) {
        const float *row = from + t * from_row;
        T *out = to + t * step;
#pragma omp simd
        for (i64 d = 0; d < width; d++) store(out[d], row[d] * factor);
    }
}

// Of each two vectors that are HALF apart, half of one changes places with half of the other.
template <int HALF>
static inline void swap_halves(vector *x) {
    typedef int32_t places __attribute__((vector_size(64)));
    places low, high;
    for (int n = 0; n < LANES; n++) {
        low[n] = n & HALF ? n - HALF + LANES : n;
        high[n] = n & HALF ? n + LANES : n + HALF;
    }
#pragma GCC unroll 16
    for (int t = 0; t < LANES; t++)
        if (!(t & HALF)) {
            vector one = __builtin_shuffle(x[t], x[t + HALF], low);
            x[t + HALF] = __builtin_shuffle(x[t], x[t + HALF], high);
            x[t] = one;
        }
}

// [rows, width] with rows of from_row numbers -> [width, to_row], whose rest is zero; 16 x 16 numbers in four rounds.
static void turn(const float *from, i64 from_row, i64 rows, i64 width, float *to, i64 to_row) {
    for (i64 t0 = 0; t0 < to_row; t0 += LANES)
        for (i64 d0 = 0; d0 < width; d0 += LANES) {
            vector x[LANES];
            for (i64 t = 0; t < LANES; t++)
                x[t] = t0 + t < rows ? *(const vector *)(from + (t0 + t) * from_row + d0) : vector{};
            swap_halves<8>(x);
            swap_halves<4>(x);
            swap_halves<2>(x);
            swap_halves<1>(x);
            for (i64 d = 0; d < LANES && d0 + d < width; d++) *(vector *)(to + (d0 + d) * to_row + t0) = x[d];
        }
}

// Four rows at a time, so that their sums along a row, each a chain of dependent steps, are under way together.
// Whole vectors are computed, and what is not seen is blended away: a rest would be computed number by number.
template <int ROWS>
static inline void softmax_rows(float *scores, i64 row, const int32_t *seen) {
    float largest[ROWS], sum[ROWS];
    for (int r = 0; r < ROWS; r++) {
        const float *s = scores + r * row;
        float most = -INFINITY;
#pragma omp simd reduction(max : most)
        for (int32_t j = 0; j < (int32_t)row; j++) {
            float value = j < seen[r] ? s[j] : -INFINITY;
            most = value > most ? value : most;
        }
        largest[r] = seen[r] ? most : 0.f;
    }
    for (int r = 0; r < ROWS; r++) {
        float *s = scores + r * row, from = largest[r], total = 0;
#pragma omp simd reduction(+ : total)
        for (int32_t j = 0; j < (int32_t)row; j++) {
            float e = exponential(s[j] - from);
            e = j < seen[r] ? e : 0.f;
            s[j] = e;
            total += e;
        }
        sum[r] = total;
    }
    for (int r = 0; r < ROWS; r++) {
        float *s = scores + r * row, inverse = seen[r] ? 1.f / sum[r] : 0.f;
#pragma omp simd
        for (int32_t j = 0; j < (int32_t)row; j++) s[j] *= inverse;
    }
}

static void softmax(float *scores, i64 queries, i64 keys, i64 padded, int causal) {
    int32_t seen[4];
    for (i64 i = 0; i < queries; i += 4) {
        i64 rows = queries - i < 4 ? queries - i : 4;
        for (i64 r = 0; r < rows; r++) seen[r] = (int32_t)(causal && i + r + 1 < keys ? i + r + 1 : keys);
        if (rows == 4) softmax_rows<4>(scores + i * padded, padded, seen);
        else
            for (i64 r = 0; r < rows; r++) softmax_rows<1>(scores + (i + r) * padded, padded, seen + r);
    }
}

struct Scratch {
    std::vector<float> room;
    size_t used = 0;
    explicit Scratch(size_t size) : room(size + 16) {}
    float *get(size_t size) {
        float *at = room.data() + used;
        used += size;
        return at;
    }
};

static inline i64 up(i64 x) { return (x + LANES - 1) / LANES * LANES; }

template <class T>
static void attention_(const Job &job, const T *query, const T *key, const T *value, T *out, i64 threads) {
    i64 d = job.width, w = up(d), q = job.queries, most = up(job.keys);
#pragma omp parallel num_threads(team(job.batch *job.heads *q *d, threads))
    {
        Scratch scratch(2 * q * w + 3 * most * w + q * most);
        float *the_q = scratch.get(q * w), *o = scratch.get(q * w), *k = scratch.get(most * w),
              *k_turned = scratch.get(most * w), *v = scratch.get(most * w), *s = scratch.get(q * most);
        i64 begin, end;
        share(job.batch * job.heads, begin, end);
        for (i64 index = begin; index < end; index++) {
            i64 b = index / job.heads, h = index % job.heads;
            i64 keys = job.key_lengths ? job.key_lengths[b] : job.keys;
            i64 alive = job.query_lengths ? job.query_lengths[b] : q, padded = up(keys);
            take(query + job.queries_at(job.query, b) + h * job.query.head, job.query.time, alive, d, job.scale, the_q, w);
            take(key + job.keys_at(job.key, b) + h * job.key.head, job.key.time, keys, d, 1.f, k, w);
            take(value + job.keys_at(job.value, b) + h * job.value.head, job.value.time, keys, d, 1.f, v, w);
            turn(k, w, keys, d, k_turned, padded);
            product(alive, padded, d, the_q, w, 1, k_turned, padded, s, padded);
            softmax(s, alive, keys, padded, job.causal);
            product(alive, w, keys, s, padded, 1, v, w, o, w);
            i64 there = job.queries_of(b);
            for (i64 i = alive * w; i < there * w; i++) o[i] = 0;
            give(o, w, there, d, 1.f, out + job.queries_at(job.out, b) + h * job.out.head, job.out.time);
        }
    }
}

template <class T>
static void attention_backward_(const Job &job, const T *query, const T *key, const T *value, const T *gradient,
                                T *of_query, T *of_key, T *of_value, const View &grad, const View &dq, const View &dkv,
                                i64 threads) {
    i64 d = job.width, w = up(d), q = job.queries, most = up(job.keys);
#pragma omp parallel num_threads(team(job.batch *job.heads *q *d, threads))
    {
        Scratch scratch(3 * q * w + 5 * most * w + 2 * q * most);
        float *the_q = scratch.get(q * w), *g = scratch.get(q * w), *a = scratch.get(q * w),
              *k = scratch.get(most * w), *k_turned = scratch.get(most * w), *v = scratch.get(most * w),
              *v_turned = scratch.get(most * w), *c = scratch.get(most * w), *s = scratch.get(q * most),
              *p = scratch.get(q * most);
        i64 begin, end;
        share(job.batch * job.heads, begin, end);
        for (i64 index = begin; index < end; index++) {
            i64 b = index / job.heads, h = index % job.heads;
            i64 keys = job.key_lengths ? job.key_lengths[b] : job.keys;
            i64 alive = job.query_lengths ? job.query_lengths[b] : q, padded = up(keys);
            take(query + job.queries_at(job.query, b) + h * job.query.head, job.query.time, alive, d, job.scale, the_q, w);
            take(key + job.keys_at(job.key, b) + h * job.key.head, job.key.time, keys, d, 1.f, k, w);
            take(value + job.keys_at(job.value, b) + h * job.value.head, job.value.time, keys, d, 1.f, v, w);
            take(gradient + job.queries_at(grad, b) + h * grad.head, grad.time, alive, d, 1.f, g, w);
            turn(k, w, keys, d, k_turned, padded);
            turn(v, w, keys, d, v_turned, padded);
            product(alive, padded, d, the_q, w, 1, k_turned, padded, p, padded);
            softmax(p, alive, keys, padded, job.causal);
            product(alive, padded, d, g, w, 1, v_turned, padded, s, padded);
            // dV = P^T g
            product(keys, w, alive, p, 1, padded, g, w, c, w);
            i64 there = job.keys_of(b), asking = job.queries_of(b);
            for (i64 i = keys * w; i < there * w; i++) c[i] = 0;
            give(c, w, there, d, 1.f, of_value + job.keys_at(dkv, b) + h * dkv.head, dkv.time);
            // dS = P (dP - sum_j P dP)
            for (i64 i = 0; i < alive; i++) {
                float *row = s + i * padded, *weight = p + i * padded, mean = 0;
#pragma omp simd reduction(+ : mean)
                for (i64 j = 0; j < padded; j++) mean += row[j] * weight[j];
#pragma omp simd
                for (i64 j = 0; j < padded; j++) row[j] = weight[j] * (row[j] - mean);
            }
            // dK = dS^T Q (Q carries the scale already), dQ = dS K scale
            product(keys, w, alive, s, 1, padded, the_q, w, c, w);
            for (i64 i = keys * w; i < there * w; i++) c[i] = 0;
            give(c, w, there, d, 1.f, of_key + job.keys_at(dkv, b) + h * dkv.head, dkv.time);
            product(alive, w, keys, s, padded, 1, k, w, a, w);
            for (i64 i = alive * w; i < asking * w; i++) a[i] = 0;
            give(a, w, asking, d, job.scale, of_query + job.queries_at(dq, b) + h * dq.head, dq.time);
        }
    }
}

// sizes: batch, heads, queries, keys, width; strides: three each of query, key, value, out
extern "C" void attention(const i64 *sizes, const i64 *s, const void *query, const void *key, const void *value,
                          void *out, int type, const i64 *key_lengths, const i64 *query_lengths,
                          const i64 *key_starts, const i64 *query_starts, int causal, float scale, i64 threads) {
    Job job{sizes[0],           sizes[1],           sizes[2],           sizes[3],             sizes[4],
            {s[0], s[1], s[2]}, {s[3], s[4], s[5]}, {s[6], s[7], s[8]}, {s[9], s[10], s[11]}, key_lengths,
            query_lengths,      key_starts,         query_starts,       causal,               scale};
    if (type) attention_(job, (const bf16 *)query, (const bf16 *)key, (const bf16 *)value, (bf16 *)out, threads);
    else attention_(job, (const float *)query, (const float *)key, (const float *)value, (float *)out, threads);
}

// strides: three each of query, key, value, the gradient, dquery, dkey and dvalue (alike)
extern "C" void attention_backward(const i64 *sizes, const i64 *s, const void *query, const void *key,
                                   const void *value, const void *gradient, void *of_query, void *of_key,
                                   void *of_value, int type, const i64 *key_lengths, const i64 *query_lengths,
                                   const i64 *key_starts, const i64 *query_starts, int causal, float scale,
                                   i64 threads) {
    Job job{sizes[0],           sizes[1],           sizes[2],           sizes[3], sizes[4],
            {s[0], s[1], s[2]}, {s[3], s[4], s[5]}, {s[6], s[7], s[8]}, {},       key_lengths,
            query_lengths,      key_starts,         query_starts,       causal,   scale};
    View grad{s[9], s[10], s[11]}, dq{s[12], s[13], s[14]}, dkv{s[15], s[16], s[17]};
    if (type)
        attention_backward_(job, (const bf16 *)query, (const bf16 *)key, (const bf16 *)value, (const bf16 *)gradient,
                            (bf16 *)of_query, (bf16 *)of_key, (bf16 *)of_value, grad, dq, dkv, threads);
    else
        attention_backward_(job, (const float *)query, (const float *)key, (const float *)value,
                            (const float *)gradient, (float *)of_query, (float *)of_key, (float *)of_value, grad, dq,
                            dkv, threads);
}
