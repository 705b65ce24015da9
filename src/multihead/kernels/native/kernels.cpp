// Compiled kernels of a training update: pointwise operations, loss, attention, linear maps.
//
// Pointwise operations and cross-entropy take one pass over memory. Linear maps are for processors where PyTorch's products
// are slower. The last lines include Muon's directions, linear maps in bfloat16 and attention over short and long sequences.
//
// The functions are plain C on raw pointers. They need no PyTorch header, so the build takes seconds and works with
// every version of PyTorch. Loops are written so that the compiler vectorizes them (-march=native) on any processor.
// The equations are in the Python modules that call them: kernels/random.py, kernels/pointwise.py,
// kernels/linear.py, kernels/products.py and attention/backends/short.py.
//
// Tensors are row-major and contiguous, [rows, width], unless a View says otherwise. The threads divide the rows
// among them. Their number affects only the last bits of sums over rows (gradients of vectors).
//
// Element types: 0 = float32, 1 = bfloat16 (rounded to nearest, ties to even). Sums are at least float32.
//
// The functions return 0, or 1 if there is not enough memory for their scratch; what they wrote is then undefined.

#include <atomic>
#include <cmath>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <type_traits>
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

// Does the work of a function; its status. No exception leaves a function of C.
template <class Work>
static int status_of(const Work &work) {
    try {
        work();
        return 0;
    } catch (const std::exception &) {
        return 1;
    }
}

// Threads of a team that had not enough memory. No exception leaves a parallel region: each thread catches its own.
struct Failures {
    std::atomic<bool> any{false};
    void end_of_region() const {
        if (any) throw std::bad_alloc();
    }
};

// ------------------------------------------------------------------------------------------------------- vectors

// N floats in a vector.
template <int N>
struct Lanes {
    typedef float floats __attribute__((vector_size(N * 4), aligned(4)));
    typedef int32_t places __attribute__((vector_size(N * 4)));
};

// One round of a transposition: exchanges halves of length HALF between vectors whose numbers differ by HALF.
template <int N, int HALF>
static inline void exchange_halves(typename Lanes<N>::floats *x) {
    typename Lanes<N>::places low, high;
    for (int n = 0; n < N; n++) {
        low[n] = n & HALF ? n - HALF + N : n;
        high[n] = n & HALF ? n + N : n + HALF;
    }
#pragma GCC unroll 16
    for (int t = 0; t < N; t++)
        if (!(t & HALF)) {
            typename Lanes<N>::floats one = __builtin_shuffle(x[t], x[t + HALF], low);
            x[t + HALF] = __builtin_shuffle(x[t], x[t + HALF], high);
            x[t] = one;
        }
}

// Transposes N x N numbers in registers, in a round for each factor of two.
template <int N>
static inline void transpose_block(typename Lanes<N>::floats *x) {
    if constexpr (N > 8) exchange_halves<N, 8>(x);
    if constexpr (N > 4) exchange_halves<N, 4>(x);
    exchange_halves<N, 2>(x);
    exchange_halves<N, 1>(x);
}

#include "softmax.h"
#include "strips.h"

// ------------------------------------------------------------------------------------------------ random numbers

static inline u32 mix(u32 x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return x;
}

// Selects the random number of each element: see kernels/random.py.
struct Key {
    u32 low, high;
    i64 first_row, row_stride, positions;
    const i64 *places;  // of packed tokens: 2^32 row + position; null if not packed
};

// Draws the random bytes of one row of features at a time.
struct RandomBytes {
    Key key;
    i64 width, words;
    std::vector<u32> column, drawn;
    RandomBytes(const Key &key, i64 width)
        : key(key), width(width), words((width + 3) / 4), column(words), drawn(words) {
        for (i64 j = 0; j < words; j++) column[j] = mix(key.high + (u32)j);
    }
    const u8 *row(i64 index) {
        i64 place = key.places ? key.places[index] : 0;
        i64 number = key.places ? place >> 32 : index / key.positions;
        u32 position = (u32)(key.places ? place : index % key.positions);
        u32 base = mix(mix(key.low + (u32)key.first_row + (u32)key.row_stride * (u32)number) ^ position);
        const u32 *from = column.data();
        u32 *to = drawn.data();
#pragma omp simd
        for (i64 j = 0; j < words; j++) to[j] = mix(base + from[j]);
        return (const u8 *)to;  // little-endian: byte b of word j is feature 4 j + b
    }
};

// The rows [begin, end) of the current thread.
static inline void thread_rows(i64 count, i64 &begin, i64 &end) {
    i64 threads = omp_get_num_threads(), me = omp_get_thread_num();
    begin = count * me / threads;
    end = count * (me + 1) / threads;
}

