// Greedy and beam search of many sentences in a running batch, and samples.
//
// Sentences wait in a queue, join the running batch when it has room for their beams, and leave it when they are done.
// network.h computes a step, next_symbols.h the best symbols. The search follows the rules of decoding/beam.py,
// candidate by candidate, and is tested against it. Several models can search together, each with its own state of a
// sentence: an ensemble, as decoding/ensemble.py defines it. What they predict can be mixed with the symbols that follow
// similar states in a text (datastore.h). Samples (drawing.h) take the places of the hypotheses of a beam. Given
// translations are scored, too (forcing.h).
//
// In greedy search a draft, a small model, can guess the next symbols (Leviathan et al. 2023, "Fast inference from
// transformers via speculative decoding", for a temperature of 0). The models read all guesses in one step, and a guess
// counts if it is what they choose. So the result is the same, to the last bit, and the weights are read less often.
//
// The interface is plain C functions on raw pointers, as in kernels.cpp. Each thread has a batch of its own; the
// weights are shared. Small products gain more from this than from being split among threads. When one sentence is left,
// a second thread helps with its larger products (helper.h). The result for a sentence does not depend on other sentences
// or on the number of threads, to the last bit.

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <mutex>
#ifdef _OPENMP
#include <omp.h>
#endif
#include "next_symbols.h"
#ifndef __wasm__
#include "datastore.h"
#include "drawing.h"
#include "forcing.h"
#endif

using namespace network;

namespace {

#ifdef __wasm__
struct Mutex {  // there is one thread
    void lock() {}
    void unlock() {}
};
#else
typedef std::mutex Mutex;
#endif

// Does the work; false if there is not enough memory. No exception leaves a function of C or a parallel region.
template <class Work>
bool fits(const Work &work) {
#ifdef __wasm__  // without exceptions: the module traps
    work();
    return true;
#else
    try {
        work();
        return true;
    } catch (const std::exception &) {  // bad_alloc, or length_error of a vector
        return false;
    }
#endif
}

const i64 KEPT = (i64)1 << 19;  // logits that are kept for a mean of probabilities, if that is enough rows
const i64 MOST_MODELS = 64;
const i64 MOST_DRAFTED = 16;  // rows of a step with guesses

enum Mean { PROBABILITIES = 0, LOG_PROBABILITIES = 1 };

struct Settings {
    i64 beam, n_best, stop, begin, end, workers, capacity, mean;  // stop: 0 exact, 1 ahead, 2 patience
    bool scored;  // whether translations need their probabilities; greedy search does without
    double patience;
    std::vector<i64> forbidden, forced;
    std::vector<double> divisors;  // [length], the length penalty

    // Whether a sentence is done at its first end symbol, so that only the best symbol of a step counts.
    bool greedy() const { return beam == 1 && stop == 2 && patience <= 1.; }
};

struct Hypothesis {
    std::vector<i64> tokens;
    float total;
    double score;
    bool finished;
};

// Symbols that a translation may contain: some for every source, and candidates for each source symbol.
struct Shortlist {
    const Model &model;
    std::vector<i64> always, starts, more;
    std::vector<char> common;  // [target symbol], 1 for those of every source
    std::vector<u32> words;    // [target symbol][depth], the output projection by columns
    Weights weights;           // of the symbols of every source
};

struct Sentence {
    i64 id, limit, minimum;
    Columns columns;  // with a shortlist, the candidates of its source
    std::vector<Weights> weights;
    std::vector<i64> symbols;
    std::vector<i64> source;
    std::vector<Cache> caches;  // of each model
    Cache drafted;              // of the draft
    std::vector<i64> guesses;   // symbols that may follow the only hypothesis
    i64 time = 0;               // symbols of its hypotheses
    i64 alive = 1;  // rows of the batch: 1 before the first step, then the beam
    std::vector<float> totals;              // [alive], log-probabilities; NOTHING for dead hypotheses
    std::vector<std::vector<i64>> history;  // [alive][time]
    std::vector<double> scores;             // [n_best], of the best finished hypotheses, best first
    std::vector<Hypothesis> found;
    i64 finished = 0;
    int fault = 0;  // 1: NaN; 2: no permitted symbol is possible
#ifndef __wasm__
    std::vector<uint64_t> streams;             // random numbers of each sample that goes on; its rows are `alive`
    std::vector<i64> numbers;                  // its place among all of the sentence's
    std::vector<std::pair<i64, float>> drawn;  // its next symbol, and the log-probability of that
#endif

    void advance() {
        time++;
        for (Cache &cache : caches) cache.time = time;
    }
    // The symbol that hypothesis k reads at a position; behind its own symbols are the guesses.
    i64 read(i64 k, i64 position, i64 begin) const {
        return position == 0 ? begin : position <= time ? history[k][position - 1] : guesses[position - time - 1];
    }
    // Rows of the next step: of each hypothesis one, and one for each guess.
    i64 rows() const { return alive + (i64)guesses.size(); }
};

// A model that searches, alone or with others.
struct Member {
    const Model &model;
    const Shortlist *shortlist;
    float share;  // its weight; those of all members sum to 1
    Positions sources, targets;
};

// The model that guesses.
struct Draft {
    Member member;
    Columns columns;
    i64 most;     // guesses in a row
    float least;  // probability of all guesses in a row, from which on one more is worth its time
};

struct Search {
    std::vector<Member> members;
    std::unique_ptr<Draft> draft;
#ifndef __wasm__
    std::unique_ptr<Sharpening> sharpening;  // symbols are drawn, not searched
    std::unique_ptr<Neighbours> neighbours;  // of the first model's states
#endif
    Settings set;
    const Shortlist *shortlist = nullptr;  // of the first model; those of the others have the same symbols
    Columns columns;                       // of the whole vocabulary, or of the shortlist's symbols of every source
    std::vector<i64> symbols;
    std::deque<std::unique_ptr<Sentence>> waiting;
    std::vector<std::unique_ptr<Sentence>> done;
    Mutex lock;
    std::vector<std::unique_ptr<struct Worker>> workers;
    std::atomic<i64> left{0};

    ~Search();
};

struct Worker {
    Search &search;
    const Settings &set;
    std::vector<Runner> runners;  // of each model
    std::vector<std::unique_ptr<Sentence>> active;
    std::vector<Row> rows;
    std::vector<NextSymbols> next;
    std::vector<float> shifts;
    Block logits;
    Best best;
    std::vector<char> seen;
    double reordering = 0, stepping = 0;  // seconds
    std::unique_ptr<Runner> drafter;
    std::vector<NextSymbols> drafts;
    std::vector<Sentence *> guessing;
    std::vector<float> chances;   // of each of these sentences that all guesses are right, by the draft
    i64 guessed = 0, right = 0;  // guesses
#ifndef __wasm__
    Distribution distribution;
    std::vector<float> ordered;  // log-probabilities in the order of symbols
    Datastore::Room looking;     // memory of the search for them
    std::vector<Best> nearest;   // of each of them, the nearest entries of the datastore
#endif

    explicit Worker(Search &search) : search(search), set(search.set) {
        for (const Member &one : search.members) runners.emplace_back(one.model, one.sources, one.targets);
    }

    // Moves sentences from the queue to the batch, if there is room for enough of them to be worth a pass of the
    // encoder.
    void fill() {
        const i64 places = std::max<i64>(1, set.capacity / set.beam), free = places - (i64)active.size();
        if (free < (i64)active.size() && free < std::max<i64>(1, places / 8)) return;
        std::vector<std::unique_ptr<Sentence>> joining;
        {
            std::lock_guard<Mutex> guard(search.lock);
            const i64 waiting = (i64)search.waiting.size();
            i64 some = std::min(free, (waiting + set.workers - 1) / set.workers), words = 0;
            while (some-- > 0 && words < 1024) {
                words += (i64)search.waiting.front()->source.size();
                joining.push_back(std::move(search.waiting.front()));
                search.waiting.pop_front();
            }
        }
        if (joining.empty()) return;
        for (Runner &runner : runners)
            encode(runner, joining, [](Sentence &one, Cache &&cache) { one.caches.push_back(std::move(cache)); });
        if (drafter) encode(*drafter, joining, [](Sentence &one, Cache &&cache) { one.drafted = std::move(cache); });
        for (auto &one : joining) {
            one->totals.assign(1, 0.f);
            one->history.assign(1, {});
            one->scores.assign(set.n_best, (double)NOTHING);
            if (search.shortlist) choose(*one, *search.shortlist);
            active.push_back(std::move(one));
        }
    }

