// Products as sums of tiles, and tensors as their factors: a part of kernels.cpp, for the other headers.
//
// A tile is GROUP rows by PANEL columns of a product, which stay in registers. Operands are copied beforehand into the
// order in which a tile reads them, as words: a word is a number of float32 or, of bfloat16 where the processor multiplies
// it (AVX512-BF16), two numbers that follow each other along the sum.

#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace tiles {

#if defined(__AVX512F__)
constexpr int FLOATS = 16, VECTORS = 2, GROUP = 12;
#elif defined(__AVX__)
constexpr int FLOATS = 8, VECTORS = 2, GROUP = 6;
#elif defined(__aarch64__)
constexpr int FLOATS = 4, VECTORS = 4, GROUP = 6;
#else
constexpr int FLOATS = 4, VECTORS = 2, GROUP = 6;
#endif
constexpr i64 PANEL = FLOATS * VECTORS;
static_assert(GROUP % 2 == 0);

typedef float vec __attribute__((vector_size(FLOATS * 4), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(FLOATS * 4), aligned(4), may_alias));
typedef u32 words __attribute__((vector_size(FLOATS * 4), aligned(4), may_alias));
typedef uint16_t halves __attribute__((vector_size(FLOATS * 2), aligned(2), may_alias));

static inline vec splat(float x) { return x - vec{}; }
static constexpr i64 down(i64 x, i64 step) { return x / step * step; }
static constexpr i64 up(i64 x, i64 step) { return (x + step - 1) / step * step; }

// ------------------------------------------------------------------------------------------------------------- words

// The words of tensors of type T: NUMBERS of them follow each other along the sum. A vec holds FLOATS words.
template <class T>
struct Words {
    typedef float Word;
    static constexpr int NUMBERS = 1;
};

static inline void add_products(vec &sum, float left, vec right) { sum += left * right; }
static inline void read_word(float &to, const float *from) { to = *from; }

#if defined(__AVX512BF16__)
template <>
struct Words<bf16> {
    typedef u32 Word;  // the first number is in the low half
    static constexpr int NUMBERS = 2;

    // The words of 2 * FLOATS numbers that follow each other.
    static vec of_row(vec first, vec second) { return (vec)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first); }

    // The words that have a number of `first` and one of `second` each.
    static vec of_columns(vec first, vec second) {
        typedef uint16_t shorts __attribute__((vector_size(64)));
        constexpr shorts ORDER = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                  8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
        return (vec)_mm512_permutexvar_epi16((__m512i)ORDER, (__m512i)of_row(first, second));
    }
};

static inline void add_products(vec &sum, u32 left, vec right) {
    sum = (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32((int)left), (__m512bh)right);
}

// From memory that held numbers of float32 before.
static inline void read_word(u32 &to, const u32 *from) { std::memcpy(&to, from, sizeof to); }
#endif

// Words of so many numbers.
template <class T>
static inline i64 words_of(i64 numbers) {
    return (numbers + Words<T>::NUMBERS - 1) / Words<T>::NUMBERS;
}

// Writes PANEL numbers to a row of words, from number j on.
template <class T>
static inline void write_row(float *row, i64 j, const vec *x) {
    if constexpr (Words<T>::NUMBERS == 2) *(vec *)(row + j / 2) = Words<T>::of_row(x[0], x[1]);
    else
#pragma GCC unroll 4
        for (int n = 0; n < VECTORS; n++) *(vec *)(row + j + n * FLOATS) = x[n];
}

// Numbers [from, to) of a row of words become 0.
template <class T>
static inline void set_zero(float *row, i64 from, i64 to) {
    constexpr i64 SIZE = sizeof(float) / Words<T>::NUMBERS;
    if (from < to) std::memset((char *)row + from * SIZE, 0, (to - from) * SIZE);
}

// ------------------------------------------------------------------------------------------------------------- tiles

