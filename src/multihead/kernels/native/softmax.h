// Exponentials and sums along rows of scores: a part of kernels.cpp, for its loss, short_attention.h and long_attention.h.

#pragma once

#include "tiles.h"

namespace tiles {

constexpr float LOG2_E = 1.44269504088896341f;

// 2^x for x < 128 with a relative error below 2e-7; 2^-126 below -126. NaN stays NaN.
// x = n + r with |r| <= 1/2: adding 1.5 * 2^23 rounds to integers, and 127 more is the exponent of 2^n, in the lowest
// bits. 2^r is a polynomial.
static inline vec power_of_two(vec x) {
    constexpr float ROUND = 12583039.f;  // 1.5 * 2^23 + 127
    x = x < -126.f ? splat(-126.f) : x;
    const vec rounded = x + ROUND;
    const vec r = x - (rounded - ROUND);
    vec y = r * 1.3264726899e-3f + 9.6715126606e-3f;
    y = y * r + 5.5507337442e-2f;
    y = y * r + 2.4022242085e-1f;
    y = y * r + 6.9314697760e-1f;
    y = y * r + 1.f;
    return y * (vec)((ints)rounded << 23);
}

// The numbers of x, STEPS places further on; the last ones come first.
template <int STEPS>
static inline vec moved(vec x) {
    ints from;
    for (int n = 0; n < FLOATS; n++) from[n] = (n + STEPS) % FLOATS;
    return __builtin_shuffle(x, from);
}

// Combines all numbers of x, in each place of the result.
template <int STEPS = FLOATS / 2, class Combine>
static inline vec across(vec x, const Combine &combine) {
    x = combine(x, moved<STEPS>(x));
    if constexpr (STEPS > 1) return across<STEPS / 2>(x, combine);
    else return x;
}

static inline vec larger(vec x, vec y) { return x > y ? x : y; }
static inline vec sum_of(vec x) { return across(x, [](vec a, vec b) { return a + b; }); }
static inline vec highest_of(vec x) { return across(x, larger); }

}  // namespace tiles
