// Sending many tokens: a warp takes a part of a token by itself, so that nothing waits for a whole block, and keeps
// several loads under way. For few tokens this is slower than a block per token (dispatch_send.cu).
#pragma once
#include "rows.cuh"
#include "sync.cuh"

namespace tandem {

constexpr int BULK_AHEAD = 2;  // vectors under way per lane
constexpr int BULK_PARTS = 4;  // warps of a token; each takes every fourth 512 columns

// Lane c knows where copy c of a token goes; null where there is none. Copies are top-k entries, or ranks when de-duplicated
// (lane c then knows ranks c and c + 32).
struct Copies {
    char* row[2];
    char* scale_row[2];
};

template <bool DEDUP>
__device__ __forceinline__ Copies find_copies(const Params& p, uint64_t alive, int t) {
    const int lane = threadIdx.x % 32, i = t * p.topk + lane;
    Copies copies = {};
    const int expert = lane < p.topk ? expert_of(p, alive, i) : -1, rank = expert >= 0 ? expert / p.local_experts : -1;
    if constexpr (DEDUP) {
        uint64_t wanted = rank >= 0 ? 1ull << rank : 0ull;
        for (int d = 1; d < 32; d *= 2) wanted |= __shfl_xor_sync(~0u, wanted, d);
        const int64_t at = static_cast<int64_t>(p.me) * p.max_tokens + t;
        for (int half = 0; half < 2; ++half) {
            const int r = lane + 32 * half;
            if (!(wanted >> r & 1)) continue;
            copies.row[half] = p.region[r] + p.stage_x + at * row_bytes(p);
            copies.scale_row[half] = p.region[r] + p.stage_scale + at * num_scales(p) * 4;
        }
    } else if (expert >= 0) {
        const int64_t at = __ldcg(p.dst_row + expert) + __ldcg(p.run_offset + i);
        copies.row[0] = p.region[rank] + p.x + at * row_bytes(p);
        copies.scale_row[0] = p.region[rank] + p.scale + at * num_scales(p) * 4;
    }
    return copies;
}

// `store(row, scale_row)` for every copy, by the whole warp.
template <typename Store>
__device__ __forceinline__ void for_copies(const Copies& copies, Store store) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        for (unsigned left = __ballot_sync(~0u, copies.row[half] != nullptr); left; left &= left - 1) {
            const int lane = __ffs(left) - 1;
            store(reinterpret_cast<char*>(__shfl_sync(~0u, reinterpret_cast<uint64_t>(copies.row[half]), lane)),
                  reinterpret_cast<char*>(__shfl_sync(~0u, reinterpret_cast<uint64_t>(copies.scale_row[half]), lane)));
        }
    }
}

template <bool FP8, bool DEDUP>
__device__ __forceinline__ void send_by_warp(const Params& p, uint64_t alive, int t, int part) {
    constexpr int STRIDE = 32 * BULK_PARTS;
    const int lane = threadIdx.x % 32, chunks = p.hidden / 16;
    const Copies copies = find_copies<DEDUP>(p, alive, t);
    for (int first = 32 * part + lane; first - lane < chunks; first += STRIDE * BULK_AHEAD) {
        Columns columns[BULK_AHEAD];
        float scale[BULK_AHEAD];
#pragma unroll
        for (int j = 0; j < BULK_AHEAD; ++j)
            if (first + STRIDE * j < chunks) columns[j] = load_columns(p.tokens, static_cast<int64_t>(t) * p.hidden + 16 * (first + STRIDE * j));
        if constexpr (FP8) {
#pragma unroll
            for (int j = 0; j < BULK_AHEAD; ++j) {
                const unsigned lanes = __ballot_sync(~0u, first + STRIDE * j < chunks);
                if (first + STRIDE * j < chunks) columns[j].low = quantise(columns[j], lanes, &scale[j]);
            }
        }
        for_copies(copies, [&](char* row, char* scale_row) {
#pragma unroll
            for (int j = 0; j < BULK_AHEAD; ++j) {
                const int chunk = first + STRIDE * j;
                if (chunk >= chunks) continue;
                uint4* at = reinterpret_cast<uint4*>(row) + (FP8 ? chunk : 2 * chunk);
                at[0] = columns[j].low;
                if constexpr (FP8) {
                    if (chunk % 8 == 0) reinterpret_cast<float*>(scale_row)[chunk / 8] = scale[j];
                } else {
                    at[1] = columns[j].high;
                }
            }
        });
    }
}

}  // namespace tandem
