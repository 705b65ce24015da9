// The best next symbols of hypotheses, from logits of one model or several.
//
// Logits come in blocks of columns of the output projection, row by row. Everything is computed for each row alone.

#pragma once

#include <limits>
#include "network.h"

namespace network {

const float NOTHING = -std::numeric_limits<float>::infinity();
const i64 TILE = 4;  // panels of the vocabulary that are projected at a time

// Calls part(panel, last, from, to) for the output projection by a tile of panels, panel ... last - 1, for some rows of
// begin ... end - 1 at a time, from ... to - 1: the tile's weights and the logits stay in the first cache.
template <class Part>
static void each_tile(i64 panels, i64 begin, i64 end, i64 together, const Part &part) {
    for (i64 panel = 0; panel < panels; panel += TILE)
        for (i64 from = begin; from < end; from += together)
            part(panel, std::min(panel + TILE, panels), from, std::min(from + together, end));
}

// Columns of the output projection, and the symbol of each.
struct Columns {
    std::vector<const Weights *> weights;  // of each model
    const i64 *symbols = nullptr;          // [count()]; null: column n is symbol n
    std::vector<i64> never;                // columns of forbidden symbols
    i64 end = -1;                          // column of the end symbol, -1 if there is none

    i64 count() const { return weights.empty() ? 0 : weights[0]->panels * PANEL; }

    // The columns of a sorted list of symbols; pads the list to whole panels.
    void of(std::vector<const Weights *> chosen, std::vector<i64> &sorted, const std::vector<i64> &forbidden,
            i64 end_symbol) {
        weights = std::move(chosen), never.clear(), end = -1;
        const auto last = sorted.begin() + weights[0]->out;
        const auto place = [&](i64 symbol) {
            const auto at = std::lower_bound(sorted.begin(), last, symbol);
            return at == last || *at != symbol ? -1 : (i64)(at - sorted.begin());
        };
        for (i64 symbol : forbidden)
            if (place(symbol) >= 0) never.push_back(place(symbol));
        end = place(end_symbol);
        sorted.resize(count(), end_symbol);
        symbols = sorted.data();
    }
};

#ifdef __AVX2__
// The lanes of x, one place further: the first one is the last one of `before`.
template <class V>
static inline V next_lanes(V before, V x) {
    vi place;
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) place[i] = LANES - 1 + i;
    return __builtin_shuffle(before, x, place);
}
#endif

// The `most` largest of the values that are offered, descending; of equal ones the earlier first. Numbers of what is
// offered have 32 bits.
struct Best {
    std::vector<float> value;  // in whole vectors; those behind the last one are smaller
    std::vector<int32_t> index;
    i64 count = 0, most = 0;
    float bar = NOTHING;  // only larger values are kept

    void clear(i64 places) {
        most = places, count = 0, bar = NOTHING;
        value.assign(round_up(most, LANES), NOTHING), index.resize(value.size());
    }
    void offer(float v, i64 i) {
        if (!(v > bar)) return;
        if (count < most) count++;
#ifdef __AVX2__  // a loop over single values stops at a place that is hard to predict
        vf *values = (vf *)value.data();
        vi *indices = (vi *)index.data();
        for (i64 part = (count - 1) / LANES; part >= 0; part--) {
            const vf own = values[part], before = next_lanes(part ? values[part - 1] : vf{} - NOTHING, own);
            const vi its = indices[part], other = next_lanes(part ? indices[part - 1] : vi{}, its);
            const vi stays = own >= v, comes = before >= v;
            values[part] = stays ? own : comes ? vf{} + v : before;
            indices[part] = stays ? its : comes ? vi{} + (int32_t)i : other;
        }
#else
        i64 at = count - 1;
        for (; at && value[at - 1] < v; at--) value[at] = value[at - 1], index[at] = index[at - 1];
        value[at] = v, index[at] = (int32_t)i;
#endif
        if (count == most) bar = value[most - 1];
    }
};

// The lanes above a bar, a bit for each.
static inline u32 lanes_above(vf x, float bar) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(bar), _CMP_GT_OQ);
#elif defined(__AVX2__)
    return (u32)_mm256_movemask_ps(_mm256_cmp_ps((__m256)x, _mm256_set1_ps(bar), _CMP_GT_OQ));
#else
    u32 lanes = 0;
    for (int i = 0; i < LANES; i++) lanes |= (u32)(x[i] > bar) << i;
    return lanes;
#endif
}

// A number just below the lane in place `rank`, from 1 to LANES, in descending order.
static inline float below(vf x, i64 rank) {
    float found = -NOTHING;
    for (int i = 0; i < LANES; i++)
        if (x[i] < found && __builtin_popcount(lanes_above(x, x[i])) < rank) found = x[i];
    return std::nextafter(found, NOTHING);
}

static inline bool any_above(vf x, float bar) {
#ifdef __wasm__
    return some_lane(x > bar);
#else
    return lanes_above(x, bar) != 0;
#endif
}

