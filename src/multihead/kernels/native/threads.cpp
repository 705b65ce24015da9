// The threads of compiled code are those of PyTorch's OpenMP library.
//
// A file that is linked to an OpenMP library names one, and PyTorch's has another name in each of its builds; two of them
// in a process would compete for the cores. Instead, these functions, which g++ calls for `omp parallel`, call those of
// the library that PyTorch has loaded: `use_threads` gets their addresses. Before that, everything runs on one thread.

typedef void (*Parallel)(void (*work)(void *), void *data, unsigned threads, unsigned flags);
typedef int (*Number)();

static Parallel parallel;
static Number thread, threads;

extern "C" void use_threads(Parallel its_parallel, Number its_thread, Number its_threads) {
    parallel = its_parallel, thread = its_thread, threads = its_threads;
}

#pragma GCC visibility push(hidden)
extern "C" {
void GOMP_parallel(void (*work)(void *), void *data, unsigned wanted, unsigned flags) {
    parallel ? parallel(work, data, wanted, flags) : work(data);
}
int omp_get_thread_num() { return thread ? thread() : 0; }
int omp_get_num_threads() { return threads ? threads() : 1; }
}
#pragma GCC visibility pop
