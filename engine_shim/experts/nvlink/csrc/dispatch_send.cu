// Dispatch, send half: block 0 routes and plans, the others quantise tokens and store them into the experts' ranks.
//
//   exact          one row per (token, expert), straight to its final place; it waits for the plan of all ranks' counts
//   de-duplicated  one row per (token, rank), to the place of this rank's token in the stage there; its
//                  routing, run offsets and weights, follows as soon as block 0 knows it
// When a block has sent its tokens it counts itself in; the last one raises one flag per destination.
#include "bulk.cuh"
#include "launch.cuh"
#include "route.cuh"
#include "rows.cuh"

namespace tandem {

constexpr int BULK_TOKENS = 384;  // from so many on a warp takes a part of a token by itself

struct SendShared {
    char* row[MAX_RANKS];
    char* scale_row[MAX_RANKS];
    __align__(16) float scale[MAX_SCALES];
};

// Where the copies of token t go; null where there is none. Copies are top-k entries, or ranks when de-duplicated.
template <bool DEDUP>
__device__ __forceinline__ void place_copies(const Params& p, uint64_t alive, int t, SendShared& shared) {
    const int tid = threadIdx.x;
    if constexpr (!DEDUP) {
        if (tid >= p.topk) return;
        const int i = t * p.topk + tid, expert = expert_of(p, alive, i);
        char* row = nullptr;
        if (expert >= 0) {
            const int64_t at = __ldcg(p.dst_row + expert) + __ldcg(p.run_offset + i);
            char* base = p.region[expert / p.local_experts];
            row = base + p.x + at * row_bytes(p);
            shared.scale_row[tid] = base + p.scale + at * num_scales(p) * 4;
        }
        shared.row[tid] = row;
    } else {
        for (int r = tid; r < p.ranks; r += THREADS) {
            bool wanted = false;
            for (int k = 0; k < p.topk; ++k) {
                const int expert = expert_of(p, alive, t * p.topk + k);
                wanted = wanted || (expert >= 0 && expert / p.local_experts == r);
            }
            const int64_t at = static_cast<int64_t>(p.me) * p.max_tokens + t;
            shared.row[r] = wanted ? p.region[r] + p.stage_x + at * row_bytes(p) : nullptr;
            shared.scale_row[r] = p.region[r] + p.stage_scale + at * num_scales(p) * 4;
        }
    }
}

__device__ __forceinline__ void store_scales(const Params& p, const SendShared& shared, int copies) {
    // The last threads do it: the first ones still store columns.
    const int tid = THREADS - 1 - threadIdx.x, scales = num_scales(p);
    if (scales % 4 == 0) {
        const int vectors = scales / 4;
        for (int j = tid; j < copies * vectors; j += THREADS) {
            const int copy = j / vectors, v = j % vectors;
            if (shared.row[copy]) reinterpret_cast<uint4*>(shared.scale_row[copy])[v] = reinterpret_cast<const uint4*>(shared.scale)[v];
        }
    } else {
        for (int j = tid; j < copies * scales; j += THREADS) {
            const int copy = j / scales, v = j % scales;
            if (shared.row[copy]) reinterpret_cast<float*>(shared.scale_row[copy])[v] = shared.scale[v];
        }
    }
}

// Word `w` of the routing of token t: experts, then run offsets, then weights.
__device__ __forceinline__ uint32_t route_word(const Params& p, uint64_t alive, int t, int w) {
    const int part = w / p.topk, i = t * p.topk + w % p.topk;
    if (part == 0) return expert_of(p, alive, i);
    if (part == 1) return __ldcg(p.run_offset + i);
    return part == 2 ? __float_as_uint(p.weights[i]) : 0u;
}

// Every living rank learns the routing of every token of this rank: what it does not hold, it skips.
__device__ __forceinline__ void store_routes(const Params& p, uint64_t alive, int t, int thread, int threads) {
    const int vectors = route_bytes(p) / 16;
    for (int j = thread; j < p.ranks * vectors; j += threads) {
        const int r = j / vectors, v = j % vectors;
        if (!is_alive(alive, r)) continue;
        uint4 words = {route_word(p, alive, t, 4 * v), route_word(p, alive, t, 4 * v + 1), route_word(p, alive, t, 4 * v + 2),
                       route_word(p, alive, t, 4 * v + 3)};
        char* at = p.region[r] + p.stage_route + (static_cast<int64_t>(p.me) * p.max_tokens + t) * route_bytes(p);
        reinterpret_cast<uint4*>(at)[v] = words;
    }
}

// Block 0 has got as far as `word` says.
__device__ __forceinline__ bool wait_for_router(const Params& p, const uint32_t* word, uint32_t epoch, bool* planned) {
    if (*planned) return true;
    const auto here = [&] { return load_acquire_gpu(word) == epoch; };
    *planned = __syncthreads_and(threadIdx.x != 0 || spin(p, COUNTS, epoch, here));
    return *planned;
}

template <bool FP8, bool DEDUP>
__device__ __forceinline__ bool send_token(const Params& p, uint64_t alive, int t, SendShared& shared, bool* planned, uint32_t epoch) {
    const int tid = threadIdx.x, chunks = p.hidden / 16, copies = DEDUP ? p.ranks : p.topk;
    for (int first = 0; first < chunks; first += THREADS) {
        const int chunk = first + tid;
        const unsigned lanes = __ballot_sync(~0u, chunk < chunks);
        Columns columns;
        if (chunk < chunks) {
            columns = load_columns(p.tokens, static_cast<int64_t>(t) * p.hidden + 16 * chunk);
            if constexpr (FP8) {
                float scale;
                columns.low = quantise(columns, lanes, &scale);
                if (tid % 8 == 0) shared.scale[chunk / 8] = scale;
            }
        }
        if (!DEDUP && !wait_for_router(p, &p.state->planned, epoch, planned)) return false;
        if (first == 0) place_copies<DEDUP>(p, alive, t, shared);
        __syncthreads();
        if (chunk >= chunks) continue;
        for (int copy = 0; copy < copies; ++copy) {
            if (!shared.row[copy]) continue;
            uint4* at = reinterpret_cast<uint4*>(shared.row[copy]) + (FP8 ? chunk : 2 * chunk);
            at[0] = columns.low;
            if constexpr (!FP8) at[1] = columns.high;
        }
    }
    if constexpr (FP8) store_scales(p, shared, copies);
    return true;
}

// The tokens of a chunk that this block sends, a block per token; false after a fault.
template <bool FP8, bool DEDUP>
__device__ __forceinline__ bool send_few(const Params& p, uint64_t alive, int chunk, int tokens, SendShared* shared, bool* planned, uint32_t epoch) {
    const int chunk_tokens = (tokens + p.chunks - 1) / p.chunks, step = gridDim.x - 1;
    const int first = chunk * chunk_tokens + blockIdx.x - 1, end = min(tokens, (chunk + 1) * chunk_tokens);
    int turn = 0;
    for (int t = first; t < end; t += step, turn ^= 1)
        if (!send_token<FP8, DEDUP>(p, alive, t, shared[turn], planned, epoch)) return false;
    if constexpr (DEDUP) {
        if (!wait_for_router(p, &p.state->routed, epoch, planned)) return false;
        for (int t = first; t < end; t += step) store_routes(p, alive, t, THREADS - 1 - threadIdx.x, THREADS);
    }
    return true;
}

// The same, a warp per part of a token.
template <bool FP8, bool DEDUP>
__device__ __forceinline__ bool send_bulk(const Params& p, uint64_t alive, int chunk, int tokens, bool* planned, uint32_t epoch) {
    const int chunk_tokens = (tokens + p.chunks - 1) / p.chunks, step = (gridDim.x - 1) * WARPS, lane = threadIdx.x % 32;
    const int first = chunk * chunk_tokens, end = BULK_PARTS * (min(tokens, first + chunk_tokens) - first);
    // Neighbouring items go to different blocks, so that a short chunk is spread over all of them.
    const int own = threadIdx.x / 32 * (gridDim.x - 1) + blockIdx.x - 1;
    if (!DEDUP && !wait_for_router(p, &p.state->planned, epoch, planned)) return false;
    for (int i = own; i < end; i += step) send_by_warp<FP8, DEDUP>(p, alive, first + i / BULK_PARTS, i % BULK_PARTS);
    if constexpr (DEDUP) {
        if (!wait_for_router(p, &p.state->routed, epoch, planned)) return false;
        for (int i = own; i < end; i += step)
            if (i % BULK_PARTS == 0) store_routes(p, alive, first + i / BULK_PARTS, lane, 32);
    }
    return true;
}

template <bool FP8, bool DEDUP, bool BULK>
__global__ __launch_bounds__(THREADS, 2) void dispatch_send_kernel(const __grid_constant__ Params p) {
    __shared__ RouteShared route;
    __shared__ SendShared shared[2];
    begin_after_previous();
    if (has_failed(p)) return;
    const uint32_t epoch = p.state->epoch + 1;
    const uint64_t alive = *p.alive;
    const int tokens = live_tokens(p);
    if (blockIdx.x == 0) {
        if (!route_here(p, alive, route, tokens, epoch, DEDUP)) return;
        if (plan_all(p, alive, route, epoch) && p.both_halves) block_waits_for_all(p, alive, DISPATCH, p.arrived, all_chunks(p, epoch));
        return;
    }
    bool planned = false;
    for (int chunk = 0; chunk < p.chunks; ++chunk) {
        bool sent;
        if constexpr (BULK)
            sent = send_bulk<FP8, DEDUP>(p, alive, chunk, tokens, &planned, epoch);
        else
            sent = send_few<FP8, DEDUP>(p, alive, chunk, tokens, shared, &planned, epoch);
        if (!sent) return;
        last_block_tells_all(p, alive, &p.state->sent[chunk], gridDim.x - 1, p.arrived, p.chunks * epoch + chunk + 1);
    }
}

}  // namespace tandem

extern "C" int tandem_dispatch_send(const tandem::Params* p, int dedup, int blocks, void* stream) {
    using namespace tandem;
    // Two kernels, since a short one spends its time on fetching its instructions.
    const auto pick = [&](auto few, auto bulk) { return p->given_tokens < BULK_TOKENS ? few : bulk; };
    const auto kernel = p->fp8 ? (dedup ? pick(dispatch_send_kernel<true, true, false>, dispatch_send_kernel<true, true, true>)
                                        : pick(dispatch_send_kernel<true, false, false>, dispatch_send_kernel<true, false, true>))
                               : (dedup ? pick(dispatch_send_kernel<false, true, false>, dispatch_send_kernel<false, true, true>)
                                        : pick(dispatch_send_kernel<false, false, false>, dispatch_send_kernel<false, false, true>));
    return launch(kernel, blocks, THREADS, stream, *p);
}
