// Operands of matrix products: prepacked weights and rows of x.
//
// Weights are prepacked in panels once, in float32, bfloat16 or int8.
//
// Both operands consist of 32-bit words along k: one float32, two bfloat16 or four bytes. `depth` is the number of
// words of a column or row. Weights are stored as [panel][strip][depth][columns of a strip]. In int8, each column of W
// is rounded to integers from -127 to 127, and each row of x to bytes (255 steps) when it is loaded. products.h and
// tiles.h multiply them.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "buffers.h"
#include "vectors.h"

#if defined(__AMX_INT8__) && defined(__AMX_BF16__) && defined(__AVX512F__) && defined(__linux__)
#define MATRIX_UNIT  // Intel's AMX
#endif
#if defined(__x86_64__) && !defined(__AVX512F__)
#define NARROW_STRIPS
#ifdef __AVXVNNI__
#define EVEN_WORDS  // rows and columns of bytes have an even number of words
#else
#define BYTE_PAIRS  // products of 16-bit numbers in pairs, the widest integer products that are exact
#endif
#endif

namespace gemm {

enum Kind { FLOAT32 = 0, BFLOAT16 = 1, INT8 = 2 };

constexpr int ROWS = 6;  // whose sums a product keeps in registers
constexpr i64 PANEL = 64;  // columns
#ifdef NARROW_STRIPS
constexpr i64 STRIP = 16;  // columns of a panel that lie side by side: those that several rows take at a time
#else
constexpr i64 STRIP = PANEL;
#endif
constexpr i64 DEEP = 16;   // words, and maximum number of rows, of a tile of the matrix unit

static inline i64 round_up(i64 n, i64 to = PANEL) { return (n + to - 1) / to * to; }

// A byte of a row of x in int8.
#if defined(__wasm__) || defined(BYTE_PAIRS)
typedef int16_t Step;
#else
typedef uint8_t Step;
#endif

// Words of a row of `width` numbers; with a matrix unit rounded up to whole tiles.
static inline i64 words(int kind, i64 width) {
    const i64 count = kind == FLOAT32 ? width : kind == BFLOAT16 ? (width + 1) / 2 : (width + 3) / 4;
#ifdef MATRIX_UNIT
    if (kind != FLOAT32) return round_up(count, DEEP);
#endif
#ifdef EVEN_WORDS
    if (kind == INT8) return round_up(count, 2);
#endif
    return count;
}

struct Weights {
    int kind = FLOAT32;
    i64 in = 0, out = 0, depth = 0, panels = 0;
    const u32 *data = nullptr;
    Block own;  // of what is not in pages
    std::vector<float> bias, scale;  // [panels * PANEL]; scale: value of one int8 step
    std::vector<int32_t> sums;       // [panels * PANEL], sum of each column's bytes

    // Prepacks w [out, in] with bias b [out] or null; padding columns of the last panel are 0 with `fill` as their bias.
    void prepack(Pages &pages, int kind, const float *w, const float *b, i64 out, i64 in, float fill = 0.f) {
        this->kind = kind, this->in = in, this->out = out;
        depth = words(kind, in), panels = round_up(out) / PANEL;
        u32 *to = pages.get(panels * depth * PANEL);
        data = to;
        bias.assign(panels * PANEL, fill);
        scale.assign(panels * PANEL, 0.f);
        sums.assign(panels * PANEL, 0);
        std::vector<u32> some(PANEL * depth);
        for (i64 n = 0; n < panels * PANEL; n++) {
            u32 *column = &some[n % PANEL * depth];
            memset(column, 0, depth * 4);
            if (n < out) bias[n] = b ? b[n] : 0.f, round_column(w + n * in, column, n);
            if (n % PANEL < PANEL - 1) continue;
            for (i64 first = 0; first < depth; first += 16)  // transposed in blocks that fit the L1 cache
                for (i64 c = 0; c < PANEL; c++) {
                    u32 *place = to + at(c, 0);
                    for (i64 k = first; k < std::min(first + 16, depth); k++) place[k * STRIP] = some[c * depth + k];
                }
            to += depth * PANEL;
        }
    }

    // Where word k of column n is; the next one is STRIP words further.
    i64 at(i64 n, i64 k) const { return (n / STRIP * depth + k) * STRIP + n % STRIP; }

    // The words of every column: [out][depth].
    std::vector<u32> columns() const {
        std::vector<u32> found(out * depth);
        for (i64 n = 0; n < out; n++) {
            const u32 *from = data + at(n, 0);
            for (i64 k = 0; k < depth; k++) found[n * depth + k] = from[k * STRIP];
        }
        return found;
    }

