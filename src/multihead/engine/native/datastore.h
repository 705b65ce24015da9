// A datastore: states of a decoder, each with the symbol that follows it, and which of them are nearest to a state.
//
//     |q - k|^2 = |q|^2 - 2 (q . k - |k|^2 / 2)
//
// So the nearest keys are those with the largest output of a linear map whose rows are the keys, with the biases
// -|k|^2 / 2. Keys and states are rounded to int8, whatever the precision of the models.

#pragma once

#include "next_symbols.h"

namespace network {

struct Datastore {
    i64 width;
    Pages pages;
    std::deque<Weights> parts;  // keys, and the biases above
    std::vector<i64> firsts;    // the first entry of each part
    std::vector<i64> symbols;

    void add(const float *keys, const float *biases, const i64 *following, i64 count) {
        parts.emplace_back();
        firsts.push_back((i64)symbols.size());
        parts.back().prepack(pages, INT8, keys, biases, count, width, NOTHING);
        symbols.insert(symbols.end(), following, following + count);
    }

    // Finds the `count` nearest entries of some states, `apart` numbers from one to the next, for best[row].
    void find(const float *states, i64 rows, i64 apart, i64 count, Best *best, Rows &queries, Block &room) const {
        queries.reserve(INT8, rows, width);
        for (i64 r = 0; r < rows; r++) queries.fill(INT8, r, states + r * apart, width), best[r].clear(count);
        const i64 stride = 4 * PANEL, together = tiles::used() ? 2 * DEEP : 4 * ROWS;
        float *y = room.get<float>(together * stride);
        for (size_t part = 0; part < parts.size(); part++)
            for (i64 panel = 0; panel < parts[part].panels; panel += 4) {
                const i64 last = std::min(panel + 4, parts[part].panels), first = firsts[part] + panel * PANEL;
                for (i64 from = 0; from < rows; from += together) {
                    const i64 to = std::min(from + together, rows);
                    product(parts[part], queries, from, to, panel, last, y, stride, SET);
                    for (i64 r = from; r < to; r++)
                        offer_all(best[r], y + (r - from) * stride, (last - panel) * PANEL,
                                  [&](i64 j) { return first + j; });
                }
            }
    }
};

// What a search does with a datastore. p = (1 - share) p_models + share p_neighbours, where p_neighbours of a symbol is
// the sum over the nearest entries that it follows of softmax(-|q - k|^2 / temperature).
struct Neighbours {
    const Datastore &store;
    i64 count;
    float share, temperature;

    // Changes the log-probabilities of a row. near: values are q . k - |k|^2 / 2.
    void mix(float *log, i64 symbols, const Best &near) const {
        if (!near.count) return;
        const float rest = logarithm(1.f - share);
        for (i64 i = 0; i < symbols; i++) log[i] += rest;
        float sum = 0.f;
        const auto closeness = [&](i64 n) { return exponential(2.f * (near.value[n] - near.value[0]) / temperature); };
        for (i64 n = 0; n < near.count; n++) sum += closeness(n);
        for (i64 n = 0; n < near.count; n++) {
            float &its = log[store.symbols[near.index[n]]];
            its = logarithm(exponential(its) + share * closeness(n) / sum);
        }
    }
};

}  // namespace network
