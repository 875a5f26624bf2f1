// Memory that other ranks can address, and what the library says of itself.
#include "params.cuh"

extern "C" {

int tandem_params_bytes() { return sizeof(tandem::Params); }
const char* tandem_digest() { return TANDEM_DIGEST; }
const char* tandem_error_text(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

int tandem_allocate(int device, int64_t num_bytes, void** address) {
    cudaError_t error = cudaSetDevice(device);
    if (error == cudaSuccess) error = cudaMalloc(address, num_bytes);
    if (error == cudaSuccess) error = cudaMemset(*address, 0, num_bytes);
    if (error == cudaSuccess) error = cudaDeviceSynchronize();
    return error;
}
int tandem_free(int device, void* address) {
    const cudaError_t error = cudaSetDevice(device);
    return error == cudaSuccess ? cudaFree(address) : error;
}

// Kernels on `device` can address the memory of `peer`; 0 in *possible when the machine does not allow it.
int tandem_reach(int device, int peer, int* possible) {
    cudaError_t error = cudaDeviceCanAccessPeer(possible, device, peer);
    if (error != cudaSuccess || !*possible) return error;
    error = cudaSetDevice(device);
    if (error == cudaSuccess) error = cudaDeviceEnablePeerAccess(peer, 0);
    if (error != cudaErrorPeerAccessAlreadyEnabled) return error;
    cudaGetLastError();
    return cudaSuccess;
}

int tandem_share(void* address, cudaIpcMemHandle_t* handle) { return cudaIpcGetMemHandle(handle, address); }
int tandem_open(int device, const cudaIpcMemHandle_t* handle, void** address) {
    const cudaError_t error = cudaSetDevice(device);
    return error == cudaSuccess ? cudaIpcOpenMemHandle(address, *handle, cudaIpcMemLazyEnablePeerAccess) : error;
}
int tandem_close(int device, void* address) {
    const cudaError_t error = cudaSetDevice(device);
    return error == cudaSuccess ? cudaIpcCloseMemHandle(address) : error;
}

}  // extern "C"
