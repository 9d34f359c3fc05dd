/* What a program takes from the CUDA headers, as far as the demo needs it; own
 * declarations of the real functions. */
#ifndef CUDA_H
#define CUDA_H

#include <stddef.h>

typedef int cudaError;
typedef struct stream *cudaStream;
typedef struct event *cudaEvent;
typedef struct graph *cudaGraph;
typedef struct exec *cudaGraphExec;
struct dim3 {
    unsigned x, y, z;
};
enum { TO_DEVICE = 1, TO_HOST = 2, ON_DEVICE = 3 };

void **__cudaRegisterFatBinary(const void *fat_binary);
void __cudaRegisterFatBinaryEnd(void **image);
void __cudaUnregisterFatBinary(void **image);
void __cudaRegisterFunction(void **image, const void *stub, const char *device_function, const char *name,
                            int thread_limit, void *tid, void *bid, void *block, void *grid, int *warp);
unsigned __cudaPushCallConfiguration(struct dim3 grid, struct dim3 block, size_t shared, cudaStream stream);
cudaError __cudaPopCallConfiguration(struct dim3 *grid, struct dim3 *block, size_t *shared, void *stream);
cudaError cudaLaunchKernel(const void *stub, struct dim3 grid, struct dim3 block, void **params, size_t shared,
                           cudaStream stream);
cudaError cudaLaunchHostFunc(cudaStream stream, void (*function)(void *), void *data);
cudaError cudaGetDevice(int *device);
cudaError cudaSetDevice(int device);
cudaError cudaGetDeviceProperties(void *properties, int device);
cudaError cudaDeviceSynchronize(void);
cudaError cudaGetLastError(void);
const char *cudaGetErrorString(cudaError error);
cudaError cudaMalloc(void *out, size_t size);
cudaError cudaFree(void *pointer);
cudaError cudaMallocHost(void *out, size_t size);
cudaError cudaFreeHost(void *pointer);
cudaError cudaMallocManaged(void *out, size_t size, unsigned flags);
cudaError cudaMallocAsync(void *out, size_t size, cudaStream stream);
cudaError cudaFreeAsync(void *pointer, cudaStream stream);
cudaError cudaMemcpy(void *to, const void *from, size_t size, int kind);
cudaError cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, cudaStream stream);
cudaError cudaMemsetAsync(void *to, int value, size_t size, cudaStream stream);
cudaError cudaMemGetInfo(size_t *available, size_t *total);
cudaError cudaStreamCreateWithFlags(cudaStream *out, unsigned flags);
cudaError cudaStreamDestroy(cudaStream stream);
cudaError cudaStreamSynchronize(cudaStream stream);
cudaError cudaStreamWaitEvent(cudaStream stream, cudaEvent event, unsigned flags);
cudaError cudaStreamBeginCapture(cudaStream stream, int mode);
cudaError cudaStreamEndCapture(cudaStream stream, cudaGraph *graph);
cudaError cudaGraphInstantiate(cudaGraphExec *out, cudaGraph graph, unsigned long long flags);
cudaError cudaGraphLaunch(cudaGraphExec exec, cudaStream stream);
cudaError cudaGraphDestroy(cudaGraph graph);
cudaError cudaGraphExecDestroy(cudaGraphExec exec);
cudaError cudaEventCreate(cudaEvent *out);
cudaError cudaEventDestroy(cudaEvent event);
cudaError cudaEventRecord(cudaEvent event, cudaStream stream);
cudaError cudaEventSynchronize(cudaEvent event);
cudaError cudaEventElapsedTime(float *milliseconds, cudaEvent start, cudaEvent end);

#endif
