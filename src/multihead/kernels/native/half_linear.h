// Linear maps with products of bfloat16: a part of kernels.cpp. The equations are in kernels/products.py.
//
// Products are sums of tiles (tiles.h). A word holds two numbers that follow each other along the sum where the processor
// multiplies such pairs (AVX512-BF16), and otherwise one number, as float32. Rows of x that consist of words are read where
// they lie; other operands are copied to the order in which a tile reads them, and rounded then if they are in float32.
// Sums are in float32.

#pragma once

#include "tiles.h"

namespace tiles {

typedef Words<bf16>::Word Half;
constexpr i64 PAIR = Words<bf16>::NUMBERS, DEEP = 256;  // numbers of a word; words along the rows in the second cache
constexpr i64 CACHED = 1 << 17;                          // words of an operand that stay in the second cache
constexpr i64 SPREAD = up(GROUP, FLOATS);                // words that are written for a group of columns

#if defined(__AVX512BF16__)
constexpr Half ONE = 0x3f803f80;

// Up to FLOATS words of the numbers [0, count) that follow `from`, and zeros.
static inline vec half_words(const bf16 *from, i64 count) { return words_at(from, count); }
static inline vec half_words(const float *from, i64 count) {
    return Words<bf16>::of_row(numbers(from, count), numbers(from + FLOATS, count - FLOATS));
}

// FLOATS words, each of a number of `row` and the one of `next` below it; zeros from column `count` on, or without `next`.
static inline vec half_columns(const bf16 *row, const bf16 *next, i64 count) { return columns_at(row, next, count); }
static inline vec half_columns(const float *row, const float *next, i64 count) {
    return Words<bf16>::of_columns(numbers(row, count), next ? numbers(next, count) : vec{});
}
#else
constexpr Half ONE = 1;

// The nearest numbers of bfloat16, ties to even; NaN stays NaN.
static inline vec rounded(vec x) {
    const words u = (words)x, known = (words)(x == x), nearest = u + 0x7fff + (u >> 16 & 1);
    return (vec)(((nearest & known) | ((u | 0x400000) & ~known)) & 0xffff0000);
}

static inline vec half_words(const bf16 *from, i64 count) { return numbers(from, count); }
static inline vec half_words(const float *from, i64 count) { return rounded(numbers(from, count)); }
template <class T>
static inline vec half_columns(const T *row, const T *, i64 count) { return half_words(row, count); }
#endif

// ----------------------------------------------------------------------------------------------------------- rows of y

// Rows [first, first + PANEL) of w [out, in] as a panel of words [in, PANEL].
template <class W>
static void panel_of_rows(const W *w, i64 in, i64 out, i64 first, Half *to) {
    const i64 depth = words_of<bf16>(in);
    for (i64 d = 0; d < depth; d += FLOATS)
#pragma GCC unroll 4
        for (int block = 0; block < VECTORS; block++) {
            Lanes<FLOATS>::floats x[FLOATS];
#pragma GCC unroll 16
            for (int r = 0; r < FLOATS; r++) {
                const i64 row = first + block * FLOATS + r;
                x[r] = row < out ? half_words(w + row * in + d * PAIR, in - d * PAIR) : vec{};
            }
            transpose_block<FLOATS>(x);
            for (i64 n = 0; n < std::min<i64>(FLOATS, depth - d); n++)
                *(vec *)(to + (d + n) * PANEL + block * FLOATS) = x[n];
        }
}

// Columns [first, first + PANEL) of rows [top, top + count) of w [rows, width] as a panel of words [count, PANEL].
template <class W>
static void panel_of_columns(const W *w, i64 rows, i64 width, i64 top, i64 count, i64 first, Half *to) {
    for (i64 r = 0; r < count; r += PAIR, to += PANEL)
#pragma GCC unroll 4
        for (int n = 0; n < VECTORS; n++) {
            const W *row = w + (top + r) * width + first + n * FLOATS;
            const i64 there = width - first - n * FLOATS;
            const bool below = r + 1 < count && top + r + 1 < rows;
            *(vec *)(to + n * FLOATS) = there > 0 ? half_columns(row, below ? row + width : nullptr, there) : vec{};
        }
}

static inline void store_sums(float *to, const vec *sum) {
#pragma GCC unroll 4
    for (int n = 0; n < VECTORS; n++) *(vec *)(to + n * FLOATS) = sum[n];
}

static inline void store_sums(bf16 *to, const vec *sum) {
#if defined(__AVX512BF16__)
    *(vec *)to = Words<bf16>::of_row(sum[0], sum[1]);
#else
    for (int n = 0; n < VECTORS; n++)
        for (int f = 0; f < FLOATS; f++) store(to[n * FLOATS + f], sum[n][f]);
#endif
}

// y [GROUP, PANEL] = start [PANEL] + a [GROUP, depth] b [depth, PANEL]; depth and a_row are in words.
template <class Y>
static inline void rows_of_panel(const Half *a, i64 a_row, const Half *b, i64 depth, const float *start, Y *y, i64 y_row) {
    vec sum[GROUP][VECTORS];
#pragma GCC unroll 12
    for (int i = 0; i < GROUP; i++)
#pragma GCC unroll 4
        for (int n = 0; n < VECTORS; n++) sum[i][n] = *(const vec *)(start + n * FLOATS);
    for (i64 k = 0; k < depth; k++, b += PANEL) {
        vec right[VECTORS];
#pragma GCC unroll 4
        for (int n = 0; n < VECTORS; n++) right[n] = *(const vec *)(b + n * FLOATS);
#pragma GCC unroll 12
        for (int i = 0; i < GROUP; i++) {
            Half left;
            read_word(left, a + i * a_row + k);
#pragma GCC unroll 4
            for (int n = 0; n < VECTORS; n++) add_products(sum[i][n], left, right[n]);
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < GROUP; i++) store_sums(y + i * y_row, sum[i]);
}

// One thread's part of y = x w^T + bias: rows [top, bottom) and panels [first, last). `at_once` panels are packed, and
// `tall` rows copied, at a time.
template <class X, class W, class Y>
struct HalfRows {
    const X *x;
    const W *w;
    Y *y;
    i64 in, out;
    bool turned;  // w is [in, out]
    // A tile reads a word of each row at a time. Rows at a distance of pages would share a few lines of the first cache.
    const i64 depth = words_of<bf16>(in), step = up(depth, FLOATS) + (up(depth, FLOATS) % 256 ? 0 : FLOATS);
    // Rows are read where they lie if they consist of words.
    const bool direct = std::is_same_v<X, bf16> && PAIR == 2 && in % PAIR == 0 && depth % 512;

    void run(const float *starts, i64 top, i64 bottom, i64 first, i64 last) {
        const i64 at_once = std::clamp<i64>(CACHED / std::max<i64>(depth * PANEL, 1), 1, std::max<i64>(last - first, 1));
        const i64 tall = std::max<i64>(GROUP, down(CACHED / (2 * step), GROUP));
        const i64 copied = direct ? GROUP : std::min(tall, up(bottom - top, GROUP));
        Room room;
        Half *packed = (Half *)room.get(at_once * depth * PANEL + copied * step + GROUP * PANEL);
        Half *own = packed + at_once * depth * PANEL;
        Y *edge = (Y *)(own + copied * step);
        for (i64 some = first; some < last; some += at_once) {
            const i64 stop = std::min(some + at_once, last);
            for (i64 p = some; p < stop; p++) {
                Half *to = packed + (p - some) * depth * PANEL;
                if (turned) panel_of_columns(w, in, out, 0, in, p * PANEL, to);
                else panel_of_rows(w, in, out, p * PANEL, to);
            }
            for (i64 t = top; t < bottom; t += tall) {
                const i64 end = std::min(t + tall, bottom);
                const i64 whole = direct ? down(end - t, GROUP) : 0;
                for (i64 r = t + whole; r < end; r++) copy(r, own + (r - t - whole) * step);
                for (i64 r = t; r < end; r += GROUP)
                    for (i64 p = some; p < stop; p++) {
                        const bool there = r - t < whole;
                        const Half *a = there ? (const Half *)(x + r * in) : own + (r - t - whole) * step;
                        const Half *b = packed + (p - some) * depth * PANEL;
                        const i64 high = std::min<i64>(GROUP, end - r), wide = std::min<i64>(PANEL, out - p * PANEL);
                        const float *start = starts + p * PANEL;
                        Y *to = y + r * out + p * PANEL;
                        const i64 a_row = there ? depth : step;
                        if (high == GROUP && wide == PANEL) {
                            rows_of_panel(a, a_row, b, depth, start, to, out);
                            continue;
                        }
                        rows_of_panel(a, a_row, b, depth, start, edge, PANEL);
                        for (i64 i = 0; i < high; i++) std::memcpy(to + i * out, edge + i * PANEL, wide * sizeof *to);
                    }
            }
        }
    }

    void copy(i64 row, Half *to) {
        for (i64 d = 0; d < depth; d += FLOATS) *(vec *)(to + d) = half_words(x + row * in + d * PAIR, in - d * PAIR);
    }
};

// ------------------------------------------------------------------------------------------------ gradient of a weight

// One thread's part of dw [out, in] = g^T x and of the sums of g's rows: rows [top, bottom), groups [first, last) of out.
template <class G, class X>
struct HalfGradient {
    const G *g;
    const X *x;
    i64 in, out;

    static constexpr i64 GROUP_STEP = DEEP * GROUP + SPREAD;  // words of a packed group
    static constexpr i64 COLUMNS = CACHED / (DEEP * PANEL), GROUPS = CACHED / GROUP_STEP;

    // Groups of g as words [DEEP, GROUP] each; the sums of their rows are added to `sums` [groups, SPREAD], unless null.
    void pack_groups(i64 top, i64 count, i64 first, i64 last, Half *to, float *sums) {
        for (i64 r = 0; r < count; r += PAIR) {
            const G *row = g + (top + r) * out;
            const G *next = r + 1 < count ? row + out : nullptr;
            for (i64 s = first; s < last; s++)
#pragma GCC unroll 4
                for (i64 n = 0; n < GROUP; n += FLOATS) {
                    const i64 column = s * GROUP + n;
                    vec x{};
                    if (column < out) x = half_columns(row + column, next ? next + column : nullptr, out - column);
                    *(vec *)(to + (s - first) * GROUP_STEP + r / PAIR * GROUP + n) = x;
                    if (sums) add_products(*(vec *)(sums + s * SPREAD + n), ONE, x);
                }
        }
    }

    void run(i64 top, i64 bottom, i64 first, i64 last, bool add, float *dw, float *sums) {
        if (top >= bottom && !add) std::fill(dw + first * GROUP * in, dw + std::min(last * GROUP, out) * in, 0.f);
        Room room;
        const i64 panels = up(in, PANEL) / PANEL, wide = std::min(panels, COLUMNS), tall = std::min(last - first, GROUPS);
        Half *right = (Half *)room.get(wide * DEEP * PANEL + tall * GROUP_STEP + GROUP * PANEL);
        Half *left = right + wide * DEEP * PANEL;
        float *edge = (float *)(left + tall * GROUP_STEP);
        for (i64 k = top; k < bottom; k += DEEP * PAIR) {
            const i64 count = std::min<i64>(DEEP * PAIR, bottom - k), depth = words_of<bf16>(count);
            for (i64 some = 0; some < panels; some += wide) {
                const i64 stop = std::min(some + wide, panels);
                for (i64 p = some; p < stop; p++)
                    panel_of_columns(x, bottom, in, k, count, p * PANEL, right + (p - some) * DEEP * PANEL);
                for (i64 few = first; few < last; few += tall) {
                    const i64 end = std::min(few + tall, last);
                    pack_groups(k, count, few, end, left, some ? nullptr : sums);
                    for (i64 s = few; s < end; s++)
                        for (i64 p = some; p < stop; p++)
                            multiply(left + (s - few) * GROUP_STEP, right + (p - some) * DEEP * PANEL, depth, s, p,
                                     add || k > top, dw, edge);
                }
            }
        }
    }

    void multiply(const Half *a, const Half *b, i64 depth, i64 s, i64 p, bool add, float *dw, float *edge) {
        float *to = dw + s * GROUP * in + p * PANEL;
        const i64 high = std::min<i64>(GROUP, out - s * GROUP), wide = std::min<i64>(PANEL, in - p * PANEL);
        if (high == GROUP && wide == PANEL) {
            if (add) tile<1, GROUP, true>(a, b, depth, to, in);
            else tile<1, GROUP, false>(a, b, depth, to, in);
            return;
        }
        tile<1, GROUP, false>(a, b, depth, edge, PANEL);
        for (i64 i = 0; i < high; i++)
            for (i64 f = 0; f < wide; f++) to[i * in + f] = edge[i * PANEL + f] + (add ? to[i * in + f] : 0.f);
    }
};

}  // namespace tiles

// Calls `run` with zeros of the element types of two tensors.
template <class Run>
static void with_types(int one, int other, const Run &run) {
    if (one && other) run(bf16{}, bf16{});
    if (one && !other) run(bf16{}, 0.f);
    if (!one && other) run(0.f, bf16{});
    if (!one && !other) run(0.f, 0.f);
}

// y = x w^T + bias for x [rows, in] and w [out, in]; with a `turned` w [in, out] y = x w + bias. bias may be null. Each
// row's sums are in the same order whatever the number of rows and threads.
extern "C" int half_linear(const void *x, int x_type, const void *w, int w_type, const float *bias, void *y, int y_type,
                           i64 rows, i64 in, i64 out, int turned, i64 threads) {
    return status_of([&] {
        const i64 panels = tiles::up(out, tiles::PANEL) / tiles::PANEL;
        std::vector<float> starts((size_t)(panels * tiles::PANEL));
        if (bias) std::copy(bias, bias + out, starts.begin());
        Failures failures;
#pragma omp parallel num_threads(thread_count(rows * out, threads))
        try {
            // The threads divide the columns, or the rows if there are few columns.
            i64 first = 0, last = panels, top = 0, bottom = rows;
            if (panels >= 32 * omp_get_num_threads()) thread_rows(panels, first, last);
            else thread_rows(rows, top, bottom);
            with_types(x_type, w_type, [&](auto own, auto other) {
                using X = decltype(own);
                using W = decltype(other);
                const auto compute = [&](auto *to) {
                    using Y = std::remove_reference_t<decltype(*to)>;
                    tiles::HalfRows<X, W, Y>{(const X *)x, (const W *)w, to, in, out, turned != 0}.run(
                        starts.data(), top, bottom, first, last);
                };
                if (y_type) compute((bf16 *)y); else compute((float *)y);
            });
        } catch (const std::exception &) {
            failures.any = true;
        }
        failures.end_of_region();
    });
}

// dw [out, in] = g^T x for g [rows, out] and x [rows, in]; added to dw if `add`. db [out], the sum of g's rows, may be null.
extern "C" int half_linear_weight(const void *g, int g_type, const void *x, int x_type, float *dw, float *db, i64 rows,
                                  i64 in, i64 out, int add, i64 threads) {
    return status_of([&] {
        const i64 groups = (out + tiles::GROUP - 1) / tiles::GROUP, size = out * in;
        const i64 workers = thread_count(rows * out, threads);
        // The threads divide the columns of g, or the rows if there are few columns: then each adds to numbers of its own.
        const bool by_rows = groups < 64 * workers && (workers - 1) * size < ((i64)1 << 24);
        std::vector<float> own((size_t)(by_rows ? (workers - 1) * size : 0));
        std::vector<float> sums((size_t)(db ? (by_rows ? workers : 1) * groups * tiles::SPREAD : 0));
        Failures failures;
        std::atomic<i64> team{1};
#pragma omp parallel num_threads((int)workers)
        try {
            const i64 me = omp_get_thread_num();
            i64 first = 0, last = groups, top = 0, bottom = rows;
            if (me == 0) team = omp_get_num_threads();
            if (by_rows) {
                thread_rows(rows / 2, top, bottom);
                top *= 2, bottom = me + 1 == omp_get_num_threads() ? rows : bottom * 2;
            } else {
                thread_rows(groups, first, last);
            }
            float *to = by_rows && me ? own.data() + (me - 1) * size : dw;
            float *rows_sum = db ? sums.data() + (by_rows ? me * groups * tiles::SPREAD : 0) : nullptr;
            with_types(g_type, x_type, [&](auto left, auto right) {
                using G = decltype(left);
                using X = decltype(right);
                tiles::HalfGradient<G, X>{(const G *)g, (const X *)x, in, out}.run(
                    top, bottom, first, last, add || (by_rows && me), to, rows_sum);
            });
        } catch (const std::exception &) {
            failures.any = true;
        }
        failures.end_of_region();
        const i64 parts = by_rows ? team.load() : 1;
        if (parts > 1) {
#pragma omp parallel num_threads((int)parts)
            {
                i64 begin, end;
                thread_rows(size, begin, end);
                for (i64 part = 1; part < parts; part++) {
                    const float *from = own.data() + (part - 1) * size;
#pragma omp simd
                    for (i64 i = begin; i < end; i++) dw[i] += from[i];
                }
            }
        }
        for (i64 f = 0; db && f < out; f++) {
            db[f] = 0;
            for (i64 part = 0; part < parts; part++)
                db[f] += sums[(size_t)((part * groups + f / tiles::GROUP) * tiles::SPREAD + f % tiles::GROUP)];
        }
    });
}
