// Matrix products with weights that are packed once: y = x W^T + b in float32, bfloat16 or int8.
//
// What a search needs of them: few rows, at any number, many times the same weights. Every element of y is the sum over
// k in the same order whatever the number of rows, so that what else is in a batch changes no bit of a row.
//
// Both factors are rows of 32-bit words: one float32, two bfloat16 or four bytes of consecutive k. Weights lie in
// panels of 64 columns, word by word. In int8, W is rounded to 127 steps either way for each column, x to 255 steps for
// each row as it comes; sums are exact. Instructions of the processor are used where there are any; what stands beside
// them computes the same, but for the rounding of bfloat16's sums.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace packed {

typedef int64_t i64;
typedef uint32_t u32;

enum Kind { FLOAT32 = 0, BFLOAT16 = 1, INT8 = 2 };

#ifdef __AVX512F__
constexpr int LANES = 16, VECTORS = 4, ROWS = 6;
#else
constexpr int LANES = 8, VECTORS = 2, ROWS = 6;
#endif
typedef float vf __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef u32 vu __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint16_t vh __attribute__((vector_size(LANES * 2), aligned(2), may_alias));

constexpr i64 PANEL = 64;  // columns
constexpr i64 PART = LANES * VECTORS;

static inline i64 up(i64 n, i64 to = PANEL) { return (n + to - 1) / to * to; }

// Memory that begins at a cache line and is not cleared.
struct Block {
    void *at = nullptr;
    size_t size = 0;
    Block() = default;
    Block(Block &&other) noexcept : at(std::exchange(other.at, nullptr)), size(std::exchange(other.size, 0)) {}
    ~Block() { free(at); }
    template <class T>
    T *get(size_t count) {
        size_t bytes = (count * sizeof(T) + 127) / 64 * 64;
        if (bytes > size) {
            free(at);
            at = aligned_alloc(64, bytes);
            if (!at) abort();
            size = bytes;
        }
        return (T *)at;
    }
};

