// The same products by the processor's matrix unit (Intel's AMX).
//
// The unit multiplies tiles of 16 rows by 16 words.
//
// Sums of int8 are exact, so products of few rows may use either path. Sums of bfloat16 are rounded in the unit's own
// order, which is the same for every number of rows: either all products use it, or none. The operating system must
// grant its use once per process, and may refuse. products.h decides which products use it.

#pragma once

#include <atomic>
#include "operands.h"
#ifdef MATRIX_UNIT
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace gemm {
namespace tiles {

constexpr i64 FEW = 8;  // with fewer rows of int8, reading the weights is the bottleneck

static std::atomic<bool> wanted{true};

#ifdef MATRIX_UNIT

// Whether it is wanted and granted.
static bool used() {
    static const bool granted = syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) == 0;
    return granted && wanted.load(std::memory_order_relaxed);
}

struct alignas(64) Shape {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
};

// Configures the tiles: 0 to 3 are sums, 4 and 5 rows of x, 6 and 7 weights.
static inline void shape(i64 rows) {
    Shape shape;
    for (int t = 0; t < 8; t++) shape.bytes[t] = 64, shape.rows[t] = (uint8_t)(t < 6 ? rows : DEEP);
    // Compilers do not know that the next instruction reads `shape`: force it to memory.
    asm volatile("" ::"r"(&shape) : "memory");
    _tile_loadconfig(&shape);
}

static inline void clear() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

#define MULTIPLY(KIND, sum, x, w) \
    if constexpr (KIND == INT8) _tile_dpbusd(sum, x, w); \
    else _tile_dpbf16ps(sum, x, w)

// One block of rows by the 64 columns of a panel. sums: [row][column].
template <int KIND>
static inline void one_block(const u32 *x, i64 step, const u32 *w, i64 depth, u32 *sums) {
    clear();
    for (i64 k = 0; k < depth; k += DEEP, w += DEEP * PANEL) {
        _tile_loadd(4, x + k, step * 4);
        _tile_loadd(6, w, PANEL * 4);
        MULTIPLY(KIND, 0, 4, 6);
        _tile_loadd(7, w + 16, PANEL * 4);
        MULTIPLY(KIND, 1, 4, 7);
        _tile_loadd(6, w + 32, PANEL * 4);
        MULTIPLY(KIND, 2, 4, 6);
        _tile_loadd(7, w + 48, PANEL * 4);
        MULTIPLY(KIND, 3, 4, 7);
    }
    _tile_stored(0, sums, PANEL * 4);
    _tile_stored(1, sums + 16, PANEL * 4);
    _tile_stored(2, sums + 32, PANEL * 4);
    _tile_stored(3, sums + 48, PANEL * 4);
}

// Two blocks of rows by 32 columns: each loaded weight is used twice.
template <int KIND>
static inline void two_blocks(const u32 *x, const u32 *other, i64 step, const u32 *w, i64 depth, u32 *sums, u32 *more) {
    clear();
    for (i64 k = 0; k < depth; k += DEEP, w += DEEP * PANEL) {
        _tile_loadd(4, x + k, step * 4);
        _tile_loadd(6, w, PANEL * 4);
        MULTIPLY(KIND, 0, 4, 6);
        _tile_loadd(7, w + 16, PANEL * 4);
        MULTIPLY(KIND, 1, 4, 7);
        _tile_loadd(5, other + k, step * 4);
        MULTIPLY(KIND, 2, 5, 6);
        MULTIPLY(KIND, 3, 5, 7);
    }
    _tile_stored(0, sums, PANEL * 4);
    _tile_stored(1, sums + 16, PANEL * 4);
    _tile_stored(2, more, PANEL * 4);
    _tile_stored(3, more + 16, PANEL * 4);
}

#undef MULTIPLY

// As `gemm::product`. All blocks have the same number of rows; the last one may repeat rows of the one before.
template <int KIND>
static void product(const Weights &w, const Rows &x, i64 begin, i64 end, i64 first, i64 last, float *y, i64 stride,
                    int mode) {
    const i64 blocks = (end - begin + DEEP - 1) / DEEP, rows = (end - begin + blocks - 1) / blocks;
    alignas(64) u32 sums[2 * DEEP * PANEL];
    shape(rows);
    const auto start = [&](i64 block) { return std::min(begin + block * rows, end - rows); };
    const auto at = [&](i64 block) { return x.at + start(block) * x.stride; };
    for (i64 panel = first; panel < last; panel++) {
        const u32 *from = w.data + panel * w.depth * PANEL;
        for (i64 block = 0; block < blocks; block += 2) {
            const i64 some = std::min<i64>(2, blocks - block);
            if (some == 1) one_block<KIND>(at(block), x.stride, from, w.depth, sums);
            else
                for (i64 half = 0; half < PANEL; half += 32)
                    two_blocks<KIND>(at(block), at(block + 1), x.stride, from + half, w.depth, sums + half,
                                     sums + DEEP * PANEL + half);
            for (i64 b = 0; b < some; b++)
                for (i64 row = begin + (block + b) * rows; row < std::min(begin + (block + b + 1) * rows, end); row++) {
                    const u32 *sum = sums + (b * DEEP + row - start(block + b)) * PANEL;
                    float *to = y + (row - begin) * stride + (panel - first) * PANEL;
#pragma GCC unroll 4
                    for (i64 n = 0; n < PANEL; n += LANES)
                        Finish<KIND>(w, panel * PANEL + n)(*(const Sum<KIND> *)(sum + n), x, row, to + n, mode);
                }
        }
    }
    _tile_release();
}

#else

static bool used() { return false; }

template <int KIND>
static void product(const Weights &, const Rows &, i64, i64, i64, i64, float *, i64, int) {}

#endif

}  // namespace tiles
}  // namespace gemm
