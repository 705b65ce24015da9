// A datastore: states of a decoder, each with the symbol that follows it, and which of them are nearest to a state.
//
//     |q - k|^2 = |q|^2 - 2 (q . k - |k|^2 / 2)
//
// So the nearest keys are those with the largest output of a linear map whose rows are the keys, with the biases
// -|k|^2 / 2. Keys and states are rounded to int8, whatever the precision of the models.
//
// Entries can be divided into cells: those of a cell are nearer to its centre than to any other one. A search that looks into the few
// cells whose centres are nearest to a state compares it with a small part of the entries. All states that look into a
// cell are compared with its entries together, so that these are read once for a step of many hypotheses.

#pragma once

#include "next_symbols.h"

namespace network {

struct Datastore {
    i64 width;
    Pages pages;
    std::deque<Weights> parts;  // keys, and the biases above
    std::vector<i64> firsts;    // the first entry of each part
    std::vector<i64> symbols;
    Weights centres;  // of the parts, if these are cells

    // Memory of a search.
    struct Room {
        Rows queries, chosen;
        Block values;
        std::vector<Best> cells;         // of each state, the cells to look into
        std::vector<i64> starts, inside;  // of each cell, the states that look into it: from `starts` on in `inside`
    };

    void add(const float *keys, const float *biases, const i64 *following, i64 count) {
        parts.emplace_back();
        firsts.push_back((i64)symbols.size());
        parts.back().prepack(pages, INT8, keys, biases, count, width, NOTHING);
        symbols.insert(symbols.end(), following, following + count);
    }

    // Makes the parts cells. values: [parts][width], their centres. biases: -|centre|^2 / 2.
    void divide(const float *values, const float *biases) {
        centres.prepack(pages, INT8, values, biases, (i64)parts.size(), width, NOTHING);
    }

    // Finds the `count` nearest entries of some states, `apart` numbers from one to the next, for best[row]: among those
    // of as many cells as `probes`, or, if that is 0, among all.
    void find(const float *states, i64 rows, i64 apart, i64 count, i64 probes, Best *best, Room &room) const {
        room.queries.reserve(INT8, rows, width);
        for (i64 r = 0; r < rows; r++) room.queries.fill(INT8, r, states + r * apart, width), best[r].clear(count);
        if (probes && probes < (i64)parts.size()) return look_into_cells(rows, probes, best, room);
        for (size_t one = 0; one < parts.size(); one++)
            compare(parts[one], firsts[one], room.queries, rows, room.values, [&](i64 r) -> Best & { return best[r]; });
    }

    void look_into_cells(i64 rows, i64 probes, Best *best, Room &room) const {
        if ((i64)room.cells.size() < rows) room.cells.resize(rows);
        for (i64 r = 0; r < rows; r++) room.cells[r].clear(probes);
        compare(centres, 0, room.queries, rows, room.values, [&](i64 r) -> Best & { return room.cells[r]; });
        std::vector<i64> &starts = room.starts, &inside = room.inside;
        starts.assign(parts.size() + 1, 0), inside.resize(rows * probes);
        const auto each = [&](const auto &visit) {
            for (i64 r = 0; r < rows; r++)
                for (i64 n = 0; n < room.cells[r].count; n++) visit(r, room.cells[r].index[n]);
        };
        each([&](i64, i64 cell) { starts[cell + 1]++; });
        for (size_t cell = 0; cell < parts.size(); cell++) starts[cell + 1] += starts[cell];
        each([&](i64 r, i64 cell) { inside[starts[cell]++] = r; });  // starts[cell] is then the end of its states
        for (size_t cell = 0; cell < parts.size(); cell++) {
            const i64 begin = cell ? starts[cell - 1] : 0, some = starts[cell] - begin;
            if (!some) continue;
            room.chosen.reserve(INT8, some, width);
            for (i64 i = 0; i < some; i++) room.chosen.copy(i, room.queries, inside[begin + i]);
            compare(parts[cell], firsts[cell], room.chosen, some, room.values,
                    [&](i64 i) -> Best & { return best[inside[begin + i]]; });
        }
    }

    // Offers all columns of `keys` to best_of(row) of some rows, the first one as entry `first`.
    template <class BestOf>
    static void compare(const Weights &keys, i64 first, const Rows &queries, i64 rows, Block &room,
                        const BestOf &best_of) {
        const i64 stride = 4 * PANEL, together = tiles::used() ? 2 * DEEP : 4 * ROWS;
        float *y = room.get<float>(together * stride);
        for (i64 panel = 0; panel < keys.panels; panel += 4) {
            const i64 last = std::min(panel + 4, keys.panels), entry = first + panel * PANEL;
            for (i64 from = 0; from < rows; from += together) {
                const i64 to = std::min(from + together, rows);
                product(keys, queries, from, to, panel, last, y, stride, SET);
                for (i64 r = from; r < to; r++)
                    offer_all(best_of(r), y + (r - from) * stride, (last - panel) * PANEL,
                              [&](i64 j) { return entry + j; });
            }
        }
    }
};

// What a search does with a datastore. p = (1 - share) p_models + share p_neighbours, where p_neighbours of a symbol is
// the sum over the nearest entries that it follows of softmax(-|q - k|^2 / temperature).
struct Neighbours {
    const Datastore &store;
    i64 count, probes;
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
