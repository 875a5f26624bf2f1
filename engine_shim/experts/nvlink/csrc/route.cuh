// Route and count, by one block: where each entry of the top-k goes, on this rank and on the expert's.
//
//   1 each warp takes a stretch of the entries and counts them per expert
//   2 a thread per expert sums the warps: the rank's counts; they leave for every peer as words tagged with the epoch
//   3 each warp places its entries, 32 at a time; equal experts among the 32 are found by match_any, so the order inside
//     a run is the order of the entries and never depends on timing
//   4 a thread per expert reads what every source counted: rows per expert, padded starts, first row of each run
//
// A peer's counts and rows of the step before are no longer needed when this rank writes: the step before has ended
// here, so every peer has told that it is ready to combine, which it does after it has read all that.
#pragma once
#include "sync.cuh"

namespace tandem {

struct RouteShared {
    int run[WARPS][MAX_EXPERTS];
    int start[THREADS + 1];
    __align__(16) int warp_sum[WARPS];
};

constexpr int ROUTE_AHEAD = 8;  // loads in flight per lane

// Entries begin .. end - 1 of one warp, 32 * ROUTE_AHEAD at a time: `each(i, expert)` in the order of entries.
template <typename Each>
__device__ __forceinline__ void for_stretch(const Params& p, uint64_t alive, int begin, int end, Each each) {
    const int lane = threadIdx.x % 32;
    for (int at = begin; at < end; at += 32 * ROUTE_AHEAD) {
        int expert[ROUTE_AHEAD];
#pragma unroll
        for (int j = 0; j < ROUTE_AHEAD; ++j) {
            const int i = at + 32 * j + lane;
            expert[j] = i < end ? expert_of(p, alive, i) : -1;
        }
#pragma unroll
        for (int j = 0; j < ROUTE_AHEAD; ++j)
            if (at + 32 * j < end) each(at + 32 * j + lane, expert[j]);
    }
}

// Exclusive sum over the block's threads: shared.start[i] for thread i, shared.start[THREADS] over all.
__device__ __forceinline__ void scan_starts(RouteShared& shared, int value) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int sum = value;
    for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(~0u, sum, d);
        if (lane >= d) sum += other;
    }
    if (lane == 31) shared.warp_sum[warp] = sum;
    __syncthreads();
    int before = 0;
    for (int w = 0; w < warp; ++w) before += shared.warp_sum[w];
    shared.start[threadIdx.x] = before + sum - value;
    if (threadIdx.x == THREADS - 1) shared.start[THREADS] = before + sum;
    __syncthreads();
}

// The counts of this rank have left, and every run_offset is final; with `tell`, the other blocks know. False after a
// fault, and then nothing has left: no peer may take half a step for a whole one.
__device__ __forceinline__ bool route_here(const Params& p, uint64_t alive, RouteShared& shared, int tokens, uint32_t epoch, bool tell) {
    const int entries = tokens * p.topk, tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    int* run = shared.run[warp];
    for (int i = lane; i < p.experts; i += 32) run[i] = 0;
    __syncwarp();
    const int stretch = (entries + 32 * WARPS - 1) / (32 * WARPS) * 32;
    const int begin = min(warp * stretch, entries), end = min(begin + stretch, entries);
    for_stretch(p, alive, begin, end, [&](int i, int expert) {
        if (expert >= 0)
            atomicAdd(run + expert, 1);
        else if (i < end && (named_expert(p, i) < -1 || named_expert(p, i) >= p.experts))
            report(p, BAD_EXPERT, COUNTS, p.me, p.experts, i);
    });
    if (__syncthreads_or(has_failed(p))) return false;
    if (tid < p.experts) {
        int sum = 0;
        for (int w = 0; w < WARPS; ++w) {
            const int own = shared.run[w][tid];
            shared.run[w][tid] = sum;
            sum += own;
        }
        for (int r = 0; r < p.ranks; ++r)
            if (is_alive(alive, r)) store_tagged(count_row(p, r, p.me) + tid, epoch, sum);
    }
    for (int r = tid; r < p.ranks; r += THREADS)
        if (is_alive(alive, r)) store_tagged(count_row(p, r, p.me) + p.experts, epoch, tokens);
    __syncthreads();
    for_stretch(p, alive, begin, end, [&](int i, int expert) {
        const unsigned equal = __match_any_sync(~0u, expert);
        const int before = __popc(equal & ((1u << lane) - 1));
        if (i < end) p.run_offset[i] = expert < 0 ? -1 : run[expert] + before;
        __syncwarp();
        if (expert >= 0 && before == 0) run[expert] += __popc(equal);
        __syncwarp();
    });
    if (!tell) return true;
    __syncthreads();
    if (tid == 0) store_release_gpu(&p.state->routed, epoch);
    return true;
}

