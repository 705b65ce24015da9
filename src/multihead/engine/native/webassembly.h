// What the compiled search needs in a browser: vectors of WebAssembly, one thread.
//
// The result equals, bit for bit, that of a processor with AVX-512: vectors have as many lanes, sums have the same
// order, and a * b + c is rounded once. Baseline WebAssembly has no such instruction. Products of two float32 are exact
// in double precision, so only a sum that double precision rounds to the middle between two float32 could differ, about
// one in 2^29.

#pragma once

#include <wasm_simd128.h>

namespace gemm {

// Two numbers in the lower half of a vector. Their upper half has no meaning.
typedef float vf2 __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t vi2 __attribute__((vector_size(16), aligned(4), may_alias));

static inline float fused(float a, float b, float c) { return (float)((double)a * (double)b + (double)c); }
static inline vf2 fused(vf2 a, vf2 b, vf2 c) {
    const v128_t product = wasm_f64x2_mul(wasm_f64x2_promote_low_f32x4((v128_t)a), wasm_f64x2_promote_low_f32x4((v128_t)b));
    v128_t sum = wasm_f32x4_demote_f64x2_zero(wasm_f64x2_add(product, wasm_f64x2_promote_low_f32x4((v128_t)c)));
    asm("" : "+r"(sum));  // compilers would round lane by lane if they saw that it becomes double again
    return (vf2)sum;
}
static inline vf2 upper(vf2 x) { return __builtin_shufflevector(x, x, 2, 3, 2, 3); }
static inline vf2 join(vf2 x, vf2 y) { return __builtin_shufflevector(x, y, 0, 1, 4, 5); }

// Applies a function of pairs to all lanes.
template <class F, class... V>
static inline vf by_pairs(const F &f, V... x) {
    vf y;
    for (int i = 0; i < LANES / 4; i++)
        ((vf2 *)&y)[i] = join(f(((const vf2 *)&x)[i]...), f(upper(((const vf2 *)&x)[i])...));
    return y;
}
static inline vf fused(vf a, vf b, vf c) {
    return by_pairs([](vf2 a, vf2 b, vf2 c) { return fused(a, b, c); }, a, b, c);
}
static inline vf fused(float a, vf b, vf c) { return fused(vf{} + a, b, c); }

// Lane i of the result is x[i ^ w], w a power of 2 below LANES.
template <int W>
static inline vf exchanged(vf x) {
    return __builtin_shufflevector(x, x, 0 ^ W, 1 ^ W, 2 ^ W, 3 ^ W, 4 ^ W, 5 ^ W, 6 ^ W, 7 ^ W, 8 ^ W, 9 ^ W, 10 ^ W,
                                   11 ^ W, 12 ^ W, 13 ^ W, 14 ^ W, 15 ^ W);
}
template <int W, class V>
static inline V swap_lanes(V x) {
    return (V)exchanged<W>((vf)x);
}

// Lane i of the result is the sum of the lanes of x[i]; overwrites x. Each level halves the number of vectors.
template <int W = LANES / 2>
static inline vf lane_sums(vf *x) {
#define EACH(F) F(0), F(1), F(2), F(3), F(4), F(5), F(6), F(7), F(8), F(9), F(10), F(11), F(12), F(13), F(14), F(15)
#define SAME(i) (i & W ? LANES + i : i)
#define OTHER(i) (i & W ? LANES + (i ^ W) : i ^ W)
    for (int i = 0; i < W; i++)
        x[i] = __builtin_shufflevector(x[i], x[i + W], EACH(SAME)) + __builtin_shufflevector(x[i], x[i + W], EACH(OTHER));
#undef EACH
#undef SAME
#undef OTHER
    if constexpr (W > 1) return lane_sums<W / 2>(x);
    else return x[0];
}

static inline bool some_lane(vi x) {
    const v128_t *part = (const v128_t *)&x;
    return wasm_v128_any_true(wasm_v128_or(wasm_v128_or(part[0], part[1]), wasm_v128_or(part[2], part[3])));
}

// Dot products of M rows of x, 16-bit numbers `step` apart, and COLUMNS columns of bytes, `depth` words each, `apart`
// words from word to word. sums: rows `wide` apart.
//
// Not inlined: browsers allocate registers badly in large functions.
template <int M, int COLUMNS>
__attribute__((noinline)) static void dot_products(const int16_t *x, int64_t step, const u32 *w, int64_t depth,
                                                   int64_t apart, int32_t *sums, int64_t wide) {
    v128_t sum[M][COLUMNS / 2];
    for (int m = 0; m < M; m++)
        for (int c = 0; c < COLUMNS / 2; c++) sum[m][c] = wasm_i32x4_const_splat(0);
    for (int64_t k = 0; k < depth; k++, w += apart, x += 4) {
        v128_t two[COLUMNS / 2];  // columns as 16-bit numbers
#pragma clang loop unroll(full)
        for (int c = 0; c < COLUMNS / 2; c++) two[c] = wasm_i16x8_load8x8(w + 2 * c);
#pragma clang loop unroll(full)
        for (int m = 0; m < M; m++) {
            const v128_t four = wasm_v128_load64_splat(x + m * step);
#pragma clang loop unroll(full)
            for (int c = 0; c < COLUMNS / 2; c++)
                sum[m][c] = wasm_i32x4_add(sum[m][c], wasm_i32x4_dot_i16x8(four, two[c]));
        }
    }
    for (int m = 0; m < M; m++)
        for (int c = 0; c < COLUMNS / 4; c++) {
            const v128_t low = sum[m][2 * c], high = sum[m][2 * c + 1];
            const v128_t even = wasm_i32x4_shuffle(low, high, 0, 2, 4, 6), odd = wasm_i32x4_shuffle(low, high, 1, 3, 5, 7);
            wasm_v128_store(sums + m * wide + 4 * c, wasm_i32x4_add(even, odd));
        }
}

}  // namespace gemm
