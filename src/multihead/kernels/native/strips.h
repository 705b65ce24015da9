// Products of small matrices of any size, and transposition: a part of kernels.cpp, for linear maps in float32,
// directions.h and short_attention.h.
//
// A strip is a few vectors of columns, whose sums for some rows stay in registers. Unlike tiles (tiles.h), strips have no
// fixed number of rows, and the left factor is read where it lies. Factors are words, as in tiles.h.

#pragma once

#include "tiles.h"

// Floats in a vector, to which rows are padded; sums are kept in registers of WIDE floats, those of at most STRIP vectors
// of a row: no more than fit. g++ keeps what is longer than a register in memory, or splits it into single numbers.
#if defined(__AVX512F__)
static const int LANES = 16, STRIP = 4;
#elif defined(__AVX__)
static const int LANES = 8, STRIP = 2;
#elif defined(__aarch64__)
static const int LANES = 16, STRIP = 1;
#else
static const int LANES = 8, STRIP = 1;
#endif
static const int WIDE = tiles::FLOATS;
typedef Lanes<LANES>::floats vector;
typedef tiles::vec wide;

// c [ROWS, COLUMNS vectors] = a [ROWS, depth] b [depth, COLUMNS vectors]. ROWS x COLUMNS sums stay in registers: at most
// 6 x 4 or 12 x 2 = 24 of the 32 of AVX-512, or 6 x 2 = 12 of the 16 of AVX, beside COLUMNS of b. Word (i, k) of a is
// a[i * a_row + k * a_step], so that a_row = 1 multiplies by a transposed matrix. depth and distances are in words.

// Sums start at FROM: zero, what c holds, or the same `row` in all rows.
enum Start { ZERO, OLD, ROW };

template <int ROWS, int COLUMNS, Start FROM = ZERO, class Word>
static inline void block(const Word *a, i64 a_row, i64 a_step, const Word *b, i64 b_row, float *c, i64 c_row,
                         i64 depth, const float *row = nullptr) {
    constexpr int REGISTERS = COLUMNS * LANES / WIDE;
    wide sum[ROWS][REGISTERS];
#pragma GCC unroll 12
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
#pragma GCC unroll 12
        for (int i = 0; i < ROWS; i++) {
            Word left;
            tiles::read_word(left, a + i * a_row + k * a_step);
#pragma GCC unroll 4
            for (int n = 0; n < REGISTERS; n++) tiles::add_products(sum[i][n], left, right[n]);
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
        for (int n = 0; n < REGISTERS; n++) *(wide *)(c + i * c_row + n * WIDE) = sum[i][n];
}

// block of `rows` rows, at most ROWS.
template <int ROWS, int COLUMNS, Start FROM, class Word>
static inline void block_of(i64 rows, const Word *a, i64 a_row, i64 a_step, const Word *b, i64 b_row, float *c,
                            i64 c_row, i64 depth, const float *row) {
    if constexpr (ROWS > 1)
        if (rows < ROWS)
            return block_of<ROWS - 1, COLUMNS, FROM>(rows, a, a_row, a_step, b, b_row, c, c_row, depth, row);
    block<ROWS, COLUMNS, FROM>(a, a_row, a_step, b, b_row, c, c_row, depth, row);
}

// c [rows, COLUMNS vectors] = a b, in blocks of as many rows as fit into the registers, or a few less, so that there is no
// small block at the end: its sums would wait for each other.
template <int COLUMNS, Start FROM = ZERO, class Word>
static inline void strip(i64 rows, i64 depth, const Word *a, i64 a_row, i64 a_step, const Word *b, i64 b_row,
                         float *c, i64 c_row, const float *row = nullptr) {
    constexpr i64 MOST = 6 * STRIP / COLUMNS < 12 ? 6 * STRIP / COLUMNS : 12;
    const i64 blocks = (rows + MOST - 1) / MOST, size = blocks ? (rows + blocks - 1) / blocks : 0;
    for (i64 i = 0; i < rows; i += size)
        block_of<MOST, COLUMNS, FROM>(rows - i < size ? rows - i : size, a + i * a_row, a_row, a_step, b, b_row,
                                      c + i * c_row, c_row, depth, row);
}

// c [rows, columns] = a [rows, depth] b [depth, columns], with a as in block; columns are rounded up to whole
// vectors.
template <class Word>
static void product(i64 rows, i64 columns, i64 depth, const Word *a, i64 a_row, i64 a_step, const Word *b, i64 b_row,
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

// x rounded up to whole vectors.
static inline i64 round_up(i64 x) { return (x + LANES - 1) / LANES * LANES; }