// c [GROUP, PANEL] = factor a [GROUP, depth] b [depth, PANEL], or, if ADD, c + a b; depth is in words. Word (i, k) of a
// is a[i * I + k * K].
template <int I, int K, bool ADD, class Word>
static inline void tile(const Word *a, const Word *b, i64 depth, float *c, i64 c_row, float factor = 1.f) {
    vec sum[GROUP][VECTORS];
#pragma GCC unroll 12
    for (int i = 0; i < GROUP; i++)
#pragma GCC unroll 4
        for (int n = 0; n < VECTORS; n++) sum[i][n] = vec{};
    for (i64 k = 0; k < depth; k++, a += K, b += PANEL) {
        vec right[VECTORS];
#pragma GCC unroll 4
        for (int n = 0; n < VECTORS; n++) right[n] = *(const vec *)(b + n * FLOATS);
#pragma GCC unroll 12
        for (int i = 0; i < GROUP; i++) {
            Word left;
            read_word(left, a + i * I);
#pragma GCC unroll 4
            for (int n = 0; n < VECTORS; n++) add_products(sum[i][n], left, right[n]);
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < GROUP; i++)
#pragma GCC unroll 4
        for (int n = 0; n < VECTORS; n++) {
            vec *to = (vec *)(c + i * c_row + n * FLOATS);
            *to = ADD ? *to + sum[i][n] : sum[i][n] * factor;
        }
}

// ----------------------------------------------------------------------------------------------------------- copying

// Strides of a [batch, heads, length, width] tensor whose last axis is contiguous.
struct View {
    i64 batch, head, time;
};

// Rows of a tensor; those outside [begin, end) and queries that see nothing count as zeros and are not read.
template <class T>
struct Rows {
    const T *at;
    i64 step, begin, end;
    const int32_t *low = nullptr, *high = nullptr;
    const T *row(i64 r) const {
        return r < begin || r >= end || (low && low[r] >= high[r]) ? nullptr : at + r * step;
    }
};

// FLOATS halves, each in a word. g++ 12 takes two steps for sixteen of them, unless it is told the instruction.
static inline words widened(const bf16 *from) {
#if defined(__AVX512F__)
    return (words)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from));
#else
    return __builtin_convertvector(*(const halves *)from, words);
#endif
}

// `count` halves, at most FLOATS, each in a word, and zeros.
static inline words widened(const bf16 *from, i64 count) {
    if (count >= FLOATS) return widened(from);
    if (count <= 0) return words{};
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    return (words)_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16((__mmask16)((1u << count) - 1), from));
#else
    bf16 x[FLOATS]{};
    std::memcpy(x, from, (size_t)count * sizeof *from);
    return widened(x);
#endif
}

// `count` numbers, at most FLOATS, and zeros.
static inline vec numbers(const bf16 *from, i64 count) { return (vec)(widened(from, count) << 16); }

static inline vec numbers(const float *from, i64 count) {
    if (count >= FLOATS) return *(const vec *)from;
#if defined(__AVX512F__)
    return count <= 0 ? vec{} : (vec)_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), from);
#else
    vec x{};
    for (i64 n = 0; n < count; n++) x[n] = from[n];
    return x;
#endif
}

// The first FLOATS words of `count` numbers, and zeros.
template <class T>
static inline vec words_at(const T *from, i64 count) {
    if constexpr (Words<T>::NUMBERS == 1) return numbers(from, count);
    else {
        if (count >= 2 * FLOATS) return *(const vec *)from;
#if defined(__AVX512BW__)
        return count <= 0 ? vec{} : (vec)_mm512_maskz_loadu_epi16((__mmask32)((1u << count) - 1), from);
#else
        vec x{};
        std::memcpy(&x, from, std::max<i64>(count, 0) * sizeof *from);
        return x;
#endif
    }
}

// FLOATS words along the rows of a tensor: each has a number of `row` and, if there are two, the one of `next` below it.
// Zeros from column `count` on, and for a row that is null.
template <class T>
static inline vec columns_at(const T *row, const T *next, i64 count) {
    if constexpr (Words<T>::NUMBERS == 1) return row ? numbers(row, count) : vec{};
    else {
        const words low = row ? widened(row, count) : words{}, high = next ? widened(next, count) : words{};
        return (vec)(low | high << 16);
    }
}