    // Runs a model's encoder on sentences; take(sentence, cache) gets the cache of each.
    template <class Take>
    void encode(Runner &runner, const std::vector<std::unique_ptr<Sentence>> &joining, const Take &take) {
        std::vector<i64> words, lengths;
        for (const auto &one : joining) {
            const i64 length = std::max<i64>(1, (i64)one->source.size() - runner.s.unread);
            words.insert(words.end(), one->source.begin(), one->source.begin() + length);
            lengths.push_back(length);
        }
        auto memory = runner.encode(words.data(), lengths);
        i64 first = 0;
        for (size_t i = 0; i < joining.size(); i++) {
            Cache cache;
            cache.memory = memory, cache.first = first, cache.source = lengths[i], cache.width = set.beam;
            cache.layers.resize(runner.s.decoder_layers);
            first += cache.source;
            take(*joining[i], std::move(cache));
        }
    }

    // Selects the sentence's candidates in the shortlist, without the symbols of every source.
    void choose(Sentence &one, const Shortlist &from) {
        seen.resize(from.common.size());
        for (i64 word : one.source)
            for (i64 i = from.starts[word]; i < from.starts[word + 1]; i++) {
                const i64 symbol = from.more[i];
                if (from.common[symbol] || seen[symbol]) continue;
                seen[symbol] = 1;
                one.symbols.push_back(symbol);
            }
        for (i64 symbol : one.symbols) seen[symbol] = 0;
        std::sort(one.symbols.begin(), one.symbols.end());
        one.weights.resize(search.members.size());
        std::vector<const Weights *> chosen;
        for (const Member &member : search.members) {
            Weights &own = one.weights[chosen.size()];
            const i64 *some = one.symbols.data(), count = (i64)one.symbols.size();
            own.choose(member.model.output, member.shortlist->words, some, count, NOTHING);
            chosen.push_back(&own);
        }
        one.columns.of(std::move(chosen), one.symbols, set.forbidden, set.end);
    }

#ifdef _OPENMP
    // As the next function, of one model, on two threads: first all logits, then the best of each row.
    void project(const Columns &of, i64 begin, i64 end, Helper &helper) {
        const i64 panels = of.count() / PANEL, rows = end - begin, stride = panels * PANEL;
        const i64 some = std::max(TILE, panels / Helper::MOST_PARTS + 1);
        float *y = logits.get<float>(rows * stride);
        helper.share((panels + some - 1) / some, [&](i64 part) {
            const i64 first = part * some, last = std::min(first + some, panels);
            product(*of.weights[0], runners[0].scratch.rows, begin, end, first, last, y + first * PANEL, stride, SET);
        });
        helper.share(rows, [&](i64 row) {
            for (i64 at = 0; at < stride; at += TILE * PANEL)
                next[begin + row].see(y + row * stride + at, at, std::min(TILE * PANEL, stride - at), of);
        });
    }
#endif

    // Logits of some columns for rows begin ... end - 1, a tile of columns for some rows at a time; of several models
    // their weighted mean.
    void project(const Columns &of, i64 begin, i64 end) {
        const i64 panels = of.count() / PANEL, stride = TILE * PANEL, together = runners[0].rows_together();
#ifdef _OPENMP
        Helper *helper = runners.size() == 1 ? runners[0].helper : nullptr;
        const Weights &weights = *of.weights[0];
        if (helper && end - begin <= together && panels * PANEL * weights.depth * 4 * (end - begin) >= shared())
            return project(of, begin, end, *helper);
#endif
        float *y = logits.get<float>((runners.size() > 1 ? 2 : 1) * together * stride);  // [together][stride]
        each_tile(panels, begin, end, together, [&](i64 panel, i64 last, i64 from, i64 to) {
            const i64 count = (last - panel) * PANEL;
            product(*of.weights[0], runners[0].scratch.rows, from, to, panel, last, y, stride, SET);
            for (size_t m = 1; m < runners.size(); m++) {
                float *other = y + together * stride;
                product(*of.weights[m], runners[m].scratch.rows, from, to, panel, last, other, stride, SET);
                const float own = m == 1 ? search.members[0].share : 1.f, share = search.members[m].share;
                for (i64 at = 0; at < (to - from) * stride; at += stride) {
#pragma omp simd
                    for (i64 i = at; i < at + count; i++) y[i] = fused(share, other[i], own * y[i]);
                }
            }
            for (i64 r = from; r < to; r++) next[r].see(y + (r - from) * stride, panel * PANEL, count, of);
        });
    }

    // Calls part(columns, from, to, place) for the columns of rows begin ... end - 1: those of all, and with a
    // shortlist those of each sentence. place: of the first one among all columns of a row.
    template <class Part>
    void each_part(i64 begin, i64 end, const Part &part) {
        part(search.columns, begin, end, 0);
        if (!search.shortlist) return;
        i64 first = 0;
        for (auto &one : active) {
            const i64 from = std::max(begin, first), to = std::min(end, first += one->rows());
            if (from < to && one->columns.count()) part(one->columns, from, to, search.columns.count());
        }
    }

#ifndef __wasm__
    // The logits of rows begin ... end - 1.
    struct Kept {
        i64 begin, end, wide, apart, some;
        float *logits;     // [model][row][wide], `apart` numbers from a model to the next
        Normalizer *sums;  // [model][some]

        float *row(i64 r) const { return logits + (r - begin) * wide; }
        Normalizer &sum(i64 model, i64 r) const { return sums[model * some + r - begin]; }
    };

    // Computes all logits of all models, of some rows at a time, for take(Kept).
    template <class Take>
    void keep_all(const Take &take) {
        const i64 models = (i64)runners.size(), count = (i64)rows.size();
        i64 wide = 0;
        for (auto &one : active) wide = std::max(wide, one->columns.count());
        wide += search.columns.count() + LANES;  // rows are not a power of two apart, which caches dislike
        const i64 some = std::min(count, std::max(KEPT / (models * wide), runners[0].rows_together())), apart = some * wide;
        float *kept = logits.get<float>(models * apart);
        shifts.resize(models);
        std::vector<Normalizer> sums;
        for (i64 begin = 0; begin < count; begin += some) {
            sums.assign(models * some, Normalizer());
            const Kept its{begin, std::min(begin + some, count), wide, apart, some, kept, sums.data()};
            if (search.neighbours) find_nearest(begin, its.end);
            each_part(begin, its.end, [&](const Columns &of, i64 from, i64 to, i64 place) {
                for (i64 m = 0; m < models; m++)
                    keep_logits(of, m, from, to, its.row(from) + m * apart + place, wide, &its.sum(m, from));
            });
            take(its);
        }
    }

    // What is subtracted from the logits of a row (Mixture); returns NaN if a model gave NaN, otherwise 0.
    float shift_of(const Kept &its, i64 r) {
        float fault = 0.f;
        for (size_t m = 0; m < runners.size(); m++) {
            shifts[m] = its.sum(m, r).value() - logarithm(search.members[m].share);
            if (shifts[m] != shifts[m]) fault = shifts[m];
        }
        return fault;
    }

    // The mean of the models' probabilities. All their normalizers must be known first, so that the logits of some rows
    // are kept.
    void average() {
        keep_all([&](const Kept &its) {
            each_part(its.begin, its.end, [&](const Columns &of, i64 from, i64 to, i64 place) {
                for (i64 r = from; r < to; r++) {
                    next[r].shift = shift_of(its, r);
                    next[r].see({its.row(r) + place, (i64)runners.size(), its.apart, shifts.data()}, of);
                }
            });
        });
    }