static inline u32 bits(float x) { return __builtin_bit_cast(u32, x); }
static inline float number(u32 x) { return __builtin_bit_cast(float, x); }
static inline u32 rounded(float x) {  // to bfloat16, to nearest even; no NaN comes here
    u32 u = bits(x);
    return (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
}

// Numbers at rest: float32, or bfloat16 as the upper half of one.
static inline vf several(const float *from) { return *(const vf *)from; }
static inline vf several(const uint16_t *from) { return (vf)(__builtin_convertvector(*(const vh *)from, vu) << 16); }
static inline float single(float x) { return x; }
static inline float single(uint16_t x) { return number((u32)x << 16); }

static inline void lay(const float *from, i64 count, float *to) { memcpy(to, from, count * 4); }
static inline void lay(const float *from, i64 count, uint16_t *to) {
#pragma omp simd
    for (i64 i = 0; i < count; i++) to[i] = (uint16_t)rounded(from[i]);
}

static inline i64 words(int kind, i64 width) {
    return kind == FLOAT32 ? width : kind == BFLOAT16 ? (width + 1) / 2 : (width + 3) / 4;
}

struct Weights {
    int kind = FLOAT32;
    i64 in = 0, out = 0, depth = 0, panels = 0;
    Block data;
    std::vector<float> bias, scale;  // of each column, as many as there are in whole panels
    std::vector<int32_t> sums;       // of each column's bytes

    // w [out, in]; the columns that fill up the last panel get `fill` as their bias.
    void pack(int kind, const float *w, const float *b, i64 out, i64 in, float fill = 0.f) {
        this->kind = kind, this->in = in, this->out = out;
        depth = words(kind, in), panels = up(out) / PANEL;
        u32 *to = data.get<u32>(panels * depth * PANEL);
        bias.assign(panels * PANEL, fill);
        scale.assign(panels * PANEL, 0.f);
        sums.assign(panels * PANEL, 0);
        std::vector<u32> some(PANEL * depth);
        for (i64 n = 0; n < panels * PANEL; n++) {
            u32 *column = &some[n % PANEL * depth];
            memset(column, 0, depth * 4);
            if (n < out) bias[n] = b ? b[n] : 0.f, round_column(w + n * in, column, n);
            if (n % PANEL < PANEL - 1) continue;
            for (i64 first = 0; first < depth; first += 16)  // turned over, within what the nearest cache holds
                for (i64 c = 0; c < PANEL; c++)
                    for (i64 k = first; k < std::min(first + 16, depth); k++) to[k * PANEL + c] = some[c * depth + k];
            to += depth * PANEL;
        }
    }

    void round_column(const float *row, u32 *to, i64 n) {
        if (kind == FLOAT32) memcpy(to, row, in * 4);
        if (kind == BFLOAT16) {
            uint16_t *half = (uint16_t *)to;
#pragma omp simd
            for (i64 k = 0; k < in; k++) half[k] = (uint16_t)rounded(row[k]);
        }
        if (kind != INT8) return;
        int8_t *byte = (int8_t *)to;
        float most = 0.f;
#pragma omp simd reduction(max : most)
        for (i64 k = 0; k < in; k++) most = std::fabs(row[k]) > most ? std::fabs(row[k]) : most;
        const float steps = most > 0.f ? 127.f / most : 0.f;
        int32_t sum = 0;
#pragma omp simd reduction(+ : sum)
        for (i64 k = 0; k < in; k++) {
            const int32_t q = (int32_t)__builtin_rintf(row[k] * steps);
            byte[k] = (int8_t)q;
            sum += q;
        }
        scale[n] = most / 127.f, sums[n] = sum;
    }
};

// Rows of x as words, and in int8 what a step is worth and which byte is zero.
struct Rows {
    u32 *at = nullptr;
    i64 stride = 0;
    float *steps = nullptr;
    int32_t *zeros = nullptr;
    Block block, first, second;

    void reserve(int kind, i64 rows, i64 width) {
        stride = words(kind, width);
        at = block.get<u32>(rows * stride + 16);
        steps = first.get<float>(rows);
        zeros = second.get<int32_t>(rows);
    }

    void fill(int kind, i64 row, const float *x, i64 width) {
        u32 *to = at + row * stride;
        if (kind == FLOAT32) memcpy(to, x, width * 4);
        if (kind == BFLOAT16) {
            uint16_t *half = (uint16_t *)to;
            half[stride * 2 - 1] = 0;
#pragma omp simd
            for (i64 k = 0; k < width; k++) half[k] = (uint16_t)rounded(x[k]);
        }
        if (kind != INT8) return;
        float most = 0.f, least = 0.f;
#pragma omp simd reduction(max : most) reduction(min : least)
        for (i64 k = 0; k < width; k++) {
            most = x[k] > most ? x[k] : most;
            least = x[k] < least ? x[k] : least;
        }
        // What is nowhere negative, as behind a rectifier, has twice as many steps.
        int32_t zero = least < 0.f ? 128 : 0;
        float largest = most > -least ? most : -least, top = zero ? 127.f : 255.f;
        float scale = largest > 0.f ? top / largest : 0.f;
        steps[row] = largest / top;
        zeros[row] = zero;
        uint8_t *byte = (uint8_t *)to;
        to[stride - 1] = 0;
#pragma omp simd
        for (i64 k = 0; k < width; k++) byte[k] = (uint8_t)((int32_t)__builtin_rintf(x[k] * scale) + zero);
    }
};

template <int KIND>
struct Dot;

template <>
struct Dot<FLOAT32> {
    typedef vf Sum;
    static inline Sum add(Sum sum, u32 x, vu w) { return sum + number(x) * (vf)w; }
};

template <>
struct Dot<BFLOAT16> {
    typedef vf Sum;
    static inline Sum add(Sum sum, u32 x, vu w) {
#if defined(__AVX512BF16__) && defined(__AVX512F__)
        return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32((int)x), (__m512bh)w);
#else
        sum = sum + number(x & 0xffff0000u) * (vf)(w & 0xffff0000u);
        return sum + number(x << 16) * (vf)(w << 16);
#endif
    }
};

