// Dispatch, receive half. Exact: wait until every source's rows have landed; they are where they belong. De-duplicated:
// wait, then spread each staged row to the local experts that want it.
#include "launch.cuh"
#include "rows.cuh"
#include "sync.cuh"

namespace tandem {

constexpr int SLICE_BYTES = 1024;  // of a row, by one warp: two 16-byte vectors a lane

__global__ __launch_bounds__(128) void dispatch_wait_kernel(const __grid_constant__ Params p) {
    begin_after_previous();
    if (has_failed(p)) return;
    block_waits_for_all(p, *p.alive, DISPATCH, p.arrived, all_chunks(p, p.state->epoch + 1));
}

// A slice of one staged row, by one warp; lane k knows where entry k goes, -1 when another rank has its expert. Two vectors
// of each lane are its bytes.
struct Spread {
    int slice, row;
    int64_t staged;
    uint4 low, high;
};

__device__ __forceinline__ Spread find_spread(const Params& p, uint64_t alive, int chunk, int i, int slices) {
    const int lane = threadIdx.x % 32, source = i / slices % p.ranks, place = i / slices / p.ranks;
    const int tokens = __ldcg(p.src_tokens + source), chunk_tokens = (tokens + p.chunks - 1) / p.chunks, t = chunk * chunk_tokens + place;
    Spread spread = {i % slices, -1, static_cast<int64_t>(source) * p.max_tokens + t};
    if (!is_alive(alive, source) || place >= chunk_tokens || t >= tokens) return spread;
    // The bytes are under way before it is known who wants them: nearly always somebody does.
    const int bytes = row_bytes(p), at = spread.slice * SLICE_BYTES + 16 * lane;
    const char* from = p.region[p.me] + p.stage_x + spread.staged * bytes;
    if (at < bytes) spread.low = load_once(from + at);
    if (at + SLICE_BYTES / 2 < bytes) spread.high = load_once(from + at + SLICE_BYTES / 2);
    if (lane >= p.topk) return spread;
    const uint32_t* route = reinterpret_cast<const uint32_t*>(p.region[p.me] + p.stage_route + spread.staged * route_bytes(p));
    const int expert = static_cast<int>(route[lane]), offset = static_cast<int>(route[p.topk + lane]);
    if (expert >= 0 && expert / p.local_experts == p.me)
        spread.row = __ldcg(p.src_row + source * p.local_experts + expert % p.local_experts) + offset;
    if (spread.slice == 0) p.landed_row[spread.staged * p.topk + lane] = spread.row;
    return spread;
}

__device__ __forceinline__ void spread_scales(const Params& p, const Spread& spread, unsigned holders) {
    const float* from = reinterpret_cast<const float*>(p.region[p.me] + p.stage_scale) + spread.staged * num_scales(p);
    float* to = reinterpret_cast<float*>(p.region[p.me] + p.scale);
    for (int first = 0; first < num_scales(p); first += 32) {
        const int i = first + threadIdx.x % 32;
        const bool there = i < num_scales(p);
        const float scale = there ? from[i] : 0.0f;
        for (unsigned left = holders; left; left &= left - 1) {
            const int64_t row = __shfl_sync(~0u, spread.row, __ffs(left) - 1);
            if (there) to[row * num_scales(p) + i] = scale;
        }
    }
}

__device__ __forceinline__ void spread_slice(const Params& p, const Spread& spread) {
    const unsigned holders = __ballot_sync(~0u, spread.row >= 0);
    if (!holders) return;
    const int bytes = row_bytes(p), at = spread.slice * SLICE_BYTES + 16 * (threadIdx.x % 32), next = at + SLICE_BYTES / 2;
    for (unsigned left = holders; left; left &= left - 1) {
        char* target = p.region[p.me] + p.x + static_cast<int64_t>(__shfl_sync(~0u, spread.row, __ffs(left) - 1)) * bytes;
        if (at < bytes) *reinterpret_cast<uint4*>(target + at) = spread.low;
        if (next < bytes) *reinterpret_cast<uint4*>(target + next) = spread.high;
    }
    if (p.fp8 && spread.slice == 0) spread_scales(p, spread, holders);
}

// The staged rows of one chunk of every source, once they are here.
__device__ __forceinline__ bool spread_chunk(const Params& p, uint64_t alive, int chunk, uint32_t epoch) {
    if (!block_waits_for_all(p, alive, DISPATCH, p.arrived, p.chunks * epoch + chunk + 1)) return false;
    int most = 0;
    for (int s = 0; s < p.ranks; ++s) most = max(most, (__ldcg(p.src_tokens + s) + p.chunks - 1) / p.chunks);
    const int slices = (row_bytes(p) + SLICE_BYTES - 1) / SLICE_BYTES, items = p.ranks * most * slices, step = gridDim.x * WARPS;
    int i = blockIdx.x * WARPS + threadIdx.x / 32;
    Spread next = i < items ? find_spread(p, alive, chunk, i, slices) : Spread{0, -1};
    for (; i < items; i += step) {
        const Spread spread = next;
        // The next slice is looked up while this one's bytes are on their way.
        if (i + step < items) next = find_spread(p, alive, chunk, i + step, slices);
        spread_slice(p, spread);
    }
    return true;
}

// It begins beside the send half where it can: it awaits that one's plan and the arrivals, not its end.
__global__ __launch_bounds__(THREADS, 2) void dispatch_spread_kernel(const __grid_constant__ Params p) {
    const uint32_t epoch = p.state->epoch + 1;
    const uint64_t alive = *p.alive;
    const uint32_t* told = &p.state->told;
    const auto here = [&] { return load_acquire_gpu(told) == epoch; };
    bool sound = !__syncthreads_or(has_failed(p));
    sound = sound && __syncthreads_and(threadIdx.x != 0 || spin(p, COUNTS, epoch, here));
    for (int chunk = 0; sound && chunk < p.chunks; ++chunk) sound = spread_chunk(p, alive, chunk, epoch);
    begin_after_previous();
}

}  // namespace tandem

extern "C" int tandem_dispatch_recv(const tandem::Params* p, int dedup, int blocks, void* stream) {
    using namespace tandem;
    return dedup ? launch(dispatch_spread_kernel, blocks, THREADS, stream, *p) : launch(dispatch_wait_kernel, 1, 128, stream, *p);
}