    // The entries of the datastore that are nearest to the first model's states in rows begin ... end - 1.
    void find_nearest(i64 begin, i64 end) {
        const Neighbours &its = *search.neighbours;
        const i64 apart = runners[0].stride;
        const float *states = (const float *)runners[0].scratch.states.at + begin * apart;
        if ((i64)nearest.size() < end - begin) nearest.resize(end - begin);
        its.store.find(states, end - begin, apart, its.count, its.probes, nearest.data(), looking);
    }

    // The best symbols by the models and the neighbours of their states.
    void remember() {
        static const float unshifted = 0.f;
        keep_all([&](const Kept &its) {
            for (i64 r = its.begin; r < its.end; r++) {
                next[r].shift = normalize(its, r, search.columns.count()) ? 0.f : std::numeric_limits<float>::quiet_NaN();
                next[r].see({its.row(r), 1, 0, &unshifted}, search.columns);
            }
        });
    }

    // Makes the logits of a row log-probabilities, in place, mixed with those of its neighbours; false if a model gave
    // NaN.
    bool normalize(const Kept &its, i64 r, i64 count) {
        if (!combine(its, r, count)) return false;
        if (search.neighbours) search.neighbours->mix(its.row(r), count, nearest[r - its.begin]);
        return true;
    }

    // Makes the logits of a row log-probabilities of all models together, in place; false if a model gave NaN.
    bool combine(const Kept &its, i64 r, i64 count) {
        const i64 models = (i64)runners.size();
        float *log = its.row(r);
        if (models > 1 && set.mean == PROBABILITIES) {
            if (shift_of(its, r) != 0.f) return false;
            const Mixture mixture{log, models, its.apart, shifts.data()};
            for (i64 i = 0; i < count; i += LANES) {
                vf top = mixture.at(0, i), sum = {};
                for (i64 m = 1; m < models; m++) top = larger(top, mixture.at(m, i));
                for (i64 m = 0; m < models; m++) sum += exp_nonpositive(mixture.at(m, i) - top);
                for (i64 j = 0; j < LANES; j++)
                    log[i + j] = top[j] > NOTHING ? top[j] + logarithm(sum[j]) : NOTHING;
            }
            return true;
        }
        Normalizer sum = its.sum(0, r);
        if (models > 1) {
            for (i64 i = 0; i < count; i++) log[i] *= search.members[0].share;
            for (i64 m = 1; m < models; m++)
                for (i64 i = 0; i < count; i++) log[i] += search.members[m].share * log[m * its.apart + i];
            sum = Normalizer(), sum.add(log, count);
        }
        const float shift = sum.value();
        for (i64 i = 0; i < count; i++) log[i] -= shift;
        return shift == shift;
    }

    // Draws the next symbols of all samples. Before the first step those of a sentence share a row.
    void draw() {
        size_t place = 0;
        i64 first = 0;  // row of the sentence in this place
        for (auto &one : active) one->drawn.clear();
        keep_all([&](const Kept &its) {
            for (i64 r = its.begin; r < its.end; r++) {
                while (r >= first + active[place]->alive) first += active[place++]->alive;
                draw(*active[place], its, r, r - first);
            }
        });
    }

    void draw(Sentence &one, const Kept &its, i64 r, i64 k) {
        const i64 samples = (i64)one.streams.size(), common = search.columns.count(), own = one.columns.count();
        if (one.fault || one.time < (i64)set.forced.size()) return;
        if (!normalize(its, r, common + own)) return void(one.fault = 1);
        float *log = its.row(r);
        i64 count = common;
        if (search.shortlist) {  // symbols are drawn in their own order
            count = (search.members[0].model.sizes.target_vocab + LANES - 1) / LANES * LANES;
            ordered.assign(count, NOTHING);
            for (i64 i = 0; i < search.columns.weights[0]->out; i++) ordered[search.columns.symbols[i]] = log[i];
            for (i64 i = 0; own && i < one.columns.weights[0]->out; i++)
                ordered[one.columns.symbols[i]] = log[common + i];
            log = ordered.data();
        }
        for (i64 symbol : set.forbidden)
            if (symbol >= 0 && symbol < count) log[symbol] = NOTHING;
        if (one.minimum > one.time) log[set.end] = NOTHING;
        if (!distribution.set(log, count, *search.sharpening)) return void(one.fault = 2);
        const bool shared = one.alive < samples;
        for (i64 sample = shared ? 0 : k; sample < (shared ? samples : k + 1); sample++) {
            const i64 symbol = distribution.draw(uniform(one.streams[sample], one.time));
            one.drawn.push_back({symbol, log[symbol]});
        }
    }

    // Extends the samples of a sentence by what was drawn; true if all of them have ended.
    bool extend_drawn(Sentence &one) {
        if (one.fault) return true;
        const i64 samples = (i64)one.streams.size();
        if (one.time < (i64)set.forced.size()) {
            const bool cut = force(one);
            if (cut) one.found.assign(samples, Hypothesis(one.found[0]));
            return cut;
        }
        const bool shared = one.alive < samples;
        one.found.resize(std::max((i64)one.found.size(), samples));
        one.advance();
        std::vector<i64> parents;
        std::vector<std::vector<i64>> history;
        for (i64 sample = 0; sample < samples; sample++) {
            const i64 parent = shared ? 0 : sample, kept = (i64)parents.size();
            const auto [symbol, log] = one.drawn[sample];
            const float total = one.totals[parent] + log;
            std::vector<i64> tokens = one.history[parent];
            const bool ends = symbol == set.end;
            if (!ends) tokens.push_back(symbol);
            if (ends || one.limit == one.time) {
                const double score = (double)total / set.divisors[one.time];
                one.found[one.numbers[sample]] = {std::move(tokens), total, score, ends};
                continue;
            }
            // Those before it have moved already; where a row is shared, the total is not written before its last use.
            one.streams[kept] = one.streams[sample], one.numbers[kept] = one.numbers[sample];
            one.drawn[kept].second = total;
            parents.push_back(parent), history.push_back(std::move(tokens));
        }
        one.alive = (i64)parents.size();
        if (!one.alive) return true;
        one.streams.resize(one.alive), one.numbers.resize(one.alive), one.totals.resize(one.alive);
        for (i64 k = 0; k < one.alive; k++) one.totals[k] = one.drawn[k].second;
        one.history.swap(history);
        if (shared || one.alive < samples) {
            parents.resize(set.beam, 0);
            for (Cache &cache : one.caches) cache.follow(parents.data());
        }
        return false;
    }
#endif

    // Writes a model's logits of some columns for rows begin ... end - 1, and adds them to the normalizers.
    void keep_logits(const Columns &of, i64 model, i64 begin, i64 end, float *y, i64 stride, Normalizer *sums) {
        const i64 panels = of.count() / PANEL, together = runners[0].rows_together();
        each_tile(panels, begin, end, together, [&](i64 panel, i64 last, i64 from, i64 to) {
            float *at = y + (from - begin) * stride + panel * PANEL;
            product(*of.weights[model], runners[model].scratch.rows, from, to, panel, last, at, stride, SET);
            for (i64 r = from; r < to; r++, at += stride) sums[r - begin].add(at, (last - panel) * PANEL);
        });
    }

    void project() {
        const i64 count = (i64)rows.size();
#ifndef __wasm__  // whose searches have one model: to keep the module small
        if (search.neighbours) return remember();
        if (runners.size() > 1 && set.mean == PROBABILITIES) return average();
#endif
        each_part(0, count, [&](const Columns &of, i64 from, i64 to, i64) { project(of, from, to); });
        for (i64 r = 0; r < count; r++) next[r].settle();
    }

    static double since(std::chrono::steady_clock::time_point began) {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    }