template <>
struct Dot<INT8> {
    typedef vi Sum;
    static inline Sum add(Sum sum, u32 x, vu w) {
#if defined(__AVX512VNNI__) && defined(__AVX512F__)
        return (vi)_mm512_dpbusd_epi32((__m512i)sum, _mm512_set1_epi32((int)x), (__m512i)w);
#else
        for (int b = 0; b < 4; b++) sum += (int32_t)(x >> 8 * b & 255) * ((vi)(w << (24 - 8 * b)) >> 24);
        return sum;
#endif
    }
};

enum Mode { SET = 0, ADD = 1, RELU = 2 };

// M rows by PART columns, from `column` on in a panel.
template <int KIND, int M>
static inline void tile(const Weights &w, const Rows &x, i64 row, i64 panel, i64 column, float *y, i64 stride,
                        int mode) {
    typedef typename Dot<KIND>::Sum Sum;
    Sum sum[M][VECTORS] = {};
    const u32 *from = (const u32 *)w.data.at + panel * w.depth * PANEL + column, *left = x.at + row * x.stride;
    const i64 depth = w.depth, step = x.stride;
    for (i64 k = 0; k < depth; k++) {
        vu right[VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) right[v] = *(const vu *)(from + k * PANEL + v * LANES);
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            u32 one = left[m * step + k];
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) sum[m][v] = Dot<KIND>::add(sum[m][v], one, right[v]);
        }
    }
    const i64 first = panel * PANEL + column;
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) {
        const i64 n = first + v * LANES;
        const vf bias = *(const vf *)&w.bias[n];
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            vf value;
            if constexpr (KIND == INT8) {
                vi whole = sum[m][v] - x.zeros[row + m] * *(const vi *)&w.sums[n];
                value = __builtin_convertvector(whole, vf) * (x.steps[row + m] * *(const vf *)&w.scale[n]);
            } else {
                value = sum[m][v];
            }
            value += bias;
            vf *to = (vf *)(y + m * stride + column + v * LANES);
            if (mode == ADD) value += *to;
            if (mode == RELU) value = value > 0.f ? value : (value != value ? value : vf{});
            *to = value;
        }
    }
}

template <int KIND>
static void panel_of(const Weights &w, const Rows &x, i64 begin, i64 end, i64 panel, float *y, i64 stride, int mode) {
    for (i64 column = 0; column < PANEL; column += PART) {
        i64 row = begin;
        for (; row + ROWS <= end; row += ROWS)
            tile<KIND, ROWS>(w, x, row, panel, column, y + (row - begin) * stride, stride, mode);
        float *to = y + (row - begin) * stride;
        switch (end - row) {
            case 1: tile<KIND, 1>(w, x, row, panel, column, to, stride, mode); break;
            case 2: tile<KIND, 2>(w, x, row, panel, column, to, stride, mode); break;
            case 3: tile<KIND, 3>(w, x, row, panel, column, to, stride, mode); break;
            case 4: tile<KIND, 4>(w, x, row, panel, column, to, stride, mode); break;
            case 5: tile<KIND, 5>(w, x, row, panel, column, to, stride, mode); break;
        }
    }
}

// Rows begin ... end of x times the columns of some panels; y is that of the first row and panel, in whole panels.
static void product(const Weights &w, const Rows &x, i64 begin, i64 end, i64 first, i64 last, float *y, i64 stride,
                    int mode) {
    for (i64 panel = first; panel < last; panel++) {
        float *to = y + (panel - first) * PANEL;
        if (w.kind == FLOAT32) panel_of<FLOAT32>(w, x, begin, end, panel, to, stride, mode);
        if (w.kind == BFLOAT16) panel_of<BFLOAT16>(w, x, begin, end, panel, to, stride, mode);
        if (w.kind == INT8) panel_of<INT8>(w, x, begin, end, panel, to, stride, mode);
    }
}

static void product(const Weights &w, const Rows &x, i64 rows, float *y, i64 stride, int mode = SET) {
    product(w, x, 0, rows, 0, w.panels, y, stride, mode);
}

}  // namespace packed