// Writes compute(f) for each feature f of a row. Numbers of bfloat16 are rounded many at once, which is faster than one by
// one; a part of the row at a time, so that it stays in the first cache.
template <class T, class Compute>
static inline void write_row(T *to, i64 width, const Compute &compute) {
    if constexpr (std::is_same_v<T, float>) {
#pragma omp simd
        for (i64 f = 0; f < width; f++) to[f] = compute(f);
    } else {
        float part[256];
        for (i64 first = 0; first < width; first += 256) {
            const i64 count = width - first < 256 ? width - first : 256;
#pragma omp simd
            for (i64 n = 0; n < count; n++) part[n] = compute(first + n);
            tiles::store_row(part, count, 1.f, to + first);
        }
    }
}

// Number of threads for so many elements: at least 8192 elements per thread.
static inline int thread_count(i64 elements, i64 threads) {
    i64 worth = elements / 8192, most = threads < 1 ? 1 : threads < 4096 ? threads : 4096;
    return (int)(worth < 1 ? 1 : worth < most ? worth : most);
}

template <class A, class B>
static void dropout_(const A *x, B *y, i64 rows, i64 width, const Key &key, u32 level, float scale, i64 threads) {
    Failures failures;
#pragma omp parallel num_threads(thread_count(rows * width, threads))
    try {
        RandomBytes bytes(key, width);
        i64 begin, end;
        thread_rows(rows, begin, end);
        for (i64 r = begin; r < end; r++) {
            const u8 *drawn = bytes.row(r);
            const A *from = x + r * width;
            write_row(y + r * width, width, [=](i64 f) { return drawn[f] >= level ? load(from[f]) * scale : 0.f; });
        }
    } catch (const std::exception &) {
        failures.any = true;
    }
    failures.end_of_region();
}

#define KEY_ARGS u32 low, u32 high, i64 first_row, i64 row_stride, i64 positions, const i64 *places
#define MAKE_KEY Key{low, high, first_row, row_stride, positions, places}

extern "C" int dropout(const void *x, int x_type, void *y, int y_type, i64 rows, i64 width, KEY_ARGS, int level,
                       float scale, i64 threads) {
    return status_of([&] {
        Key key = MAKE_KEY;
        if (!x_type && !y_type) dropout_((const float *)x, (float *)y, rows, width, key, level, scale, threads);
        if (!x_type && y_type) dropout_((const float *)x, (bf16 *)y, rows, width, key, level, scale, threads);
        if (x_type && !y_type) dropout_((const bf16 *)x, (float *)y, rows, width, key, level, scale, threads);
        if (x_type && y_type) dropout_((const bf16 *)x, (bf16 *)y, rows, width, key, level, scale, threads);
    });
}

extern "C" int keep_mask(u8 *y, i64 rows, i64 width, KEY_ARGS, int level, i64 threads) {
    return status_of([&] {
        Key key = MAKE_KEY;
        Failures failures;
#pragma omp parallel num_threads(thread_count(rows * width, threads))
        try {
            RandomBytes bytes(key, width);
            i64 begin, end;
            thread_rows(rows, begin, end);
            for (i64 r = begin; r < end; r++) {
                const u8 *drawn = bytes.row(r);
                u8 *to = y + r * width;
#pragma omp simd
                for (i64 f = 0; f < width; f++) to[f] = drawn[f] >= level;
            }
        } catch (const std::exception &) {
            failures.any = true;
        }
        failures.end_of_region();
    });
}

// ------------------------------------------------------------------------------- dropout, residual sum, layer norm

// total = x + dropout(branch);  normed = (total - mean) * rstd * gain + shift.
// x, branch, total, normed: [rows, width]; gain, shift: [width]; means, rstds: [rows], for the backward pass.
// If branch is null, total is x and is not written. If gain is null, there is no norm; shift may be null.
// F and O are the types of branch and normed.
template <class F, class O>
static void add_norm_(const float *x, const F *branch, float *total, const float *gain, const float *shift,
                      O *normed, float *means, float *rstds, i64 rows, i64 width, float eps,
                      const Key &key, u32 level, float scale, i64 threads) {
    Failures failures;
#pragma omp parallel num_threads(thread_count(rows * width, threads))
    try {
        RandomBytes bytes(key, width);
        i64 begin, end;
        thread_rows(rows, begin, end);
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
            if (shift) write_row(to, width, [=](i64 f) { return (sum[f] - mean) * rstd * gain[f] + shift[f]; });
            else write_row(to, width, [=](i64 f) { return (sum[f] - mean) * rstd * gain[f]; });
            means[r] = mean;
            rstds[r] = rstd;
        }
    } catch (const std::exception &) {
        failures.any = true;
    }
    failures.end_of_region();
}

