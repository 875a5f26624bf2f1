// Combine, receive half: the origin sums in float32 and rounds once to bf16, or not at all. It also ends the step: the last block moves
// the slot's epoch on.
//
//   exact          the rows of a token are read where they are, in other ranks' memory, and summed in the order of k
//   de-duplicated  the partial sums lie here, one per rank, and are summed in the order of ranks
// After a fault every output is NaN, so that a replayed graph ends and nobody takes it for an answer.
#include "launch.cuh"
#include "rows.cuh"
#include "sync.cuh"

namespace tandem {

constexpr int AHEAD = 8;         // vectors in flight per lane
constexpr int RECV_THREADS = 448;  // two blocks of a multiprocessor with 72 registers a thread

// What lane k knows of entry k of a token. It is found before the wait: it depends on nobody else.
struct Entry {
    const __nv_bfloat16* row;  // exact: the answer, in the expert's rank; null where there is none
    float weight;
    int rank;  // de-duplicated: who sent a partial sum for it, or -1
};

template <bool DEDUP>
__device__ __forceinline__ Entry find_entry(const Params& p, uint64_t alive, int t) {
    const int lane = threadIdx.x % 32, i = t * p.topk + lane;
    if (lane >= p.topk) return {nullptr, 0.0f, -1};
    const int expert = expert_of(p, alive, i);
    if (expert < 0) return {nullptr, 0.0f, -1};
    const int rank = expert / p.local_experts;
    if constexpr (DEDUP) return {nullptr, 0.0f, rank};
    const int64_t at = p.dst_row[expert] + p.run_offset[i];
    return {reinterpret_cast<const __nv_bfloat16*>(p.region[rank] + p.y) + at * p.hidden, p.weights[i], rank};
}

// Columns summed by one warp, entry by entry.
template <bool F32>
__device__ __forceinline__ void sum_experts(const Params& p, const Entry& entry, int column, float* sum) {
    for (int first = 0; first < p.topk; first += AHEAD) {
        uint4 values[AHEAD];
        unsigned there = 0;
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
            const uint64_t from = __shfl_sync(~0u, reinterpret_cast<uint64_t>(entry.row), (first + j) % 32);
            if (first + j >= p.topk || from == 0 || column >= p.hidden) continue;
            there |= 1u << j;
            values[j] = load_once(reinterpret_cast<const __nv_bfloat16*>(from) + column);
        }
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
            const float weight = __shfl_sync(~0u, entry.weight, (first + j) % 32);
            if (there >> j & 1) add_weighted<F32>(sum, values[j], weight);
        }
    }
}

// Columns summed by one warp, rank by rank.
template <bool F32>
__device__ __forceinline__ void sum_partials(const Params& p, const Entry& entry, int t, int column, float* sum) {
    const __nv_bfloat16* partial = reinterpret_cast<const __nv_bfloat16*>(p.region[p.me] + p.partial);
    for (int first = 0; first < p.ranks; first += AHEAD) {
        uint4 values[AHEAD];
        unsigned there = 0;
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
            if (!__any_sync(~0u, entry.rank == first + j) || column >= p.hidden) continue;
            there |= 1u << j;
            values[j] = load_once(partial + (static_cast<int64_t>(first + j) * p.max_tokens + t) * p.hidden + column);
        }
#pragma unroll
        for (int j = 0; j < AHEAD; ++j)
            if (there >> j & 1) add<F32>(sum, values[j]);
    }
}

template <bool DEDUP, bool F32>
__global__ __launch_bounds__(RECV_THREADS, 2) void combine_recv_kernel(const __grid_constant__ Params p) {
    // Partial sums are announced by flags alone; rows that others read have to be complete before this rank says so.
    if constexpr (!DEDUP) begin_after_previous();
    const uint32_t epoch = p.state->epoch + 1;
    const uint64_t alive = *p.alive;
    bool sound = !__syncthreads_or(has_failed(p));
    if (sound && p.both_halves && blockIdx.x == 0 && threadIdx.x == 0) tell_all(p, alive, p.ready, epoch);
    constexpr int warps = RECV_THREADS / 32;
    const int lane = threadIdx.x % 32, tokens = min(max(*p.num_tokens, 0), p.given_tokens);
    const int slices = (p.hidden + SLICE_COLUMNS - 1) / SLICE_COLUMNS, step = gridDim.x * warps;
    int i = blockIdx.x * warps + threadIdx.x / 32;
    Entry entry = {nullptr, 0.0f, -1};
    if (sound && i < tokens * slices) entry = find_entry<DEDUP>(p, alive, i / slices);
    sound = sound && block_waits_for_all(p, alive, COMBINE, p.ready, epoch);
    for (; i < tokens * slices; i += step) {
        const int t = i / slices, column = i % slices * SLICE_COLUMNS + 8 * lane;
        float sum[8] = {};
        if (!sound) {
            for (float& s : sum) s = __int_as_float(0x7fc00000);
        } else if constexpr (DEDUP) {
            sum_partials<F32>(p, entry, t, column, sum);
        } else {
            sum_experts<F32>(p, entry, column, sum);
        }
        if (column < p.hidden)
            *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(p.out) + static_cast<int64_t>(t) * p.hidden + column) = pack<F32>(sum);
        if (sound && i + step < tokens * slices) entry = find_entry<DEDUP>(p, alive, (i + step) / slices);
    }
    if constexpr (DEDUP) begin_after_previous();
    __syncthreads();
    if (threadIdx.x != 0 || atomicAdd(&p.state->returned, 1u) != gridDim.x - 1) return;
    p.state->returned = 0u;
    if (sound) p.state->epoch = epoch;
}

}  // namespace tandem

extern "C" int tandem_combine_recv(const tandem::Params* p, int dedup, int blocks, void* stream) {
    using namespace tandem;
    const auto kernel = p->f32 ? (dedup ? combine_recv_kernel<true, true> : combine_recv_kernel<false, true>)
                               : (dedup ? combine_recv_kernel<true, false> : combine_recv_kernel<false, false>);
    return launch(kernel, blocks, RECV_THREADS, stream, *p);
}
