// The compiled search as a WebAssembly module.
//
// The interface is plain C functions on 32-bit numbers and addresses in the module's memory, for multihead.js. A model
// is read from the file that interop/formats/web.py writes: matrices are bytes with a largest number for each row.
// Everything else is decoding.cpp, without threads and exceptions. If memory runs out, or a size or an id is impossible,
// the module traps.

#include "decoding.cpp"

#define EXPORT(name) extern "C" __attribute__((export_name(#name)))

namespace {

enum Stored { MISSING = 0, NUMBERS = 1, BYTES = 2 };

struct Tensor {
    i64 kind, rows, columns, offset;
};

// The tensors of a file as float32, one after the other.
struct File {
    const uint8_t *data;
    std::vector<Tensor> tensors;
    std::vector<float> recent[4];  // a matrix, its bias, and room for more
    size_t next = 0;

    // Entries of magnitude 127 become exactly the largest number of the row, as in model_folder.py.
    static void read_bytes(const Tensor &one, const uint8_t *from, float *to) {
        const int8_t *bytes = (const int8_t *)from;
        const float *largest = (const float *)(from + round_up(one.rows * one.columns, 4));
        for (i64 r = 0; r < one.rows; r++) {
            const float most = largest[r], step = most / 127.f;
            for (i64 c = 0; c < one.columns; c++, bytes++, to++)
                *to = *bytes == 127 ? most : *bytes == -127 ? -most : (float)*bytes * step;
        }
    }
    void read(const Tensor &one, std::vector<float> &to) const {
        to.resize(one.rows * one.columns);
        if (one.kind == BYTES) read_bytes(one, data + one.offset, to.data());
        else memcpy(to.data(), data + one.offset, to.size() * sizeof(float));
    }
    const float *take() {
        const size_t at = next++;
        if (tensors[at].kind == MISSING) return nullptr;
        read(tensors[at], recent[at % 4]);
        return recent[at % 4].data();
    }
};

// Sinusoidal position vectors (models/layers.py), computed on demand, or learned ones from the file.
struct PositionTable {
    i64 width = 0, count = 0;
    bool learned = false;
    int layout = 0;  // 0 interleaved, 1 halves, 2 Marian's, 3 fairseq's
    std::vector<float> table;

    void reach(i64 positions) {
        if (learned || positions <= count) return;
        count = std::max(positions, 2 * count);
        table.resize(count * width);
        const i64 half = width / 2;
        const double steps = (double)(layout < 2 ? half : std::max<i64>(half - 1, 1));
        for (i64 i = 0; i < half; i++) {
            const double frequency = std::exp((double)i * (-std::log(10000.0) / steps));
            for (i64 t = 0; t < count; t++) {
                const double angle = (double)(t + (layout == 3 ? 2 : 0)) * frequency;
                float *to = &table[t * width + (layout == 0 ? 2 * i : i)];
                to[0] = (float)std::sin(angle), to[layout == 0 ? 1 : half] = (float)std::cos(angle);
            }
        }
    }
};

struct WebModel {
    std::unique_ptr<Model> model;
    std::vector<float> source, target;  // embeddings
    PositionTable positions[2];         // of the source, of the target
};

struct WebSearch {
    WebModel &model;
    std::unique_ptr<Search> search;

    // Makes room for positions up to `longest`.
    void place(i64 longest) {
        for (auto &one : model.positions) one.reach(longest);
        bind();
    }
    // The tables belong to the model, and another search may have moved them since.
    void bind() {
        const PositionTable &source = model.positions[0], &target = model.positions[1];
        decoding_positions(search.get(), 0, source.table.data(), source.count, target.table.data(), target.count);
    }
};

std::vector<i64> widened(const int32_t *from, i64 count) { return {from, from + count}; }

}  // namespace

EXPORT(allocate) void *web_allocate(int32_t bytes) { return malloc((size_t)bytes); }
EXPORT(release) void web_release(void *at) { free(at); }

