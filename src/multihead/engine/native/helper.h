// A second thread for the products of one sentence.
//
// The thread of a search cuts a product into parts, panels of its weights, and takes the first ones that are left; the
// helper takes the last ones. So each core mostly reads the same weights in every step, and nothing waits for a helper
// that the system does not let run, but for the one part that it may have begun. Every part is computed as by one
// thread, so the result is the same, to the last bit.

#pragma once

#include <atomic>
#ifdef _OPENMP
#include <sched.h>
#endif
#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace network {

// Bytes of a model's weights from which on a second thread gains, since a core's cache does not hold them; and those of
// a product, times its rows.
static std::atomic<int64_t> large{1 << 21};
static inline int64_t shared() { return large.load(std::memory_order_relaxed) / 64; }

class Helper {
    // Number of the task, first part that is left, end of the parts that are left: 32, 16 and 16 bits.
    alignas(64) std::atomic<uint64_t> state{0};
    alignas(64) std::atomic<int64_t> done{0};  // parts that the helper has done
    std::atomic<bool> over{false};
    void (*run)(const void *task, int64_t part) = nullptr;
    const void *task = nullptr;

    // Takes a part, the first or the last one; -1 if none is left.
    int64_t take(bool last) {
        uint64_t now = state.load(std::memory_order_acquire);
        for (;;) {
            const int64_t first = now >> 16 & 0xffff, end = now & 0xffff;
            if (first >= end) return -1;
            const uint64_t then = last ? now - 1 : now + 0x10000;
            if (state.compare_exchange_weak(now, then, std::memory_order_acq_rel)) return last ? end - 1 : first;
        }
    }

    // A moment; a longer one if there have been many, so that others can use the core.
    static void wait(int64_t moments) {
#ifdef _OPENMP
        if (moments > 1000) sched_yield();
#endif
#ifdef __AVX2__
        _mm_pause();
#endif
    }

  public:
    static constexpr int64_t MOST_PARTS = 0xffff;

    // Calls part(p) for p from 0 to count - 1, on two threads. count: at most MOST_PARTS.
    template <class Part>
    void share(int64_t count, const Part &part) {
        run = [](const void *task, int64_t p) { (*(const Part *)task)(p); };
        task = &part;
        done.store(0, std::memory_order_relaxed);
        const uint64_t number = (state.load(std::memory_order_relaxed) >> 32) + 1;
        state.store(number << 32 | (uint64_t)count, std::memory_order_release);
        int64_t its = count;
        for (int64_t p; (p = take(false)) >= 0; its--) part(p);
        for (int64_t moments = 0; done.load(std::memory_order_acquire) != its; moments++) wait(moments);
    }

    // Helps until `end` is called.
    void serve() {
        for (int64_t moments = 0; !over.load(std::memory_order_acquire);) {
            const int64_t p = take(true);
            if (p < 0) {
                wait(moments++);
                continue;
            }
            run(task, p);
            done.fetch_add(1, std::memory_order_release);
            moments = 0;
        }
    }

    void end() { over.store(true, std::memory_order_release); }
};

}  // namespace network
