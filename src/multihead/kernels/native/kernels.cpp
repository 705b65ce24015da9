// Compiled kernels of a training update: pointwise operations, loss, attention, linear maps.
//
// Pointwise operations, cross-entropy and short attention take one pass over memory. Linear maps are for processors where
// PyTorch's products are slower. The last lines include Muon's directions, linear maps in bfloat16 and attention over long
// sequences.
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
            B *to = y + r * width;
#pragma omp simd
            for (i64 f = 0; f < width; f++) store(to[f], drawn[f] >= level ? load(from[f]) * scale : 0.f);
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
            if (grad_branch) {
                F *to = grad_branch + r * width;
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
            T *to = y + r * width;
#pragma omp simd
            for (i64 f = 0; f < width; f++) {
                float value = activate<KIND>(load(from[f]) + add[f]) * scale;
                store(to[f], drawn[f] >= level ? value : 0.f);
            }
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
            T *to = grad_x + r * width;
#pragma omp simd
            for (i64 f = 0; f < width; f++) {
                float value = load(gradient[f]) * slope<KIND>(load(from[f]) + add[f]) * scale;
                value = drawn[f] >= level ? value : 0.f;
                column[f] += value;
                store(to[f], value);
            }
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
#pragma omp parallel num_threads(thread_count(rows * width, threads))
    {
        i64 begin, end;
        thread_rows(rows, begin, end);
        for (i64 r = begin; r < end; r++) {
            const float *sine = turns + r % places * dim, *cosine = sine + half;
            for (i64 h = 0; h < width; h += dim) {
                const T *from = x + r * step + h;
                T *to = y + r * width + h;
                const auto turn = [=](i64 i) {
                    const float a = load(from[i]), b = load(from[half + i]), s = sine[i] * sign;
                    store(to[i], a * cosine[i] - b * s);
                    store(to[half + i], a * s + b * cosine[i]);
                };
                i64 first = 0;
                for (; first + 8 <= half; first += 8)  // a known number, so that none is left to a loop of single ones
#pragma omp simd
                    for (i64 i = 0; i < 8; i++) turn(first + i);
                for (; first < half; first++) turn(first);
            }
        }
    }
}

extern "C" int rotate(const void *x, i64 step, void *y, int type, const float *turns, i64 rows, i64 width, i64 dim,
                      i64 places, int back, i64 threads) {
    if (type) rotate_((const bf16 *)x, step, (bf16 *)y, turns, rows, width, dim, places, back, threads);
    else rotate_((const float *)x, step, (float *)y, turns, rows, width, dim, places, back, threads);
    return 0;
}

// ----------------------------------------------------------------------------------------------------- cross-entropy

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
#pragma omp simd
        for (i64 v = 0; v < width; v++) store(z[v], e[v] * inverse - uniform);
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
            if constexpr (SOFT) {
                soft.losses[r] = soft_row_(z, e, target[r], width, smoothing, needs_grad, sum, partition,
                                           log_partition, soft, r);
                continue;
            }
            if (!needs_grad) continue;
            float inverse = 1.f / partition;
            float at_target = e[target[r]] * inverse - uniform - (1.f - smoothing);
#pragma omp simd
            for (i64 v = 0; v < width; v++) store(z[v], e[v] * inverse - uniform);
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

// ------------------------------------------------------------------------------------ attention over short sequences

// Sequences are so short that everything of one head of one sentence stays in the cache of a core. Each thread copies
// its queries, keys and values [length, width] to float32 scratch memory with rows padded to whole vectors, and
// computes there.

// Floats in a vector, to which rows are padded; sums are kept in registers of WIDE floats, those of at most STRIP vectors
// of a row: no more than fit. g++ keeps what is longer than a register in memory, or splits it into single numbers.
#if defined(__AVX512F__)
static const int LANES = 16, WIDE = 16, STRIP = 4;
#elif defined(__AVX__)
static const int LANES = 8, WIDE = 8, STRIP = 2;
#elif defined(__aarch64__)
static const int LANES = 16, WIDE = 4, STRIP = 1;
#else
static const int LANES = 8, WIDE = 4, STRIP = 1;
#endif
typedef Lanes<LANES>::floats vector;
typedef float wide __attribute__((vector_size(WIDE * 4), aligned(4)));