    void step() {
        const auto began = std::chrono::steady_clock::now();
#ifndef __wasm__
        if (drafter) guess();
#endif
        for (size_t m = 0; m < runners.size(); m++) step(runners[m], m);
#ifndef __wasm__
        if (search.sharpening) {
            draw();
            for (auto &one : active)
                if (extend_drawn(*one)) finish(one);
            active.erase(std::remove(active.begin(), active.end(), nullptr), active.end());
            stepping += since(began);
            return;
        }
#endif
        if (next.size() < rows.size()) next.resize(rows.size());
        const i64 places = set.greedy() ? 1 : 2 * set.beam;
        i64 r = 0;
        for (auto &one : active)
            for (i64 k = 0; k < one->rows(); k++) {
                const i64 time = one->time + std::max<i64>(0, k - one->alive + 1);
                next[r++].clear(places, one->minimum > time, set.scored);
            }
        project();
        r = 0;
        for (auto &one : active) {
            const i64 width = one->rows();
            if (follow(*one, &next[r])) finish(one);
            r += width;
        }
        active.erase(std::remove(active.begin(), active.end(), nullptr), active.end());
        stepping += since(began);
    }

    // Steps one of the models.
    void step(Runner &runner, size_t model) {
        rows.clear();
        for (auto &one : active) {
            Cache &cache = one->caches[model];
            for (i64 k = 0; k + 1 < one->alive; k++) rows.push_back({&cache, k, one->read(k, one->time, set.begin)});
            append_rows(runner, *one, cache, one->alive - 1, one->time + (i64)one->guesses.size());
        }
        runner.step(rows);
    }

    // Appends rows of a hypothesis, up to a position.
    void append_rows(const Runner &runner, const Sentence &one, Cache &cache, i64 hypothesis, i64 last) {
        cache.grow(last - cache.time + 1, runner.s.kv() * (runner.s.kind == FLOAT32 ? 4 : 2));
        for (i64 at = cache.time; at <= last; at++)
            rows.push_back({&cache, hypothesis, one.read(hypothesis, at, set.begin), at - cache.time});
    }

    // Extends a sentence by a symbol, and by those after it that were guessed; true if the sentence is done.
    bool follow(Sentence &one, const NextSymbols *next) {
        bool done = extend(one, next);
        size_t some = 0;
        while (!done && some < one.guesses.size() && one.history[0].back() == one.guesses[some])
            done = extend(one, &next[++some]);
        right += (i64)some;
        // The draft has read its guesses, but the last one, where the models now have the symbols they chose.
        if (drafter) one.drafted.time = std::min(one.drafted.time, one.time), one.guesses.clear();
        return done;
    }

    // Lets the draft guess the next symbols of each sentence, as long as all guesses in a row are probable enough. Many
    // sentences share the reading of the weights anyway: the more there are, the fewer guesses each has.
    void guess() {
        const Draft &draft = *search.draft;
        const i64 most = std::min(draft.most, MOST_DRAFTED / (i64)active.size() - 1);
        guessing.clear(), chances.clear();
        for (auto &one : active)
            if (most > 0 && one->time + 1 < one->limit) guessing.push_back(one.get()), chances.push_back(1.f);
        while (!guessing.empty()) {
            rows.clear();
            for (Sentence *one : guessing) append_rows(*drafter, *one, one->drafted, 0, one->time + (i64)one->guesses.size());
            drafter->step(rows);
            const i64 count = (i64)rows.size();
            if ((i64)drafts.size() < count) drafts.resize(count);
            for (i64 r = 0; r < count; r++) drafts[r].clear(1, false);
            project_draft(count);
            i64 r = 0;
            size_t kept = 0;
            for (size_t i = 0; i < guessing.size(); i++) {
                Sentence &one = *guessing[i];
                const i64 last = one.time + (i64)one.guesses.size();
                r += last - one.drafted.time + 1;
                one.drafted.time = last + 1;
                const NextSymbols &found = drafts[r - 1];
                const float log = found.best.count ? found.best.value[0] - found.normalizer.value() : NOTHING;
                const float chance = chances[i] * exponential(log);
                const bool forced = last < (i64)set.forced.size();
                if (!found.best.count || !(chance >= draft.least || forced)) continue;
                one.guesses.push_back(forced ? set.forced[last] : found.best.index[0]);
                guessed++;
                if ((i64)one.guesses.size() >= most || last + 2 >= one.limit || one.guesses.back() == set.end) continue;
                guessing[kept] = &one, chances[kept++] = forced ? chances[i] : chance;
            }
            guessing.resize(kept), chances.resize(kept);
        }
    }

    void project_draft(i64 count) {
        const Columns &of = search.draft->columns;
        const i64 panels = of.count() / PANEL, stride = TILE * PANEL;
        float *y = logits.get<float>(count * stride);
        each_tile(panels, 0, count, count, [&](i64 panel, i64 last, i64, i64) {
            product(*of.weights[0], drafter->scratch.rows, 0, count, panel, last, y, stride, SET);
            for (i64 r = 0; r < count; r++) drafts[r].see(y + r * stride, panel * PANEL, (last - panel) * PANEL, of);
        });
    }

    void keep(Sentence &one, const Best &from, i64 rank, const NextSymbols *next, bool finished) {
        const i64 at = from.index[rank], parent = at / (2 * set.beam);
        const i64 token = next[parent].best.index[at % (2 * set.beam)];
        std::vector<i64> tokens = one.history[parent];
        if (!finished) tokens.push_back(token);
        const double score = (double)from.value[rank] / set.divisors[one.time];
        one.found.push_back({std::move(tokens), from.value[rank], score, finished});
    }

    // Extends the only hypothesis of a sentence by a forced symbol, at no cost: log p counts as 0.
    bool force(Sentence &one) {
        one.history[0].push_back(set.forced[one.time]);
        one.advance();
        const bool cut = one.limit == one.time;
        if (cut) one.found.push_back({one.history[0], 0.f, 0., false});
        return cut;
    }

    // Extends the hypotheses of a sentence by one symbol, as decoding/beam.py does; true if the sentence is done.
    // Candidate k * two + j is hypothesis k with the j-th of its 2K best symbols.
    bool extend(Sentence &one, const NextSymbols *next) {
        const i64 beam = set.beam, two = 2 * beam;
        best.clear(two);
        for (i64 k = 0; k < one.alive; k++) {
            const float shift = next[k].shift;
            if (shift != shift) one.fault = 1;
            if (one.totals[k] == NOTHING) continue;
            for (i64 j = 0; j < next[k].best.count; j++)
                best.offer(one.totals[k] + (next[k].best.value[j] - shift), k * two + j);
        }
        if (one.fault) return true;
        if (one.time < (i64)set.forced.size()) return force(one);
        one.advance();
        const i64 length = one.time;  // of the extended hypotheses
        std::vector<i64> parents, tokens;
        std::vector<float> totals;
        std::vector<i64> ranks;
        for (i64 rank = 0; rank < best.count; rank++) {
            const i64 parent = best.index[rank] / two, token = next[parent].best.index[best.index[rank] % two];
            if (token != set.end) {
                if ((i64)totals.size() == beam) continue;
                parents.push_back(parent), tokens.push_back(token), totals.push_back(best.value[rank]);
                ranks.push_back(rank);
            } else if (rank < beam) {
                keep(one, best, rank, next, true);
                one.finished++;
                one.scores.push_back(one.found.back().score);
                std::stable_sort(one.scores.begin(), one.scores.end(), std::greater<double>());
                one.scores.pop_back();
            }
        }
        const bool cut = one.limit == length;
        if (cut && one.finished < set.n_best)
            for (i64 rank : ranks) keep(one, best, rank, next, false);
        if (cut || totals.empty() || enough(one, totals[0], length)) return true;
        while ((i64)totals.size() < beam) parents.push_back(0), tokens.push_back(set.end), totals.push_back(NOTHING);
        const auto began = std::chrono::steady_clock::now();
        std::vector<std::vector<i64>> history(beam);
        for (i64 k = 0; k < beam; k++) {
            history[k] = one.history[parents[k]];
            history[k].push_back(tokens[k]);
        }
        one.history.swap(history);
        one.totals.swap(totals);
        one.alive = beam;
        for (Cache &cache : one.caches) cache.follow(parents.data());
        reordering += since(began);
        return false;
    }

