// matrix SEED STEPS HOT COUNTS [GO]: allocates, frees, copies, launches, waits and fails at random, and counts what it
// did. With GO it does half of its steps, prints `ready`, waits for the file GO, and counts from there on. After a
// fourth of what it counts it calls cudaGetDevice HOT times. Linked with the stand-in libraries. Out: COUNTS, a line
// `NAME NUMBER` for each figure.
#define _GNU_SOURCE
#include <string.h>
#include <unistd.h>

#include "../../demo/common/standin.h"
#include "../../demo/program/cuda.h"
#include "check.h"

int cuMemAlloc_v2(uint64_t *out, size_t size);
int cuMemFree_v2(uint64_t pointer);
int cuCtxSynchronize(void);

static void nothing(void **params)
{
	(void)params;
}

static const struct standin_kernel kernels[] = {
	{"_Z7kernelAPi", nothing, 1, {8}},
	{"_Z7kernelBPi", nothing, 1, {8}},
};
static const struct standin_image image = {STANDIN_IMAGE, 2, kernels};
static const struct fatbin_wrapper fat_binary = {FATBIN_WRAPPER, 1, &image, NULL};
static char stubs[2], host[1 << 16];

enum { MOST = 64 };
enum space { DEVICE, MANAGED, HOST, SPACES };
static struct held {
	void *at;
	size_t size;
	enum space space;
	int by_driver, counted;
} held[MOST];
static int holds;

/* What is counted, by the names of `gpurec check`. */
#define FIGURES(X)                                                                                           \
	X(launches, "launches") X(kernel_a, "kernel(\"kernelA*\").launches")                            \
	X(kernel_b, "kernel(\"kernelB*\").launches") X(errors, "errors")                                \
	X(allocations, "memory.allocations") X(allocated, "memory.allocated") X(frees, "memory.frees")       \
	X(freed, "memory.freed") X(peak, "memory.peak") X(kept, "memory.held")                               \
	X(copies, "copies.calls") X(copied, "copies.bytes")                    \
	X(to_device, "copies.H2D.bytes") X(to_host, "copies.D2H.bytes") X(sets, "copies.set.calls")          \
	X(set, "copies.set.bytes") X(waits, "sync.calls") X(malloc, "cudaMalloc.calls")                      \
	X(malloc_failed, "cudaMalloc.errors") X(free, "cudaFree.calls") X(launch, "cudaLaunchKernel.calls")  \
	X(launched, "cuLaunchKernel.calls") X(alloc, "cuMemAlloc_v2.calls")                                  \
	X(alloc_failed, "cuMemAlloc_v2.errors") X(device_free, "cuMemFree_v2.calls")                         \
	X(memcpy, "cudaMemcpy.calls") X(memset, "cudaMemsetAsync.calls")                                     \
	X(wait, "cudaDeviceSynchronize.calls") X(context_wait, "cuCtxSynchronize.calls")                     \
	X(get_device, "cudaGetDevice.calls") X(managed, "cudaMallocManaged.calls")                           \
	X(host, "cudaMallocHost.calls") X(host_free, "cudaFreeHost.calls")
enum figure {
#define X(name, text) F_##name,
	FIGURES(X) FIGURE_COUNT
#undef X
};
static const char *const names[] = {
#define X(name, text) text,
	FIGURES(X)
#undef X
};
static uint64_t figures[FIGURE_COUNT], state, live_device;

#define ADD(name, n) (figures[F_##name] += (n))

static uint64_t below(uint64_t limit)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (state >> 33) % limit;
}

static void allocate(enum space space, int by_driver)
{
	struct held *it = &held[holds];
	size_t size = 256 * (1 + below(4096));
	uint64_t pointer;

	if (holds == MOST)
		return;
	*it = (struct held){NULL, size, space, by_driver, 1};
	if (space == MANAGED) {
		CHECK(!cudaMallocManaged(&it->at, size, 1));
		ADD(managed, 1);
	} else if (space == HOST) {
		CHECK(!cudaMallocHost(&it->at, size));
		ADD(host, 1);
	} else if (by_driver) {
		CHECK(!cuMemAlloc_v2(&pointer, size));
		it->at = (void *)pointer;
		ADD(alloc, 1);
	} else {
		CHECK(!cudaMalloc(&it->at, size));
		ADD(malloc, 1);
		ADD(alloc, 1);
	}
	ADD(allocations, 1);
	ADD(allocated, size);
	live_device += space == DEVICE ? size : 0;
	if (figures[F_peak] < live_device)
		figures[F_peak] = live_device;
	holds++;
}