// Offers a block of values, a multiple of LANES; index(j): of value j.
template <class Index>
static inline void offer_all(Best &best, const float *values, i64 count, const Index &index) {
    for (i64 i = 0; i < count; i += LANES) {
        const vf x = *(const vf *)(values + i);
        if (!any_above(x, best.bar)) continue;
        for (u32 lanes = lanes_above(x, best.bar); lanes; lanes &= lanes - 1) {
            const i64 j = i + __builtin_ctz(lanes);
            best.offer(values[j], index(j));
        }
    }
}

// Running log of the sum of exp(logit) of a row: the largest logit, and sums of exp(logit - largest).
struct Normalizer {
    vf sums{};  // of each lane: adding lanes up once a row, not once a block, takes 5% off a step
    float most = NOTHING;

    float value() const {
        float sum = 0.f;
        for (int i = 0; i < LANES; i++) sum += sums[i];
        return most + logarithm(sum);
    }

    // Adds `count` logits, a multiple of LANES; returns the largest of each lane.
    vf add(const float *logits, i64 count) {
        const vf tops = largest(logits, count);
        if (any_above(tops, most)) {
            const float top = join_lanes(tops, 1, larger<vf>)[0];
            if (most != NOTHING) sums *= exponential(most - top);
            most = top;
        }
        vf sum = sums;  // in a register
        for (i64 i = 0; i < count; i += LANES) sum += exp_nonpositive(*(const vf *)(logits + i) - most);
        sums = sum;
        return tops;
    }
};

// The logits of several models for the same row and columns, [model] `apart` numbers apart, and what is subtracted from
// those of each model to make them log-probabilities plus the log of the model's weight.
struct Mixture {
    float *logits;
    i64 models, apart;
    const float *shifts;

    vf at(i64 model, i64 i) const { return *(const vf *)(logits + model * apart + i) - shifts[model]; }
    void forbid(i64 i) const {
        for (i64 m = 0; m < models; m++) logits[m * apart + i] = NOTHING;
    }
};

// In place of a Normalizer where only the order of the symbols counts: tells whether a logit is NaN or infinite.
struct Check {
    vf sums{};

    float value() const { return join_lanes(sums - sums, 1, added)[0]; }  // 0 or NaN

    // As Normalizer::add. Columns that are no symbols have -infinity, which is no fault.
    vf add(const float *logits, i64 count) {
        vf sum = sums, tops = vf{} + NOTHING;
        for (i64 i = 0; i < count; i += LANES) {
            const vf x = *(const vf *)(logits + i);
            sum += x < -1e30f ? vf{} - 1e30f : x, tops = larger(tops, x);
        }
        sums = sum;
        return tops;
    }
};

// The best symbols that may follow a hypothesis. Forbidden ones have a share of the probabilities, which are not
// renormalized.
struct NextSymbols {
    Normalizer normalizer;
    Check check;  // if the symbols have no probabilities
    Best best;
    float shift;  // best.value - shift are log-probabilities, or logits; NaN if a model gave NaN
    bool no_end, scored;

    void clear(i64 places, bool end_is_forbidden, bool with_probabilities = true) {
        normalizer = Normalizer(), check = Check(), no_end = end_is_forbidden, scored = with_probabilities;
        best.clear(places);
    }
    void settle() { shift = scored ? normalizer.value() : check.value(); }

    // Adds `count` logits, a multiple of LANES, of the columns from `first` on; overwrites those of forbidden symbols,
    // after they have been summed.
    void see(float *logits, i64 first, i64 count, const Columns &of) {
        const vf tops = scored ? normalizer.add(logits, count) : check.add(logits, count);
        if (!any_above(tops, best.bar)) return;
        for (i64 column : of.never)
            if (column >= first && column < first + count) logits[column - first] = NOTHING;
        if (no_end && of.end >= first && of.end < first + count) logits[of.end - first] = NOTHING;
        if (!best.count && best.most <= LANES) best.bar = below(largest(logits, count), best.most);
        offer_all(best, logits, count, [&](i64 j) { return of.symbols ? of.symbols[first + j] : first + j; });
    }

    // Adds all columns of several models: log p = log of the sum over m of exp(a_m), with a_m = logit_m - shift_m. It is
    // at most max_m a_m + log M, so that few columns need more than that maximum.
    void see(const Mixture &from, const Columns &of) {
        for (i64 column : of.never) from.forbid(column);
        if (no_end && of.end >= 0) from.forbid(of.end);
        const float slack = logarithm((float)from.models) + 1e-3f;  // more than rounding
        for (i64 i = 0; i < of.count(); i += LANES) {
            vf top = from.at(0, i), sum = {};
            for (i64 m = 1; m < from.models; m++) {
                const vf x = from.at(m, i);
                top = x > top ? x : top;
            }
            if (!any_above(top, best.bar - slack)) continue;
            for (i64 m = 0; m < from.models; m++) sum += exp_nonpositive(from.at(m, i) - top);
            for (i64 j = 0; j < LANES; j++)
                if (top[j] > best.bar - slack)
                    best.offer(top[j] + logarithm(sum[j]), of.symbols ? of.symbols[i + j] : i + j);
        }
    }
};

}  // namespace network
