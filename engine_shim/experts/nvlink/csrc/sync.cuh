// Words that ranks share: how they are written, read and awaited. Order is by release and acquire at system scope only.
#pragma once
#include "params.cuh"

namespace tandem {

__device__ __forceinline__ void fence_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
__device__ __forceinline__ void store_sys(uint32_t* word, uint32_t value) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
__device__ __forceinline__ uint32_t load_acquire_sys(const uint32_t* word) {
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}
__device__ __forceinline__ void store_release_gpu(uint32_t* word, uint32_t value) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
__device__ __forceinline__ uint32_t load_acquire_gpu(const uint32_t* word) {
    uint32_t value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}
// A word that carries its own epoch: 64 bits are written and read at once, so no flag has to follow it.
__device__ __forceinline__ void store_tagged(uint64_t* word, uint32_t epoch, uint32_t value) {
    const uint64_t both = (static_cast<uint64_t>(epoch) << 32) | value;
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(both) : "memory");
}
__device__ __forceinline__ uint64_t load_tagged(const uint64_t* word) {
    uint64_t both;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(both) : "l"(word) : "memory");
    return both;
}
__device__ __forceinline__ bool has_tag(uint64_t both, uint32_t epoch) { return static_cast<uint32_t>(both >> 32) == epoch; }
__device__ __forceinline__ int value_of(uint64_t both) { return static_cast<int>(both & 0xffffffffu); }

__device__ __forceinline__ uint64_t clock_ns() {
    uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

// `from` writes this word in the memory of `rank`.
__device__ __forceinline__ uint32_t* flag_word(const Params& p, int rank, int64_t offset, int from) {
    return reinterpret_cast<uint32_t*>(p.region[rank] + offset + 32 * from);
}
// The counts of rank `from` in the memory of `rank`: a word per expert, then one with its tokens.
__device__ __forceinline__ uint64_t* count_row(const Params& p, int rank, int from) {
    return reinterpret_cast<uint64_t*>(p.region[rank] + p.counts) + static_cast<int64_t>(from) * (p.experts + 1);
}
// Flags of dispatch count chunks: all of epoch e have come at chunks * (e + 1), the first of them at chunks * e + 1.
__device__ __forceinline__ uint32_t all_chunks(const Params& p, uint32_t epoch) { return p.chunks * (epoch + 1); }
// Numbers wrap; the difference tells which is later.
__device__ __forceinline__ bool has_come(uint32_t seen, uint32_t epoch) { return static_cast<int32_t>(seen - epoch) >= 0; }

__device__ __forceinline__ bool has_failed(const Params& p) { return *static_cast<volatile uint32_t*>(p.error) != 0u; }

// A rank that was given what cannot be done says so to the living ones, or they would wait for it until their deadline.
// Whoever hears of it also sees what this rank has told before.
__device__ __forceinline__ void refuse_to_all(const Params& p) {
    fence_sys();
    for (int r = 0; r < p.ranks; ++r)
        if (r != p.me && is_alive(*p.alive, r)) store_sys(reinterpret_cast<uint32_t*>(p.region[r] + p.refused), p.me + 1);
}

// The first fault is kept; everything after it ends at once.
static __device__ __noinline__ void report(const Params& p, Fault fault, Phase phase, int peer, uint32_t expected, uint32_t seen) {
    if (atomicCAS(p.error, 0u, static_cast<uint32_t>(fault)) != 0u) return;
    volatile Status* status = p.status;
    status->phase = phase;
    status->peer = peer;
    status->epoch = p.state->epoch + 1;
    status->expected = expected;
    status->seen = seen;
    __threadfence_system();
    status->fault = fault;
    if (fault != TIMED_OUT && fault != PEER_REFUSED) refuse_to_all(p);
}
// The living peer that has refused, or -1.
__device__ __forceinline__ int refuser(const Params& p) {
    const int said = static_cast<int>(load_acquire_sys(reinterpret_cast<const uint32_t*>(p.region[p.me] + p.refused))) - 1;
    return said >= 0 && is_alive(*p.alive, said) ? said : -1;
}
// Names the first living rank that has not come in this phase, and says how many were awaited and how many have come.
static __device__ __noinline__ void report_late(const Params& p, Phase phase, uint32_t epoch) {
    uint32_t expected = 0, seen = 0;
    int missing = p.me;
    for (int s = p.ranks - 1; s >= 0; --s) {
        if (!is_alive(*p.alive, s)) continue;
        ++expected;
        const int64_t offset = phase == DISPATCH ? p.arrived : p.ready;
        const bool here = phase == COUNTS ? has_tag(load_tagged(count_row(p, p.me, s) + p.experts), epoch)
                                          : has_come(load_acquire_sys(flag_word(p, p.me, offset, s)), epoch);
        seen += here;
        if (!here) missing = s;
    }
    report(p, TIMED_OUT, phase, missing, expected, seen);
}

// A bounded spin: `ready()` is asked until it says yes, somebody reports a fault or refuses, or the deadline passes.
template <typename Ready>
__device__ __forceinline__ bool spin(const Params& p, Phase phase, uint32_t epoch, Ready ready) {
    if (ready()) return true;
    const uint64_t deadline = clock_ns() + p.timeout_ns;
    for (uint32_t turn = 1;; ++turn) {
        if (ready()) return true;
        if (turn % 64 != 0) continue;
        if (has_failed(p)) return false;
        if (const int who = refuser(p); who >= 0) {
            // It may have refused a later step, and have done all of this one.
            if (ready()) return true;
            report(p, PEER_REFUSED, REFUSED, who, 0, 0);
            return false;
        }
        if (clock_ns() > deadline) {
            report_late(p, phase, epoch);
            return false;
        }
    }
}

// All threads of the block: true when the flag of every living rank has reached `epoch`; what they wrote before is visible.
__device__ __forceinline__ bool block_waits_for_all(const Params& p, uint64_t alive, Phase phase, int64_t offset, uint32_t epoch) {
    bool here = true;
    for (int s = threadIdx.x; s < p.ranks; s += blockDim.x)
        if (is_alive(alive, s)) {
            const uint32_t* word = flag_word(p, p.me, offset, s);
            here = spin(p, phase, epoch, [&] { return has_come(load_acquire_sys(word), epoch); }) && here;
        }
    return __syncthreads_and(here);
}

// One thread, after a barrier of those whose stores it announces: one flag at every living rank.
__device__ __forceinline__ void tell_all(const Params& p, uint64_t alive, int64_t offset, uint32_t epoch) {
    fence_sys();
    for (int r = 0; r < p.ranks; ++r)
        if (is_alive(alive, r)) store_sys(flag_word(p, r, offset, p.me), epoch);
}

// All threads of the block, after their last store to peers: the last of `blocks` blocks tells every living rank.
__device__ __forceinline__ void last_block_tells_all(const Params& p, uint64_t alive, uint32_t* done, uint32_t blocks, int64_t offset,
                                                     uint32_t epoch) {
    __syncthreads();
    if (threadIdx.x != 0) return;
    fence_sys();
    if (atomicAdd(done, 1u) != blocks - 1) return;
    *done = 0u;
    tell_all(p, alive, offset, epoch);
}

// The live token count; more than the buffers hold is a fault.
__device__ __forceinline__ int live_tokens(const Params& p) {
    const int n = *p.num_tokens;
    if (n <= p.given_tokens && n >= 0) return n;
    if (threadIdx.x == 0) report(p, TOO_MANY_TOKENS, COUNTS, p.me, p.given_tokens, n);
    return 0;
}

}  // namespace tandem
