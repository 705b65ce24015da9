// The directions of matrices, for the steps of Muon: a part of kernels.cpp. The equation is in training/optimizer.py.
//
// Two of the three products of a step are symmetric: only tiles on and below the diagonal are computed, and copied to what
// is above it. Products are sums of tiles (tiles.h), of factors in float32, or in bfloat16 where AVX512-BF16 multiplies it;
// sums and the matrix between two steps are in float32.

#pragma once

#include "strips.h"

namespace tiles {

constexpr i64 DEPTH = 256;  // words of an operand that stay in the first cache

// Memory of one thread, for matrices [m, n].
template <class T>
struct Directions {
    typedef typename Words<T>::Word Word;
    const i64 m, n, high = up(up(m, PANEL), GROUP), wide = up(n, PANEL), square = up(m, PANEL);
    Room room;
    float *x, *one, *two;  // x [high, wide]; its square and the square of that, [high, square]
    T *factor, *half;      // of float32 where they lie, otherwise copies as T: [m, wide] and [m, square]
    Word *groups, *panels;

    Directions(i64 m, i64 n) : m(m), n(n) {
        const i64 depth = std::max(words_of<T>(n), words_of<T>(m)), copies = std::is_same_v<T, float> ? 0 : m;
        x = room.get(high * (wide + 2 * square) + copies * (wide + square) + depth * (high + std::max(wide, square)) +
                     2 * FLOATS);
        one = x + high * wide, two = one + high * square;
        factor = (T *)(two + high * square), half = factor + copies * wide;
        groups = (Word *)(half + copies * square), panels = groups + depth * high + FLOATS;
    }

    // Numbers as factors, whole panels of them: the same, or rounded ones.
    const T *rounded(const float *from, i64 count, T *to) {
        if constexpr (std::is_same_v<T, float>) return from;
        else if constexpr (Words<T>::NUMBERS == 2)
            for (i64 i = 0; i < count; i += PANEL) write_row<T>((float *)to, i, (const vec *)(from + i));
        else
            for (i64 i = 0; i < count; i++) store(to[i], from[i]);
        return to;
    }

    // c [m, columns] = a b of the packed operands, or c + a b; only tiles on and below the diagonal if `half_of_it`.
    void multiply(i64 columns, i64 depth, float *c, i64 c_row, bool add, bool half_of_it) {
        for (i64 k = 0; k < depth; k += DEPTH)
            for (i64 j = 0; j < columns; j += PANEL)
                for (i64 i = half_of_it ? down(j, GROUP) : 0; i < m; i += GROUP) {
                    const Word *a = groups + i * depth + k * GROUP, *b = panels + j * depth + k * PANEL;
                    const i64 part = std::min(DEPTH, depth - k);
                    if (add || k) tile<1, GROUP, true>(a, b, part, c + i * c_row + j, c_row);
                    else tile<1, GROUP, false>(a, b, part, c + i * c_row + j, c_row);
                }
    }

    void pack_groups(const Rows<T> &rows, i64 width) {
        for (i64 i = 0; i < m; i += GROUP) pack_transposed<GROUP>(rows, i, width, groups + i * words_of<T>(width));
    }

    // c [m, m] = a a^T for a [m, width].
    void square_of(const T *a, i64 step, i64 width, float *c) {
        const Rows<T> rows{a, step, 0, m};
        pack_groups(rows, width);
        for (i64 j = 0; j < square; j += PANEL) pack_transposed<PANEL>(rows, j, width, panels + j * words_of<T>(width));
        multiply(square, words_of<T>(width), c, square, false, true);
        for (i64 j = 0; j + PANEL < square; j += PANEL)
            transpose(c + (j + PANEL) * square + j, square, square - j - PANEL, PANEL, c + j * square + j + PANEL, square,
                      square - j - PANEL);
    }

    // x = a x + (b x x^T + c (x x^T)^2) x. All terms have the rounded x and the rounded x x^T, since they nearly cancel.
    void step(float a, float b, float c) {
        const T *own = rounded(x, m * wide, factor);
        square_of(own, wide, n, one);
        const T *squared = rounded(one, m * square, half);
        square_of(squared, square, m, two);
#pragma omp simd
        for (i64 i = 0; i < m * square; i++) one[i] = b * load(squared[i]) + c * two[i];
        pack_groups({rounded(one, m * square, half), square, 0, m}, m);
        const i64 depth = words_of<T>(m);
        pack_panels(Rows<T>{own, wide, 0, m}, 0, depth * Words<T>::NUMBERS, n, panels, depth * PANEL);
#pragma omp simd
        for (i64 i = 0; i < m * wide; i++) x[i] = a * load(own[i]);
        multiply(wide, depth, x, wide, true, false);
    }

    // matrix [m, n] becomes what `steps` steps make of it, divided by `safe` times its norm.
    void run(float *matrix, const float *coefficients, i64 steps, float safe) {
        double sum = 0;  // in double precision: squares of momenta that have decayed for long would be 0 in single
        for (i64 i = 0; i < m; i++)
#pragma omp simd reduction(+ : sum)
            for (i64 f = 0; f < n; f++) sum += (double)matrix[i * n + f] * (double)matrix[i * n + f];
        const double norm = std::sqrt(sum) * safe;
        const float inverse = (float)(1 / (norm > 1e-30 ? norm : 1e-30));
        for (i64 i = 0; i < m; i++) store_row(matrix + i * n, n, inverse, x + i * wide);
        for (i64 k = 0; k < steps; k++) step(coefficients[3 * k], coefficients[3 * k + 1], coefficients[3 * k + 2]);
        for (i64 i = 0; i < m; i++) store_row(x + i * wide, n, 1.f, matrix + i * n);
    }
};

}  // namespace tiles

// Each matrix x [rows, columns], rows <= columns, of a stack becomes p x with p = a + b x x^T + c (x x^T)^2, for each a, b
// and c of `coefficients` [steps, 3]; at first it is divided by `safe` times its norm. The factors of products are of
// `type`. A thread computes whole matrices.
extern "C" int orthogonal(float *stack, i64 count, i64 rows, i64 columns, const float *coefficients, i64 steps,
                          float safe, int type, i64 threads) {
    return status_of([&] {
        const auto run = [&](auto type_of) {
            Failures failures;
#pragma omp parallel num_threads((int)std::min(count, threads))
            try {
                tiles::Directions<decltype(type_of)> directions(rows, columns);
                i64 begin, end;
                thread_rows(count, begin, end);
                for (i64 i = begin; i < end; i++)
                    directions.run(stack + i * rows * columns, coefficients, steps, safe);
            } catch (const std::exception &) {
                failures.any = true;
            }
            failures.end_of_region();
        };
        if (type) run(bf16{}); else run(0.f);
    });
}
