// Arithmetic on 16-byte vectors of a row. Every operation is one IEEE rounding, so that a CPU computes the same bits.
#pragma once
#include "params.cuh"

namespace tandem {

constexpr float E4M3_MAX = 448.0f;
constexpr float LEAST_AMAX = 5.421010862427522e-20f;  // 2^-64
constexpr int SLICE_COLUMNS = 256;                    // of a bf16 row, by one warp: one vector a lane

struct Columns {
    uint4 low, high;  // 16 bf16, or 16 fp8 in `low`
};

__device__ __forceinline__ Columns load_columns(const void* tokens, int64_t first_column) {
    const uint4* at = reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(tokens) + first_column);
    return {at[0], at[1]};
}

// Numbers of a row on the way back: 8 bf16 in a vector, or 4 float32.
template <bool F32>
constexpr int IN_VECTOR = F32 ? 4 : 8;

__device__ __forceinline__ void unpack(uint4 packed, float* out) {
    const __nv_bfloat162* pairs = reinterpret_cast<const __nv_bfloat162*>(&packed);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 two = __bfloat1622float2(pairs[i]);
        out[2 * i] = two.x;
        out[2 * i + 1] = two.y;
    }
}

template <bool F32>
__device__ __forceinline__ void unpack_answer(uint4 packed, float* out) {
    if constexpr (F32) {
        const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) out[i] = __uint_as_float(words[i]);
    } else {
        unpack(packed, out);
    }
}

template <bool F32>
__device__ __forceinline__ uint4 pack(const float* sum) {
    if constexpr (F32) return {__float_as_uint(sum[0]), __float_as_uint(sum[1]), __float_as_uint(sum[2]), __float_as_uint(sum[3])};
    uint4 packed;
    __nv_bfloat162* pairs = reinterpret_cast<__nv_bfloat162*>(&packed);
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = __floats2bfloat162_rn(sum[2 * i], sum[2 * i + 1]);
    return packed;
}

template <bool F32>
__device__ __forceinline__ void add(float* sum, uint4 row) {
    float x[8];
    unpack_answer<F32>(row, x);
#pragma unroll
    for (int i = 0; i < IN_VECTOR<F32>; ++i) sum[i] = __fadd_rn(sum[i], x[i]);
}

template <bool F32>
__device__ __forceinline__ void add_weighted(float* sum, uint4 row, float weight) {
    float x[8];
    unpack_answer<F32>(row, x);
#pragma unroll
    for (int i = 0; i < IN_VECTOR<F32>; ++i) sum[i] = __fadd_rn(sum[i], __fmul_rn(weight, x[i]));
}

__device__ __forceinline__ uint4 load_once(const void* at) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at) : "memory");
    return v;
}

// fp8 e4m3 of 16 columns, ties to even; eight neighbouring lanes hold the 128 columns of one scale. The specification is
// engine_shim/experts/quantise.py. The lanes named in `lanes` call this together.
__device__ __forceinline__ uint4 quantise(const Columns& columns, unsigned lanes, float* scale) {
    float x[16];
    unpack(columns.low, x);
    unpack(columns.high, x + 8);
    float most = LEAST_AMAX;
#pragma unroll
    for (int i = 0; i < 16; ++i) most = fmaxf(most, fabsf(x[i]));
#pragma unroll
    for (int d = 1; d < 8; d *= 2) most = fmaxf(most, __shfl_xor_sync(lanes, most, d));
    *scale = __fdiv_rn(most, E4M3_MAX);
    const float inverse = __fdiv_rn(E4M3_MAX, most);
    uint4 packed;
    uint16_t* pairs = reinterpret_cast<uint16_t*>(&packed);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float2 two = {__fmul_rn(x[2 * i], inverse), __fmul_rn(x[2 * i + 1], inverse)};
        pairs[i] = __nv_cvt_float2_to_fp8x2(two, __NV_SATFINITE, __NV_E4M3);
    }
    return packed;
}

}  // namespace tandem