    // Copies some columns of `from`, bit for bit; `words` is from.columns().
    void choose(const Weights &from, const std::vector<u32> &words, const i64 *some, i64 count, float fill) {
        kind = from.kind, in = from.in, out = count, depth = from.depth, panels = round_up(count) / PANEL;
        u32 *to = own.get<u32>(panels * depth * PANEL);
        data = to;
        bias.assign(panels * PANEL, fill);
        scale.assign(panels * PANEL, 0.f);
        sums.assign(panels * PANEL, 0);
        if (panels) memset(to + (panels - 1) * depth * PANEL, 0, depth * PANEL * 4);
        for (i64 n = 0; n < count; n++) {
            bias[n] = from.bias[some[n]], scale[n] = from.scale[some[n]], sums[n] = from.sums[some[n]];
            const u32 *column = &words[some[n] * depth];
            u32 *place = to + at(n, 0);
            for (i64 k = 0; k < depth; k++) place[k * STRIP] = column[k];
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
        if (most < 1e-30f) most = 0.f;  // 127 / most would overflow
        const float steps = most > 0.f ? 127.f / most : 0.f;
        int32_t sum = 0;
#pragma omp simd reduction(+ : sum)
        for (i64 k = 0; k < in; k++) {
            const int32_t q = (int32_t)__builtin_rintf(row[k] * steps);
            byte[k] = (int8_t)q;
            sum += q;
        }
#ifdef BYTE_PAIRS  // bytes 0, 2, 1, 3 of a word, the first two plus 128, so that a mask and a shift give 16-bit numbers
        for (i64 k = 0; k < depth; k++)
            to[k] = ((to[k] & 0xff0000ffu) | (to[k] >> 8 & 0xff00u) | (to[k] & 0xff00u) << 8) ^ 0x00800080u;
#endif
        scale[n] = most / 127.f, sums[n] = sum;
    }
};

// Rows of x as words; in int8 also the value of a step and the byte that stands for zero.
struct Rows {
    u32 *at = nullptr;
    i64 stride = 0;
    float *steps = nullptr;
    int32_t *zeros = nullptr;
    int32_t *starts = nullptr;  // what sums begin with, if products are of byte pairs
    Block block, first, second, third;

    void reserve(int kind, i64 rows, i64 width) {
        stride = words(kind, width) * (kind == INT8 ? (i64)sizeof(Step) : 1);
        at = block.get<u32>(rows * stride + 16);
        steps = first.get<float>(rows);
        zeros = second.get<int32_t>(rows);
        starts = third.get<int32_t>(rows);
    }

    // Copies a row of others that are as wide.
    void copy(i64 row, const Rows &from, i64 its) {
        memcpy(at + row * stride, from.at + its * stride, stride * 4);
        steps[row] = from.steps[its], zeros[row] = from.zeros[its], starts[row] = from.starts[its];
    }

    void fill(int kind, i64 row, const float *x, i64 width) {
        u32 *to = at + row * stride;
        if (kind == FLOAT32) memcpy(to, x, width * 4);
        if (kind == BFLOAT16) {
            uint16_t *half = (uint16_t *)to;
            for (i64 k = width; k < stride * 2; k++) half[k] = 0;
#pragma omp simd
            for (i64 k = 0; k < width; k++) half[k] = (uint16_t)rounded(x[k]);
        }
        if (kind != INT8) return;
        vu high = {};  // the bits of |x|: those of infinity and NaN are larger than those of any other number
        vf low = {};
        i64 i = 0;
        for (; i + LANES <= width; i += LANES) {
            const vf one = *(const vf *)(x + i);
            high = larger(high, (vu)one & 0x7fffffffu), low = smaller(low, one);
        }
        u32 bits = join_lanes(high, 1, larger<vu>)[0];
        float least = join_lanes(low, 1, smaller)[0];
        for (; i < width; i++) bits = std::max(bits, to_bits(x[i]) & 0x7fffffffu), least = std::min(least, x[i]);
        const float largest = from_bits(bits);
        // A row without negative numbers, as after a ReLU, uses all 255 steps for positive ones.
        int32_t zero = least < 0.f ? 128 : 0;
        const float top = zero ? 127.f : 255.f, scale = largest > 0.f ? top / largest : 0.f;
        steps[row] = largest / top + (largest - largest);  // NaN if any x is NaN or infinite
        zeros[row] = zero;
        Step *byte = (Step *)to;
        for (i64 k = width; k < stride * 4 / (i64)sizeof(Step); k++) byte[k] = 0;
#pragma omp simd
        for (i64 k = 0; k < width; k++) byte[k] = (Step)((int32_t)__builtin_rintf(x[k] * scale) + zero);
#ifdef BYTE_PAIRS
        int32_t raised = 0;
#pragma omp simd reduction(+ : raised)
        for (i64 k = 0; k < stride; k += 2) raised += byte[2 * k] + byte[2 * k + 1];
        starts[row] = -128 * raised;
#endif
    }
};

template <int KIND>
struct SumOf {
    typedef vf type;
};
template <>
struct SumOf<INT8> {
    typedef vi type;
};
template <int KIND>
using Sum = typename SumOf<KIND>::type;

enum Mode { SET = 0, ADD = 1, RELU = 2 };

// Turns sums of LANES columns into elements of y: scale (int8), bias, then SET, ADD or RELU. For int8 the sum of
// (byte - zero) * w is sum - zero * (sum of w). One object does this for several rows, so that what belongs to the
// columns stays in registers.
template <int KIND>
struct Finish {
    vf bias, scale{};
    vi sums{};

    Finish(const Weights &w, i64 n) : bias(*(const vf *)&w.bias[n]) {
        if constexpr (KIND == INT8) scale = *(const vf *)&w.scale[n], sums = *(const vi *)&w.sums[n];
    }
    void operator()(Sum<KIND> sum, const Rows &x, i64 row, float *y, int mode) const {
        vf value;
        if constexpr (KIND == INT8)
            value = fused(__builtin_convertvector(sum - x.zeros[row] * sums, vf), x.steps[row] * scale, bias);
        else value = sum + bias;
        if (mode == ADD) value += *(const vf *)y;
        if (mode == RELU) value = value > 0.f ? value : (value != value ? value : vf{});
        *(vf *)y = value;
    }
};

}  // namespace gemm