// Rows of expert `e` from all sources, and from those before this rank; false after a fault.
__device__ __forceinline__ bool gather_counts(const Params& p, uint64_t alive, int e, uint32_t epoch, int* rows, int* before) {
    constexpr int AT_ONCE = 8;
    for (int first = 0; first < p.ranks; first += AT_ONCE) {
        uint64_t words[AT_ONCE];
        const bool here = spin(p, COUNTS, epoch, [&] {
            bool all = true;
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j) {
                const bool awaited = first + j < p.ranks && is_alive(alive, first + j);
                words[j] = awaited ? load_tagged(count_row(p, p.me, first + j) + e) : static_cast<uint64_t>(epoch) << 32;
            }
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j) all = all && has_tag(words[j], epoch);
            return all;
        });
        if (!here) return false;
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j) {
            *rows += value_of(words[j]);
            if (first + j < p.me) *before += value_of(words[j]);
        }
    }
    return true;
}

// What the receive half and the experts need of the plan.
__device__ __forceinline__ bool tell_experts(const Params& p, uint64_t alive, int e, uint32_t epoch, int rows, int start, int end) {
    bool here = true;
    for (int s = e; s < p.ranks; s += THREADS) {
        uint64_t word = static_cast<uint64_t>(epoch) << 32;
        if (is_alive(alive, s))
            here = spin(p, COUNTS, epoch, [&] { return has_tag(word = load_tagged(count_row(p, p.me, s) + p.experts), epoch); }) && here;
        p.src_tokens[s] = value_of(word);
    }
    if (e >= p.experts || e / p.local_experts != p.me) return here;
    const int local = e % p.local_experts;
    p.expert_rows[local] = rows;
    p.expert_start[local] = start;
    if (local == p.local_experts - 1) p.expert_start[p.local_experts] = end;
    for (int s = 0; s < p.ranks; ++s) {
        p.src_row[s * p.local_experts + local] = start;
        if (is_alive(alive, s)) start += value_of(load_tagged(count_row(p, p.me, s) + e));
    }
    return here;
}

// True when the counts of all living ranks are here and the plan of this step is written.
__device__ __forceinline__ bool plan_all(const Params& p, uint64_t alive, RouteShared& shared, uint32_t epoch) {
    const int e = threadIdx.x;
    int rows = 0, before = 0;
    const bool here = e >= p.experts || gather_counts(p, alive, e, epoch, &rows, &before);
    if (!__syncthreads_and(here)) return false;
    scan_starts(shared, (rows + p.align - 1) / p.align * p.align);
    const int first = e < p.experts ? shared.start[e / p.local_experts * p.local_experts] : 0;
    if (e < p.experts) p.dst_row[e] = shared.start[e] - first + before;
    __syncthreads();
    if (e == 0) store_release_gpu(&p.state->planned, epoch);
    const bool told = tell_experts(p, alive, e, epoch, rows, shared.start[e] - first, shared.start[e + 1] - first);
    if (!__syncthreads_and(told)) return false;
    if (e == 0) store_release_gpu(&p.state->told, epoch);
    return true;
}

}  // namespace tandem
