// Buffers that grow, and large pages for the weights.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>
#include <vector>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "vectors.h"

namespace gemm {

[[noreturn]] static inline void out_of_memory() {
#ifdef __wasm__
    __builtin_trap();
#else
    throw std::bad_alloc();
#endif
}

// Uninitialized memory, aligned to a cache line. Getting more than before discards the content.
struct Block {
    void *at = nullptr;
    size_t size = 0;
    Block() = default;
    Block(Block &&other) noexcept : at(std::exchange(other.at, nullptr)), size(std::exchange(other.size, 0)) {}
    Block &operator=(Block &&other) noexcept {
        std::swap(at, other.at), std::swap(size, other.size);
        return *this;
    }
    ~Block() { free(at); }
    template <class T>
    T *get(size_t count, size_t align = 64) {
        if (count > ((size_t)-1 - 2 * align) / sizeof(T)) out_of_memory();
        size_t bytes = (count * sizeof(T) + align + 63) / align * align;
        if (bytes > size) {
            free(at), size = 0;
            at = aligned_alloc(align, bytes);
            if (!at) out_of_memory();
            size = bytes;
        }
        return (T *)at;
    }
};

// Memory of the weights of a model, in large pages where the system has them: a step reads all weights, and a processor
// does not keep the addresses of so many small pages.
struct Pages {
    std::vector<Block> blocks;
    char *next = nullptr;
    size_t left = 0, taken = 0;  // bytes

    u32 *get(size_t count) {
        const size_t bytes = (count * 4 + 63) / 64 * 64;
#ifdef __linux__
        const size_t page = (size_t)1 << 21, least = page << 3;  // more than one product's weights together
#else
        const size_t page = 64, least = 0;
#endif
        if (bytes > left || !next) {
            blocks.emplace_back();
            next = blocks.back().get<char>(std::max(bytes, least), page), left = blocks.back().size;
#ifdef __linux__
            madvise(next, left, MADV_HUGEPAGE);
#endif
        }
        left -= bytes, taken += bytes;
        return (u32 *)std::exchange(next, next + bytes);
    }
};

}  // namespace gemm
