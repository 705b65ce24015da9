// Functions of float32 vectors and numbers, the same in every search: exponentials, and activations made of them.

#pragma once

#include <cmath>
#include "vectors.h"

namespace gemm {

// e^x for x <= 0, as 2^n p(f) with x = (n + f) ln 2, |f| <= 1/2. The polynomial p is within 1e-7 of 2^f. x < -87 gives
// e^-87.
template <class V, class I>
static inline V exp_of(V x) {
    const float round = 12582912.f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
    x = x < -87.f ? V{} - 87.f : x;
    const V shifted = fused(x, V{} + 1.44269504f, V{} + round);
    const V f = fused(x, V{} + 1.44269504f, -(shifted - round));
    V p = fused(f, V{} + 1.32764716e-3f, V{} + 9.67554155e-3f);
    p = fused(p, f, V{} + 5.55071328e-2f), p = fused(p, f, V{} + 2.40221197e-1f);
    p = fused(p, f, V{} + 6.93146967e-1f), p = fused(p, f, V{} + 1.00000007f);
    return (V)((I)p + ((I)shifted << 23));
}
#ifdef __wasm__
static inline vf exp_nonpositive(vf x) { return by_pairs(exp_of<vf2, vi2>, x); }
static inline float exponential(float x) { return (float)std::exp((double)x); }
static inline float logarithm(float x) { return (float)std::log((double)x); }
#else
static inline vf exp_nonpositive(vf x) { return exp_of<vf, vi>(x); }
static inline float exponential(float x) { return std::exp(x); }
static inline float logarithm(float x) { return std::log(x); }
#endif

// 1 / (1 + e^-x), from e^-|x|, which cannot overflow.
static inline vf sigmoid(vf x) {
    const vf e = exp_nonpositive(x > 0.f ? -x : x);
    return (x > 0.f ? vf{} + 1.f : e) / (1.f + e);
}

// GELU by its tanh formula, x / 2 (1 + tanh u) = x sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3), in place.
static inline void gelu_by_tanh(float *x, i64 count) {
    for (i64 i = 0; i < count; i += LANES) {
        vf &one = *(vf *)(x + i);
        one *= sigmoid(one * fused(one * one, vf{} + 0.0713548163f, vf{} + 1.5957691216f));
    }
}

}  // namespace gemm