static void release(void)
{
	struct held it;
	int which;

	if (!holds)
		return;
	which = below(holds);
	it = held[which];
	held[which] = held[--holds];
	if (it.space == HOST) {
		CHECK(!cudaFreeHost(it.at));
		ADD(host_free, 1);
	} else if (it.by_driver) {
		CHECK(!cuMemFree_v2((uint64_t)it.at));
		ADD(device_free, 1);
	} else {
		CHECK(!cudaFree(it.at));
		ADD(free, 1);
		ADD(device_free, 1);
	}
	ADD(frees, 1);
	ADD(freed, it.size);
	live_device -= it.space == DEVICE ? it.size : 0;
}

static void *device_memory(size_t *size)
{
	for (int i = 0; i < holds; i++) {
		if (held[i].space == DEVICE) {
			*size = held[i].size < sizeof(host) ? held[i].size : sizeof(host);
			return held[i].at;
		}
	}
	return NULL;
}

static void copy(int kind)
{
	size_t size;
	void *at = device_memory(&size);

	if (!at)
		return;
	if (kind == 0) {
		CHECK(!cudaMemsetAsync(at, 0, size, NULL));
		ADD(memset, 1);
		ADD(sets, 1);
		ADD(set, size);
		return;
	}
	CHECK(kind == TO_DEVICE ? !cudaMemcpy(at, host, size, kind) : !cudaMemcpy(host, at, size, kind));
	ADD(memcpy, 1);
	ADD(copies, 1);
	ADD(copied, size);
	if (kind == TO_DEVICE)
		ADD(to_device, size);
	else
		ADD(to_host, size);
}

static void launch(int which)
{
	struct dim3 one = {1, 1, 1}, block = {32 << which, 1, 1};
	void *none = NULL;

	CHECK(!cudaLaunchKernel(&stubs[which], one, block, (void *[]){&none}, 0, NULL));
	figures[which ? F_kernel_b : F_kernel_a]++;
	ADD(launches, 1);
	ADD(launch, 1);
	ADD(launched, 1);
}

static void fail(int by_driver)
{
	uint64_t pointer;
	void *at;

	if (by_driver) {
		CHECK(cuMemAlloc_v2(&pointer, 1ull << 46) == OUT_OF_MEMORY);
	} else {
		CHECK(cudaMalloc(&at, 1ull << 46) == OUT_OF_MEMORY);
		ADD(malloc, 1);
		ADD(malloc_failed, 1);
	}
	ADD(alloc, 1);
	ADD(alloc_failed, 1);
	ADD(errors, 1);
}

static void await(int by_driver)
{
	CHECK(by_driver ? !cuCtxSynchronize() : !cudaDeviceSynchronize());
	ADD(wait, !by_driver);
	ADD(context_wait, 1);
	ADD(waits, 1);
}

static void step(void)
{
	switch (below(16)) {
	case 0: case 1: return allocate(DEVICE, 0);
	case 2: return allocate(DEVICE, 1);
	case 3: return allocate(MANAGED, 0);
	case 4: return allocate(HOST, 0);
	case 5: case 6: case 7: return release();
	case 8: return copy(TO_DEVICE);
	case 9: return copy(TO_HOST);
	case 10: return copy(0);
	case 11: case 12: return launch(below(2));
	case 13: return await(below(2));
	case 14: return below(4) ? launch(0) : fail(below(2));
	default: return launch(1);
	}
}

static void report(const char *path)
{
	FILE *file = fopen(path, "w");

	CHECK(file);
	for (int i = 0; i < holds; i++) {
		if (!held[i].counted)
			continue;
		ADD(kept, held[i].size);
	}
	for (int i = 0; i < FIGURE_COUNT; i++)
		fprintf(file, "%s %llu\n", names[i], (unsigned long long)figures[i]);
	CHECK(!fclose(file));
}

int main(int count, char **words)
{
	void **registered = __cudaRegisterFatBinary(&fat_binary);
	int steps, hot, device;
	size_t available, total;

	CHECK(count == 5 || count == 6);
	state = strtoull(words[1], NULL, 0);
	steps = atoi(words[2]);
	hot = atoi(words[3]);
	for (int i = 0; i < 2; i++)
		__cudaRegisterFunction(registered, &stubs[i], kernels[i].name, kernels[i].name, -1, NULL, NULL, NULL, NULL,
		                       NULL);
	__cudaRegisterFatBinaryEnd(registered);
	/* The process has a context from here on. */
	CHECK(!cudaMemGetInfo(&available, &total));
	if (count == 6) {
		for (int i = 0; i < steps / 2; i++)
			step();
		memset(figures, 0, sizeof(figures));
		for (int i = 0; i < holds; i++)
			held[i].counted = 0;
		puts("ready");
		fflush(stdout);
		while (access(words[5], F_OK))
			usleep(1000);
	}
	for (int i = 0; i < steps; i++) {
		step();
		for (int j = 0; i == steps / 4 && j < hot; j++) {
			CHECK(!cudaGetDevice(&device));
			ADD(get_device, 1);
		}
	}
	report(words[4]);
	__cudaUnregisterFatBinary(registered);
	return 0;
}