    // The stopping rules of decoding/ranking.py: `leading` is the best total that is still live.
    bool enough(const Sentence &one, float leading, i64 length) const {
        const double settled = one.scores.back(), s = (double)leading;
        if (set.stop == 0) return settled >= s / set.divisors[one.limit];
        if (set.stop == 1) return settled >= s / set.divisors[length] && one.finished >= set.beam;
        return (double)one.finished >= set.patience * (double)set.beam && settled > (double)NOTHING;
    }

    void finish(std::unique_ptr<Sentence> &one) {
#ifndef __wasm__
        const bool in_order = search.sharpening != nullptr;  // samples are in the order of their numbers
#else
        const bool in_order = false;
#endif
        if (!in_order) std::stable_sort(one->found.begin(), one->found.end(), [](const Hypothesis &a, const Hypothesis &b) {
            return a.finished != b.finished ? a.finished : a.score > b.score;
        });
        if (!in_order && (i64)one->found.size() > set.n_best) one->found.resize(set.n_best);
        if (one->found.empty() && !one->fault) one->fault = 2;
        one->caches.clear();
        one->drafted = {};
        one->weights.clear();
        one->history.clear();
        std::lock_guard<Mutex> guard(search.lock);
        search.done.push_back(std::move(one));
        search.left--;
    }

    void take_help(Helper *helper) {
        for (Runner &runner : runners) runner.helper = helper;
        if (drafter) drafter->helper = helper;
    }

    void run(std::chrono::steady_clock::time_point until) {
        do {
            fill();
            if (active.empty()) return;
            step();
        } while (std::chrono::steady_clock::now() < until);
    }
};

Search::~Search() = default;

struct Reader {  // reads the tensors of a model in the order of engine/weights.py
    const std::function<const float *()> &take;  // the next one
    const Sizes &s;
    Pages &pages;
    float eps;
    void norm(Norm &n, i64 width) {
        const float *gain = take(), *shift = take();
        n.gain.assign(gain, gain + width), n.eps = eps, n.rms = s.rms;
        if (shift) n.shift.assign(shift, shift + width);
        else n.shift.assign(width, 0.f);
    }
    void weights(Weights &w, i64 out, i64 in, float fill = 0.f) {
        const float *matrix = take(), *bias = take();
        w.prepack(pages, (int)s.kind, matrix, bias, out, in, fill);
    }
    // distances: with vectors. own: of the layer's self-attention, the only norm of a parallel layer.
    void attention(Attention &a, bool cross, i64 distances, const Norm *own = nullptr) {
        if (own && s.parallel) a.norm = *own;
        else norm(a.norm, s.width);
        weights(a.in, cross ? s.q() : s.q() + s.kv(), s.width);
        if (cross) weights(a.memory, s.kv(), s.width);
        for (Norm *n : {&a.query_norm, &a.key_norm})
            if (s.head_norm) {
                const float *gain = take();
                n->gain.assign(gain, gain + s.key), n->shift.assign(s.key, 0.f), n->eps = eps, n->rms = s.head_norm == 2;
            }
        if (distances) {
            const float *keys = take(), *values = take();
            a.key_places.assign(keys, keys + distances * s.key);
            a.value_places.assign(values, values + distances * s.value);
        }
        weights(a.out, s.width, s.heads * s.value);
    }
    void feed_forward(FeedForward &f, const Norm &own) {
        if (s.parallel) f.norm = own;
        else norm(f.norm, s.width);
        weights(f.expand, s.inner, s.width);
        if (s.activation >= GATED_RECTIFIER) weights(f.gate, s.inner, s.width);
        weights(f.contract, s.width, s.inner);
    }
};

}  // namespace

// Whether all sizes are possible, and small enough that no product of a size of the weights overflows 64 bits.
static bool are_possible(const Sizes &s) {
    const i64 most = (i64)1 << 31, all[] = {s.width, s.heads, s.kv_heads, s.key, s.value, s.inner, s.source_vocab,
                                            s.target_vocab};
    for (i64 size : all)
        if (size < 1 || size > most) return false;
    for (i64 size : {s.heads * s.key, s.heads * s.value, s.kv_heads * s.key, s.kv_heads * s.value})
        if (size > most) return false;
    const auto is_in = [](i64 size, i64 least, i64 last) { return size >= least && size <= last; };
    return s.heads % s.kv_heads == 0 && is_in(s.kind, 0, 2) && is_in(s.activation, 0, GATED_TANH_GELU) &&
           is_in(s.encoder_layers, 0, 1 << 20) && is_in(s.decoder_layers, 0, 1 << 20) && is_in(s.reach, 0, 1 << 20) &&
           is_in(s.unread, 0, 1) && is_in(s.rotary, 0, 1) && !(s.rotary && s.key % 2) && is_in(s.linear, 0, 1) &&
           !(s.linear && s.reach) && is_in(s.head_norm, 0, 2) && is_in(s.window, 0, most) &&
           is_in(s.parallel, 0, 1) && !(s.parallel && !s.pre) && is_in(s.apart, 0, 1 << 16) &&
           !(s.apart && (s.reach || s.linear || s.rotary));
}

// Whether a sentence of `words` ids and translations of `limit` symbols need a number of bytes that 64 bits can hold.
// A model without position vectors cannot search.
static bool are_possible(const Search &search, const Member &member, i64 words, i64 limit) {
    const Sizes &s = member.model.sizes;
    const i64 most = (i64)1 << 40;  // of a row, in numbers
    const i64 row = std::max({s.width, s.inner, s.heads * (s.key + s.value) + s.kv(), (s.decoder_layers + 1) * s.kv()});
    i64 bytes;
    return words >= 1 && limit >= 1 && limit < (i64)search.set.divisors.size() && row < most &&
           member.sources.count && member.targets.count &&
           !__builtin_mul_overflow(row * 16, words + 64, &bytes) &&
           !__builtin_mul_overflow(row * 16, limit + 64, &bytes) &&
           !__builtin_mul_overflow(bytes, search.set.beam, &bytes);
}

// sizes: the fields of Sizes. scales: factor of the embeddings, factor of the states before the output projection,
// epsilon of the norms. take: the next tensor; the embeddings must outlive the model.
static std::unique_ptr<Model> model_of(const i64 *sizes, const float *scales,
                                       const std::function<const float *()> &take) {
    auto m = std::make_unique<Model>();
    memcpy(&m->sizes, sizes, sizeof(Sizes));
    m->scale = scales[0], m->output_scale = scales[1];
    Reader reader{take, m->sizes, m->pages, scales[2]};
    for (Embedding *e : {&m->source, &m->target}) {
        e->table = reader.take();
        if (m->sizes.embedding_norm) reader.norm(e->norm, m->sizes.width);
    }
    m->encoder.resize(m->sizes.encoder_layers);
    for (EncoderLayer &layer : m->encoder) {
        reader.attention(layer.own, false, m->sizes.apart ? 2 * m->sizes.apart + 1 : 0);
        reader.feed_forward(layer.feed_forward, layer.own.norm);
    }
    m->decoder.resize(m->sizes.decoder_layers);
    for (DecoderLayer &layer : m->decoder) {
        reader.attention(layer.own, false, m->sizes.apart ? m->sizes.apart + 1 : 0);
        reader.attention(layer.cross, true, 0, &layer.own.norm);
        reader.feed_forward(layer.feed_forward, layer.own.norm);
    }
    if (m->sizes.final_norm) reader.norm(m->encoder_norm, m->sizes.width), reader.norm(m->decoder_norm, m->sizes.width);
    reader.weights(m->output, m->sizes.target_vocab, m->sizes.width, NOTHING);
    if (m->sizes.reach) {
        const i64 reach = m->sizes.reach, heads = m->sizes.heads;
        const float *encoder = reader.take(), *decoder = reader.take();
        m->encoder_biases.assign(encoder, encoder + heads * (2 * reach + 1));
        m->decoder_biases.assign(decoder, decoder + heads * (reach + 1));
    }
    if (m->sizes.linear) {
        const float *slopes = reader.take();
        m->slopes.assign(slopes, slopes + m->sizes.heads);
    }
    return m;
}

