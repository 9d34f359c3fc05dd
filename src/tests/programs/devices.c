// devices: two devices, their primary contexts and one more, streams and two threads. With a word, GO, it makes a context
// current and waits for that file before it says by calls what is current.
// Linked with the stand-in libraries, with STANDIN_DEVICES=2. Out: of each allocation, free, copy and launch one line,
// `KIND DEVICE CONTEXT`, with `-` where nothing recorded says it; the exit status.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../../demo/common/standin.h"
#include "../../demo/program/cuda.h"

typedef unsigned long long pointer;
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **out, int device);
int cuCtxCreate_v2(void **out, unsigned flags, int device);
int cuCtxDestroy_v2(void *context);
int cuCtxSetCurrent(void *context);
int cuCtxGetCurrent(void **out);
int cuCtxGetDevice(int *out);
int cuCtxPushCurrent_v2(void *context);
int cuCtxPopCurrent_v2(void **out);
int cuMemAlloc_v2(pointer *out, size_t size);
int cuMemFree_v2(pointer memory);
int cuStreamCreate(void **out, unsigned flags);
int cuModuleLoadData(void **out, const void *code);
int cuModuleGetFunction(void **out, void *module, const char *name);
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
		   unsigned shared, void *stream, void **params, void **extra);

#define CHECK(call)                                                      \
	do {                                                             \
		int error_ = (call);                                     \
		if (error_) {                                            \
			fprintf(stderr, "%s: %d\n", #call, error_);      \
			exit(9);                                         \
		}                                                        \
	} while (0)

static void nothing(void **params)
{
	(void)params;
}

static const struct standin_kernel kernels[] = {{"_Z6kernelPi", nothing, 1, {8}}};
static const struct standin_image image = {STANDIN_IMAGE, 1, kernels};
static const struct fatbin_wrapper fat_binary = {FATBIN_WRAPPER, 1, &image, NULL};
static char stub, host[4096];
static void *primary[2];

static void expect(const char *kind, int device, void *context)
{
	printf(device < 0 ? "%s -" : "%s %d", kind, device);
	printf(context ? " 0x%lx\n" : " -\n", (unsigned long)context);
	fflush(stdout);
}

static void launch(void *memory, void *stream)
{
	struct dim3 one = {1, 1, 1};

	CHECK(cudaLaunchKernel(&stub, one, one, (void *[]){&memory}, 0, stream));
}

static void launch_by_driver(void *function, pointer memory)
{
	CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&memory}, NULL));
}

static void *other_thread(void *unused)
{
	void *memory, *stream, *context, *popped;
	pointer made;

	(void)unused;
	CHECK(cudaMalloc(&memory, 4096));
	expect("alloc", 0, primary[0]);
	CHECK(cuCtxCreate_v2(&context, 0, 1));
	CHECK(cuMemAlloc_v2(&made, 8192));
	expect("alloc", 1, context);
	CHECK(cuStreamCreate(&stream, 0));
	CHECK(cuCtxPushCurrent_v2(primary[0]));
	launch(memory, 0);
	expect("launch", 0, primary[0]);
	launch(memory, stream);
	expect("launch", 1, context);
	CHECK(cudaMemcpyAsync((void *)made, host, 8, TO_DEVICE, stream));
	expect("copy", 1, context);
	CHECK(cuCtxPopCurrent_v2(&popped));
	launch(memory, 0);
	expect("launch", 1, context);
	CHECK(cuCtxDestroy_v2(context));
	expect("free", 1, context);
	CHECK(cudaFree(memory));
	expect("free", 0, primary[0]);
	return NULL;
}

static void two_devices(void)
{
	void *first, *second;
	cudaStream stream;
	pthread_t thread;

	CHECK(cuDevicePrimaryCtxRetain(&primary[0], 0));
	CHECK(cuDevicePrimaryCtxRetain(&primary[1], 1));
	CHECK(cudaMalloc(&first, 1 << 20));
	expect("alloc", 0, primary[0]);
	CHECK(cudaSetDevice(1));
	CHECK(cudaMalloc(&second, 2 << 20));
	expect("alloc", 1, primary[1]);
	CHECK(cudaStreamCreateWithFlags(&stream, 0));
	CHECK(cudaSetDevice(0));
	CHECK(cudaMemcpy(first, host, 4096, TO_DEVICE));
	expect("copy", 0, primary[0]);
	CHECK(cudaMemcpyAsync(second, host, 4096, TO_DEVICE, stream));
	expect("copy", 1, primary[1]);
	launch(second, stream);
	expect("launch", 1, primary[1]);
	launch(first, NULL);
	expect("launch", 0, primary[0]);
	CHECK(pthread_create(&thread, NULL, other_thread, NULL));
	CHECK(pthread_join(thread, NULL));
	// Allocated on one device and freed while the other is current.
	CHECK(cudaFree(second));
	expect("free", 1, primary[1]);
}

static void attached(const char *go)
{
	pointer memory;
	void *context, *current, *module, *function;
	int device;

	CHECK(cuCtxCreate_v2(&context, 0, 1));
	CHECK(cuModuleLoadData(&module, &image));
	CHECK(cuModuleGetFunction(&function, module, kernels[0].name));
	puts("ready");
	fflush(stdout);
	while (access(go, F_OK))
		usleep(1000);
	CHECK(cuMemAlloc_v2(&memory, 4096));
	expect("alloc", -1, NULL);
	launch_by_driver(function, memory);
	expect("launch", -1, NULL);
	CHECK(cuCtxGetCurrent(&current));
	launch_by_driver(function, memory);
	expect("launch", -1, context);
	CHECK(cuCtxGetDevice(&device));
	launch_by_driver(function, memory);
	expect("launch", 1, context);
	CHECK(cuMemFree_v2(memory));
	expect("free", -1, NULL);
	CHECK(cuMemAlloc_v2(&memory, 4096));
	expect("alloc", 1, context);
}

int main(int count, char **words)
{
	void **registered = __cudaRegisterFatBinary(&fat_binary);

	__cudaRegisterFunction(registered, &stub, kernels[0].name, kernels[0].name, -1, NULL, NULL, NULL, NULL, NULL);
	__cudaRegisterFatBinaryEnd(registered);
	CHECK(cuInit(0));
	if (count > 1)
		attached(words[1]);
	else
		two_devices();
	return 0;
}
