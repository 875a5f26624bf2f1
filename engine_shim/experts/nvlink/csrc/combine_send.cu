// Combine, send half.
//
//   exact          the experts' rows stay here and the origins read them: tell every rank that they are ready. Rows that
//                  the engine left in its own memory are copied first.
//   de-duplicated  per staged token the weighted rows of this rank's experts are summed in float32, in the order of k,
//                  rounded once to what travels and stored into the origin's memory; then the flags
#include "launch.cuh"
#include "rows.cuh"
#include "sync.cuh"

namespace tandem {

// The engine gave a row for every slot; with fewer the rows behind them would be read.
__device__ __forceinline__ bool has_answers(const Params& p) {
    const int slots = p.expert_start[p.local_experts];
    if (slots <= p.given_rows) return true;
    if (blockIdx.x == 0 && threadIdx.x == 0) report(p, TOO_FEW_ANSWERS, COMBINE, p.me, slots, p.given_rows);
    return false;
}

__global__ __launch_bounds__(THREADS, 2) void combine_ready_kernel(const __grid_constant__ Params p) {
    begin_after_previous();
    if (has_failed(p) || !has_answers(p)) return;
    const uint32_t epoch = p.state->epoch + 1;
    const uint64_t alive = *p.alive;
    if (p.copy_expert_out) {
        const int64_t vectors = static_cast<int64_t>(p.expert_start[p.local_experts]) * p.hidden / 8;
        const uint4* from = static_cast<const uint4*>(p.expert_out);
        uint4* to = reinterpret_cast<uint4*>(p.region[p.me] + p.y);
        for (int64_t i = blockIdx.x * THREADS + threadIdx.x; i < vectors; i += static_cast<int64_t>(gridDim.x) * THREADS) to[i] = from[i];
    }
    last_block_tells_all(p, alive, &p.state->reduced, gridDim.x, p.ready, epoch);
}

// One warp's slice of a staged token's partial sum. Lane k knows where entry k was spread to.
struct Slice {
    int source, t, column, row;
    float weight;
};

__device__ __forceinline__ Slice find_slice(const Params& p, uint64_t alive, int i) {
    const int lane = threadIdx.x % 32, slices = (p.hidden + SLICE_COLUMNS - 1) / SLICE_COLUMNS;
    // Sources take turns, beginning with the next rank, so that all links are busy from the first slice on.
    const int source = (p.me + 1 + i / slices % p.ranks) % p.ranks;
    Slice slice = {source, i / slices / p.ranks, i % slices * SLICE_COLUMNS + 8 * lane, -1, 0.0f};
    if (lane >= p.topk || !is_alive(alive, slice.source) || slice.t >= p.src_tokens[slice.source]) return slice;
    const int64_t staged = static_cast<int64_t>(slice.source) * p.max_tokens + slice.t;
    const char* route = p.region[p.me] + p.stage_route + staged * route_bytes(p);
    slice.row = p.landed_row[staged * p.topk + lane];
    slice.weight = reinterpret_cast<const float*>(route)[2 * p.topk + lane];
    return slice;
}

template <bool F32>
__device__ __forceinline__ void reduce_slice(const Params& p, const Slice& slice) {
    constexpr int AHEAD = 4;
    unsigned holders = __ballot_sync(~0u, slice.row >= 0);
    if (!holders) return;
    const __nv_bfloat16* rows = static_cast<const __nv_bfloat16*>(p.expert_out) + slice.column;
    float sum[8] = {};
    while (holders) {
        uint4 values[AHEAD];
        float weights[AHEAD];
        const int n = min(AHEAD, __popc(holders));
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) {
            if (j >= n) break;
            const int k = __ffs(holders) - 1;
            holders &= holders - 1;
            const int64_t from = __shfl_sync(~0u, slice.row, k);
            weights[j] = __shfl_sync(~0u, slice.weight, k);
            if (slice.column < p.hidden) values[j] = load_once(rows + from * p.hidden);
        }
#pragma unroll
        for (int j = 0; j < AHEAD; ++j)
            if (j < n) add_weighted<F32>(sum, values[j], weights[j]);
    }
    if (slice.column >= p.hidden) return;
    __nv_bfloat16* to = reinterpret_cast<__nv_bfloat16*>(p.region[slice.source] + p.partial);
    *reinterpret_cast<uint4*>(to + (static_cast<int64_t>(p.me) * p.max_tokens + slice.t) * p.hidden + slice.column) = pack<F32>(sum);
}

template <bool F32>
__global__ __launch_bounds__(THREADS, 2) void combine_reduce_kernel(const __grid_constant__ Params p) {
    begin_after_previous();
    if (has_failed(p) || !has_answers(p)) return;
    const uint32_t epoch = p.state->epoch + 1;
    const uint64_t alive = *p.alive;
    int most = 0;
    for (int s = 0; s < p.ranks; ++s) most = max(most, p.src_tokens[s]);
    const int items = p.ranks * most * ((p.hidden + SLICE_COLUMNS - 1) / SLICE_COLUMNS), step = gridDim.x * WARPS;
    int i = blockIdx.x * WARPS + threadIdx.x / 32;
    Slice next = i < items ? find_slice(p, alive, i) : Slice{};
    for (; i < items; i += step) {
        const Slice slice = next;
        // The next slice is looked up while this one's rows are on their way.
        if (i + step < items) next = find_slice(p, alive, i + step);
        reduce_slice<F32>(p, slice);
    }
    last_block_tells_all(p, alive, &p.state->reduced, gridDim.x, p.ready, epoch);
}

}  // namespace tandem

extern "C" int tandem_combine_send(const tandem::Params* p, int dedup, int blocks, void* stream) {
    using namespace tandem;
    if (dedup) return launch(p->f32 ? combine_reduce_kernel<true> : combine_reduce_kernel<false>, blocks, THREADS, stream, *p);
    return launch(combine_ready_kernel, p->copy_expert_out ? blocks : 1, p->copy_expert_out ? THREADS : 128, stream, *p);
}