// c [ROWS, COLUMNS vectors] = a [ROWS, depth] b [depth, COLUMNS vectors]. ROWS x COLUMNS sums stay in registers: at
// most 6 x 4 = 24 of the 32 of AVX-512, or 6 x 2 = 12 of the 16 of AVX, beside COLUMNS of b. Element (i, k) of a is
// a[i * a_row + k * a_step], so that a_row = 1 multiplies by a transposed matrix.

// Sums start at FROM: zero, what c holds, or the same `row` in all rows.
enum Start { ZERO, OLD, ROW };

template <int ROWS, int COLUMNS, Start FROM = ZERO>
static inline void block(const float *a, i64 a_row, i64 a_step, const float *b, i64 b_row, float *c, i64 c_row,
                         i64 depth, const float *row = nullptr) {
    constexpr int REGISTERS = COLUMNS * LANES / WIDE;
    wide sum[ROWS][REGISTERS];
#pragma GCC unroll 6
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
        for (int n = 0; n < REGISTERS; n++)
            sum[i][n] = FROM == OLD   ? *(const wide *)(c + i * c_row + n * WIDE)
                        : FROM == ROW ? *(const wide *)(row + n * WIDE)
                                      : wide{};
    for (i64 k = 0; k < depth; k++) {
        wide right[REGISTERS];
#pragma GCC unroll 4
        for (int n = 0; n < REGISTERS; n++) right[n] = *(const wide *)(b + k * b_row + n * WIDE);
#pragma GCC unroll 6
        for (int i = 0; i < ROWS; i++) {
            float left = a[i * a_row + k * a_step];
#pragma GCC unroll 4
            for (int n = 0; n < REGISTERS; n++) sum[i][n] += left * right[n];
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
        for (int n = 0; n < REGISTERS; n++) *(wide *)(c + i * c_row + n * WIDE) = sum[i][n];
}

// c [rows, COLUMNS vectors] = a b, in blocks of 6, 4, 2 and 1 rows.
template <int COLUMNS, Start FROM = ZERO>
static inline void strip(i64 rows, i64 depth, const float *a, i64 a_row, i64 a_step, const float *b, i64 b_row,
                         float *c, i64 c_row, const float *row = nullptr) {
    i64 i = 0;
    for (; i + 6 <= rows; i += 6)
        block<6, COLUMNS, FROM>(a + i * a_row, a_row, a_step, b, b_row, c + i * c_row, c_row, depth, row);
    if (i + 4 <= rows) {
        block<4, COLUMNS, FROM>(a + i * a_row, a_row, a_step, b, b_row, c + i * c_row, c_row, depth, row);
        i += 4;
    }
    if (i + 2 <= rows) {
        block<2, COLUMNS, FROM>(a + i * a_row, a_row, a_step, b, b_row, c + i * c_row, c_row, depth, row);
        i += 2;
    }
    if (i < rows)
        block<1, COLUMNS, FROM>(a + i * a_row, a_row, a_step, b, b_row, c + i * c_row, c_row, depth, row);
}

// c [rows, columns] = a [rows, depth] b [depth, columns], with a as in block; columns are rounded up to whole
// vectors.
static void product(i64 rows, i64 columns, i64 depth, const float *a, i64 a_row, i64 a_step, const float *b, i64 b_row,
                    float *c, i64 c_row) {
    i64 n = 0;
    if constexpr (STRIP >= 4)
        for (; n + 4 * LANES <= columns; n += 4 * LANES)
            strip<4>(rows, depth, a, a_row, a_step, b + n, b_row, c + n, c_row);
    if constexpr (STRIP >= 2)
        for (; n + 2 * LANES <= columns; n += 2 * LANES)
            strip<2>(rows, depth, a, a_row, a_step, b + n, b_row, c + n, c_row);
    for (; n < columns; n += LANES) strip<1>(rows, depth, a, a_row, a_step, b + n, b_row, c + n, c_row);
}

// Strides of a [batch, heads, length, width] tensor whose last axis is contiguous.
struct View {
    i64 batch, head, time;
};

struct AttentionJob {
    i64 batch, heads, queries, keys, width;
    View query, key, value, out;
    const i64 *key_lengths, *query_lengths;  // number of real keys and queries of each sequence; null = all
    const i64 *key_starts, *query_starts;    // packed: where each sequence starts in the one row; null = not packed
    int causal;
    const float *slopes;  // ALiBi's, of each head; null = none
    int symmetric;        // ALiBi falls to both sides: -m |i - j| rather than m (j - i)
    float scale;
    // Offset of sequence b in a tensor, and its number of rows: those beyond its length are written as zeros.
    i64 keys_at(const View &view, i64 b) const { return key_starts ? key_starts[b] * view.time : b * view.batch; }
    i64 queries_at(const View &view, i64 b) const {
        return query_starts ? query_starts[b] * view.time : b * view.batch;
    }
    i64 keys_of(i64 b) const { return key_starts ? key_lengths[b] : keys; }
    i64 queries_of(i64 b) const { return query_starts ? query_lengths[b] : queries; }
};

// Copy rows of a tensor, times a factor, to float32 rows of to_row numbers, padded with zeros; and back.
template <class T>
static void load_rows(const T *from, i64 step, i64 rows, i64 width, float factor, float *to, i64 to_row) {
    for (i64 t = 0; t < rows; t++) {
        const T *row = from + t * step;
        float *out = to + t * to_row;
#pragma omp simd
        for (i64 d = 0; d < width; d++) out[d] = load(row[d]) * factor;
        for (i64 d = width; d < to_row; d++) out[d] = 0;
    }
}

template <class T>
static void store_rows(const float *from, i64 from_row, i64 rows, i64 width, float factor, T *to, i64 step) {
    for (i64 t = 0; t < rows; t++) {
        const float *row = from + t * from_row;
        T *out = to + t * step;
#pragma omp simd
        for (i64 d = 0; d < width; d++) store(out[d], row[d] * factor);
    }
}

// Transpose [rows, width] with rows of from_row numbers to [width, to_row], padded with zeros on the right. Blocks of
// LANES x LANES numbers are transposed in registers, in a round for each factor of two. Of rows of to_row numbers only the
// first `columns` are written.
static void transpose(const float *from, i64 from_row, i64 rows, i64 width, float *to, i64 to_row, i64 columns) {
    for (i64 t0 = 0; t0 < columns; t0 += LANES)
        for (i64 d0 = 0; d0 < width; d0 += LANES) {
            vector x[LANES];
            for (i64 t = 0; t < LANES; t++)
                x[t] = t0 + t < rows ? *(const vector *)(from + (t0 + t) * from_row + d0) : vector{};
            transpose_block<LANES>(x);
            for (i64 d = 0; d < LANES && d0 + d < width; d++) *(vector *)(to + (d0 + d) * to_row + t0) = x[d];
        }
}

// Softmax of ROWS rows of scores over their first seen[r] elements; zeros beyond, and everywhere if seen[r] is 0.
// The sum along a row is a chain of dependent additions, so the chains of four rows are interleaved. Loops run over the
// whole padded row and blend unseen elements away: a remainder loop would not be vectorized.
template <int ROWS>
static inline void softmax_rows(float *scores, i64 row, const int32_t *seen) {
    float largest[ROWS], sum[ROWS];
    for (int r = 0; r < ROWS; r++) {
        const float *s = scores + r * row;
        float highest = -INFINITY;
#pragma omp simd reduction(max : highest)
        for (int32_t j = 0; j < (int32_t)row; j++) {
            float value = j < seen[r] ? s[j] : -INFINITY;
            highest = value > highest ? value : highest;
        }
        largest[r] = seen[r] ? highest : 0.f;
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

// Softmax of scores [queries, padded] over the first `keys` keys, or if causal over those not after the query.
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

// Adds ALiBi's bias to scores [queries, padded] of as many queries as keys.
static void add_distances(float *scores, i64 queries, i64 keys, i64 padded, float slope, int symmetric) {
    for (i64 i = 0; i < queries; i++) {
        float *row = scores + i * padded;
#pragma omp simd
        for (int32_t j = 0; j < (int32_t)keys; j++) {
            float distance = (float)(j - (int32_t)i);
            row[j] += slope * (symmetric && distance > 0.f ? -distance : distance);
        }
    }
}

// Memory of one thread, handed out piece by piece.
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

// x rounded up to whole vectors.
static inline i64 round_up(i64 x) { return (x + LANES - 1) / LANES * LANES; }

// out = softmax(scale Q K^T) V for each head of each sequence; a thread computes whole heads.
template <class T>
static void attention_(const AttentionJob &job, const T *query, const T *key, const T *value, T *out, i64 threads) {
    i64 d = job.width, w = round_up(d), q = job.queries, max_keys = round_up(job.keys);
    Failures failures;
#pragma omp parallel num_threads(thread_count(job.batch *job.heads *q *d, threads))
    try {
        Scratch scratch(2 * q * w + 3 * max_keys * w + q * max_keys);
        // scaled_q, o: [q, w]; k, v: [max_keys, w]; k_transposed: [w, max_keys]; s: scores and weights [q, max_keys]
        float *scaled_q = scratch.get(q * w), *o = scratch.get(q * w), *k = scratch.get(max_keys * w),
              *k_transposed = scratch.get(max_keys * w), *v = scratch.get(max_keys * w), *s = scratch.get(q * max_keys);
        i64 begin, end;
        thread_rows(job.batch * job.heads, begin, end);
        for (i64 index = begin; index < end; index++) {
            i64 b = index / job.heads, h = index % job.heads;
            i64 keys = job.key_lengths ? job.key_lengths[b] : job.keys;
            i64 real_queries = job.query_lengths ? job.query_lengths[b] : q, padded = round_up(keys);
            load_rows(query + job.queries_at(job.query, b) + h * job.query.head, job.query.time, real_queries, d,
                      job.scale, scaled_q, w);
            load_rows(key + job.keys_at(job.key, b) + h * job.key.head, job.key.time, keys, d, 1.f, k, w);
            load_rows(value + job.keys_at(job.value, b) + h * job.value.head, job.value.time, keys, d, 1.f, v, w);
            transpose(k, w, keys, d, k_transposed, padded, padded);
            product(real_queries, padded, d, scaled_q, w, 1, k_transposed, padded, s, padded);
            if (job.slopes) add_distances(s, real_queries, keys, padded, job.slopes[h], job.symmetric);
            softmax(s, real_queries, keys, padded, job.causal);
            product(real_queries, w, keys, s, padded, 1, v, w, o, w);
            i64 there = job.queries_of(b);
            for (i64 i = real_queries * w; i < there * w; i++) o[i] = 0;
            store_rows(o, w, there, d, 1.f, out + job.queries_at(job.out, b) + h * job.out.head, job.out.time);
        }
    } catch (const std::exception &) {
        failures.any = true;
    }
    failures.end_of_region();
}

// The gradients of attention_. The weights P are computed again:
//     dV = P^T g,   dP = g V^T,   dS = P (dP - sum_j P dP),   dQ = scale dS K,   dK = scale dS^T Q
template <class T>
static void attention_backward_(const AttentionJob &job, const T *query, const T *key, const T *value,
                                const T *gradient, T *grad_query, T *grad_key, T *grad_value, const View &grad,
                                const View &dq, const View &dkv, i64 threads) {
    i64 d = job.width, w = round_up(d), q = job.queries, max_keys = round_up(job.keys);
    Failures failures;
#pragma omp parallel num_threads(thread_count(job.batch *job.heads *q *d, threads))
    try {
        Scratch scratch(3 * q * w + 5 * max_keys * w + 2 * q * max_keys);
        // scaled_q, g, a: [q, w]; k, v, c: [max_keys, w]; k_transposed, v_transposed: [w, max_keys];
        // s (dP, then dS) and p: [q, max_keys]
        float *scaled_q = scratch.get(q * w), *g = scratch.get(q * w), *a = scratch.get(q * w),
              *k = scratch.get(max_keys * w), *k_transposed = scratch.get(max_keys * w), *v = scratch.get(max_keys * w),
              *v_transposed = scratch.get(max_keys * w), *c = scratch.get(max_keys * w), *s = scratch.get(q * max_keys),
              *p = scratch.get(q * max_keys);
        i64 begin, end;
        thread_rows(job.batch * job.heads, begin, end);
        for (i64 index = begin; index < end; index++) {
            i64 b = index / job.heads, h = index % job.heads;
            i64 keys = job.key_lengths ? job.key_lengths[b] : job.keys;
            i64 real_queries = job.query_lengths ? job.query_lengths[b] : q, padded = round_up(keys);
            load_rows(query + job.queries_at(job.query, b) + h * job.query.head, job.query.time, real_queries, d,
                      job.scale, scaled_q, w);
            load_rows(key + job.keys_at(job.key, b) + h * job.key.head, job.key.time, keys, d, 1.f, k, w);
            load_rows(value + job.keys_at(job.value, b) + h * job.value.head, job.value.time, keys, d, 1.f, v, w);
            load_rows(gradient + job.queries_at(grad, b) + h * grad.head, grad.time, real_queries, d, 1.f, g, w);
            transpose(k, w, keys, d, k_transposed, padded, padded);
            transpose(v, w, keys, d, v_transposed, padded, padded);
            product(real_queries, padded, d, scaled_q, w, 1, k_transposed, padded, p, padded);
            if (job.slopes) add_distances(p, real_queries, keys, padded, job.slopes[h], job.symmetric);
            softmax(p, real_queries, keys, padded, job.causal);
            product(real_queries, padded, d, g, w, 1, v_transposed, padded, s, padded);
            // dV = P^T g; s holds dP
            product(keys, w, real_queries, p, 1, padded, g, w, c, w);
            i64 there = job.keys_of(b), asking = job.queries_of(b);
            for (i64 i = keys * w; i < there * w; i++) c[i] = 0;
            store_rows(c, w, there, d, 1.f, grad_value + job.keys_at(dkv, b) + h * dkv.head, dkv.time);
            // dS = P (dP - sum_j P dP)
            for (i64 i = 0; i < real_queries; i++) {
                float *row = s + i * padded, *weight = p + i * padded, mean = 0;
#pragma omp simd reduction(+ : mean)
                for (i64 j = 0; j < padded; j++) mean += row[j] * weight[j];
#pragma omp simd
                for (i64 j = 0; j < padded; j++) row[j] = weight[j] * (row[j] - mean);
            }
            // dK = dS^T Q, where Q is scaled already; dQ = dS K, scaled when it is stored
            product(keys, w, real_queries, s, 1, padded, scaled_q, w, c, w);
            for (i64 i = keys * w; i < there * w; i++) c[i] = 0;
            store_rows(c, w, there, d, 1.f, grad_key + job.keys_at(dkv, b) + h * dkv.head, dkv.time);
            product(real_queries, w, keys, s, padded, 1, k, w, a, w);
            for (i64 i = real_queries * w; i < asking * w; i++) a[i] = 0;
            store_rows(a, w, asking, d, job.scale, grad_query + job.queries_at(dq, b) + h * dq.head, dq.time);
        }
    } catch (const std::exception &) {
        failures.any = true;
    }
    failures.end_of_region();
}

// sizes: batch, heads, queries, keys, width. s: batch, head and position strides of query, key, value and out.
extern "C" int attention(const i64 *sizes, const i64 *s, const void *query, const void *key, const void *value,
                         void *out, int type, const i64 *key_lengths, const i64 *query_lengths,
                         const i64 *key_starts, const i64 *query_starts, int causal, const float *slopes,
                         int symmetric, float scale, i64 threads) {
    return status_of([&] {
        AttentionJob job{sizes[0],           sizes[1],           sizes[2],           sizes[3],             sizes[4],
                {s[0], s[1], s[2]}, {s[3], s[4], s[5]}, {s[6], s[7], s[8]}, {s[9], s[10], s[11]}, key_lengths,
                query_lengths,      key_starts,         query_starts,       causal,               slopes,
                symmetric,          scale};
        if (type) attention_(job, (const bf16 *)query, (const bf16 *)key, (const bf16 *)value, (bf16 *)out, threads);
        else attention_(job, (const float *)query, (const float *)key, (const float *)value, (float *)out, threads);
    });
}

// s: batch, head and position strides of query, key, value, gradient, grad_query, and grad_key and grad_value (equal).
extern "C" int attention_backward(const i64 *sizes, const i64 *s, const void *query, const void *key,
                                  const void *value, const void *gradient, void *grad_query, void *grad_key,
                                  void *grad_value, int type, const i64 *key_lengths, const i64 *query_lengths,
                                  const i64 *key_starts, const i64 *query_starts, int causal, const float *slopes,
                                  int symmetric, float scale, i64 threads) {
    return status_of([&] {
        AttentionJob job{sizes[0],           sizes[1],           sizes[2],           sizes[3], sizes[4],
                {s[0], s[1], s[2]}, {s[3], s[4], s[5]}, {s[6], s[7], s[8]}, {},       key_lengths,
                query_lengths,      key_starts,         query_starts,       causal,   slopes,
                symmetric,          scale};
        View grad{s[9], s[10], s[11]}, dq{s[12], s[13], s[14]}, dkv{s[15], s[16], s[17]};
        const auto run = [&](auto type_of) {
            typedef decltype(type_of) T;
            attention_backward_(job, (const T *)query, (const T *)key, (const T *)value, (const T *)gradient,
                                (T *)grad_query, (T *)grad_key, (T *)grad_value, grad, dq, dkv, threads);
        };
        if (type) run(bf16{}); else run(0.f);
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