// Null if the sizes are impossible or there is not enough memory.
extern "C" void *decoding_model(const i64 *sizes, const float *scales, const float *const *tensors) {
    std::unique_ptr<Model> made;
    if (!are_possible(*(const Sizes *)sizes)) return nullptr;
    return fits([&] { made = model_of(sizes, scales, [&] { return *tensors++; }); }) ? made.release() : nullptr;
}

extern "C" void decoding_model_free(void *model) { delete (Model *)model; }

// always: symbols of every source, ascending. more[starts[w]] ... more[starts[w + 1] - 1]: candidates of source
// symbol w. Null if a symbol is not of the vocabulary, the starts do not ascend, or there is not enough memory.
extern "C" void *decoding_shortlist(const void *model, const i64 *always, i64 count, const i64 *starts,
                                    const i64 *more) {
    const Model &m = *(const Model *)model;
    const i64 sources = m.sizes.source_vocab;
    const auto are_symbols = [&](const i64 *from, i64 some) {
        return std::all_of(from, from + some, [&](i64 symbol) { return symbol >= 0 && symbol < m.sizes.target_vocab; });
    };
    if (count < 0 || starts[0] != 0 || !std::is_sorted(starts, starts + sources + 1)) return nullptr;
    if (!are_symbols(always, count) || !are_symbols(more, starts[sources])) return nullptr;
    std::unique_ptr<Shortlist> made;
    const auto make = [&] {
        made.reset(new Shortlist{m, {always, always + count}, {starts, starts + sources + 1},
                                 {more, more + starts[sources]}, std::vector<char>(m.sizes.target_vocab),
                                 m.output.columns(), {}});
        for (i64 symbol : made->always) made->common[symbol] = 1;
        made->weights.choose(m.output, made->words, always, count, NOTHING);
    };
    return fits(make) ? made.release() : nullptr;
}

extern "C" void decoding_shortlist_free(void *shortlist) { delete (Shortlist *)shortlist; }

// Whether several models can search together: one pair of vocabularies, one precision, positive shares, and shortlists
// of the same symbols or none.
static bool fit_together(const std::vector<Member> &members) {
    const Member &first = members[0];
    return std::all_of(members.begin(), members.end(), [&](const Member &one) {
        const Sizes &s = one.model.sizes, &its = first.model.sizes;
        if (!(one.share > 0.f) || one.share > 1.f || !one.shortlist != !first.shortlist) return false;
        if (one.shortlist && (&one.shortlist->model != &one.model || one.shortlist->always != first.shortlist->always))
            return false;
        return s.source_vocab == its.source_vocab && s.target_vocab == its.target_vocab && s.kind == its.kind;
    });
}

// numbers: number of models, beam, n_best, stop, begin, end, workers, capacity, mean, scored. shares: the weights of the
// models. shortlists: one of each model, or nulls. Without `scored`, which only greedy search can do, totals and scores
// of translations mean nothing. Null if a number is impossible, the models do not fit together, or there is not enough
// memory.
extern "C" void *decoding_search(const void *const *models, const void *const *shortlists, const double *shares,
                                 const i64 *numbers, double patience, const i64 *forbidden, i64 forbiddens,
                                 const i64 *forced, i64 forceds, const double *divisors, i64 lengths) {
    const i64 count = *numbers++, beam = numbers[0], workers = numbers[5];
    if (count < 1 || count > MOST_MODELS) return nullptr;
    if (numbers[7] < PROBABILITIES || numbers[7] > LOG_PROBABILITIES) return nullptr;
    const auto is_symbol = [&](i64 symbol) {
        return symbol >= 0 && symbol < ((const Model *)models[0])->sizes.target_vocab;
    };
    if (beam < 1 || beam > 255 || numbers[1] < 1 || numbers[1] > beam || numbers[2] < 0 || numbers[2] > 2) return nullptr;
    if (!is_symbol(numbers[3]) || !is_symbol(numbers[4]) || !std::all_of(forced, forced + forceds, is_symbol))
        return nullptr;
    if (workers < 1 || workers > 1024 || numbers[6] < 1 || forbiddens < 0 || lengths < 2) return nullptr;
    std::unique_ptr<Search> made;
    bool fitting = true;
    const auto make = [&] {
        made = std::make_unique<Search>();
        const float least = std::numeric_limits<float>::min();
        for (i64 m = 0; m < count; m++)
            made->members.push_back({*(const Model *)models[m], (const Shortlist *)shortlists[m],
                                     shares[m] >= 0. ? std::max((float)shares[m], least) : 0.f, {}, {}});
        if (!(fitting = fit_together(made->members))) return;
        made->set = {beam, numbers[1], numbers[2], numbers[3], numbers[4], workers, numbers[6], numbers[7],
                     numbers[8] != 0, patience, {forbidden, forbidden + forbiddens}, {forced, forced + forceds},
                     {divisors, divisors + lengths}};
        if (!(fitting = made->set.scored || made->set.greedy())) return;
        made->shortlist = made->members[0].shortlist;
        std::vector<const Weights *> outputs;
        for (const Member &one : made->members)
            outputs.push_back(one.shortlist ? &one.shortlist->weights : &one.model.output);
        if (made->shortlist) {
            made->symbols = made->shortlist->always;
            made->columns.of(outputs, made->symbols, made->set.forbidden, made->set.end);
        } else {
            made->columns = {outputs, nullptr, made->set.forbidden, made->set.end};
        }
        for (i64 w = 0; w < workers; w++) made->workers.push_back(std::make_unique<Worker>(*made));
    };
    return fits(make) && fitting ? made.release() : nullptr;
}

extern "C" void decoding_search_free(void *search) { delete (Search *)search; }

// Sets the position vectors of a model, which remain the caller's; 1 if there are none, or no such model. Must not be
// called while decoding_run runs.
extern "C" i64 decoding_positions(void *search, i64 model, const float *source, i64 sources, const float *target,
                                  i64 targets) {
    Search &s = *(Search *)search;
    if (model < 0 || model >= (i64)s.members.size() || sources < 1 || targets < 1) return 1;
    s.members[model].sources = {source, sources}, s.members[model].targets = {target, targets};
    return 0;
}

// Lets a model guess, before the first sentence is added. most: guesses in a row. least: the probability of all of them
// from which on one more is worth its time. The position vectors remain the caller's. 1 if the model does not fit, the
// search is not greedy, or there is not enough memory.
extern "C" i64 decoding_draft(void *search, const void *model, i64 most, double least, const float *source,
                              i64 sources, const float *target, i64 targets) {
    Search &s = *(Search *)search;
    const Model &its = *(const Model *)model;
    const Sizes &own = s.members[0].model.sizes;
#ifndef __wasm__
    if (s.neighbours || s.sharpening) return 1;
#endif
    if (s.set.beam != 1 || s.left || most < 1 || sources < 1 || targets < 1) return 1;
    if (its.sizes.source_vocab != own.source_vocab || its.sizes.target_vocab != own.target_vocab) return 1;
    return !fits([&] {
        s.draft.reset(new Draft{{its, nullptr, 1.f, {source, sources}, {target, targets}},
                                {{&its.output}, nullptr, s.set.forbidden, s.set.end}, most, (float)least});
        for (auto &worker : s.workers)
            worker->drafter = std::make_unique<Runner>(its, s.draft->member.sources, s.draft->member.targets);
    });
}

// How many symbols were guessed, and how many of them were right.
extern "C" void decoding_guesses(const void *search, i64 *counts) {
    counts[0] = counts[1] = 0;
    for (const auto &worker : ((const Search *)search)->workers)
        counts[0] += worker->guessed, counts[1] += worker->right;
}