extern "C" int add_norm(const float *x, const void *branch, int branch_type, float *total,
                        const float *gain, const float *shift, void *normed, int normed_type, float *means,
                        float *rstds, i64 rows, i64 width, float eps, KEY_ARGS, int level, float scale, i64 threads) {
    return status_of([&] {
        Key key = MAKE_KEY;
#define CALL(F, O)                                                                                                 \
        add_norm_((const float *)x, (const F *)branch, total, gain, shift, (O *)normed, means, rstds, rows, width, \
                  eps, key, level, scale, threads)
        if (branch_type) {
            if (normed_type) CALL(bf16, bf16); else CALL(bf16, float);
        } else {
            if (normed_type) CALL(float, bf16); else CALL(float, float);
        }
#undef CALL
    });
}

// The gradients of add_norm_. With z = (total - mean) * rstd and g = grad_normed * gain, the gradient of total is
//     grad_total + (g - mean_f(g) - z mean_f(g z)) * rstd,
// which is also that of x; that of branch is the same times the dropout mask. grad_gain and grad_shift are
// sums over rows of grad_normed * z and grad_normed. If gain is null, grad_normed is not read and the gradient of total
// is grad_total. grad_total and all outputs may be null.
template <class F, class O>
static void add_norm_backward_(const O *grad_normed, const float *grad_total, const float *total, const float *gain,
                               const float *means, const float *rstds, float *grad_x, F *grad_branch, float *grad_gain,
                               float *grad_shift, i64 rows, i64 width, const Key &key, u32 level,
                               float scale, i64 threads) {
    int workers = thread_count(rows * width, threads);
    std::vector<float> sums((size_t)workers * 2 * width, 0.f);
    Failures failures;
#pragma omp parallel num_threads(workers)
    try {
        RandomBytes bytes(key, width);
        std::vector<float> work(width);
        float *gains = sums.data() + (size_t)omp_get_thread_num() * 2 * width, *shifts = gains + width;
        i64 begin, end;
        thread_rows(rows, begin, end);
        for (i64 r = begin; r < end; r++) {
            const float *gradient = grad_total ? grad_total + r * width : nullptr;
            if (gain) {
                const O *g = grad_normed + r * width;
                const float *t = total + r * width;
                float mean = means[r], rstd = rstds[r], first = 0, second = 0;
#pragma omp simd reduction(+ : first, second)
                for (i64 f = 0; f < width; f++) {
                    float gradient_f = load(g[f]), z = (t[f] - mean) * rstd, scaled = gradient_f * gain[f];
                    gains[f] += gradient_f * z;
                    shifts[f] += gradient_f;
                    first += scaled;
                    second += scaled * z;
                }
                first /= width;   // mean_f(g)
                second /= width;  // mean_f(g z)
                float *to = grad_x ? grad_x + r * width : work.data();
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
            if (grad_branch && level) {
                const u8 *drawn = bytes.row(r);
                write_row(grad_branch + r * width, width,
                          [=](i64 f) { return drawn[f] >= level ? gradient[f] * scale : 0.f; });
            } else if (grad_branch) {
                tiles::store_row(gradient, width, 1.f, grad_branch + r * width);
            }
        }
    } catch (const std::exception &) {
        failures.any = true;
    }
    failures.end_of_region();
    for (i64 f = 0; f < width; f++) {
        float a = 0, b = 0;
        for (int w = 0; w < workers; w++) {
            const float *mine = sums.data() + (size_t)w * 2 * width;
            a += mine[f];
            b += mine[width + f];
        }
        if (grad_gain) grad_gain[f] = a;
        if (grad_shift) grad_shift[f] = b;
    }
}

extern "C" int add_norm_backward(const void *grad_normed, int normed_type, const float *grad_total, const float *total,
                                 const float *gain, const float *means, const float *rstds, float *grad_x,
                                 void *grad_branch, int branch_type, float *grad_gain, float *grad_shift,
                                 i64 rows, i64 width, KEY_ARGS, int level, float scale, i64 threads) {
    return status_of([&] {
        Key key = MAKE_KEY;
#define CALL(F, O)                                                                                            \
        add_norm_backward_((const O *)grad_normed, grad_total, total, gain, means, rstds, grad_x, (F *)grad_branch, \
                           grad_gain, grad_shift, rows, width, key, level, scale, threads)
        if (branch_type) {
            if (normed_type) CALL(bf16, bf16); else CALL(bf16, float);
        } else {
            if (normed_type) CALL(float, bf16); else CALL(float, float);
        }
#undef CALL
    });
}

// ------------------------------------------------------------------------- exponential, normal distribution function

// exp(x) with a relative error below 2e-7; 0 below -87. Unlike std::exp it can be vectorized by any compiler.
// x = n ln 2 + r with |r| <= ln 2 / 2, where ln 2 is split in two so that r is exact; exp(r) is a polynomial, and 2^n
// is made of its bits.
static inline float exponential(float x) {
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

// P[X <= x] of a standard normal X, with an error below 1e-7 (Abramowitz & Stegun 1964, 7.1.26).
static inline float normal_cumulative(float x) {
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

// KIND: 0 = ReLU, 1 = GELU. NaN stays NaN.
template <int KIND>
static inline float activate(float x) {
    if (KIND == 0) return x > 0.f ? x : x != x ? x : 0.f;
    return x * normal_cumulative(x);
}

// The derivative of activate.
template <int KIND>
static inline float slope(float x) {
    if (KIND == 0) return x > 0.f ? 1.f : 0.f;
    return normal_cumulative(x) + x * 0.39894228040143268f * exponential(-0.5f * x * x);
}

// y = dropout(act(x + bias)), all [rows, width] but bias [width], which may be null.
template <class T, int KIND>
static void activation_(const T *x, const float *bias, T *y, i64 rows, i64 width, const Key &key, u32 level,
                        float scale, i64 threads) {
    Failures failures;
#pragma omp parallel num_threads(thread_count(rows * width, threads))
    try {
        RandomBytes bytes(key, width);
        std::vector<float> zero(width, 0.f);
        std::vector<u8> all(width, 255);
        const float *add = bias ? bias : zero.data();
        i64 begin, end;
        thread_rows(rows, begin, end);
        for (i64 r = begin; r < end; r++) {
            const u8 *drawn = level ? bytes.row(r) : all.data();
            const T *from = x + r * width;
            write_row(y + r * width, width, [=](i64 f) {
                float value = activate<KIND>(load(from[f]) + add[f]) * scale;
                return drawn[f] >= level ? value : 0.f;
            });
        }
    } catch (const std::exception &) {
        failures.any = true;
    }
    failures.end_of_region();
}

// grad_x from the gradient g of y, and grad_bias, its sum over rows. For ReLU, x is y itself, whose positive elements
// are those that pass a gradient, and bias is null.
template <class T, int KIND>
static void activation_backward_(const T *g, const T *x, const float *bias, T *grad_x, float *grad_bias, i64 rows,
                                 i64 width, const Key &key, u32 level, float scale, i64 threads) {
    int workers = thread_count(rows * width, threads);
    std::vector<float> sums((size_t)workers * width, 0.f);
    Failures failures;
#pragma omp parallel num_threads(workers)
    try {
        RandomBytes bytes(key, width);
        std::vector<float> zero(width, 0.f);
        std::vector<u8> all(width, 255);
        const float *add = bias ? bias : zero.data();
        float *column = sums.data() + (size_t)omp_get_thread_num() * width;
        i64 begin, end;
        thread_rows(rows, begin, end);
        for (i64 r = begin; r < end; r++) {
            const u8 *drawn = level ? bytes.row(r) : all.data();
            const T *gradient = g + r * width, *from = x + r * width;
            write_row(grad_x + r * width, width, [=](i64 f) {
                float value = load(gradient[f]) * slope<KIND>(load(from[f]) + add[f]) * scale;
                value = drawn[f] >= level ? value : 0.f;
                column[f] += value;
                return value;
            });
        }
    } catch (const std::exception &) {
        failures.any = true;
    }
    failures.end_of_region();
    if (grad_bias)
        for (i64 f = 0; f < width; f++) {
            float total = 0;
            for (int w = 0; w < workers; w++) total += sums[(size_t)w * width + f];
            grad_bias[f] = total;
        }
}

#define DISPATCH(FUNCTION, ...)                                                                          \
    if (type) {                                                                                      \
        if (kind) FUNCTION<bf16, 1>(__VA_ARGS__); else FUNCTION<bf16, 0>(__VA_ARGS__);               \
    } else {                                                                                         \
        if (kind) FUNCTION<float, 1>(__VA_ARGS__); else FUNCTION<float, 0>(__VA_ARGS__);             \
    }

// A pointer that converts to any type.
struct AnyPointer {
    const void *at;
    template <class T> operator const T *() const { return (const T *)at; }
    template <class T> operator T *() const { return (T *)at; }
};

extern "C" int activation(const void *x, const float *bias, void *y, int type, int kind, i64 rows, i64 width, KEY_ARGS,
                          int level, float scale, i64 threads) {
    return status_of([&] {
        Key key = MAKE_KEY;
        DISPATCH(activation_, AnyPointer{x}, bias, AnyPointer{y}, rows, width, key, level, scale, threads)
    });
}

extern "C" int activation_backward(const void *g, const void *x, const float *bias, void *grad_x, float *grad_bias,
                                   int type, int kind, i64 rows, i64 width, KEY_ARGS, int level, float scale,
                                   i64 threads) {
    return status_of([&] {
        Key key = MAKE_KEY;
        DISPATCH(activation_backward_, AnyPointer{g}, AnyPointer{x}, bias, AnyPointer{grad_x}, grad_bias, rows, width,
                 key, level, scale, threads)
    });
}

// ---------------------------------------------------------------------------------------------------------- rotation

// y [rows, width] from x [rows, width], whose rows are `step` elements apart: each head of `dim` features is rotated,
// its features i and i + dim / 2 by the angle whose sine and cosine are turns[i] and turns[i + dim / 2] in row
// r % places; by the opposite angle if `back`.
template <class T>
static void rotate_(const T *x, i64 step, T *y, const float *turns, i64 rows, i64 width, i64 dim, i64 places, int back,
                    i64 threads) {
    const i64 half = dim / 2;
    const float sign = back ? -1.f : 1.f;
    Failures failures;
#pragma omp parallel num_threads(thread_count(rows * width, threads))
    try {
        constexpr bool IN_PLACE = std::is_same_v<T, float>;
        std::vector<float> turned(IN_PLACE ? 0 : width);
        i64 begin, end;
        thread_rows(rows, begin, end);
        for (i64 r = begin; r < end; r++) {
            const float *sine = turns + r % places * dim, *cosine = sine + half;
            for (i64 h = 0; h < width; h += dim) {
                const T *from = x + r * step + h;
                float *to;
                if constexpr (IN_PLACE) to = y + r * width + h;
                else to = turned.data() + h;
                i64 i = 0;
                const auto turn = [&](auto count) {  // known numbers, so that few are left to a loop of single ones
                    for (; i + count <= half; i += count)
#pragma omp simd
                        for (i64 n = i; n < i + count; n++) {
                            const float a = load(from[n]), b = load(from[half + n]), s = sine[n] * sign;
                            to[n] = a * cosine[n] - b * s;
                            to[half + n] = a * s + b * cosine[n];
                        }
                };
                turn(std::integral_constant<i64, 16>{});
                turn(std::integral_constant<i64, 8>{});
                turn(std::integral_constant<i64, 1>{});
            }
            if constexpr (!IN_PLACE) tiles::store_row(turned.data(), width, 1.f, y + r * width);
        }
    } catch (const std::exception &) {
        failures.any = true;
    }
    failures.end_of_region();
}

extern "C" int rotate(const void *x, i64 step, void *y, int type, const float *turns, i64 rows, i64 width, i64 dim,
                      i64 places, int back, i64 threads) {
    return status_of([&] {
        if (type) rotate_((const bf16 *)x, step, (bf16 *)y, turns, rows, width, dim, places, back, threads);
        else rotate_((const float *)x, step, (float *)y, turns, rows, width, dim, places, back, threads);
    });
}

// ----------------------------------------------------------------------------------------------------- cross-entropy

// Logits z [width] of a row: the largest, their sum, and the sum of e = exp(z - largest), which is written. Sums are in
// several chains, which do not wait for each other.
template <class T>
static void exponentials(const T *z, i64 width, float *e, float &largest, float &sum, float &partition) {
    using namespace tiles;
    constexpr int CHAINS = 4;
    const i64 whole = down(width, CHAINS * FLOATS);
    vec top[CHAINS], total[CHAINS], powers[CHAINS];
    for (int n = 0; n < CHAINS; n++) top[n] = splat(-INFINITY), total[n] = powers[n] = vec{};
    for (i64 v = 0; v < whole; v += CHAINS * FLOATS)
#pragma GCC unroll 4
        for (int n = 0; n < CHAINS; n++) {
            const vec x = numbers(z + v + n * FLOATS, FLOATS);
            top[n] = larger(x, top[n]);
            total[n] += x;
        }
    largest = highest_of(larger(larger(top[0], top[1]), larger(top[2], top[3])))[0];
    sum = sum_of(total[0] + total[1] + (total[2] + total[3]))[0];
    for (i64 v = whole; v < width; v++) {
        const float x = load(z[v]);
        largest = x > largest ? x : largest;
        sum += x;
    }
    for (i64 v = 0; v < whole; v += CHAINS * FLOATS)
#pragma GCC unroll 4
        for (int n = 0; n < CHAINS; n++) {
            const vec x = power_of_two((numbers(z + v + n * FLOATS, FLOATS) - largest) * LOG2_E);
            *(vec *)(e + v + n * FLOATS) = x;
            powers[n] += x;
        }
    partition = sum_of(powers[0] + powers[1] + (powers[2] + powers[3]))[0];
    for (i64 v = whole; v < width; v++) partition += e[v] = exponential(load(z[v]) - largest);
}

// Soft targets: of each row the probabilities of ``count`` symbols; what is missing to 1 is spread over all symbols.
struct Soft {
    const i64 *ids;              // [rows, count]
    const float *probabilities;  // [rows, count]
    i64 count;
    double weight;   // share of the soft targets in the loss
    double *losses;  // [rows], their cross-entropy
};

// The loss of a row with soft targets, and from e = exp(z - largest) its gradient, which is written over the logits z:
// softmax(z) - (1 - weight) (labels as in cross_entropy_) - weight (soft targets).
template <class T>
static double soft_row_(T *z, float *e, i64 target, i64 width, float smoothing, int needs_grad, float sum,
                        float partition, double log_partition, const Soft &soft, i64 r) {
    const i64 *ids = soft.ids + r * soft.count;
    const float *probabilities = soft.probabilities + r * soft.count;
    double rest = 1, chosen = 0;
    for (i64 j = 0; j < soft.count; j++) {
        rest -= probabilities[j];
        chosen += (double)probabilities[j] * load(z[ids[j]]);
    }
    if (needs_grad) {
        double labels = 1 - soft.weight;
        float inverse = 1.f / partition, uniform = (float)((labels * smoothing + soft.weight * rest) / width);
        e[target] -= (float)(labels * (1.0 - smoothing) * partition);
        for (i64 j = 0; j < soft.count; j++) e[ids[j]] -= (float)(soft.weight * probabilities[j] * partition);
        tiles::store_row(e, width, inverse, z, -uniform);
    }
    return log_partition - chosen - (rest ? rest / width * sum : 0);
}

// Loss of each row of logits [rows, width], with the label target[r] and label smoothing; hits[r] is 1 if no logit is
// larger than the target's. If needs_grad, logits are overwritten by the gradient of totals:
// softmax(z) - smoothing / width - (1 - smoothing) [v == target]; with soft targets by that of ``soft_row_``.
template <class T, bool SOFT>
static void cross_entropy_(T *logits, const i64 *target, i64 rows, i64 width, float smoothing, int needs_grad,
                           double *totals, double *nlls, i64 *hits, const Soft &soft, i64 threads) {
    float uniform = smoothing / width;
    Failures failures;
#pragma omp parallel num_threads(thread_count(rows * width, threads))
    try {
        std::vector<float> work(width);
        float *e = work.data();
        i64 begin, end;
        thread_rows(rows, begin, end);
        for (i64 r = begin; r < end; r++) {
            T *z = logits + r * width;
            float largest, sum, partition;
            exponentials(z, width, e, largest, sum, partition);
            float chosen = load(z[target[r]]);
            double log_partition = (double)largest + std::log((double)partition);
            nlls[r] = log_partition - chosen;
            totals[r] = log_partition - (1.0 - smoothing) * chosen - (smoothing ? (double)smoothing / width * sum : 0);
            hits[r] = chosen == largest;
            if constexpr (SOFT) {
                soft.losses[r] = soft_row_(z, e, target[r], width, smoothing, needs_grad, sum, partition,
                                           log_partition, soft, r);
                continue;
            }
            if (!needs_grad) continue;
            float inverse = 1.f / partition;
            float at_target = e[target[r]] * inverse - uniform - (1.f - smoothing);
            tiles::store_row(e, width, inverse, z, -uniform);
            store(z[target[r]], at_target);
        }
    } catch (const std::exception &) {
        failures.any = true;
    }
    failures.end_of_region();
}

extern "C" int cross_entropy(void *logits, int type, const i64 *target, i64 rows, i64 width, float smoothing,
                             int needs_grad, double *totals, double *nlls, i64 *hits, i64 threads) {
    return status_of([&] {
        const auto run = [&](auto *z) {
            using T = std::remove_reference_t<decltype(*z)>;
            cross_entropy_<T, false>(z, target, rows, width, smoothing, needs_grad, totals, nlls, hits, {}, threads);
        };
        if (type) run((bf16 *)logits); else run((float *)logits);
    });
}

extern "C" int soft_cross_entropy(void *logits, int type, const i64 *target, i64 rows, i64 width, float smoothing,
                                  int needs_grad, double *totals, double *nlls, i64 *hits, const i64 *ids,
                                  const float *probabilities, i64 count, double weight, double *losses, i64 threads) {
    return status_of([&] {
        Soft soft{ids, probabilities, count, weight, losses};
        const auto run = [&](auto *z) {
            using T = std::remove_reference_t<decltype(*z)>;
            cross_entropy_<T, true>(z, target, rows, width, smoothing, needs_grad, totals, nlls, hits, soft, threads);
        };
        if (type) run((bf16 *)logits); else run((float *)logits);
    });
}

// ------------------------------------------------------------------------------------------------------ linear maps

// Products PANEL columns at a time: DEPTH rows of them are copied to a panel that stays in the first cache.
static const i64 PANEL = STRIP * LANES, DEPTH = 256;

// c [rows, PANEL] = a [rows, depth] panel [depth, PANEL]; added to c unless it is the first part of a product, which
// starts at `row` if that is not null.
static void times_panel(i64 rows, i64 depth, const float *a, i64 a_row, const float *panel, float *c, i64 c_row,
                        bool first, const float *row = nullptr) {
    if (!first) strip<STRIP, OLD>(rows, depth, a, a_row, 1, panel, PANEL, c, c_row);
    else if (row) strip<STRIP, ROW>(rows, depth, a, a_row, 1, panel, PANEL, c, c_row, row);
    else strip<STRIP>(rows, depth, a, a_row, 1, panel, PANEL, c, c_row);
}

// Rows that are computed before the next panel: they stay in the second cache, as the panels of GROUP columns do.
static const i64 TALL = 252, GROUP = 512;

// Memory that is not set to zero.
struct Room {
    std::unique_ptr<float[]> room;
    explicit Room(i64 size) : room(new float[(size_t)size]) {}
    float *data() const { return room.get(); }
};

// The panel of columns [n, n + PANEL) and rows [k, k + part) of w^T for w [out, in]; or of w [in, out] if it is `turned`.
static void pack_panel(const float *w, i64 in, i64 out, int turned, i64 k, i64 part, i64 n, float *panel) {
    i64 there = out - n < PANEL ? out - n : PANEL;
    if (there == PANEL && turned) {
        for (i64 i = 0; i < part; i++)
            for (i64 f = 0; f < PANEL; f++) panel[i * PANEL + f] = w[(k + i) * out + n + f];
    } else if (there == PANEL && part % LANES == 0) {
        transpose(w + n * in + k, in, PANEL, part, panel, PANEL, PANEL);
    } else {
        for (i64 i = 0; i < part; i++)
            for (i64 f = 0; f < PANEL; f++)
                panel[i * PANEL + f] = f >= there ? 0.f : turned ? w[(k + i) * out + n + f] : w[(n + f) * in + k + i];
    }
}

// y = x w^T + bias for x [rows, in] and w [out, in]; with a `turned` w [in, out] y = x w + bias. bias may be null. Each
// row's sums are in the same order whatever the number of rows and threads.
extern "C" int linear(const float *x, const float *w, const float *bias, float *y, i64 rows, i64 in, i64 out, int turned,
                      i64 threads) {
    return status_of([&] {
        const i64 panels = (out + PANEL - 1) / PANEL;
        Failures failures;
#pragma omp parallel num_threads(thread_count(rows * out, threads))
        try {
            Room packed(DEPTH * GROUP), edge(TALL * PANEL), starts(bias ? panels * PANEL : 0);
            if (bias)
                for (i64 f = 0; f < panels * PANEL; f++) starts.data()[f] = f < out ? bias[f] : 0.f;
            // The threads divide the columns, or the rows if there are few columns.
            i64 first = 0, last = panels, top = 0, bottom = rows;
            if (panels >= 4 * omp_get_num_threads()) thread_rows(panels, first, last);
            else thread_rows(rows, top, bottom);
            for (i64 group = first; group < last; group += GROUP / PANEL) {
                i64 stop = group + GROUP / PANEL < last ? group + GROUP / PANEL : last;
                for (i64 k = 0; k < in; k += DEPTH) {
                    i64 part = in - k < DEPTH ? in - k : DEPTH;
                    for (i64 p = group; p < stop; p++)
                        pack_panel(w, in, out, turned, k, part, p * PANEL, packed.data() + (p - group) * DEPTH * PANEL);
                    for (i64 t = top; t < bottom; t += TALL) {
                        i64 tall = bottom - t < TALL ? bottom - t : TALL;
                        for (i64 p = group; p < stop; p++) {
                            const float *panel = packed.data() + (p - group) * DEPTH * PANEL;
                            i64 n = p * PANEL, there = out - n < PANEL ? out - n : PANEL;
                            float *to = y + t * out + n;
                            const float *start = bias ? starts.data() + n : nullptr;
                            if (there == PANEL) {
                                times_panel(tall, part, x + t * in + k, in, panel, to, out, k == 0, start);
                                continue;
                            }
                            start = k ? nullptr : start;
                            times_panel(tall, part, x + t * in + k, in, panel, edge.data(), PANEL, true, start);
                            for (i64 i = 0; i < tall; i++)
                                for (i64 f = 0; f < there; f++) {
                                    float value = edge.data()[i * PANEL + f];
                                    to[i * out + f] = k ? to[i * out + f] + value : value;
                                }
                        }
                    }
                }
            }
        } catch (const std::exception &) {
            failures.any = true;
        }
        failures.end_of_region();
    });
}

// The six columns of g from `column` on, of rows [k, k + part), next to each other; zeros beyond the last column. Eight
// numbers are copied at once, so two more than six of the last row are written.
static void pack_six(const float *g, i64 out, i64 k, i64 part, i64 column, float *to) {
    typedef float eight __attribute__((vector_size(32), aligned(4)));
    const float *from = g + k * out + column;
    i64 there = out - column < 6 ? out - column : 6;
    if (out - column >= 8)
        for (i64 i = 0; i < part; i++) *(eight *)(to + i * 6) = *(const eight *)(from + i * out);
    else
        for (i64 i = 0; i < part; i++)
            for (i64 f = 0; f < 6; f++) to[i * 6 + f] = f < there ? from[i * out + f] : 0.f;
}

// dw [out, in] = g^T x for g [rows, out] and x [rows, in], where PANEL divides `in`; added to dw if `add`. db [out], the
// sum of g's rows, may be null.
extern "C" int linear_weight(const float *g, const float *x, float *dw, float *db, i64 rows, i64 in, i64 out, int add,
                             i64 threads) {
    return status_of([&] {
        const i64 wide = GROUP / 6;  // sixes of a group
        Failures failures;
#pragma omp parallel num_threads(thread_count(rows * out, threads))
        try {
            Room packed(DEPTH * wide * 6 + 2), panel(DEPTH * PANEL);
            i64 first, last;
            thread_rows((out + 5) / 6, first, last);
            for (i64 group = first; group < last; group += wide) {
                i64 stop = group + wide < last ? group + wide : last;
                i64 end = stop * 6 < out ? stop * 6 : out;
                if (db)
                    for (i64 f = group * 6; f < end; f++) db[f] = 0;
                for (i64 k = 0; k < rows; k += DEPTH) {
                    i64 part = rows - k < DEPTH ? rows - k : DEPTH;
                    for (i64 s = group; s < stop; s++)
                        pack_six(g, out, k, part, s * 6, packed.data() + (s - group) * DEPTH * 6);
                    if (db)
                        for (i64 i = k; i < k + part; i++)
                            for (i64 f = group * 6; f < end; f++) db[f] += g[i * out + f];
                    for (i64 n = 0; n < in; n += PANEL) {
                        pack_panel(x, rows, in, 1, k, part, n, panel.data());
                        for (i64 s = group; s < stop; s++) {
                            const float *left = packed.data() + (s - group) * DEPTH * 6;
                            float *to = dw + s * 6 * in + n;
                            i64 tall = out - s * 6 < 6 ? out - s * 6 : 6;
                            if (k || add) strip<STRIP, OLD>(tall, part, left, 1, 6, panel.data(), PANEL, to, in);
                            else strip<STRIP>(tall, part, left, 1, 6, panel.data(), PANEL, to, in);
                        }
                    }
                }
                if (rows == 0 && !add)
                    for (i64 i = group * 6 * in; i < end * in; i++) dw[i] = 0;
            }
        } catch (const std::exception &) {
            failures.any = true;
        }
        failures.end_of_region();
    });
}

#include "directions.h"
#include "half_linear.h"
#include "long_attention.h"
#include "short_attention.h"
