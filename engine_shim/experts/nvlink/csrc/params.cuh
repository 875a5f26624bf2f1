// What every kernel is given, by value. The Python twin is engine_shim/experts/nvlink/params.py; tandem_params_bytes() guards it.
//
// A rank's region is one allocation that every peer can address. Offsets into it are equal on all ranks and belong to
// one slot; layout.py says what lies where. Everything private to a rank is behind pointers.
#pragma once
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

namespace tandem {

constexpr int MAX_RANKS = 64;  // bits of a mask
constexpr int MAX_EXPERTS = 512;
constexpr int MAX_TOPK = 32;
constexpr int THREADS = 512;
constexpr int WARPS = THREADS / 32;
constexpr int MAX_CHUNKS = 16;  // of the tokens of one step; each has its own arrival
constexpr int SCALE_BLOCK = 128;
constexpr int MAX_SCALES = 256;

enum Phase : uint32_t { COUNTS = 1, DISPATCH = 2, COMBINE = 4, REFUSED = 5 };  // as engine_shim/experts/port.py numbers them
enum Fault : uint32_t { TIMED_OUT = 1, BAD_EXPERT = 2, TOO_MANY_TOKENS = 3, PEER_REFUSED = 4, TOO_FEW_ANSWERS = 5 };

// In pinned host memory: a host load reads it between graph replays. `fault` is written last.
struct Status {
    uint32_t fault, phase, peer, epoch, expected, seen;
};

// In device memory, one per slot. `epoch` is the last finished step; the step under way is epoch + 1.
struct SlotState {
    uint32_t epoch, routed, planned, told, reduced, returned;
    uint32_t sent[MAX_CHUNKS];
};

struct Params {
    char* region[MAX_RANKS];
    int64_t refused, counts, arrived, ready, x, scale, y, stage_x, stage_scale, stage_route, partial;  // offsets, bytes
    SlotState* state;
    int* run_offset;      // [max_tokens * topk] place of an entry inside the run (this rank, its expert)
    int* dst_row;         // [experts] first row of this rank's run at the expert's rank
    int* src_row;         // [ranks, local_experts] first row here of each source's run
    int* src_tokens;      // [ranks]
    int* landed_row;      // [ranks * max_tokens, topk] de-duplicated: where a staged row was spread to, or -1
    int* expert_rows;     // [local_experts] rows of each local expert
    int* expert_start;    // [local_experts + 1] padded starts
    const uint64_t* alive;  // bit r: rank r takes part
    uint32_t* error;
    Status* status;
    const void* tokens;     // bf16 [max_tokens, hidden]; float32 travels as twice as many columns of bf16, bit by bit
    const void* topk_ids;   // int32 or int64 [max_tokens, topk]
    const float* weights;   // [max_tokens, topk]
    const int* num_tokens;  // the live token count, at most given_tokens
    const void* expert_out;  // bf16 [given_rows, hidden]
    void* out;               // bf16 [max_tokens, hidden]
    uint64_t timeout_ns;
    int me, ranks, experts, local_experts, topk, hidden, max_tokens, given_tokens, given_rows, chunks, align, ids_are_64, fp8, f32, copy_expert_out, both_halves;
};

__device__ __forceinline__ int row_bytes(const Params& p) { return p.fp8 ? p.hidden : 2 * p.hidden; }
__device__ __forceinline__ int num_scales(const Params& p) { return p.hidden / SCALE_BLOCK; }
// Of a staged row's routing: topk experts, topk run offsets, topk weights, rounded up to 16 bytes.
__device__ __forceinline__ int route_bytes(const Params& p) { return (12 * p.topk + 15) / 16 * 16; }

__device__ __forceinline__ bool is_alive(uint64_t alive, int rank) { return alive >> rank & 1; }

__device__ __forceinline__ int64_t named_expert(const Params& p, int i) {
    return p.ids_are_64 ? static_cast<const int64_t*>(p.topk_ids)[i] : static_cast<const int*>(p.topk_ids)[i];
}
// The expert of entry i, or -1: no expert, not an expert, or one of a masked rank.
__device__ __forceinline__ int expert_of(const Params& p, uint64_t alive, int i) {
    const int64_t e = named_expert(p, i);
    if (e < 0 || e >= p.experts) return -1;
    return is_alive(alive, static_cast<int>(e) / p.local_experts) ? static_cast<int>(e) : -1;
}

}  // namespace tandem
