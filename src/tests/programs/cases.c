// The three cases that GPUprobe publishes, in one program: three cudaMalloc of 8 MiB and two cudaFree; 1,000
// rounds of two kernels; a copy each way. Linked with the stand-in libraries. Out: the exit status only.
#include "../../demo/common/standin.h"
#include "../../demo/program/cuda.h"

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

static char stub_a, stub_b;
static char host[4 << 20];

int main(void)
{
	void **registered = __cudaRegisterFatBinary(&fat_binary);
	struct dim3 one = {1, 1, 1}, a = {32, 1, 1}, b = {64, 1, 1};
	void *p[3];
	int failed = 0;

	__cudaRegisterFunction(registered, &stub_a, kernels[0].name, kernels[0].name, -1, NULL, NULL, NULL, NULL, NULL);
	__cudaRegisterFunction(registered, &stub_b, kernels[1].name, kernels[1].name, -1, NULL, NULL, NULL, NULL, NULL);
	__cudaRegisterFatBinaryEnd(registered);
	for (int i = 0; i < 3; i++)
		failed |= cudaMalloc(&p[i], 8 << 20);
	for (int i = 0; i < 1000; i++) {
		failed |= cudaLaunchKernel(&stub_a, one, a, (void *[]){&p[0]}, 0, NULL);
		failed |= cudaLaunchKernel(&stub_b, one, b, (void *[]){&p[0]}, 0, NULL);
	}
	failed |= cudaMemcpy(p[0], host, 4 << 20, TO_DEVICE);
	failed |= cudaMemcpy(host, p[1], 2 << 20, TO_HOST);
	failed |= cudaDeviceSynchronize();
	failed |= cudaFree(p[0]);
	failed |= cudaFree(p[1]);
	__cudaUnregisterFatBinary(registered);
	return failed != 0;
}
