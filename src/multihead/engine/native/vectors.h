// Vectors as wide as the processor's, and what joins their lanes.
//
// Of float32 and 32-bit integers; bfloat16 is rounded from float32 and widened to it. What a browser has instead is in
// webassembly.h.

#pragma once

#include <cstdint>
#include <cstring>
#ifdef __x86_64__
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace gemm {

typedef int64_t i64;
typedef uint32_t u32;

#if defined(__AVX512F__) || defined(__wasm__)  // equal lanes make sums of equal order
constexpr int LANES = 16;
#else
constexpr int LANES = 8;
#endif
// Vectors that a loop can keep in registers beside what it reads.
#if defined(__AVX512F__)
constexpr int SUMS = 24;
#elif defined(__AVX2__) || defined(__ARM_NEON)
constexpr int SUMS = 12;
#else  // each is two registers of 16, or four in a browser
constexpr int SUMS = 4;
#endif
typedef float vf __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef u32 vu __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint16_t vh __attribute__((vector_size(LANES * 2), aligned(2), may_alias));

static inline u32 to_bits(float x) { return __builtin_bit_cast(u32, x); }
static inline float from_bits(u32 x) { return __builtin_bit_cast(float, x); }
static inline u32 rounded(float x) {  // to bfloat16, to nearest even; x must not be NaN
    u32 u = to_bits(x);
    return (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
}

// a * b + c, rounded once where the processor can: compilers contract the expression (-ffp-contract=fast).
#ifdef __wasm__
}  // namespace gemm
#include "webassembly.h"
namespace gemm {
#else
static inline float fused(float a, float b, float c) { return a * b + c; }
static inline vf fused(vf a, vf b, vf c) { return a * b + c; }
static inline vf fused(float a, vf b, vf c) { return a * b + c; }
#endif

#ifndef __wasm__
// Lane i of the result is x[i ^ W].
template <int W, class V>
static inline V swap_lanes(V x) {
    vi place;
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) place[i] = i ^ W;
    return __builtin_shuffle(x, place);
}
#endif

// What `join` makes of all lanes whose numbers are equal modulo `apart`, a power of 2, in each of these lanes.
template <int W = LANES / 2, class V, class Join>
static inline V join_lanes(V x, i64 apart, const Join &join) {
    if (W < apart) return x;
    x = join(x, swap_lanes<W>(x));
    if constexpr (W > 1) return join_lanes<W / 2>(x, apart, join);
    else return x;
}
template <class V>
static inline V larger(V x, V y) {
    return y > x ? y : x;
}
static inline vf smaller(vf x, vf y) { return y < x ? y : x; }
static inline vf added(vf x, vf y) { return x + y; }

// The largest of each lane of `count` numbers, a multiple of LANES.
static inline vf largest(const float *x, i64 count) {
    vf most = *(const vf *)x;
    for (i64 i = LANES; i < count; i += LANES) most = larger(most, *(const vf *)(x + i));
    return most;
}

// A sum over x[0 ... width - 1]: add(x, sum) adds numbers, those of whole vectors lane by lane.
template <class Add>
static inline float sum_of(const float *x, i64 width, const Add &add) {
    vf sums = {};
    i64 i = 0;
    for (; i + LANES <= width; i += LANES) sums = add(*(const vf *)(x + i), sums);
    float sum = join_lanes(sums, 1, added)[0];
    for (; i < width; i++) sum = add(x[i], sum);
    return sum;
}

#ifndef __wasm__
// Lane i of the result is the sum of the lanes of x[i]; overwrites x. Each level halves the number of vectors.
template <int W = LANES / 2>
static inline vf lane_sums(vf *x) {
    vi same, other;
    for (int i = 0; i < LANES; i++) same[i] = i & W ? LANES + i : i, other[i] = i & W ? LANES + (i ^ W) : i ^ W;
#pragma GCC unroll 16
    for (int i = 0; i < W; i++)
        x[i] = __builtin_shuffle(x[i], x[i + W], same) + __builtin_shuffle(x[i], x[i + W], other);
    if constexpr (W > 1) return lane_sums<W / 2>(x);
    else return x[0];
}
#endif

// Overwrites all but the first `count` of LANES scores by -1e30. Single stores before a load of the vector would delay it.
static inline void keep_lanes(float *x, i64 count) {
    vi lane;
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) lane[i] = i;
    *(vf *)x = lane < (int32_t)count ? *(const vf *)x : vf{} - 1e30f;
}

// Stored numbers are float32, or bfloat16 as the upper half of a float32.
static inline vf load_lanes(const float *from) { return *(const vf *)from; }
static inline vf load_lanes(const uint16_t *from) {
#if defined(__AVX512F__)  // g++ 12 takes six instructions for the conversion
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from)), 16);
#elif defined(__AVX2__)
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from)), 16);
#else
    return (vf)(__builtin_convertvector(*(const vh *)from, vu) << 16);
#endif
}
static inline float to_float(float x) { return x; }
static inline float to_float(uint16_t x) { return from_bits((u32)x << 16); }

static inline void store(const float *from, i64 count, float *to) { memcpy(to, from, count * 4); }
static inline void store(const float *from, i64 count, uint16_t *to) {
#pragma omp simd
    for (i64 i = 0; i < count; i++) to[i] = (uint16_t)rounded(from[i]);
}

}  // namespace gemm
