// Matrix products y = x W^T + b in float32, bfloat16 or int8.
//
// A search multiplies few rows, of varying number, by the same weights many times. Every element of y is summed over
// k in the same order whatever the number of rows, so that the other rows of a batch change no bit of a row.
//
// Sums of int8 are exact. Special instructions and the matrix unit (tiles.h) are used if the processor has them; the
// alternatives compute the same, except for the rounding of bfloat16 sums.

#pragma once

#include "operands.h"
#include "tiles.h"

namespace gemm {

// Sums are kept in registers of WIDE numbers: those of VECTORS * LANES columns.
#if defined(__x86_64__) && !defined(__AVX2__)  // 16 registers, and g++ keeps every longer vector in memory
constexpr int WIDE = 4, VECTORS = 1;
#elif defined(__aarch64__)  // where it does so, too
constexpr int WIDE = 4, VECTORS = LANES / 4;
#else
constexpr int WIDE = LANES, VECTORS = LANES / 4;
#endif
typedef float rf __attribute__((vector_size(WIDE * 4), aligned(4), may_alias));
typedef int32_t ri __attribute__((vector_size(WIDE * 4), aligned(4), may_alias));
typedef u32 ru __attribute__((vector_size(WIDE * 4), aligned(4), may_alias));

// sum += dot product of the numbers in word x, broadcast, and in each word of w.
template <int KIND>
struct Dot;

struct WholeWords {
    static constexpr int32_t ADDED = 0;
    static inline u32 left(const u32 *x, i64 k) { return x[k]; }
    static inline ru load(const u32 *w) { return *(const ru *)w; }
};

template <>
struct Dot<FLOAT32> : WholeWords {
    typedef rf Sums;
    static inline rf add(rf sum, u32 x, ru w) { return sum + from_bits(x) * (rf)w; }
};

template <>
struct Dot<BFLOAT16> : WholeWords {
    typedef rf Sums;
    static inline rf add(rf sum, u32 x, ru w) {
#if defined(__AVX512BF16__) && defined(__AVX512F__)
        return (rf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32((int)x), (__m512bh)w);
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
        const bfloat16x8_t pairs = vreinterpretq_bf16_u32(vdupq_n_u32(x));
        return (rf)vbfdotq_f32((float32x4_t)sum, pairs, vreinterpretq_bf16_u32((uint32x4_t)w));
#else
        sum = sum + from_bits(x & 0xffff0000u) * (rf)(w & 0xffff0000u);
        return sum + from_bits(x << 16) * (rf)(w << 16);
#endif
    }
};

#ifdef BYTE_PAIRS
typedef short rs __attribute__((vector_size(WIDE * 4), aligned(4), may_alias));

#ifdef __AVX2__
static inline ri pairs_of(rs x, rs w) { return (ri)_mm256_madd_epi16((__m256i)x, (__m256i)w); }
#else
static inline ri pairs_of(rs x, rs w) { return (ri)_mm_madd_epi16((__m128i)x, (__m128i)w); }
#endif

template <>
struct Dot<INT8> {
    typedef ri Sums;
    struct Pairs {  // bytes of words in 16 bits each
        rs first, last;
    };
    static constexpr int32_t ADDED = 0;
    static inline Pairs left(const u32 *x, i64 k) { return {(rs)(x[2 * k] + ru{}), (rs)(x[2 * k + 1] + ru{})}; }
    static inline Pairs load(const u32 *w) {
        const rs word = *(const rs *)w;
        return {word & 255, word >> 8};
    }
    static inline ri add(ri sum, Pairs x, Pairs w) {
        sum += pairs_of(x.first, w.first);
        return sum + pairs_of(x.last, w.last);
    }
};
#else
template <>
struct Dot<INT8> : WholeWords {
    typedef ri Sums;
#if defined(__ARM_FEATURE_DOTPROD) && !defined(__ARM_FEATURE_MATMUL_INT8)
#define SIGNED_PRODUCTS  // the bytes of x are taken less 128, which times the sum of a column is added
    static constexpr int32_t ADDED = 128;
#endif
    static inline ri add(ri sum, u32 x, ru w) {
#if defined(__AVX512VNNI__) && defined(__AVX512F__)
        return (ri)_mm512_dpbusd_epi32((__m512i)sum, _mm512_set1_epi32((int)x), (__m512i)w);
#elif defined(__AVXVNNI__)
        return (ri)_mm256_dpbusd_avx_epi32((__m256i)sum, _mm256_set1_epi32((int)x), (__m256i)w);
#elif defined(__ARM_FEATURE_MATMUL_INT8)
        return (ri)vusdotq_s32((int32x4_t)sum, (uint8x16_t)vdupq_n_u32(x), (int8x16_t)w);
#elif defined(SIGNED_PRODUCTS)
        return (ri)vdotq_s32((int32x4_t)sum, (int8x16_t)vdupq_n_u32(x ^ 0x80808080u), (int8x16_t)w);
#else
        for (int b = 0; b < 4; b++) sum += (int32_t)(x >> 8 * b & 255) * ((ri)(w << (24 - 8 * b)) >> 24);
        return sum;
#endif
    }
};
#endif

// LANES sums from the registers that hold them.
template <int KIND>
static inline Sum<KIND> joined(const typename Dot<KIND>::Sums *parts) {
    if constexpr (WIDE == LANES) {
        return *parts;
    } else {
        Sum<KIND> whole;
        memcpy(&whole, parts, sizeof whole);
        return whole;
    }
}

#ifdef __wasm__
// M rows from `row` on by a panel of bytes.
template <int M>
static inline void tile_of_bytes(const Weights &w, const Rows &x, i64 row, i64 panel, float *y, i64 stride, int mode) {
    alignas(64) int32_t sums[M * PANEL];
    const u32 *from = w.data + panel * w.depth * PANEL;
    for (i64 column = 0; column < PANEL; column += 4)
        dot_products<M, 4>((const Step *)(x.at + row * x.stride), x.stride * 2, from + column, w.depth, PANEL,
                           sums + column, PANEL);
    for (i64 n = 0; n < PANEL; n += LANES) {
        const Finish<INT8> finish(w, panel * PANEL + n);
        for (int m = 0; m < M; m++) finish(*(const vi *)(sums + m * PANEL + n), x, row + m, y + m * stride + n, mode);
    }
}
#endif

constexpr i64 PART = LANES * VECTORS;
static_assert(STRIP % PART == 0);

// Adds to the sums of M rows what word k of each, and `from` of the columns, give.
template <int KIND, int M, int REGISTERS>
__attribute__((always_inline)) static inline void add_word(typename Dot<KIND>::Sums (&sum)[M][REGISTERS],
                                                           const u32 *from, const u32 *left, i64 step, i64 k) {
    decltype(Dot<KIND>::load(from)) right[REGISTERS];
#pragma GCC unroll 8
    for (int v = 0; v < REGISTERS; v++) right[v] = Dot<KIND>::load(from + v * WIDE);
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
        const auto one = Dot<KIND>::left(left + m * step, k);
#pragma GCC unroll 8
        for (int v = 0; v < REGISTERS; v++) sum[m][v] = Dot<KIND>::add(sum[m][v], one, right[v]);
    }
}

