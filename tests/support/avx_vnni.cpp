// Emulates AVX-VNNI's vpdpbusd on a processor with AVX2 but without it: preloaded into a program (LD_PRELOAD), so that
// the code compiled for `avx-vnni` can be tested there. Each such instruction raises SIGILL; the handler computes it on
// the registers in the signal's frame and continues behind it. Any other unknown instruction ends the program.

#include <cpuid.h>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <ucontext.h>

namespace {

// The general registers by their number in an instruction.
const int GENERAL[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                         REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
unsigned high_halves;  // where the upper 128 bits of the vector registers are in a saved state

struct Vector {
    uint8_t bytes[32];
};

Vector read(const char *state, const _libc_fpstate *low, int number) {
    Vector found;
    memcpy(found.bytes, &low->_xmm[number], 16);
    memcpy(found.bytes + 16, state + high_halves + 16 * number, 16);
    return found;
}

void write(char *state, _libc_fpstate *low, int number, const Vector &value) {
    memcpy(&low->_xmm[number], value.bytes, 16);
    memcpy(state + high_halves + 16 * number, value.bytes + 16, 16);
}

[[noreturn]] void give_up() {
    signal(SIGILL, SIG_DFL);
    raise(SIGILL);
    __builtin_unreachable();
}

void emulate(int, siginfo_t *, void *given) {
    mcontext_t &machine = ((ucontext_t *)given)->uc_mcontext;
    const uint8_t *code = (const uint8_t *)machine.gregs[REG_RIP];
    // VEX with three bytes, map 0F38, prefix 66, W0, opcode 50.
    if (code[0] != 0xc4 || (code[1] & 31) != 2 || (code[2] & 0x83) != 1 || code[3] != 0x50) give_up();
    const bool wide = code[2] & 4;
    const int more_r = ~code[1] >> 4 & 8, more_x = ~code[1] >> 3 & 8, more_b = ~code[1] >> 2 & 8;
    const int mode = code[4] >> 6, target = (code[4] >> 3 & 7) | more_r, third = code[4] & 7;
    const uint8_t *next = code + 5;

    _libc_fpstate *low = machine.fpregs;
    char *state = (char *)low;
    const Vector x = read(state, low, ~code[2] >> 3 & 15);
    Vector sum = read(state, low, target), w{};
    if (mode == 3) {
        w = read(state, low, third | more_b);
    } else {
        const auto general = [&](int number) { return (intptr_t)machine.gregs[GENERAL[number]]; };
        intptr_t place = 0;
        bool relative = false;
        int base = third | more_b;
        if (third == 4) {  // a byte with scale, index and base
            const int index = (*next >> 3 & 7) | more_x;
            if (index != 4) place = general(index) << (*next >> 6);
            base = (*next & 7) | more_b;
            if ((*next++ & 7) == 5 && mode == 0) base = -1;
        } else if (third == 5 && mode == 0) {
            base = -1, relative = true;
        }
        if (base >= 0) place += general(base);
        if (mode == 1) place += (int8_t)*next++;
        if (mode == 2 || base < 0) {
            int32_t offset;
            memcpy(&offset, next, 4);
            next += 4, place += offset;
        }
        if (relative) place += (intptr_t)next;
        memcpy(w.bytes, (const void *)place, wide ? 32 : 16);
    }
    for (int lane = 0; lane < 8; lane++) {
        uint32_t one;
        memcpy(&one, sum.bytes + 4 * lane, 4);
        for (int byte = 4 * lane; byte < 4 * lane + 4; byte++) one += (uint32_t)(x.bytes[byte] * (int8_t)w.bytes[byte]);
        if (lane >= 4 && !wide) one = 0;
        memcpy(sum.bytes + 4 * lane, &one, 4);
    }
    write(state, low, target, sum);
    ((uint64_t *)(state + 512))[0] |= 7;  // the saved state holds x87, low and high halves: restore them
    machine.gregs[REG_RIP] = (greg_t)next;
}

__attribute__((constructor)) void begin() {
    unsigned size = 0, c = 0, d = 0;
    __cpuid_count(13, 2, size, high_halves, c, d);
    struct sigaction action = {};
    action.sa_sigaction = emulate;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGILL, &action, nullptr);
}

}  // namespace