// sizes: the fields of Sizes. scales: as decoding_model takes them. tensors: kind, rows, columns and offset in `data` of
// each tensor, in the order of engine/weights.py; then of the learned positions of source and target. tied: whether
// both sides have the same embeddings. layout: of sinusoidal positions. `data` may be released afterwards.
EXPORT(model) WebModel *web_model(const int32_t *sizes, int32_t fields, const float *scales, const int32_t *tensors,
                                  int32_t count, int32_t tied, int32_t layout, const uint8_t *data) {
    auto made = std::make_unique<WebModel>();
    File file{data, {}, {}};
    for (i64 i = 0; i < count; i++, tensors += 4) file.tensors.push_back({tensors[0], tensors[1], tensors[2], tensors[3]});
    const std::vector<i64> all = widened(sizes, fields);
    const Sizes &known = *(const Sizes *)all.data();
    if (!are_possible(known)) __builtin_trap();
    const size_t target = known.embedding_norm ? 3 : 1;
    file.read(file.tensors[0], made->source);
    if (!tied) file.read(file.tensors[target], made->target);
    const auto take = [&]() -> const float * {
        if (file.next != 0 && file.next != target) return file.take();
        return (file.next++ == 0 || tied ? made->source : made->target).data();
    };
    made->model = model_of(all.data(), scales, take);
    for (auto &one : made->positions) {
        one.width = known.rotary ? known.key : known.width, one.layout = layout;
        const Tensor &tensor = file.tensors[file.next++];
        if (tensor.kind == MISSING) continue;
        file.read(tensor, one.table);
        one.learned = true, one.count = tensor.rows;
    }
    return made.release();
}

EXPORT(model_free) void web_model_free(WebModel *model) { delete model; }

// Opens a search. numbers: beam, stopping rule, begin, end, capacity, penalty (0 power, 1 Wu et al.), longest, then the
// forbidden symbols. With a beam of 1 and exact stopping it is greedy search.
EXPORT(search) WebSearch *web_search(WebModel *model, const int32_t *given, int32_t count, double alpha,
                                     double patience) {
    const i64 beam = given[0], longest = given[6];
    const bool first_end = beam == 1 && given[1] == 0;
    std::vector<double> divisors{1.0};
    for (i64 length = 1; length <= longest; length++)
        divisors.push_back(std::pow(given[5] ? (double)(5 + length) / 6.0 : (double)length, alpha));
    const std::vector<i64> forbidden = widened(given + 7, count - 7);
    const i64 numbers[] = {1, beam, 1, first_end ? 2 : given[1], given[2], given[3], 1, given[4], PROBABILITIES, 1};
    const void *models[] = {model->model.get()}, *shortlists[] = {nullptr};
    const double shares[] = {1.0};
    void *opened = decoding_search(models, shortlists, shares, numbers, first_end ? 1.0 : patience, forbidden.data(),
                                   (i64)forbidden.size(), nullptr, 0, divisors.data(), (i64)divisors.size());
    if (!opened) __builtin_trap();
    auto made = std::make_unique<WebSearch>(WebSearch{*model, std::unique_ptr<Search>((Search *)opened)});
    made->place(longest);
    return made.release();
}

EXPORT(search_free) void web_search_free(WebSearch *search) { delete search; }

EXPORT(add) void web_add(WebSearch *search, int32_t id, const int32_t *words, int32_t count, int32_t limit,
                         int32_t minimum) {
    search->place(std::max<i64>(limit, count));
    const std::vector<i64> wide = widened(words, count);
    if (decoding_add(search->search.get(), id, wide.data(), count, limit, minimum)) __builtin_trap();
}

// Runs for about `seconds`; the number of sentences that are not done.
EXPORT(run) int32_t web_run(WebSearch *search, double seconds) {
    search->bind();
    return (int32_t)decoding_run(search->search.get(), seconds);
}

// Number of symbols of one of the finished sentences; -1 if there is none.
EXPORT(next) int32_t web_next(WebSearch *search) {
    i64 facts[4];
    return decoding_next(search->search.get(), 1, facts) ? (int32_t)facts[3] : -1;
}

// Hands it over: id, fault and whether it is finished; log-probability and score; symbols.
EXPORT(take) void web_take(WebSearch *search, int32_t *facts, double *scores, int32_t *symbols) {
    i64 known[4], length[1] = {}, finished[1] = {};
    decoding_next(search->search.get(), 1, known);
    std::vector<i64> tokens(known[3]);
    decoding_take(search->search.get(), 1, length, finished, scores, scores + 1, tokens.data());
    facts[0] = (int32_t)known[0], facts[1] = (int32_t)known[1], facts[2] = (int32_t)finished[0];
    std::copy(tokens.begin(), tokens.end(), symbols);
}