// Appends a sentence to the queue, prepared by `prepare`; 1 if it is impossible or there is not enough memory.
template <class Prepare>
static i64 append(Search &s, i64 id, const i64 *words, i64 count, i64 limit, i64 minimum, const Prepare &prepare) {
    const auto is_word = [&](i64 word) { return word >= 0 && word < s.members[0].model.sizes.source_vocab; };
    for (const Member &one : s.members)
        if (!are_possible(s, one, count, limit)) return 1;
    if (minimum < 0 || !std::all_of(words, words + count, is_word)) return 1;
    return !fits([&] {
        auto one = std::make_unique<Sentence>();
        one->id = id, one->limit = limit, one->minimum = minimum;
        one->source.assign(words, words + count);
        prepare(*one);
        s.waiting.push_back(std::move(one));
        s.left++;
    });
}

// As `append`. Also 1 if the search draws symbols, for which decoding_add_samples is.
extern "C" i64 decoding_add(void *search, i64 id, const i64 *words, i64 count, i64 limit, i64 minimum) {
    Search &s = *(Search *)search;
#ifndef __wasm__
    if (s.sharpening) return 1;
#endif
    return append(s, id, words, count, limit, minimum, [](Sentence &) {});
}

// Appends several sentences, their words one after the other; returns how many, which are fewer than `count` if one is
// impossible or there is not enough memory.
extern "C" i64 decoding_add_all(void *search, i64 count, const i64 *ids, const i64 *words, const i64 *lengths,
                                const i64 *limits, const i64 *minimums) {
    for (i64 i = 0; i < count; words += lengths[i++])
        if (decoding_add(search, ids[i], words, lengths[i], limits[i], minimums[i])) return i;
    return count;
}

#ifndef __wasm__
// An empty datastore of states of this width; null if there is not enough memory.
extern "C" void *decoding_datastore(i64 width) {
    std::unique_ptr<Datastore> made;
    if (width < 1 || width > (i64)1 << 31) return nullptr;
    return fits([&] { made.reset(new Datastore{width, {}, {}, {}, {}, {}}); }) ? made.release() : nullptr;
}

// Appends entries. keys: [count][width]. biases: -|key|^2 / 2. symbols: of the target side. 1 if there are too many (the
// number of one has 32 bits) or not enough memory; entries that were appended before remain.
extern "C" i64 decoding_datastore_add(void *store, const float *keys, const float *biases, const i64 *symbols,
                                      i64 count) {
    Datastore &its = *(Datastore *)store;
    const size_t parts = its.parts.size(), entries = its.symbols.size();
    if (count < 1 || count > std::numeric_limits<int32_t>::max() - (i64)entries) return 1;
    if (std::any_of(symbols, symbols + count, [](i64 symbol) { return symbol < 0; })) return 1;
    if (fits([&] { its.add(keys, biases, symbols, count); })) return 0;
    while (its.parts.size() > parts) its.parts.pop_back();
    its.firsts.resize(parts), its.symbols.resize(entries);
    return 1;
}

// Makes the parts that were appended cells, as many as `count`. centres: [count][width]. biases: -|centre|^2 / 2. 1 if
// there are others, or there is not enough memory.
extern "C" i64 decoding_datastore_cells(void *store, const float *centres, const float *biases, i64 count) {
    Datastore &its = *(Datastore *)store;
    return count != (i64)its.parts.size() || !fits([&] { its.divide(centres, biases); });
}

extern "C" void decoding_datastore_free(void *store) { delete (Datastore *)store; }

// The `count` nearest entries of each of some states [rows][width], nearest first, and q . k - |k|^2 / 2 of each; where
// there are fewer entries, -1. probes: cells to look into, or 0 for all. 1 if there are no cells or there is not enough
// memory.
extern "C" i64 decoding_nearest(const void *store, const float *states, i64 rows, i64 count, i64 probes, i64 threads,
                                i64 *entries, float *values) {
    const Datastore &its = *(const Datastore *)store;
    const i64 some = 192;
    std::atomic<bool> full{false};
    std::atomic<i64> next{0};
    if (rows < 0 || count < 1 || threads < 1 || probes < 0 || (probes && !its.centres.panels)) return 1;
    const auto find = [&] {
        Datastore::Room room;
        std::vector<Best> best(some);
        for (i64 begin; (begin = next.fetch_add(some)) < rows;) {
            const i64 here = std::min(some, rows - begin);
            its.find(states + begin * its.width, here, its.width, count, probes, best.data(), room);
            for (i64 r = 0; r < here; r++)
                for (i64 n = 0; n < count; n++) {
                    const bool found = n < best[r].count;
                    entries[(begin + r) * count + n] = found ? best[r].index[n] : -1;
                    values[(begin + r) * count + n] = found ? best[r].value[n] : NOTHING;
                }
        }
    };
#ifdef _OPENMP
#pragma omp parallel num_threads((int)std::min<i64>(threads, 1024))
#endif
    {
        if (!fits(find)) full = true;
    }
    return full;
}

// Mixes what the models predict with the symbols of a datastore, before the first sentence is added. count: nearest
// entries of a state of the first model. probes: cells to look into, or 0 for all. share: their part of the
// probabilities. 1 if a number is impossible, the datastore is empty, has no cells to look into or does not fit the
// models, a shortlist or a draft is used, or there is not enough memory.
extern "C" i64 decoding_neighbours(void *search, const void *store, i64 count, i64 probes, double share,
                                   double temperature) {
    Search &s = *(Search *)search;
    const Datastore &its = *(const Datastore *)store;
    const Sizes &sizes = s.members[0].model.sizes;
    if (count < 1 || count > 4096 || !(share > 0.) || !(share < 1.) || !(temperature > 0.)) return 1;
    if (probes < 0 || (probes && !its.centres.panels)) return 1;
    if (s.shortlist || s.draft || s.left || its.symbols.empty() || its.width != sizes.width) return 1;
    if (std::any_of(its.symbols.begin(), its.symbols.end(), [&](i64 one) { return one >= sizes.target_vocab; })) return 1;
    const float warm = std::max((float)temperature, std::numeric_limits<float>::min());
    return !fits([&] { s.neighbours.reset(new Neighbours{its, count, probes, (float)share, warm}); });
}

// Makes the search one that draws symbols, before the first sentence is added; 0 disables a truncation. 1 if a number is
// impossible, a draft guesses, or there is not enough memory.
extern "C" i64 decoding_sharpen(void *search, double temperature, i64 top_k, double top_p, double min_p,
                                double epsilon) {
    Search &s = *(Search *)search;
    const auto is_share = [](double one) { return one >= 0. && one <= 1.; };
    if (!(temperature > 0.) || top_k < 0 || !is_share(top_p) || !is_share(min_p) || !is_share(epsilon)) return 1;
    if (s.draft || s.left) return 1;
    return !fits([&] { s.sharpening.reset(new Sharpening{temperature, top_k, top_p, min_p, epsilon}); });
}

// As decoding_add_all, of sentences with samples[i] samples each, from 1 to the beam. streams: of each sample, the seed
// of its random numbers, those of a sentence one after the other.
extern "C" i64 decoding_add_samples(void *search, i64 count, const i64 *ids, const i64 *words, const i64 *lengths,
                                    const i64 *limits, const i64 *minimums, const i64 *samples,
                                    const uint64_t *streams) {
    Search &s = *(Search *)search;
    for (i64 i = 0; i < count; words += lengths[i], streams += samples[i++]) {
        if (!s.sharpening || samples[i] < 1 || samples[i] > s.set.beam) return i;
        const auto prepare = [&](Sentence &one) {
            one.streams.assign(streams, streams + samples[i]);
            for (i64 sample = 0; sample < samples[i]; sample++) one.numbers.push_back(sample);
        };
        if (append(s, ids[i], words, lengths[i], limits[i], minimums[i], prepare)) return i;
    }
    return count;
}

