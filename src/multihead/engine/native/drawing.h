// Symbols that are drawn from a distribution, sharpened or truncated, as decoding/sampling.py defines it.
//
// The random number behind a symbol is a function of a stream and a step. Sums are of float64, over blocks of float32.

#pragma once

#include "next_symbols.h"

namespace network {

// Temperature and truncations of `decoding.sharpening.Sharpening`; 0 disables a truncation.
struct Sharpening {
    double temperature;
    i64 top_k;
    double top_p, min_p, epsilon;

    bool truncates() const { return top_k || top_p > 0. || min_p > 0. || epsilon > 0.; }
};

// Extends a hash by a word (SplitMix64).
static inline uint64_t scrambled(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) + 0x9E3779B97F4A7C15u;
    hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9u;
    hash = (hash ^ (hash >> 27)) * 0x94D049BB133111EBu;
    return hash ^ (hash >> 31);
}

// A uniform number in [0, 1), a multiple of 2^-53.
static inline double uniform(uint64_t stream, i64 step) {
    return (double)(scrambled(scrambled(0, stream), (uint64_t)step) >> 11) * 0x1p-53;
}

// What the next symbol of a hypothesis is drawn from. A weight is (p / max p)^(1/T), and 0 for symbols that are not
// permitted.
struct Distribution {
    static const i64 BLOCK = 64;
    Block storage;
    float *weights = nullptr;
    i64 count = 0;
    std::vector<double> sums;  // of all weights up to the end of each block; of the kept ones, up to each
    std::vector<i64> kept;     // symbols that all truncations keep, ascending
    bool truncated = false;

    // log: of the probability of each symbol, NOTHING where it is not permitted; count: a multiple of LANES. False if no
    // symbol is possible.
    bool set(const float *log, i64 symbols, const Sharpening &how) {
        const float top = join_lanes(largest(log, symbols), 1, larger<vf>)[0];
        if (!(top > NOTHING)) return false;
        const float temperature = std::max((float)how.temperature, 1e-30f);
        count = symbols, weights = storage.get<float>(count), sums.clear();
        double total = 0.;
        for (i64 first = 0; first < count; first += BLOCK) {
            vf sum = {};
            for (i64 i = first; i < std::min(first + BLOCK, count); i += LANES) {
                const vf x = (*(const vf *)(log + i) - top) / temperature;
                const vf weight = x < -87.f ? vf{} : exp_nonpositive(x);
                *(vf *)(weights + i) = weight, sum += weight;
            }
            for (int i = 0; i < LANES; i++) total += (double)sum[i];
            sums.push_back(total);
        }
        truncated = how.truncates();
        if (truncated) truncate(total, how);
        return true;
    }

    // Keeps the symbols that all truncations keep. Each keeps the first of all symbols in the order of their weights, of
    // equal ones in their own order; so few of the others have to be put in order.
    void truncate(double total, const Sharpening &how) {
        const double least = std::max(how.min_p, how.epsilon * total), infinite = -(double)NOTHING;
        const double mass = how.top_p > 0. ? how.top_p * total : infinite;
        const i64 most = how.top_k ? how.top_k : count;
        for (float bar : {1e-2f, 1e-4f, 1e-8f, 0.f}) {
            kept.clear();
            double sum = 0.;
            for (i64 first = 0; first < count; first += LANES)
                for (u32 lanes = lanes_above(*(const vf *)(weights + first), bar); lanes; lanes &= lanes - 1) {
                    kept.push_back(first + __builtin_ctz(lanes));
                    sum += (double)weights[kept.back()];
                }
            if ((double)bar < least || (i64)kept.size() >= most || sum >= mass) break;
        }
        std::stable_sort(kept.begin(), kept.end(), [&](i64 a, i64 b) { return weights[a] > weights[b]; });
        double above = 0.;
        i64 some = 0;
        for (; some < std::min(most, (i64)kept.size()); some++) {
            const double weight = (double)weights[kept[some]];
            if (some && (weight < least || above >= mass)) break;
            above += weight;
        }
        kept.resize(some);
        std::sort(kept.begin(), kept.end());
        sums.clear();
        for (i64 symbol : kept) sums.push_back((sums.empty() ? 0. : sums.back()) + (double)weights[symbol]);
    }

    // The first symbol at which the running sum of weights exceeds the number, from 0 to below 1, times their sum. With
    // the sum rounded it may be reached, and not exceeded, by the last one.
    i64 draw(double number) const {
        const double bar = number * sums.back();
        auto place = std::upper_bound(sums.begin(), sums.end(), bar);
        if (place == sums.end()) place = std::lower_bound(sums.begin(), sums.end(), sums.back());
        const i64 at = place - sums.begin();
        if (truncated) return kept[at];
        double sum = at ? sums[at - 1] : 0.;
        i64 last = at * BLOCK;
        for (i64 i = last; i < std::min((at + 1) * BLOCK, count); i++) {
            if (!(weights[i] > 0.f)) continue;
            sum += (double)weights[i], last = i;
            if (sum > bar) break;
        }
        return last;
    }
};

}  // namespace network
