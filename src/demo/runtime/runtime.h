/* Inside the stand-in libcudart: which driver functions it asks for, and what
 * the files ask of each other. An exported function `name` is written as
 * RUNTIME(name)(arguments), or RUNTIME_AS(type, name)(arguments) if it returns
 * no error; build.rs finds these lines and lets the exported symbol jump there. */
#ifndef RUNTIME_H
#define RUNTIME_H

#include "../common/standin.h"

#include <stdbool.h>

typedef int cudaError;
typedef unsigned long long CUdeviceptr;
typedef void *handle;

#define RUNTIME(name) cudaError impl_##name
#define RUNTIME_AS(type, name) type impl_##name
#define RUNTIME_ALIAS(name, same) \
    extern __typeof__(impl_##same) impl_##name __attribute__((alias("impl_" #same)))

struct dim3 {
    unsigned x, y, z;
};

/* Base name, the CUDA version whose form is asked for, prototype. */
#define DRIVER_CALLS(F)                                                                           \
    F(cuInit, 2000, (unsigned))                                                                   \
    F(cuDriverGetVersion, 2020, (int *))                                                          \
    F(cuDeviceGetCount, 2000, (int *))                                                            \
    F(cuDeviceGet, 2000, (int *, int))                                                            \
    F(cuDeviceGetName, 2000, (char *, int, int))                                                  \
    F(cuDeviceGetUuid, 11040, (void *, int))                                                      \
    F(cuDeviceGetAttribute, 2000, (int *, int, int))                                              \
    F(cuDeviceTotalMem, 3020, (size_t *, int))                                                    \
    F(cuDeviceGetPCIBusId, 4010, (char *, int, int))                                              \
    F(cuDeviceCanAccessPeer, 4000, (int *, int, int))                                             \
    F(cuDevicePrimaryCtxRetain, 7000, (handle *, int))                                            \
    F(cuDevicePrimaryCtxReset, 11000, (int))                                                      \
    F(cuDevicePrimaryCtxSetFlags, 11000, (int, unsigned))                                         \
    F(cuDevicePrimaryCtxGetState, 7000, (int, unsigned *, int *))                                 \
    F(cuCtxSetCurrent, 4000, (handle))                                                            \
    F(cuCtxGetCurrent, 4000, (handle *))                                                          \
    F(cuCtxGetDevice, 13000, (int *, handle))                                                     \
    F(cuCtxSynchronize, 2000, (void))                                                             \
    F(cuCtxGetStreamPriorityRange, 5050, (int *, int *))                                          \
    F(cuMemAlloc, 3020, (CUdeviceptr *, size_t))                                                  \
    F(cuMemAllocPitch, 3020, (CUdeviceptr *, size_t *, size_t, size_t, unsigned))                 \
    F(cuMemAllocManaged, 6000, (CUdeviceptr *, size_t, unsigned))                                 \
    F(cuMemFree, 3020, (CUdeviceptr))                                                             \
    F(cuMemGetInfo, 3020, (size_t *, size_t *))                                                   \
    F(cuMemAllocHost, 3020, (void **, size_t))                                                    \
    F(cuMemHostAlloc, 2020, (void **, size_t, unsigned))                                          \
    F(cuMemFreeHost, 2000, (void *))                                                              \
    F(cuMemHostRegister, 6050, (void *, size_t, unsigned))                                        \
    F(cuMemHostUnregister, 4000, (void *))                                                        \
    F(cuMemHostGetDevicePointer, 3020, (CUdeviceptr *, void *, unsigned))                         \
    F(cuMemHostGetFlags, 2030, (unsigned *, void *))                                              \
    F(cuMemAllocAsync, 11020, (CUdeviceptr *, size_t, handle))                                    \
    F(cuMemAllocFromPoolAsync, 11020, (CUdeviceptr *, size_t, handle, handle))                    \
    F(cuMemFreeAsync, 11020, (CUdeviceptr, handle))                                               \
    F(cuMemPoolCreate, 11020, (handle *, const void *))                                           \
    F(cuMemPoolDestroy, 11020, (handle))                                                          \
    F(cuMemPoolTrimTo, 11020, (handle, size_t))                                                   \
    F(cuMemPoolSetAttribute, 11020, (handle, int, void *))                                        \
    F(cuMemPoolGetAttribute, 11020, (handle, int, void *))                                        \
    F(cuDeviceGetDefaultMemPool, 11020, (handle *, int))                                          \
    F(cuDeviceGetMemPool, 11020, (handle *, int))                                                 \
    F(cuPointerGetAttributes, 7000, (unsigned, int *, void **, CUdeviceptr))                      \
    F(cuMemcpy, 4000, (CUdeviceptr, CUdeviceptr, size_t))                                         \
    F(cuMemcpyAsync, 4000, (CUdeviceptr, CUdeviceptr, size_t, handle))                            \
    F(cuMemcpyHtoD, 3020, (CUdeviceptr, const void *, size_t))                                    \
    F(cuMemcpyDtoH, 3020, (void *, CUdeviceptr, size_t))                                          \
    F(cuMemcpyDtoD, 3020, (CUdeviceptr, CUdeviceptr, size_t))                                     \
    F(cuMemcpyHtoDAsync, 3020, (CUdeviceptr, const void *, size_t, handle))                       \
    F(cuMemcpyDtoHAsync, 3020, (void *, CUdeviceptr, size_t, handle))                             \
    F(cuMemcpyDtoDAsync, 3020, (CUdeviceptr, CUdeviceptr, size_t, handle))                        \
    F(cuMemcpy2D, 3020, (const void *))                                                           \
    F(cuMemcpy2DAsync, 3020, (const void *, handle))                                              \
    F(cuMemsetD8, 3020, (CUdeviceptr, unsigned char, size_t))                                     \
    F(cuMemsetD8Async, 3020, (CUdeviceptr, unsigned char, size_t, handle))                        \
    F(cuMemsetD2D8, 3020, (CUdeviceptr, size_t, unsigned char, size_t, size_t))                   \
    F(cuMemsetD2D8Async, 3020, (CUdeviceptr, size_t, unsigned char, size_t, size_t, handle))      \
    F(cuMemPrefetchAsync, 12020, (CUdeviceptr, size_t, struct location, unsigned, handle))        \
    F(cuMemAdvise, 12020, (CUdeviceptr, size_t, int, struct location))                            \
    F(cuStreamCreate, 2000, (handle *, unsigned))                                                 \
    F(cuStreamCreateWithPriority, 5050, (handle *, unsigned, int))                                \
    F(cuStreamDestroy, 4000, (handle))                                                            \
    F(cuStreamSynchronize, 2000, (handle))                                                        \
    F(cuStreamQuery, 2000, (handle))                                                              \
    F(cuStreamWaitEvent, 3020, (handle, handle, unsigned))                                        \
    F(cuStreamGetFlags, 5050, (handle, unsigned *))                                               \
    F(cuStreamGetPriority, 5050, (handle, int *))                                                 \
    F(cuStreamGetId, 12000, (handle, unsigned long long *))                                       \
    F(cuStreamAddCallback, 5000, (handle, void *, void *, unsigned))                              \
    F(cuStreamBeginCapture, 10010, (handle, int))                                                 \
    F(cuStreamEndCapture, 10000, (handle, handle *))                                              \
    F(cuStreamIsCapturing, 10000, (handle, int *))                                                \
    F(cuThreadExchangeStreamCaptureMode, 10010, (int *))                                          \
    F(cuEventCreate, 2000, (handle *, unsigned))                                                  \
    F(cuEventDestroy, 4000, (handle))                                                             \
    F(cuEventRecord, 2000, (handle, handle))                                                      \
    F(cuEventRecordWithFlags, 11010, (handle, handle, unsigned))                                  \
    F(cuEventSynchronize, 2000, (handle))                                                         \
    F(cuEventQuery, 2000, (handle))                                                               \
    F(cuEventElapsedTime, 12080, (float *, handle, handle))                                       \
    F(cuLibraryLoadData, 12000, (handle *, const void *, int *, void **, unsigned, int *, void **, unsigned)) \
    F(cuLibraryUnload, 12000, (handle))                                                           \
    F(cuLibraryGetKernel, 12000, (handle *, handle, const char *))                                \
    F(cuLibraryGetKernelCount, 12040, (unsigned *, handle))                                       \
    F(cuKernelGetFunction, 12000, (handle *, handle))                                             \
    F(cuKernelSetAttribute, 12000, (int, int, handle, int))                                       \
    F(cuFuncGetName, 12030, (const char **, handle))                                              \
    F(cuFuncGetAttribute, 2020, (int *, int, handle))                                             \
    F(cuFuncSetAttribute, 9000, (handle, int, int))                                               \
    F(cuLaunchKernel, 4000, (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **)) \
    F(cuLaunchKernelEx, 11060, (const void *, handle, void **, void **))                          \
    F(cuLaunchCooperativeKernel, 9000, (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **)) \
    F(cuLaunchHostFunc, 10000, (handle, void *, void *))                                          \
    F(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 7000, (int *, handle, int, size_t, unsigned)) \
    F(cuGraphCreate, 10000, (handle *, unsigned))                                                 \
    F(cuGraphDestroy, 10000, (handle))                                                            \
    F(cuGraphClone, 10000, (handle *, handle))                                                    \
    F(cuGraphGetNodes, 10000, (handle, handle *, size_t *))                                       \
    F(cuGraphInstantiate, 12000, (handle *, handle, unsigned long long))                          \
    F(cuGraphInstantiateWithParams, 12000, (handle *, handle, void *))                            \
    F(cuGraphLaunch, 10000, (handle, handle))                                                     \
    F(cuGraphUpload, 11010, (handle, handle))                                                     \
    F(cuGraphExecDestroy, 10000, (handle))

struct location {
    int type, id;
};

#define FIELD(name, version, prototype) int(*name) prototype;
struct driver {
    DRIVER_CALLS(FIELD)
};
#undef FIELD
extern struct driver driver;

/* connect.c */
cudaError need_driver(void); /* libcuda loaded, its functions found, cuInit done */
cudaError need_device(void); /* and the primary context of the device is current in this thread */
void forget_device(void);    /* after a reset */
extern __thread int device;  /* of this thread */
int cuda_lookup(const char *base, void **out, int version, unsigned long long flags, int *status);
cudaError note(cudaError result); /* remembers an error for cudaGetLastError */

/* The usual body: a device, then one call of the driver. */
#define WITH_DEVICE(call)                    \
    do {                                     \
        cudaError need_ = need_device();     \
        return note(need_ ? need_ : (call)); \
    } while (0)

/* register.c: the driver's handle for a host stub, or for a handle of ours. */
cudaError function_of(const void *stub, handle *function);

#endif