// Log-probabilities of given targets. words: those of the sources, one after the other. lengths: of each source.
// counts: targets of each source, from 1 to 255. symbols: those of the targets, with their end symbols. sizes: of each
// target. begin: the symbol before the first one. found: of each symbol. 1 if a number is impossible, 2 if there is not
// enough memory.
extern "C" i64 decoding_force(const void *model, const float *source_positions, i64 source_reach,
                              const float *target_positions, i64 target_reach, i64 count, const i64 *words,
                              const i64 *lengths, const i64 *counts, const i64 *symbols, const i64 *sizes, i64 begin,
                              i64 threads, float *found) {
    const Model &m = *(const Model *)model;
    const i64 together = 256, longest = (i64)1 << 20;  // words of sources that are encoded at a time; of a side
    const auto are_below = [](const i64 *from, i64 some, i64 vocabulary) {
        return std::all_of(from, from + some, [&](i64 one) { return one >= 0 && one < vocabulary; });
    };
    if (count < 0 || source_reach < 1 || target_reach < 1 || threads < 1) return 1;
    if (!are_below(&begin, 1, m.sizes.target_vocab)) return 1;
    std::vector<Forcing::Target> targets;
    std::vector<Forcing::Source> sources;
    std::vector<i64> starts;  // of the sources that a thread takes at a time
    bool possible = true;
    const auto arrange = [&] {
        i64 every = 0, taken = together;
        for (i64 i = 0; i < count; i++) {
            if (!(possible = lengths[i] >= 1 && lengths[i] <= longest && counts[i] >= 1 && counts[i] <= 255)) return;
            every += counts[i];
        }
        targets.reserve(every);  // sources point into it
        for (i64 i = 0; i < count; words += lengths[i++]) {
            if (!(possible = are_below(words, lengths[i], m.sizes.source_vocab))) return;
            sources.push_back({words, lengths[i], targets.data() + targets.size(), counts[i]});
            for (i64 k = 0; k < counts[i]; k++, symbols += *sizes, found += *sizes++) {
                if (!(possible = *sizes >= 1 && *sizes <= longest && are_below(symbols, *sizes, m.sizes.target_vocab)))
                    return;
                targets.push_back({symbols, *sizes, found});
            }
            if (taken + lengths[i] > together) starts.push_back(i), taken = 0;
            taken += lengths[i];
        }
        starts.push_back(count);
    };
    if (!fits(arrange)) return 2;
    if (!possible) return 1;
    const Positions source{source_positions, source_reach}, target{target_positions, target_reach};
    const i64 parts = std::max<i64>(0, (i64)starts.size() - 1);
    std::atomic<bool> full{false};
    std::atomic<i64> next{0};
    const auto force = [&] {
        Forcing forcing(m, source, target, begin);
        for (i64 part; (part = next++) < parts;)
            forcing.force(sources.data() + starts[part], starts[part + 1] - starts[part]);
    };
#ifdef _OPENMP
#pragma omp parallel num_threads((int)std::min<i64>({threads, 1024, std::max<i64>(1, parts)}))
#endif
    {
        if (!fits(force)) full = true;
    }
    return full ? 2 : 0;
}
#endif

// Removes a sentence, wherever it is. Returns the number of sentences that are not done, or -1 if there was none.
extern "C" i64 decoding_drop(void *search, i64 id) {
    Search &s = *(Search *)search;
    const auto is_it = [&](const std::unique_ptr<Sentence> &one) { return one->id == id; };
    const auto forget = [&](auto &among) {
        const auto at = std::find_if(among.begin(), among.end(), is_it);
        if (at == among.end()) return false;
        among.erase(at);
        return true;
    };
    if (forget(s.done)) return s.left;
    bool there = forget(s.waiting);
    for (auto &worker : s.workers) there = there || forget(worker->active);
    return there ? (i64)--s.left : -1;
}

// Allows or forbids the processor's matrix unit; returns whether it is used from now on.
extern "C" i64 decoding_matrix_unit(i64 wanted) {
    tiles::wanted = wanted != 0;
    return tiles::used();
}

#ifndef __wasm__
// Sets the bytes of a model's weights from which on a second thread helps to translate one sentence; returns those before.
extern "C" i64 decoding_large(i64 bytes) { return large.exchange(bytes); }
#endif

// Number of tokens of the most probable live hypothesis of a sentence, or -1 if the sentence waits or is done. Writes
// the tokens if `tokens` is not null.
extern "C" i64 decoding_leading(const void *search, i64 id, i64 *tokens) {
    for (const auto &worker : ((const Search *)search)->workers)
        for (const auto &one : worker->active) {
            if (one->id != id) continue;
            const std::vector<i64> &leading = one->history[0];
            if (tokens) std::copy(leading.begin(), leading.end(), tokens);
            return (i64)leading.size();
        }
    return -1;
}

// Runs for about `seconds`. Returns the number of sentences that are not done, or -1 if memory ran out, after which the
// search cannot continue.
extern "C" i64 decoding_run(void *search, double seconds) {
    Search &s = *(Search *)search;
    const double bounded = seconds > 0 ? std::min(seconds, 1e9) : 0.;
    auto until = std::chrono::steady_clock::now() + std::chrono::microseconds((i64)(bounded * 1e6));
    const i64 workers = std::min<i64>(s.set.workers, s.left);
    // Workers that have sentences of an earlier call must continue with them.
    i64 busy = 0;
    for (i64 w = 0; w < s.set.workers; w++)
        if (!s.workers[w]->active.empty()) busy = w + 1;
    const i64 team = std::max(workers, busy);
    std::atomic<bool> full{false};
    const auto work = [&](i64 w) {
        if (!fits([&] { s.workers[w]->run(until); })) full = true;
    };
#ifdef _OPENMP
    const bool gains = std::any_of(s.members.begin(), s.members.end(),
                                   [](const Member &one) { return (i64)one.model.pages.taken >= large; });
    if (gains && s.left == 1 && s.set.workers > 1) {  // two threads for one sentence
        const i64 its = std::max<i64>(0, busy - 1);
        Helper helper;
        s.workers[its]->take_help(&helper);
#pragma omp parallel num_threads(2)
        {
            if (omp_get_thread_num() == 0) work(its), helper.end();
            else helper.serve();
        }
        s.workers[its]->take_help(nullptr);
        return full ? -1 : (i64)s.left;
    }
#endif
    if (team <= 1) {
        work(0);
        return full ? -1 : (i64)s.left;
    }
#ifdef _OPENMP
#pragma omp parallel num_threads((int)team)
    {
        const i64 threads = omp_get_num_threads();
        for (i64 w = omp_get_thread_num(); w < team; w += threads) work(w);
    }
#else
    for (i64 w = 0; w < team; w++) work(w);
#endif
    return full ? -1 : (i64)s.left;
}

// Seconds that all threads together have spent on reordering hypotheses, and on steps including the reordering.
extern "C" void decoding_seconds(const void *search, double *seconds) {
    seconds[0] = seconds[1] = 0;
    for (const auto &worker : ((const Search *)search)->workers)
        seconds[0] += worker->reordering, seconds[1] += worker->stepping;
}

// Of at most `most` finished sentences: id, fault, number of hypotheses, number of tokens of all of them. Returns how
// many sentences these are.
extern "C" i64 decoding_next(const void *search, i64 most, i64 *facts) {
    const auto &done = ((const Search *)search)->done;
    const i64 count = std::min(most, (i64)done.size());
    for (i64 i = 0; i < count; i++, facts += 4) {
        const Sentence &one = *done[done.size() - count + i];
        i64 tokens = 0;
        for (const Hypothesis &found : one.found) tokens += (i64)found.tokens.size();
        facts[0] = one.id, facts[1] = one.fault, facts[2] = (i64)one.found.size(), facts[3] = tokens;
    }
    return count;
}

// Hands over as many, the same ones: number of tokens, finished, log-probability and score of each hypothesis; tokens of
// all.
extern "C" void decoding_take(void *search, i64 count, i64 *lengths, i64 *finished, double *totals, double *scores,
                              i64 *tokens) {
    auto &done = ((Search *)search)->done;
    for (size_t i = done.size() - count; i < done.size(); i++)
        for (const Hypothesis &found : done[i]->found) {
            *lengths++ = (i64)found.tokens.size(), *finished++ = found.finished;
            *totals++ = (double)found.total, *scores++ = found.score;
            tokens = std::copy(found.tokens.begin(), found.tokens.end(), tokens);
        }
    done.resize(done.size() - count);
}