// Rows [first, first + WIDTH) as words [width, WIDTH]. Up to FLOATS words behind them are overwritten.
template <int WIDTH, class T, class Word = typename Words<T>::Word>
static void pack_transposed(const Rows<T> &rows, i64 first, i64 width, Word *to) {
    constexpr int BLOCKS = (WIDTH + FLOATS - 1) / FLOATS, NUMBERS = Words<T>::NUMBERS;
    const T *from[BLOCKS * FLOATS];
    for (int r = 0; r < BLOCKS * FLOATS; r++) from[r] = r < WIDTH ? rows.row(first + r) : nullptr;
    for (i64 d = 0; d < words_of<T>(width); d += FLOATS) {
        const i64 some = std::min<i64>(FLOATS, words_of<T>(width) - d);
        Lanes<FLOATS>::floats x[BLOCKS][FLOATS];
#pragma GCC unroll 4
        for (int block = 0; block < BLOCKS; block++) {
#pragma GCC unroll 16
            for (int r = 0; r < FLOATS; r++) {
                const T *row = from[block * FLOATS + r];
                x[block][r] = row ? words_at(row + d * NUMBERS, width - d * NUMBERS) : vec{};
            }
            transpose_block<FLOATS>(x[block]);
        }
        for (i64 n = 0; n < some; n++)
            for (int block = 0; block < BLOCKS; block++)
                *(vec *)(to + (d + n) * WIDTH + block * FLOATS) = x[block][n];
    }
}

// Rows [first, first + count) as panels [count, PANEL] of words that follow each other along the rows, `step` words from
// each panel to the next; the last one is padded with zeros.
template <class T, class Word = typename Words<T>::Word>
static void pack_panels(const Rows<T> &rows, i64 first, i64 count, i64 width, Word *to, i64 step) {
    constexpr int NUMBERS = Words<T>::NUMBERS;
    for (i64 r = 0; r < count; r += NUMBERS) {
        const T *row = rows.row(first + r), *next = NUMBERS == 2 ? rows.row(first + r + 1) : nullptr;
        for (i64 d = 0; d < up(width, PANEL); d += FLOATS) {
            *(vec *)(to + d / PANEL * step + r / NUMBERS * PANEL + d % PANEL) =
                columns_at(row ? row + d : nullptr, next ? next + d : nullptr, width - d);
        }
    }
}

// to = from * factor + shift
static inline void store_row(const float *from, i64 width, float factor, float *to, float shift = 0.f) {
    i64 done = 0;
    for (; done + FLOATS <= width; done += FLOATS)
        *(vec *)(to + done) = *(const vec *)(from + done) * factor + shift;
    for (; done < width; done++) to[done] = from[done] * factor + shift;
}

static inline void store_row(const float *from, i64 width, float factor, bf16 *to, float shift = 0.f) {
    i64 done = 0;
#if defined(__AVX512BF16__)
    for (; done + PANEL <= width; done += PANEL) {
        const vec *x = (const vec *)(from + done);
        *(vec *)(to + done) = Words<bf16>::of_row(x[0] * factor + shift, x[1] * factor + shift);
    }
#endif
#pragma omp simd
    for (i64 d = done; d < width; d++) store(to[d], from[d] * factor + shift);
}

// Memory of one thread, which grows.
class Room {
    struct Free {
        void operator()(float *at) const { ::operator delete[](at, std::align_val_t{64}); }
    };
    std::unique_ptr<float[], Free> at;
    i64 size = 0;

  public:
    float *get(i64 count) {
        count += 16;
        if (count > size) {
            at.reset();
            at.reset((float *)::operator new[]((size_t)count * sizeof(float), std::align_val_t{64}));
            size = count;
        }
        return at.get();
    }
};

}  // namespace tiles