// M rows from `row` on by PART columns of a panel from `column` on: M * VECTORS sums stay in registers.
template <int KIND, int M>
static inline void tile(const Weights &w, const Rows &x, i64 row, i64 panel, i64 column, float *y, i64 stride,
                        int mode) {
#ifdef __wasm__
    if constexpr (KIND == INT8) return tile_of_bytes<M>(w, x, row, panel, y, stride, mode);
#endif
    constexpr int REGISTERS = PART / WIDE;
    typename Dot<KIND>::Sums sum[M][REGISTERS] = {};
#ifdef BYTE_PAIRS
    if constexpr (KIND == INT8) {
#pragma GCC unroll 8
        for (int m = 0; m < M; m++)
#pragma GCC unroll 8
            for (int v = 0; v < REGISTERS; v++) sum[m][v] += x.starts[row + m];
    }
#endif
    if constexpr (Dot<KIND>::ADDED != 0) {
#pragma GCC unroll 8
        for (int m = 0; m < M; m++)
#pragma GCC unroll 8
            for (int v = 0; v < REGISTERS; v++)
                sum[m][v] = Dot<KIND>::ADDED * *(const ri *)&w.sums[panel * PANEL + column + v * WIDE];
    }
    const i64 depth = w.depth, step = x.stride;
    const u32 *from = w.data + w.at(panel * PANEL + column, 0), *left = x.at + row * step;
#ifdef EVEN_WORDS
    if constexpr (KIND == INT8 && M * REGISTERS <= 6) {
        // An addition waits for the one before it to the same sum: odd words have sums of their own.
        typename Dot<KIND>::Sums odd[M][REGISTERS] = {};
        for (i64 k = 0; k < depth; k += 2, from += 2 * STRIP)
            add_word<KIND>(sum, from, left, step, k), add_word<KIND>(odd, from + STRIP, left, step, k + 1);
#pragma GCC unroll 8
        for (int m = 0; m < M; m++)
#pragma GCC unroll 8
            for (int v = 0; v < REGISTERS; v++) sum[m][v] += odd[m][v];
    } else
#endif
#pragma GCC unroll 2
        for (i64 k = 0; k < depth; k++, from += STRIP) add_word<KIND>(sum, from, left, step, k);
    const i64 first = panel * PANEL + column;
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) {
        const Finish<KIND> finish(w, first + v * LANES);
#pragma GCC unroll 8
        for (int m = 0; m < M; m++)
            finish(joined<KIND>(sum[m] + v * (LANES / WIDE)), x, row + m, y + m * stride + column + v * LANES, mode);
    }
}

