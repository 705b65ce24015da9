// Log-probabilities of the symbols of given targets (forced decoding).
//
// The targets of a source are hypotheses of one cache, so that the source is encoded once. In alphabetical order, a
// target begins like the one before it. It shares the rows of that beginning: its ancestors there are that target's.

#pragma once

#include "next_symbols.h"

namespace network {

struct Forcing {
    struct Target {
        const i64 *symbols;
        i64 count;
        float *found;    // [count], log-probabilities
        i64 shared = 0;  // rows that the target before it has already
    };
    struct Source {
        const i64 *words;
        i64 length;
        Target *targets;
        i64 count;
    };
    struct Wanted {  // a symbol after a row
        i64 row, symbol;
        float *found;
    };
    static constexpr i64 TOGETHER = 96;  // rows of a step, from which on it is taken

    Runner runner;
    const i64 begin;  // the symbol before the first one
    std::deque<Cache> caches;
    std::vector<Row> rows;
    std::vector<Wanted> wanted;
    std::vector<Normalizer> sums;
    Block logits;

    Forcing(const Model &model, const Positions &sources, const Positions &targets, i64 begin)
        : runner(model, sources, targets), begin(begin) {}

    void force(const Source *sources, i64 count) {
        std::vector<i64> words, lengths;
        for (i64 i = 0; i < count; i++) {
            lengths.push_back(std::max<i64>(1, sources[i].length - runner.s.unread));
            words.insert(words.end(), sources[i].words, sources[i].words + lengths.back());
        }
        const auto memory = runner.encode(words.data(), lengths);
        i64 first = 0;
        for (i64 i = 0; i < count; first += lengths[i++]) {
            Cache cache;
            cache.memory = memory, cache.first = first, cache.source = lengths[i], cache.width = sources[i].count;
            cache.layers.resize(runner.s.decoder_layers);
            caches.push_back(std::move(cache));
            force(sources[i], caches.back());
        }
        take();
        caches.clear();
    }

  private:
    void force(const Source &source, Cache &cache) {
        const auto before = [](const Target &a, const Target &b) {
            return std::lexicographical_compare(a.symbols, a.symbols + a.count, b.symbols, b.symbols + b.count);
        };
        std::sort(source.targets, source.targets + source.count, before);
        i64 longest = 0;
        for (i64 k = 0; k < source.count; k++) longest = std::max(longest, source.targets[k].count);
        cache.grow(longest, runner.s.kv() * (runner.s.kind == FLOAT32 ? 4 : 2));
        for (i64 k = 0; k < source.count; k++) {
            Target &one = source.targets[k];
            uint8_t *mine = &cache.ancestors[k * cache.room];
            if (k) {
                const Target &last = source.targets[k - 1];
                const i64 most = std::min(one.count, last.count);
                const i64 same = std::mismatch(one.symbols, one.symbols + most, last.symbols).first - one.symbols;
                one.shared = std::min(same + 1, most);  // the row that has read all that is the same, too
                memcpy(mine, mine - cache.room, one.shared);
            }
            std::fill(mine + one.shared, mine + one.count, (uint8_t)k);
        }
        for (i64 k = 0; k < source.count; k++)
            for (i64 t = source.targets[k].shared; t < source.targets[k].count; t++) {
                if ((i64)rows.size() >= TOGETHER) take(), forget(&cache);
                const i64 row = (i64)rows.size();
                rows.push_back({&cache, k, t ? source.targets[k].symbols[t - 1] : begin, t});
                for (i64 other = k; other < source.count && (other == k || source.targets[other].shared > t); other++) {
                    const Target &its = source.targets[other];
                    if (t < its.count) wanted.push_back({row, its.symbols[t], its.found + t});
                }
            }
    }

    // Releases the caches whose rows have all been taken: those before the one that is being filled.
    void forget(const Cache *current) {
        while (&caches.front() != current) caches.pop_front();
    }

    // Steps the decoder by the rows, and writes what follows them.
    void take() {
        if (rows.empty()) return;
        runner.step(rows);
        const Weights &output = runner.model.output;
        const i64 count = (i64)rows.size(), stride = TILE * PANEL, together = runner.rows_together();
        const auto tile_of = [&](const Wanted &one) { return one.symbol / stride; };
        std::sort(wanted.begin(), wanted.end(), [&](const Wanted &a, const Wanted &b) {
            return std::make_pair(tile_of(a), a.row) < std::make_pair(tile_of(b), b.row);
        });
        sums.assign(count, Normalizer());
        float *y = logits.get<float>(together * stride);
        auto next = wanted.begin();
        each_tile(output.panels, 0, count, together, [&](i64 panel, i64 last, i64 from, i64 to) {
            product(output, runner.scratch.rows, from, to, panel, last, y, stride, SET);
            for (i64 r = from; r < to; r++) sums[r].add(y + (r - from) * stride, (last - panel) * PANEL);
            for (; next != wanted.end() && tile_of(*next) == panel / TILE && next->row < to; next++)
                *next->found = y[(next->row - from) * stride + next->symbol - panel * PANEL];
        });
        std::vector<float> logs;
        for (const Normalizer &one : sums) logs.push_back(one.value());
        for (const Wanted &one : wanted) *one.found -= logs[one.row];
        rows.clear(), wanted.clear();
    }
};

}  // namespace network