// Rows begin ... end - 1 by one panel, in as few groups as can be, of almost the same size.
template <int KIND>
static void panel_of(const Weights &w, const Rows &x, i64 begin, i64 end, i64 panel, float *y, i64 stride, int mode) {
    static_assert(ROWS == 6);
    for (i64 column = 0; column < PANEL; column += PART)
        for (i64 row = begin, groups = (end - begin + ROWS - 1) / ROWS, some; groups; groups--, row += some) {
            float *to = y + (row - begin) * stride;
            some = (end - row + groups - 1) / groups;
            switch (some) {
                case 1: tile<KIND, 1>(w, x, row, panel, column, to, stride, mode); break;
                case 2: tile<KIND, 2>(w, x, row, panel, column, to, stride, mode); break;
                case 3: tile<KIND, 3>(w, x, row, panel, column, to, stride, mode); break;
                case 4: tile<KIND, 4>(w, x, row, panel, column, to, stride, mode); break;
                case 5: tile<KIND, 5>(w, x, row, panel, column, to, stride, mode); break;
                case 6: tile<KIND, 6>(w, x, row, panel, column, to, stride, mode); break;
            }
        }
}

// Rows begin ... end - 1 of x by the columns of panels first ... last - 1. y: [end - begin][stride], from the first row
// and panel on, in whole panels.
static void product(const Weights &w, const Rows &x, i64 begin, i64 end, i64 first, i64 last, float *y, i64 stride,
                    int mode) {
    const bool unit = w.kind != FLOAT32 && tiles::used() && (w.kind == BFLOAT16 || end - begin >= tiles::FEW);
    if (unit && w.kind == BFLOAT16) return tiles::product<BFLOAT16>(w, x, begin, end, first, last, y, stride, mode);
    if (unit) return tiles::product<INT8>(w, x, begin, end, first, last, y, stride, mode);
    for (i64 panel = first; panel < last; panel++) {
        float *to = y + (panel - first) * PANEL;
#ifndef __wasm__  // to keep the module small
        if (w.kind == FLOAT32) panel_of<FLOAT32>(w, x, begin, end, panel, to, stride, mode);
        if (w.kind == BFLOAT16) panel_of<BFLOAT16>(w, x, begin, end, panel, to, stride, mode);
#endif
        if (w.kind == INT8) panel_of<INT8>(w, x, begin, end, panel, to, stride, mode);
    }
}

static void product(const Weights &w, const Rows &x, i64 rows, float *y, i64 stride, int mode = SET) {
    product(w, x, 0, rows, 0, w.panels, y, stride, mode);
}

}  // namespace gemm
